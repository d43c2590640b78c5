"""One linear model of all timed cells: how much longer than predicted decoding takes, and how well
that is known for configurations that were timed and for others.

    log(seconds of a cell / seconds predicted) = plain(block, b) + [k > 0] · δ(draft, k, b) + noise

    built-in  δ = runner + runner at b + draft + draft at b + k + k at b
                  + (o at b + o of such drafts + o of the draft) · step / round
    engine    rounds over k: lines of one level with the same bends at b, a slope for each draft;
              starts + drift · place, or a session's, where servers took turns
    tokens    every configuration has its own δ, where neither passes nor rounds are known

All effects are normal around 0 with the standard deviations below. Given the noise of a cell and,
for the built-in decoder, how much drafts differ, they are drawn exactly; these two are unknown and
drawn from a grid. A draft, k or concurrency without a cell gets its effects from what the others
make likely; between two timed concurrencies effects are linear in log b. log speed-up = predicted -
δ.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import NamedTuple

import numpy as np

from draftbench.acceptance.intervals import RESAMPLES, generator_of
from draftbench.acceptance.rounds import Floats, Ints
from draftbench.drafts.kinds import kind_of
from draftbench.planner.cells import Cell
from draftbench.planner.passes import rising
from draftbench.planner.recommendation import Configuration
from draftbench.records import Candidate
from draftbench.remembered import remembered

# Standard deviations of effects before any cell is seen. For one configuration they add up to about
# 5%: 44 decoded ones of real runs were 4.5% (root mean square) off what passes predict.
FREE, RUNNER, DRAFT, AT_CONCURRENCY, K = 2.0, 0.03, 0.03, 0.015, 0.012
# Target steps that a round may take beyond its passes; and seconds that Python may take for it, as
# much again for one draft more than for another, which count where they are more: where a step
# takes less than three milliseconds.
CONSTANT, SECONDS = 0.06, 2e-4
# The usual noise of a cell (sd), and how many degrees of freedom this prior counts as.
CELL_NOISE, CELL_FREEDOM = 0.012, 2.0
# The same for a start of an engine's server: half of all machines have 3.5 to 12%. Starts scattered
# by 2.1 to 2.5% (25 kinds of llama-server), by 3.1% (a larger model) and, for vLLM on a busy
# machine, by 6.5 to 8.7%. If no server was started twice, nothing can show more noise than that, so
# noise over 10% is then ruled out.
START_NOISE, START_FREEDOM, MOST_BY_DEFAULT = 0.04, 1.0, 0.1
# How much the slope of an engine's rounds over k changes from one k to the next (sd), as a share of
# the slope. With three drafts on llama.cpp and every pair of eight started k's, 294 rounds between
# the pair were off the line by 3.7% (root mean square), 180 below it by 11%.
BEND = 0.28
# How much the levels of two drafts' lines differ (sd), in target steps: what a round takes
# regardless of k is mostly the target's part.
LEVEL = 0.1
# Grid points less likely than this are not drawn.
_UNLIKELY = 1e-4

Effect = tuple[object, ...]


class Part(NamedTuple):
    """How much an effect, with its prior standard deviation, counts in a logarithm."""

    effect: Effect
    sd: float
    value: float


class _Given(NamedTuple):
    """The model at one point of the grid: the noise, prior standard deviations of effects, and the
    inverse covariance of the cells.
    """

    noise: float
    prior: Floats
    inverse: Floats


class Effects:
    """The effects of a run's cells, drawn: `mean` [1 + draws, effects] holds what each draw of
    requests makes likely, `noise` [draws, effects] what the cells leave open, `given` [draws] the
    point of the `grid` of each draw. `known` are the configurations that may be asked about.
    """

    def __init__(
        self, cells: Sequence[Cell], design: Design, known: Sequence[Configuration]
    ) -> None:
        self.cells, self.design, self._sds = cells, design, dict[Effect, float]()
        rows = [self._row(design.cell(cell)) for cell in cells]
        for each in known:  # so that every effect has a column
            self._row(design.plain(each))
            self._row(design.rounds(each, 1.0))
        # By name, so that no draw depends on the order of candidates or requests.
        self._sds = dict(sorted(self._sds.items(), key=str))
        self.z = self._matrix(rows)
        y = [cell.log_slowdown - design.first_guess(cell) for cell in cells]
        self.y = np.stack(y, axis=1) if y else np.zeros((RESAMPLES + 1, 0))
        # How likely each noise of a cell is, and each spread of drafts.
        sds, first = np.array(list(self._sds.values())), self.y[0]
        scaled = np.array([name[0] in design.scaled for name in self._sds], dtype=bool)
        noisy = np.array([name[0] in design.noisy for name in self._sds], dtype=bool)
        self.grid, logs = list[_Given](), list[float]()
        for noise, spread in product(design.noises.tolist(), design.spreads):
            prior = np.where(scaled, spread, 1.0) * np.where(noisy, noise, 1.0) * sds
            covariance = (self.z * prior**2) @ self.z.T + noise**2 * np.eye(len(first))
            inverse = np.linalg.inv(covariance)
            log = float(np.linalg.slogdet(inverse)[1] - first @ inverse @ first) / 2
            doubt = design.freedom * (math.log(noise) + (design.usual / noise) ** 2 / 2)
            self.grid.append(_Given(noise, prior, inverse))
            logs.append(log - doubt)
        chances = np.exp(np.array(logs) - max(logs))
        chances[chances < _UNLIKELY * chances.sum()] = 0.0
        self.chances: Floats = chances / chances.sum()
        # Posterior gain [effects, cells] and covariance [effects, effects] at each grid point that
        # has weight.
        count, learned = len(sds), {}
        self.mean, self.noise = np.zeros((RESAMPLES + 1, count)), np.zeros((RESAMPLES, count))
        for number in np.flatnonzero(self.chances).tolist():
            variances = self.grid[number].prior ** 2
            gain = (variances[:, None] * self.z.T) @ self.grid[number].inverse
            learned[number] = gain, np.diag(variances) - gain @ (self.z * variances)
            self.mean[:] += self.chances[number] * (gain @ first)
        shares = (generator_of("grid").permutation(RESAMPLES) + 0.5) / RESAMPLES
        at = np.searchsorted(np.cumsum(self.chances), shares)
        self.given: Ints = np.minimum(at, max(learned))
        normal = generator_of("effects").standard_normal((RESAMPLES, count))
        for number, (gain, left) in learned.items():
            drawn = np.flatnonzero(self.given == number)
            self.mean[1 + drawn] += (self.y[1 + drawn] - first) @ gain.T
            self.noise[drawn] = gain @ first - self.mean[0] + normal[drawn] @ root(left).T

    def _row(self, parts: Iterator[Part]) -> dict[Effect, float]:
        row: dict[Effect, float] = defaultdict(float)
        for effect, sd, value in parts:
            self._sds.setdefault(effect, sd)
            row[effect] += value
        return row

    def _matrix(self, rows: Sequence[Mapping[Effect, float]]) -> Floats:
        at = {effect: n for n, effect in enumerate(self._sds)}
        table = np.zeros((len(rows), len(at)))
        for n, row in enumerate(rows):
            table[n, [at[effect] for effect in row]] = list(row.values())
        return table

    def longer(
        self, configurations: Sequence[Configuration], steps: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """How much longer than predicted plain decoding and rounds take, as logarithms [...,
        configurations, 2]: the estimate, its values under drawn requests [draws, ...], and its
        values within what the cells leave open [draws, ...].
        """
        design, rows, offsets = self.design, list[dict[Effect, float]](), list[float]()
        for each, step in zip(configurations, steps.tolist(), strict=True):
            rows += map(self._row, (design.plain(each), design.rounds(each, step)))
            offsets += design.offset(each.at(0)), design.offset(each)
        sides = self._matrix(rows).T
        both = self.mean @ sides + np.array(offsets), self.noise @ sides
        requests, time = (each.reshape(len(each), len(configurations), 2) for each in both)
        time = requests[:1] + time
        requests, time = (self.design.monotone(configurations, each) for each in (requests, time))
        return requests[0], requests[1:], time

    def slower(
        self, configuration: Configuration, step: float, without: Configuration | None
    ) -> float:
        """δ of a configuration at the likeliest point of the grid, as if the cells of `without` had
        not been timed.
        """
        design, mean = self.design, self._mean_without(without)
        both = design.plain(configuration), design.rounds(configuration, step)
        plain, rounds = self._matrix([self._row(parts) for parts in both])
        offset = design.offset(configuration) - design.offset(configuration.at(0))
        return float((rounds - plain) @ mean) + offset

    @remembered
    def _mean_without(self, left_out: Configuration | None) -> Floats:
        given = self.grid[int(self.chances.argmax())]
        rest = np.array([cell.configuration != left_out for cell in self.cells], dtype=bool)
        z, variances = self.z[rest], given.prior**2
        covariance = (z * variances) @ z.T + given.noise**2 * np.eye(len(z))
        found: Floats = (variances[:, None] * z.T) @ np.linalg.inv(covariance) @ self.y[0, rest]
        return found


def root(covariance: Floats) -> Floats:
    """The symmetric square root of a covariance; it does not depend on the order of the rows."""
    values, vectors = np.linalg.eigh((covariance + covariance.mT) / 2)
    found: Floats = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :] @ vectors.mT
    return found


def reshaped(one: Floats, other: Floats) -> Floats:
    """The symmetric matrix that turns draws with one covariance into draws with another and moves
    them least (Olkin & Pukelsheim 1982).
    """
    side = root(one)
    inverse = np.linalg.pinv(side)
    found: Floats = inverse @ root(side @ other @ side) @ inverse
    return found


class BuiltInDesign:
    """Cells of the built-in decoder; every process also decodes without a draft, next to each.

    `noises` and `spreads` make the grid; the prior of effects whose name begins with one of
    `scaled` is multiplied by the spread, that of `noisy` ones by the noise.
    """

    noises: Floats = np.geomspace(0.003, 0.12, 14)
    spreads: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    usual, freedom = CELL_NOISE, CELL_FREEDOM
    scaled: tuple[str, ...] = ("draft", "draft at")
    noisy: tuple[str, ...] = ()

    def __init__(self, cells: Sequence[Cell], concurrencies: Sequence[int]) -> None:
        self.concurrencies = concurrencies
        # A cell known by tokens says how long these took: its offset is that of its baseline.
        self.alone = {
            c.configuration: float(c.log_slowdown[0]) for c in cells if c.predicted_by == "tokens"
        }
        steps = defaultdict[int, list[float]](list)
        for cell in cells:
            if cell.step_seconds:
                steps[cell.configuration.concurrency].append(cell.step_seconds)
        # By load, how many target steps `SECONDS` are.
        self.constants = {at: SECONDS / fmean(each) for at, each in steps.items()}
        self.largest_constant = max(self.constants.values(), default=0.0)
        self.processes: dict[tuple[Candidate, int], list[str]] = defaultdict(list)
        for cell in cells:
            if cell.configuration.k == 0:
                of = cell.configuration.candidate, cell.configuration.concurrency
                self.processes[of].append(cell.process)

    def offset(self, configuration: Configuration) -> float:
        """A first guess of what its cells have in common, which keeps the effects small."""
        return self.alone.get(configuration.at(0), 0.0)

    def first_guess(self, cell: Cell) -> float:
        """A first guess of the logarithm of a cell."""
        return self.offset(cell.configuration)

    def cell(self, cell: Cell) -> Iterator[Part]:
        """The effects of a cell, without its first guess."""
        own = cell.configuration
        yield Part(("plain", own.candidate, own.concurrency, cell.process), FREE, 1.0)
        if own.k:
            yield from self._slower(own, cell.step_per_round)

    def plain(self, configuration: Configuration) -> Iterator[Part]:
        """The effects of decoding without a draft, next to a configuration."""
        for concurrency, weight in around(configuration.concurrency, self.concurrencies):
            names = self.processes.get((configuration.candidate, concurrency), [])
            for name in names:
                effect = "plain", configuration.candidate, concurrency, name
                yield Part(effect, FREE, weight / len(names))

    def rounds(self, configuration: Configuration, step: float) -> Iterator[Part]:
        """The effects of decoding with it; `step` is a target step over the passes of a round."""
        yield from self.plain(configuration)
        yield from self._slower(configuration, step)

    def _slower(self, configuration: Configuration, step: float) -> Iterator[Part]:
        candidate, stop = configuration.candidate, configuration.stop
        if configuration in self.alone:
            yield Part(("alone", configuration), FREE, 1.0)
            return
        # All rules of a kind do the same beside their passes, whatever their k and threshold.
        k = stop.kind if stop else configuration.k
        yield Part(("runner",), RUNNER, 1.0)
        yield Part(("draft", candidate), DRAFT, 1.0)
        yield Part(("k", k), K, 1.0)
        for concurrency, weight in around(configuration.concurrency, self.concurrencies):
            yield Part(("runner at", concurrency), AT_CONCURRENCY, weight)
            yield Part(("draft at", candidate, concurrency), AT_CONCURRENCY, weight)
            yield Part(("k at", k, concurrency), K, weight)
            yield Part(("constant at", concurrency), CONSTANT, weight * step)
            if self.largest_constant > CONSTANT:
                share = weight * step * self.constants.get(concurrency, 0.0) / self.largest_constant
                copies = kind_of(candidate.draft).from_text  # which takes no passes
                yield Part(("constant", copies), self.largest_constant, share)
                yield Part(("constant of", candidate), self.largest_constant, share)

    def monotone(self, configurations: Sequence[Configuration], longer: Floats) -> Floats:
        """Passes are monotone already."""
        return longer


def around(concurrency: int, timed: Sequence[int]) -> Iterator[tuple[int, float]]:
    """The timed loads around a load, with weights that are linear in its logarithm."""
    low = max((each for each in timed if each <= concurrency), default=timed[0])
    high = min((each for each in timed if each >= concurrency), default=timed[-1])
    share = math.log(concurrency / low) / math.log(high / low) if low < high else 0.0
    yield low, 1 - share
    if share:
        yield high, share


class _Lines(NamedTuple):
    """First lines through the rounds of all drafts at one load, in seconds for k = 1, …; the
    seconds of a `step`; how bends move every line [ks, bends]; and whether the lines begin at the
    step, because no draft was started at two k's.
    """

    seconds: Mapping[Candidate, Floats]
    step: float
    bends: Floats
    from_step: bool


class EngineDesign:
    """Starts of an engine's servers. A round is a target pass over k + 1 tokens, which costs the
    same with every draft, and k draft steps. So over k the rounds at one load lie on lines of
    nearly the same level and with the same bends (integrated Brownian motion: its mean is the
    smoothing spline of Wahba 1978), and what one draft shows of these counts for all. The level is
    not the target step, since the first drafted token costs more than each further one. The drift,
    how much slower the machine gets from one start to the next, is about as large as the noise; it
    shows if drafts were started in several turns. Where a server without a draft took turns with
    each one that drafts, the machine may have had any speed in each session: only the two are
    compared.
    """

    spreads: tuple[float, ...] = (1.0,)
    usual, freedom = START_NOISE, START_FREEDOM
    scaled: tuple[str, ...] = ()
    noisy: tuple[str, ...] = ("drift",)

    def __init__(self, cells: Sequence[Cell], ks: Sequence[int], *, in_turn: bool = False) -> None:
        logs: dict[int, dict[Candidate | None, dict[int, list[float]]]]
        logs = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
        starts = Counter[tuple[Candidate | None, int, int]]()
        self.paces = _paces(cells) if in_turn else {}
        for cell in cells:
            own, pace = cell.configuration, self.paces.get(_session(cell))
            of = own.candidate if own.k else None
            if of or pace is None:  # a server beside another shows no noise: the pace takes it up
                starts[of, own.k, own.concurrency] += 1
            if (cell.predicted_by != "tokens" or of is None) and own.stop is None:
                logs[own.concurrency][of][own.k].append(float(cell.log_slowdown[0]) - (pace or 0.0))
        self.turns = max((often for (of, *_), often in starts.items() if of), default=1)
        self.repeated = max(starts.values(), default=1) > 1
        most = 0.5 if self.repeated else MOST_BY_DEFAULT
        noises = np.geomspace(START_NOISE / 8, 0.5, 31)
        self.noises = noises[noises <= most]
        self.alone = {
            c.configuration: float(c.log_slowdown[0]) for c in cells if c.predicted_by == "tokens"
        }
        self.started = {c.configuration for c in cells if c.configuration.k}
        # Tokens that a round drafts on average, where a rule may stop it before k.
        self.drafted = {c.configuration: c.drafted for c in cells if c.configuration.stop}
        largest = max([*ks, *(c.configuration.k for c in cells), 1])
        self.steps = {n: float(np.mean(by[None][0])) for n, by in logs.items() if None in by}
        self.lines = {
            concurrency: _first_lines(
                math.exp(self.steps[concurrency]), {of: b for of, b in by.items() if of}, largest
            )
            for concurrency, by in logs.items()
            if concurrency in self.steps and any(by)
        }

    def offset(self, configuration: Configuration) -> float:
        if configuration.k == 0:
            return self.steps.get(configuration.concurrency, math.nan)
        if configuration in self.alone:
            return self.alone[configuration]
        line = self._line(configuration)
        if line is None:
            return math.nan
        return math.log(self._at(configuration, line, self.lines[configuration.concurrency].step))

    def _at(self, configuration: Configuration, values: Floats, without: float) -> float:
        """A value that is known for k = 1, 2, …, and without a draft, at the tokens that the rounds
        of a configuration draft.
        """
        tokens = self.drafted.get(configuration, configuration.k)
        return float(np.interp(tokens, np.arange(len(values) + 1), [without, *values]))

    def _line(self, configuration: Configuration) -> Floats | None:
        lines = self.lines.get(configuration.concurrency)
        return lines.seconds.get(configuration.candidate) if lines else None

    def first_guess(self, cell: Cell) -> float:
        """A first guess of the logarithm of a cell."""
        return self.offset(cell.configuration) + self.paces.get(_session(cell), 0.0)

    def cell(self, cell: Cell) -> Iterator[Part]:
        if _session(cell) in self.paces:
            yield Part(("session", *_session(cell)), FREE, 1.0)
        else:
            yield Part(("drift",), 1.0 if self.turns > 1 else 0.0, float(cell.place))
        own = cell.configuration
        yield from self.rounds(own, 1.0) if own.k else self.plain(own)

    def plain(self, configuration: Configuration) -> Iterator[Part]:
        yield Part(("plain", configuration.concurrency), FREE, 1.0)

    def rounds(self, configuration: Configuration, step: float) -> Iterator[Part]:
        own = configuration.candidate, configuration.concurrency
        line = self._line(configuration)
        if configuration in self.alone:
            yield Part(("alone", configuration), FREE, 1.0)
        elif line is not None:
            lines = self.lines[configuration.concurrency]
            seconds = self._at(configuration, line, lines.step)
            level = "plain" if lines.from_step else "level"
            yield Part((level, configuration.concurrency), FREE, lines.step / seconds)
            yield Part(("own level", *own), LEVEL, lines.step / seconds)
            tokens = self.drafted.get(configuration, configuration.k)
            yield Part(("slope", *own), FREE, lines.step * tokens / seconds)
            for n, bend in enumerate(lines.bends.T):
                value = self._at(configuration, bend, 0.0) / seconds
                yield Part(("bend", configuration.concurrency, n), 1.0, value)

    def seconds(self, candidate: Candidate, concurrency: int) -> Floats | None:
        """First guesses of a round's seconds by the tokens that it drafts, from 0."""
        lines = self.lines.get(concurrency)
        if lines is None or candidate not in lines.seconds:
            return None
        return np.array([lines.step, *lines.seconds[candidate]])

    def started_beside(self, configuration: Configuration) -> bool:
        """Whether its draft was also started at another k at this load."""
        at = configuration.candidate, configuration.concurrency
        others = self.started - {configuration}
        return any((each.candidate, each.concurrency) == at for each in others)

    def monotone(self, configurations: Sequence[Configuration], longer: Floats) -> Floats:
        """Make a draft's rounds take no less time at a larger k [draws, configurations, 2]: values
        at started k's become the nearest rising ones (Lin & Dunson 2014), others are kept between
        these, and none is below a target step.
        """
        found = longer.copy()
        by_draft = defaultdict(list)
        for at, each in enumerate(configurations):
            if each not in self.alone and each.stop is None:
                by_draft[each.candidate, each.concurrency].append(at)
        for own in by_draft.values():
            own.sort(key=lambda at: configurations[at].k)
            started = [at for at in own if configurations[at] in self.started]
            found[:, started, 1] = rising(found[:, started, 1])
            least = found[:, own[0], 0]
            for place, at in enumerate(own):
                if at not in started:
                    found[:, at, 1] = np.maximum(found[:, at, 1], least)
                    above = next((n for n in own[place:] if n in started), None)
                    if above is not None:
                        found[:, at, 1] = np.minimum(found[:, at, 1], found[:, above, 1])
                least = np.maximum(least, found[:, at, 1])
        return found


Design = BuiltInDesign | EngineDesign
_Session = tuple[Candidate, int, str]


def _session(cell: Cell) -> _Session:
    """The process in which servers took turns at a load."""
    return cell.configuration.candidate, cell.configuration.concurrency, cell.process


def _paces(cells: Sequence[Cell]) -> dict[_Session, float]:
    """How much slower plain decoding was in a session than in all at its load, as a logarithm."""
    plain = {
        _session(cell): float(cell.log_slowdown[0]) for cell in cells if not cell.configuration.k
    }
    usual = {n: fmean(log for (_, at, _), log in plain.items() if at == n) for _, n, _ in plain}
    return {session: log - usual[session[1]] for session, log in plain.items()}


def _first_lines(
    step: float, by_draft: Mapping[Candidate, Mapping[int, Sequence[float]]], largest: int
) -> _Lines:
    """Lines with one level through the started k's, nowhere below a target step."""
    drafts = sorted(by_draft, key=str)
    points = [(of, k, math.exp(np.mean(by_draft[of][k]))) for of in drafts for k in by_draft[of]]
    from_step = len(points) == len(drafts)
    every = np.arange(1, largest + 1)
    table = [[1.0, *(k if of == each else 0.0 for each in drafts)] for of, k, _ in points]
    through = [seconds for *_, seconds in points]
    if from_step:
        table, through = [[1.0, *np.zeros(len(drafts))], *table], [step, *through]
    weighed = np.array(table) / np.array(through)[:, None]
    level, *slopes = np.linalg.lstsq(weighed, np.ones(len(through)), rcond=None)[0].tolist()
    slopes = [max(slope, 0.0) for slope in slopes]
    lines = {
        of: np.maximum(level + slope * every, step)
        for of, slope in zip(drafts, slopes, strict=True)
    }
    along = every - (0.0 if from_step else 1.0)
    low, high = np.minimum.outer(along, along), np.maximum.outer(along, along)
    bends = (BEND * fmean(slopes)) ** 2 * low**2 * (3 * high - low) / 6
    return _Lines(lines, step, root(bends), from_step)
