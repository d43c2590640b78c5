"""Configurations with their speed-ups → the best one, how sure that is, and what to expect of it.

A candidate that was decoded competes with its decoded k's only, and what breaks a limit does not
compete. A candidate that was not decoded must win even if its prediction is off by as much as such
predictions were where others were decoded.

All configurations are compared on the same resampled requests, so that what requests have in common
does not blur the comparison. Errors of time are drawn in addition: for a decoded configuration how
much cells scatter (`time_factors.py`), for a prediction its timing samples, the errors that such
predictions had, and how far its draft may differ from others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import (
    RESAMPLES,
    Estimate,
    estimate,
    generator_of,
    quantiles,
    student_quantile,
)
from draftbench.acceptance.rounds import Floats, Ints
from draftbench.planner.alternatives import Alternative, Kind, predicted_by
from draftbench.planner.predict import timing_factors
from draftbench.planner.time_factors import TimeDoubt, stretched
from draftbench.remembered import remembered

# Interleaved runs of one process differ by 1.6 points on their own: closer speeds are a tie.
TIMING_NOISE = 0.02
NO_DOUBT = TimeDoubt()
# Requests are split in so many parts, so many times; of very many requests less often. By one split
# the deciding speed-up of 12 simulated requests varies by 1.4 % (sd) from one split to another, by
# 200 by 0.1 %. To leave out one by one needs no splits, but is further from the truth: of six
# drafts alike by 7.2 % (sd) instead of 6.2, and it covers 88 % instead of 93.
_FOLDS, _SPLITS, _FEWEST_SPLITS, _SPLIT_REQUESTS = 5, 200, 10, 200_000
# Standard deviations from the middle to the ends of a 95 % interval.
_REACH = 1.96
_AT_ONCE = 100
_NONE = -1


@dataclass(frozen=True)
class Confidence:
    """Over drawn requests and times: how often an option is the best or ties with it, and what
    share of the best's speed it loses on average.
    """

    probability: float
    regret: float


class Ranking:
    """The alternatives that may be recommended, over all requests that any of them has figures of.

    Of those `considered`, those of unknown speed and those that break a limit do not compete. `by`
    is the speed-up that decides, `expected` or `end_to_end`; `doubt` are the errors of time.
    """

    def __init__(
        self,
        considered: Sequence[Alternative],
        by: Kind = "expected",
        doubt: TimeDoubt = NO_DOUBT,
    ) -> None:
        self.by: Kind = by
        self.time_doubt = doubt
        self.considered = tuple(considered)
        measured = {each.candidate for each in considered if each.corrected}
        known = [
            (each, sample)
            for each in considered
            if not each.breaks and (each.corrected or each.candidate not in measured)
            if (sample := each.speedup(by)) is not None
        ]
        # Among equally fast and large ones the first leads.
        known.sort(key=lambda pair: pair[0].name)
        self.alternatives = [each for each, _ in known]
        # An engine's other k's cannot be chosen, but one of them may be the best all the same.
        unstarted = [
            (each, sample)
            for each in considered
            if each.predictor.round_costs and not each.breaks and not each.corrected
            if each.candidate in measured and (sample := each.speedup(by)) is not None
        ]
        self._drawn = [each for each, _ in known + unstarted]
        self._samples = [sample for _, sample in known + unstarted]
        # Sorted, so that no draw and no split depends on the order of the traffic.
        self.requests = tuple(sorted({name for _, sample in known for name in sample.requests}))
        self._tables = [
            _placed(sample, sample.addends * sample.weights[:, None], self.requests)
            for sample in self._samples
        ]

    @cached_property
    def best(self) -> Alternative | None:
        """The best on all requests."""
        (chosen,) = self._picks(self._pooled[None]).tolist()
        return None if chosen == _NONE else self.alternatives[chosen]

    def errors_of(self, alternative: Alternative) -> tuple[float, ...]:
        """The errors of predictions made like that of an alternative."""
        return self.time_doubt.errors if alternative.errors is None else alternative.errors

    def runner_up(self, best: Alternative) -> Alternative | None:
        """The fastest of the other candidates at their best k's: the next row of a table."""
        fastest, speed = None, -math.inf
        for candidate in {each.candidate: None for each in self.alternatives}:
            its = [each for each in self.alternatives if each.candidate == candidate]
            other = None if candidate == best.candidate else Ranking(its, self.by).best
            sample = other and other.speedup(self.by)
            if sample and sample.value is not None and sample.value > speed:
                fastest, speed = other, sample.value
        return fastest

    def faster_within_noise(self, best: Alternative) -> list[Alternative]:
        """Those that are faster than the best, though within timing noise."""
        least = self._pooled[self.alternatives.index(best)]
        return [
            a for a, speed in zip(self.alternatives, self._pooled, strict=True) if speed > least
        ]

    def ties(self, alternative: Alternative) -> bool:
        """Whether it is as fast as the fastest within timing noise, as the choice counts speeds."""
        return bool(_tied(self._pooled[None])[0, self.alternatives.index(alternative)])

    def confidence(self, choice: Alternative | None) -> Confidence | None:
        """How sure a choice is, None meaning plain decoding, which always competes with speed 1."""
        if not self.alternatives:
            return None
        speeds = self._draws[:, 0 if choice is None else 1 + self.alternatives.index(choice)]
        known = np.isfinite(speeds)
        if not known.any():
            return None
        best = self._draws[known].max(axis=1)
        ties = speeds[known] >= (1 - TIMING_NOISE) * best
        lost = 1 - speeds[known] / best
        return Confidence(float(ties.mean()), float(lost.mean()))

    @cached_property
    def _draws(self) -> Floats:
        """Speed-ups over resampled requests and times, of plain decoding (1), every alternative and
        every k that an engine was not started with [draws, 1 + all of them], without the luck of
        the best.
        """
        generator = generator_of()
        requests = len(self.requests)
        alike = np.full(requests, 1 / requests)
        # Some draws at a time: counts of all of them grow with the traffic.
        values = np.concatenate(
            [
                self._values(generator.multinomial(requests, alike, size=_AT_ONCE).astype(float))
                for _ in range(RESAMPLES // _AT_ONCE)
            ]
        )
        factors = np.stack([self._factors(each) for each in self._drawn], axis=1)
        speeds = values * factors * math.exp(-self.luck)
        return np.concatenate([np.ones((RESAMPLES, 1)), speeds], axis=1)

    def doubt(self, alternative: Alternative, *, leads: bool = False) -> tuple[float, float]:
        """How far below and above its value the logarithm of a speed-up may be (95 %) because of
        errors of time, which resampled requests do not show.

        That which `leads` the drafts of an engine is the luckiest of them, and how large luck may
        be is hardly known, so its interval reaches further.
        """
        if alternative.of_cells:
            half, _ = self.doubt_in(alternative, alternative.processes)
            return half, half
        tail = self._leaders_tail if leads else 0.025
        low, high = quantiles(np.log(self._factors(alternative)), (tail, 1 - tail))
        return max(-low, 0.0), max(high, 0.0)

    def doubt_in(self, alternative: Alternative, processes: int) -> tuple[float, float]:
        """Half of the 95 % interval of the leader's logarithm due to errors of time, and their
        standard deviation, if its speed-up were timed in so many processes.
        """
        if alternative.of_cells:
            time, scatter = alternative.time_factor(self.by), self.time_doubt.scatter
            half = math.hypot(
                scatter.half_width(processes, more=processes - alternative.processes),
                time.half_width if time else 0.0,
            )
            return half, math.hypot(scatter.sd_in(processes), time.error if time else 0.0)
        half = max(self.doubt(alternative, leads=True))
        fewer = math.sqrt(alternative.processes / processes)
        costs = alternative.predictor.round_costs
        if costs is None:
            return half * fewer, half * fewer / _REACH
        # Two thirds of the draws, whose tails are those of an unknown noise between starts.
        low, high = quantiles(np.log(self._factors(alternative)), (0.16, 0.84))
        sd = (high - low) / 2 * fewer
        known = student_quantile(1 - self._leaders_tail, costs.freedom_with(processes)) * sd
        return min(half * fewer, known) if fewer < 1 else half, sd

    @property
    def _leaders_tail(self) -> float:
        """Which share of the draws is above the interval of an engine's leader, and below it.

        To hold for each of m drafts at once it would be divided by m (Bonferroni); but what luck
        adds on average is taken out already (`luck`). Two and six equal drafts whose starts differ
        by 10 % then wrongly say speculate in 2.3 and 1.5 % of simulated sweeps, in 3.3 and 5.2 % if
        it is not divided, in 1.0 and 0.8 % if by m.
        """
        drafts = {each.candidate for each in self.alternatives if each.predictor.round_costs}
        return 0.025 / math.sqrt(max(len(drafts), 1))

    @cached_property
    def luck(self) -> float:
        """By how much (logarithm) the best of several decoded drafts looks faster than it is, on
        average, since the one whose cells were timed with the most luck tends to lead: what the
        leader of drawn speed-ups gains by its draw. Between the k's of a draft an engine's rounds
        are corrected already, so all of them have the luck of its best.
        """
        candidates = [a.candidate for a in self.alternatives]
        if len(set(candidates)) < 2:
            return 0.0
        lucks = np.zeros((len(self.alternatives), RESAMPLES))
        fastest = {candidates[at]: self.alternatives[at] for at in np.argsort(self._pooled)}
        for at, each in enumerate(self.alternatives):
            if each.of_cells:
                # The mean over m k's in one process varies as its baseline and one m-th of a round.
                cells = 1 + 1 / candidates.count(each.candidate)
                sd = self._cell_sds * math.sqrt(cells / each.processes)
                lucks[at] = sd * _normal(str(each.candidate))
            elif each.corrected:
                lucks[at] = np.log(self._factors(fastest[each.candidate]))
        lucks -= lucks.mean(axis=1, keepdims=True)
        speeds = np.log(np.maximum(self._pooled, 1e-9))[:, None] + lucks
        return float(np.take_along_axis(lucks, speeds.argmax(axis=0)[None], axis=0).mean())

    def expected(self, alternative: Alternative, kind: Kind) -> Estimate | None:
        """A speed-up whose interval includes the errors that requests do not show."""
        return self.doubted(estimate(alternative.speedup(kind)), alternative)

    def doubted(
        self, speed: Estimate | None, alternative: Alternative, *, leads: bool = False
    ) -> Estimate | None:
        """A speed-up of an alternative, its interval over requests widened by those errors."""
        return stretched(speed, *self.doubt(alternative, leads=leads)) if speed else None

    @remembered
    def _factors(self, alternative: Alternative) -> Floats:
        """Factors by which a speed-up may differ because of errors of time [draws].

        For a decoded one, the scatter of cells (the baseline's for all k's of a draft, the rounds'
        for each k) and of requests. For a prediction, other samples of its timed passes, one of
        the errors that such predictions had, and how far its draft may differ from others, or the
        scatter of the decoded cells around it. For an engine's rounds, other starts and bends.
        """
        draft = _normal(str(alternative.candidate))
        scatter = self._cell_sds / math.sqrt(alternative.processes)
        scattered = scatter * (draft + _normal(alternative.name))
        if alternative.of_cells:
            time = alternative.time_factor(self.by)
            few = _normal(f"{alternative.candidate} decoded")
            return np.asarray(np.exp(scattered + (time.error if time else 0.0) * few))
        redrawn = timing_factors(
            alternative.predictor,
            alternative.prediction,
            RESAMPLES,
            prefills=self.by == "end_to_end",
            started=alternative.corrected,
        )
        if alternative.predictor.round_costs is not None:
            return redrawn
        if not alternative.decoded_around:
            scattered = self.time_doubt.drafts_differ * draft
        # What rounds take beyond their passes is mostly the runner's: one draw for all. Sorted, so
        # that it does not depend on the order of the candidates.
        off = np.array(sorted(self.errors_of(alternative)) or (0.0,))
        drawn = (generator_of("errors").random(RESAMPLES) * len(off)).astype(int)
        return np.asarray(redrawn / (1 + off[drawn]) * np.exp(scattered))

    @cached_property
    def _cell_sds(self) -> Floats:
        """The standard deviation of a cell's logarithm, which few cells leave uncertain [draws]."""
        scatter = self.time_doubt.scatter
        known = generator_of("scatter").chisquare(scatter.freedom, RESAMPLES) / scatter.freedom
        return np.asarray(scatter.sd / np.sqrt(known))

    def cross_fit(self) -> Sample | None:
        """The speed-up of choosing like this, from requests that did not choose.

        The requests are split in five; each part is evaluated with what the other parts choose, and
        a request counts with its mean over many splits. None where a measurement without a
        prediction would be mixed with others. Where predictions and measurements are mixed, the
        correction by a measurement is that of all requests.
        """
        samples = _summable(list(self._chosen_by_others), self.by)
        if not samples:
            return None
        one = next(iter(samples.values()))
        # How often each request was evaluated, and the sums of its addends.
        sums = np.zeros((len(self.requests), 1 + one.addends.shape[1]))
        for alternative, sample in samples.items():
            weighted = sample.addends * sample.weights[:, None]
            own = np.concatenate([np.ones((len(weighted), 1)), weighted], axis=1)
            often = self._chosen_by_others[alternative]
            sums += often[:, None] * _placed(sample, own, self.requests)
        evaluated = np.flatnonzero(sums[:, 0])
        if not len(evaluated):
            return None
        requests = tuple(self.requests[at] for at in evaluated)
        table = sums[evaluated, 1:] / sums[evaluated, :1]
        return Sample(one.figure, requests, np.ones(len(table)), table, one.combine)

    @cached_property
    def _chosen_by_others(self) -> dict[Alternative, Floats]:
        """By alternative, in how many splits the other parts choose it for a request [requests]."""
        found: dict[Alternative, Floats] = {}
        parts = _parts(len(self.requests))
        for at in range(0, len(parts), _AT_ONCE):
            some = parts[at : at + _AT_ONCE]
            chosen = self._picks(self._ranked((~some).astype(float)))
            for each in set(chosen.tolist()) - {_NONE}:
                best = self.alternatives[each]
                found[best] = found.get(best, 0.0) + some[chosen == each].sum(axis=0)
        return found

    @cached_property
    def _pooled(self) -> Floats:
        everything: Floats = self._ranked(np.ones((1, len(self.requests))))[0]
        return everything

    def _ranked(self, counts: Floats) -> Floats:
        """The speed-ups that alternatives are chosen by [draws, alternatives] under request counts
        [draws, requests]. Candidates that were not decoded count with their average under the
        errors that were seen, never higher, which has the least expected regret under the draws of
        `confidence`.
        """
        values: Floats = self._values(counts)[:, : len(self.alternatives)] * self._credit
        return values

    @cached_property
    def _credit(self) -> Floats:
        """Factors on speed-ups for the ranking [alternatives]."""
        every = [(0.0,) if a.corrected else self.errors_of(a) or (0.0,) for a in self.alternatives]
        return np.array([min(1.0, np.mean([1 / (1 + e) for e in errors])) for errors in every])

    def _values(self, counts: Floats) -> Floats:
        """Speed-ups [draws, alternatives and k's not started] under request counts [draws,
        requests].
        """
        values = np.full((len(counts), len(self._samples)), -np.inf)
        for at, (sample, table) in enumerate(zip(self._samples, self._tables, strict=True)):
            speed = sample.combine(counts @ table)
            values[:, at] = np.where(np.isfinite(speed), speed, -np.inf)
        return values

    def _picks(self, values: Floats) -> Ints:
        """Which alternative each row of speed-ups [rows, alternatives] chooses: within timing noise
        the smaller model, then the smaller k, then the faster one.
        """
        if not self.alternatives:
            return np.full(len(values), _NONE)
        best = values.max(axis=1, keepdims=True)
        sizes = np.where(_tied(values), self._by_size, np.inf)
        smallest = sizes == sizes.min(axis=1, keepdims=True)
        chosen = np.where(smallest, values, -np.inf).argmax(axis=1)
        return np.where(np.isfinite(best[:, 0]), chosen, _NONE)

    @cached_property
    def _by_size(self) -> Floats:
        """The place of each alternative among all by memory, then k [alternatives]."""
        sizes = [
            (math.inf if (memory := each.predictor.memory_bytes) is None else memory, each.k)
            for each in self.alternatives
        ]
        places = {size: place for place, size in enumerate(sorted(set(sizes)))}
        return np.array([places[size] for size in sizes], dtype=float)


def _tied(values: Floats) -> npt.NDArray[np.bool_]:
    """Which speed-ups of each row [rows, alternatives] are its best within timing noise."""
    best = values.max(axis=1, keepdims=True)
    # Of values below 0 a share would be above all of them.
    found: npt.NDArray[np.bool_] = values >= np.minimum(best, (1 - TIMING_NOISE) * best)
    return found


@lru_cache(maxsize=4)
def _parts(requests: int) -> npt.NDArray[np.bool_]:
    """So many requests split in parts, again and again [splits · parts, requests]."""
    generator = generator_of("splits")
    splits = min(_SPLITS, max(_FEWEST_SPLITS, _SPLIT_REQUESTS // max(requests, 1)))
    folds = np.array([generator.permutation(requests) % _FOLDS for _ in range(splits)])
    parts: npt.NDArray[np.bool_] = (folds[:, None] == np.arange(_FOLDS)[:, None]).reshape(
        splits * _FOLDS, requests
    )
    return parts[parts.any(axis=1)]


def _summable(alternatives: Sequence[Alternative], kind: Kind) -> dict[Alternative, Sample]:
    """The speed-ups with addends of one meaning, so that requests of several can be summed; none
    where that cannot be.
    """
    samples = {each: sample for each in alternatives if (sample := each.speedup(kind))}
    if len({sample.addends.shape[1] for sample in samples.values()}) < 2:
        return samples
    alike = {}
    for each, sample in samples.items():
        base = predicted_by(each.prediction, kind)
        if base is None or not base.value or sample.value is None:
            return {}
        share = np.array([1.0, base.value / sample.value])
        alike[each] = replace(base, figure=sample.figure, addends=base.addends * share)
    return alike


def _placed(sample: Sample, addends: Floats, requests: Sequence[str]) -> Floats:
    """A sample's addends [requests, m] in another order of requests; 0 where it has none."""
    rows = {request: at for at, request in enumerate(requests)}
    own = [(rows[request], at) for at, request in enumerate(sample.requests) if request in rows]
    table = np.zeros((len(requests), addends.shape[1]))
    table[[to for to, _ in own]] = addends[[at for _, at in own]]
    return table


def _normal(name: str) -> Floats:
    """Standard normal draws that belong to a name [draws]."""
    return generator_of(name).standard_normal(RESAMPLES)
