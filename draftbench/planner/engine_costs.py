"""What a serving engine was started with → seconds of a round at every k, and how sure they are.

An engine does not say which part of a round is drafting and which verifying: c, v and o stay
unknown. It gives the seconds of whole rounds at the k's it was started with, and those of a target
step, which is a round at k = 0. Starts of one server differ (memory, threads, what else runs), and
where each was started once, nearly nothing shows by how much. So all starts are fitted together:

    log seconds of a round in one start = log f(k) + drift · place of the start + noise

- f(k) is a straight line over the drafted k's with bends (integrated Brownian motion: its mean is
  the smoothing spline of Wahba 1978). It never falls with k: started k's that would are replaced
  by their nearest monotone values (Lin & Dunson 2014). The target step f(0) is fitted apart, since
  the first drafted token costs more than each further one. A k that was started once and by luck
  took little time is thereby corrected by the other k's; one that was started often hardly is.
- The noise has an unknown standard deviation. Before any start was seen, machines are taken to
  differ widely in it (inverse chi-square with one degree of freedom, as heavy a tail as the half-
  Cauchy of Gelman 2006). Repeated starts and distances from the line tell more of it (restricted
  likelihood), those of the run's other drafts too: one machine, one noise. Seconds are averaged and
  drawn over what is left of its values.
- The drift, how much slower the machine gets from each start to the next, is about as large as the
  noise. It is fitted where drafts were started several times, in turns between starts of the plain
  server; after a single turn it looks like noise and counts as noise.

A round's seconds also vary with the requests that were answered, so a speed-up draws both at once
(`speedups`): where some requests take longer rounds but fewer of them, that is no doubt.

Three drafts on llama.cpp, every pair of eight started k's: 294 rounds between the two were off the
line by 3.7 % (root mean square), 180 below them by 11 %.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np

from draftbench.acceptance.definitions import Sample, quotient
from draftbench.acceptance.intervals import RESAMPLES, generator_of
from draftbench.acceptance.rounds import Floats, Ints, Rounds
from draftbench.planner.costs import isotonic
from draftbench.planner.measured import SPEEDUP
from draftbench.planner.recommendation import FEW_DECODED
from draftbench.records import Candidate, Decode
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

# The noise of a start (sd of the logarithm) before any was seen: half of all machines have 2.6 to
# 9 %. Starts of one server scattered by 2.1 to 2.5 % (25 kinds of llama-server), by 3.1 % (a larger
# model) and, of vLLM on a busy machine, by 6.5 to 8.7 %. Where no server was started twice, nothing
# can show more noise than any of these had, and by default there is none over 10 %.
START_NOISE, PRIOR_FREEDOM = 0.03, 1
_NOISES = np.geomspace(START_NOISE / 8, 0.5, 41)
_MOST_BY_DEFAULT = 0.1
# The drift between two starts (sd), in standard deviations of the noise.
_DRIFT = 1.0
# How much the line's slope changes from one k to the next (sd), as a share of the slope.
_BEND = 0.28


class Start(NamedTuple):
    """Which of the run's starts it was, and the logarithm of the seconds of its rounds."""

    place: int
    log: float


@dataclass(frozen=True, eq=False)
class RoundCosts:
    """Seconds of a round of one candidate at one concurrency, from the starts of each k and those
    of the plain server at k = 0.

    `answers` are, by k, of each request the seconds of decoding, its rounds, the seconds of
    prefills, and how many answers that are.
    """

    starts: Mapping[int, Sequence[Start]]
    answers: Mapping[int, Mapping[str, Floats]] = field(default_factory=dict)
    candidate: str = ""
    concurrency: int = 1
    # Servers that were running, which a sweep does not start again.
    given: bool = False
    # The run's other candidates at this concurrency, whose starts met the same machine.
    others: tuple[RoundCosts, ...] = ()

    @cached_property
    def started(self) -> tuple[int, ...]:
        """The k's that were started, ascending, without the baseline."""
        return tuple(sorted(k for k in self.starts if k))

    @property
    def turns(self) -> int:
        """How often a sweep came round to its servers: some k's join in a later turn."""
        return max((len(starts) for k, starts in self.starts.items() if k), default=1)

    def starts_at(self, k: int) -> int:
        """How often k was started; 1 if never."""
        return len(self.starts.get(k, ())) or 1

    @property
    def repeats(self) -> int:
        """How many starts of the run's servers were of one that was started before."""
        drafted = (len(each.starts[k]) for each in (self, *self.others) for k in each.started)
        return len(self.starts[0]) - 1 + sum(often - 1 for often in drafted)

    def freedom_with(self, turns: int) -> int:
        """Degrees of freedom that tell the noise when every server is started once in each turn,
        the plain one once more.
        """
        servers = sum(len(each.started) for each in (self, *self.others))
        return PRIOR_FREEDOM + turns + servers * (turns - 1)

    @remembered
    def without(self, k: int) -> RoundCosts:
        """As if k had not been started; the baseline stays."""
        if k not in self.started:
            return self
        starts = {other: each for other, each in self.starts.items() if other != k}
        return replace(self, starts=starts)

    def at(self, k: int) -> float | None:
        """Seconds of a round at k; None where nothing with a draft was started."""
        return float(self._curve(k).seconds[k]) if self.started else None

    def speedups(self, tokens_per_round: Sample, k: int) -> tuple[Sample, Sample] | None:
        """The speed-up of decoding at k, and that with both prefills. None where no request was
        answered with and without the draft.

        Responses take their rounds, as in `tokens_per_round`, times the seconds of a step or of a
        round. These are as fitted, and differ between requests as they did when answered, at a k
        that was not started as at the nearest one.
        """
        nearest = min(self.started, key=lambda started: (abs(started - k), started))
        plain, drafted = (self.answers.get(side, {}) for side in (0, nearest))
        columns = np.zeros((len(tokens_per_round.requests), 8))
        for row, request in enumerate(tokens_per_round.requests):
            if request in plain and request in drafted:
                columns[row] = (*plain[request], *drafted[request])
        if not columns.any():
            return None
        for column, answers, fitted in ((0, plain, 0), (4, drafted, k)):
            seconds, rounds, *_ = np.sum(list(answers.values()), axis=0)
            columns[:, column] *= self._curve(k).seconds[fitted] * rounds / seconds
        once = np.ones((len(columns), 1))
        # The requests that were answered are those that count: by their seconds with the draft.
        decoding = Sample(
            SPEEDUP,
            tokens_per_round.requests,
            tokens_per_round.weights,
            np.concatenate([tokens_per_round.addends, columns, once], axis=1),
            _decode_speed,
            denominator=6,
        )
        return decoding, replace(decoding, combine=_whole_speed)

    def decoding(self, rounds: Rounds) -> Floats | None:
        """Seconds of decoding [responses, 2], without and with speculation."""
        return _decoding(self._curve(rounds.k).seconds, rounds) if self.started else None

    def decoding_redrawn(self, rounds: Rounds) -> Floats | None:
        """Draws of the seconds of decoding [draws, responses, 2]."""
        if not self.started:
            return None
        return _decoding(self._curve(rounds.k).draws[..., None], rounds)

    @property
    def slowed(self) -> dict[int, float]:
        """By k, how much longer (logarithm) its rounds took than those of the plain server because
        its starts met a slower machine; taken out of the seconds.
        """
        drift = self._curve(1).drift if self.started else 0.0
        middles = {k: fmean(start.place for start in starts) for k, starts in self.starts.items()}
        return {k: drift * (middle - middles[0]) for k, middle in middles.items()}

    def put_down_to_luck(self, k: int) -> float:
        """By how much longer rounds at a started k are taken to last than its starts took (log),
        since the other k's make such short ones unlikely.
        """
        measured = fmean(start.log for start in self.starts[k]) - self.slowed[k]
        return math.log(self._curve(k).seconds[k]) - measured

    @cached_property
    def _likelihood(self) -> Floats:
        """Logarithm of the likelihood of every noise by the starts with a draft alone [noises]."""
        places, logs = np.array(self.starts[0], dtype=float).T
        noise = _noise(places - places.mean(), self.turns)
        plain = _krige(logs, np.ones((len(logs), 1)), _NOISES[:, None, None] ** 2 * noise)
        return self._curve(1).likelihood - plain.likelihood

    def _curve(self, k: int) -> _Curve:
        return self._curve_to(max(k, *self.starts))

    @remembered
    def _curve_to(self, largest: int) -> _Curve:
        return _fit(self, largest)


def _decode_speed(sums: Floats) -> Floats:
    """The speed-up of decoding from sums [..., 11]: tokens and rounds of all responses; of the
    answered requests seconds, steps, prefills and answers without a draft, the same with rounds
    with it; requests.
    """
    per_step, per_round = quotient(sums[..., 2:4]), quotient(sums[..., 6:8])
    return quotient(np.stack([sums[..., 0] * per_step, sums[..., 1] * per_round], axis=-1))


def _whole_speed(sums: Floats) -> Floats:
    """The speed-up with both prefills, from the same sums."""
    per_step, per_round = quotient(sums[..., 2:4]), quotient(sums[..., 6:8])
    prefill, draft_prefill = (sums[..., 10] * quotient(sums[..., at : at + 2]) for at in (4, 8))
    plain, drafted = sums[..., 0] * per_step + prefill, sums[..., 1] * per_round + draft_prefill
    return quotient(np.stack([plain, drafted], axis=-1))


def _decoding(seconds: Floats, rounds: Rounds) -> Floats:
    """From seconds of a round by k [ks, ...]."""
    plain, drafted = seconds[0] * rounds.tokens, seconds[rounds.k] * rounds.target_passes
    return np.stack([plain, drafted], axis=-1)


@dataclass(frozen=True, eq=False)
class _Curve:
    """Rounds at k = 0, 1, …: seconds of a `line`, and how far the logarithm is from it, by standard
    deviation of the noise with its `chances` [noises]: `means` [noises, ks] and covariances
    `spreads` [noises, ks, ks]. `likelihood` is the logarithm of that of every noise by its starts.
    """

    costs: RoundCosts
    line: Floats
    means: Floats
    spreads: Floats
    likelihood: Floats
    chances: Floats
    drift: float

    @cached_property
    def seconds(self) -> Floats:
        """Seconds of a round [ks]."""
        return self._monotone(self.chances @ self.means)

    @cached_property
    def draws(self) -> Floats:
        """Draws of them [ks, draws]; all candidates share those of the plain server."""
        costs, drafted = self.costs, len(self.line) - 1
        normal = np.concatenate(
            [
                _normal(f"plain {costs.concurrency}", 1),
                _normal(f"{costs.candidate} {costs.concurrency}", drafted),
            ]
        )
        shares = (np.arange(RESAMPLES) + 0.5) / RESAMPLES
        at = np.minimum(np.searchsorted(np.cumsum(self.chances), shares), len(self.chances) - 1)
        roots = np.linalg.cholesky(self.spreads + 1e-12 * np.eye(drafted + 1))
        return self._monotone(self.means[at].T + np.einsum("dij,jd->id", roots[at], normal))

    def _monotone(self, off: Floats) -> Floats:
        """Seconds [ks, ...] from logarithms over those of the line. Those with a draft never fall
        with k: of started k's the nearest such values count, of others what lies between those.
        They take no less than a target step where k was not started.
        """
        logs = off + np.log(self.line).reshape(-1, *[1] * (off.ndim - 1))
        plain, found, started = logs[0], logs[1:].copy(), self.costs.started
        at = np.array(started) - 1
        found[at] = isotonic(found[at].T).T
        for k in sorted(set(range(1, len(logs))) - set(started)):
            least = np.maximum(found[k - 2], plain) if k > 1 else plain
            found[k - 1] = np.maximum(found[k - 1], least)
            above = next((larger for larger in started if larger > k), None)
            if above is not None:
                found[k - 1] = np.minimum(found[k - 1], found[above - 1])
        seconds: Floats = np.exp(np.concatenate([plain[None], found]))
        return seconds


def _fit(costs: RoundCosts, largest: int) -> _Curve:
    """The rounds up to a largest k."""
    ks = np.array([k for k, starts in sorted(costs.starts.items()) for _ in starts])
    starts = [start for _, each in sorted(costs.starts.items()) for start in each]
    every = np.arange(largest + 1)
    line, slope = _line(costs, every)
    logs = np.array([start.log for start in starts]) - np.log(line[ks])
    basis, bends = _shape(costs, every, line, slope)
    places = np.array([start.place for start in starts], dtype=float)
    places -= places[ks == 0].mean()
    noisy = _NOISES[:, None, None] ** 2 * _noise(places, costs.turns)
    fit = _krige(logs, basis[ks], bends[np.ix_(ks, ks)] + noisy)
    cross = bends[:, ks]
    free = basis - cross @ fit.inverse @ basis[ks]
    spreads = (
        bends - cross @ fit.inverse @ cross.T + free @ fit.covariance @ free.transpose(0, 2, 1)
    )
    means = fit.coefficients @ basis.T + fit.left @ cross.T
    weight = fit.likelihood + sum(each._likelihood for each in costs.others)
    weight -= PRIOR_FREEDOM * (2 * np.log(_NOISES) + (START_NOISE / _NOISES) ** 2)
    if not costs.repeats:
        weight[_NOISES > _MOST_BY_DEFAULT] = -np.inf
    chances = np.exp((weight - weight.max()) / 2)
    chances /= chances.sum()
    drifts = _drift(costs.turns) ** 2 * _NOISES**2 * (fit.left @ places)
    return _Curve(costs, line, means, spreads, fit.likelihood, chances, float(chances @ drifts))


def _drift(turns: int) -> float:
    return _DRIFT if turns > 1 else 0.0


def _noise(places: Floats, turns: int) -> Floats:
    """Covariance of the starts due to noise and drift, in squares of the noise [starts, starts]."""
    noise: Floats = np.eye(len(places)) + _drift(turns) ** 2 * np.outer(places, places)
    return noise


class _Fit(NamedTuple):
    """Universal kriging for every noise: `coefficients` [noises, functions] with `covariance`, what
    is `left` of the logarithms weighted by the `inverse` [noises, starts, starts], and twice the
    logarithm of the restricted `likelihood` [noises].
    """

    coefficients: Floats
    covariance: Floats
    left: Floats
    inverse: Floats
    likelihood: Floats


def _krige(logs: Floats, basis: Floats, covariances: Floats) -> _Fit:
    """Fits functions `basis` [starts, functions] to logarithms with such errors."""
    inverse = np.asarray(np.linalg.inv(covariances), np.float64)
    precision = basis.T @ inverse @ basis
    covariance = np.asarray(np.linalg.inv(precision), np.float64)
    coefficients = covariance @ basis.T @ inverse @ logs
    left = np.einsum("nij,nj->ni", inverse, logs - coefficients @ basis.T)
    likelihood = np.linalg.slogdet(inverse)[1] - np.linalg.slogdet(precision)[1] - left @ logs
    return _Fit(coefficients, covariance, left, inverse, likelihood)


def _line(costs: RoundCosts, ks: Ints) -> tuple[Floats, float]:
    """A first line through the started k's, no lower than the target step [ks], and its slope. With
    a single k it begins at the target step.
    """
    seconds = {k: math.exp(fmean(start.log for start in each)) for k, each in costs.starts.items()}
    lined = costs.started if len(costs.started) > 1 else (0, *costs.started)
    through = np.array([seconds[k] for k in lined])
    slope, first = np.polyfit(lined, through, 1, w=1 / through).tolist()
    if slope < 0:
        slope, first = 0.0, math.exp(np.log(through).mean())
    line = np.maximum(first + slope * ks, seconds[0])
    line[0] = seconds[0]
    return line, slope


def _shape(costs: RoundCosts, ks: Ints, line: Floats, slope: float) -> tuple[Floats, Floats]:
    """How rounds may differ from the first line, relative to it: freely in what spans `basis` [ks,
    functions], the target step and a straight line, and in bends of this covariance [ks, ks].
    """
    straight = np.stack([np.ones(len(ks)), ks], axis=1) / line[:, None]
    along = ks.astype(float)
    if len(costs.started) > 1:
        straight *= (ks > 0)[:, None]
        straight = np.concatenate([(ks == 0)[:, None], straight], axis=1)
        along = np.maximum(along - 1, 0)
    low, high = np.minimum.outer(along, along), np.maximum.outer(along, along)
    bends = (_BEND * slope) ** 2 * low**2 * (3 * high - low) / 6
    return straight, bends / np.outer(line, line)


def _normal(name: str, count: int) -> Floats:
    """Standard normal draws that belong to a name [count, draws]."""
    return generator_of(name).standard_normal((count, RESAMPLES))


def round_costs(
    run: Run, candidates: Sequence[Candidate]
) -> dict[Candidate, dict[int, RoundCosts]]:
    """The costs of candidates by the concurrencies at which they were served, ascending: of every k
    that answered enough requests, where the baseline did too.
    """
    alone = {candidate: _alone(run, candidate) for candidate in candidates}

    def others(candidate: Candidate, concurrency: int) -> tuple[RoundCosts, ...]:
        return tuple(
            costs[concurrency]
            for other, costs in alone.items()
            if other != candidate and concurrency in costs
        )

    return {
        candidate: {at: replace(each, others=others(candidate, at)) for at, each in costs.items()}
        for candidate, costs in alone.items()
    }


def _alone(run: Run, candidate: Candidate) -> dict[int, RoundCosts]:
    """The costs of a candidate by concurrency, as if there were no others."""
    by_load: defaultdict[int, defaultdict[int, list[Decode]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in run.decodes:
        if row.block == str(candidate) and row.output_tokens > 1:
            by_load[row.batch][row.k].append(row)
    places = {name: at for at, name in enumerate(dict.fromkeys(row.process for row in run.served))}
    running = frozenset(facts.process for facts in run.engines if not facts.started)
    costs = {}
    for concurrency, rows in sorted(by_load.items()):
        kinds = {k: started for k, each in rows.items() if (started := _starts(each, running))}
        if 0 in kinds and len(kinds) > 1:
            costs[concurrency] = RoundCosts(
                {
                    k: [Start(places[start[0].process], _log_seconds(start)) for start in each]
                    for k, each in kinds.items()
                },
                {k: _requests(list(chain(*each))) for k, each in kinds.items()},
                str(candidate),
                concurrency,
                given=bool(running),
            )
    return costs


def _requests(rows: list[Decode]) -> dict[str, Floats]:
    """Of each request the seconds of decoding, rounds, seconds of prefills, and answers."""
    sums: defaultdict[str, Floats] = defaultdict(lambda: np.zeros(4))
    for row in rows:
        sums[row.request] += (row.decode_seconds, len(row.proposed), row.prefills, 1)
    return sums


def _starts(rows: list[Decode], running: Set[str]) -> list[list[Decode]]:
    """Every start that answered enough requests; each repeat of an arm is one, and so is each
    process that measured it. All visits to a server that was `running` are of one start.
    """
    by_start: defaultdict[tuple[str, int] | None, list[Decode]] = defaultdict(list)
    for row in rows:
        by_start[None if row.process in running else (row.process, row.repeat)].append(row)
    return [
        own
        for own in by_start.values()
        if len(_requests(own)) >= FEW_DECODED
        and np.sum(list(_requests(own).values()), axis=0)[:2].all()
    ]


def _log_seconds(rows: list[Decode]) -> float:
    """Logarithm of the seconds of a round in one start."""
    spent, rounds, *_ = np.sum(list(_requests(rows).values()), axis=0).tolist()
    return math.log(spent / rounds)
