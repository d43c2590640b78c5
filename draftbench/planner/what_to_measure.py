"""What a sweep asks the planner while it measures: which k's are worth decoding or starting an
engine with, and when the passes of a candidate are timed well enough.

All answers follow from recorded observations alone, so that a sweep that resumes gets the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from draftbench.acceptance.intervals import estimate, quantiles
from draftbench.planner.alternatives import uncorrected
from draftbench.planner.cost_sources import costs_in
from draftbench.planner.costs import STALL
from draftbench.planner.predict import (
    asked_ks,
    predict,
    predictor_of,
    replayed,
    timing_factors,
)
from draftbench.planner.rank import TIMING_NOISE, Ranking
from draftbench.records import SAMPLES_PER_VISIT, Candidate, CostPoint, Trajectory
from draftbench.run_folder.run import Run

# Timing need not add less to the interval (half its width, of the logarithm) than `_FINEST`, and
# not more than `_COARSEST`; between these, at most such shares of what requests add and of the
# distance to break-even.
_FINEST, _COARSEST = TIMING_NOISE / 2, 0.05
_SHARE_OF_REQUESTS, _SHARE_OF_DISTANCE = 1 / 2, 1 / 4
_DRAWS = 2000
# Passes of each size that did not stall: those of three visits.
_LEAST_PASSES = 3 * SAMPLES_PER_VISIT
# Timing takes at most a third of what it and decoding take.
_SHARE_OF_DECODING = 1 / 2


def promising_ks(run: Run, candidate: Candidate, batch: int = 1) -> list[int]:
    """The k's of one candidate that are worth decoding at one batch size: the best predicted one
    and its neighbours.

    Looks at replays and cost points only, whatever was decoded since. Empty where the candidate's
    cost is unknown or nothing was replayed.
    """
    predictor = predictor_of(replace(run, decodes=()), candidate, batch=batch)
    ks = asked_ks(run) if predictor.along.laws else ()
    best = Ranking(uncorrected(predictor, ks)).best
    return _with_neighbours(ks, best.k) if best else []


def _with_neighbours(ks: Sequence[int], k: int) -> list[int]:
    at = ks.index(k)
    return list(ks[max(at - 1, 0) : at + 2])


def next_start(
    run: Run, candidate: Candidate, concurrency: int = 1, ks: Sequence[int] = ()
) -> int | None:
    """The k that a serving engine should be started with next, None where another start would
    change nothing.

    First the smallest of `ks`, then the largest: together they show what a drafted token costs. A
    draft that only the engine runs begins with the largest, which shows the hazards of all smaller
    ones. Then the k that is predicted best, as long as it was not started and is predicted to be
    better by more than timing noise. A k that cannot reach plain decoding is not started.
    """
    ks = sorted(ks) or asked_ks(run)
    predictor = predictor_of(run, candidate, batch=concurrency)
    rows = [row for row in run.decodes if (row.candidate, row.batch) == (candidate, concurrency)]
    started = {row.k for row in rows}
    is_replayed = any(replay.candidate == candidate for replay in run.replays)
    for k in (ks[0], ks[-1]) if is_replayed else (ks[-1], ks[0]):
        if len(started) < 2 and k not in started:
            return k
    speeds = {}
    for k in filter(predictor.along.reaches, ks):
        costs = predictor.round_costs if k in started else None
        decoding = (
            costs.decoding(predictor.along.at(k)) if costs else predict(predictor, k).decoding
        )
        if decoding is not None:
            plain, speculative = predictor.weights @ decoding
            speeds[k] = plain / speculative
    if not speeds:
        return None
    best = max(speeds, key=lambda k: speeds[k])
    fastest_started = max((speeds[k] for k in started if k in speeds), default=0.0)
    if fastest_started >= (1 - TIMING_NOISE) * speeds[best]:
        return None
    (alternative,) = uncorrected(predictor, (best,))
    predicted = Ranking([alternative]).doubted(estimate(alternative.predicted), alternative)
    return None if predicted and predicted.high < 1 + TIMING_NOISE else best


def timed_enough(
    run: Run, candidate: Candidate, batch: int, decoded: Sequence[Trajectory], cells: int
) -> Callable[[Sequence[CostPoint]], bool]:
    """Judges the points of one block and batch size as they are timed, turn by turn.

    Timing continues until what it adds to the interval of the best predicted speed-up is at most
    half of what the requests add, or a quarter of the distance to break-even. It need not be finer
    than half the noise of a decoding run and must not be coarser than 5%. After three visits to
    every pass that did not stall, it also ends where one more would exceed a third of the time of
    timing and decoding together. (In a sweep with five decoded requests three visits are 40% of
    it.) Stalls count on neither side.

    Args:
        decoded: responses that will be decoded, at no more than so many `cells`, the baseline
            among them.
    """
    unpriced, ks = replayed(replace(run, decodes=()), candidate), asked_ks(run)
    tokens = sum(t.output_tokens for t in decoded)

    def enough(points: Sequence[CostPoint]) -> bool:
        source = costs_in(replace(run, costs=tuple(points), decodes=()), (candidate,))
        predictor = unpriced.at(batch, source)
        if predictor.costs is None or not predictor.along.laws:
            return True
        if any(_unstalled(point) < _LEAST_PASSES for point in points if point.what != "prefill"):
            return False
        best = Ranking(uncorrected(predictor, ks)).best
        if best is None or best.predicted is None or not best.predicted.value:
            return True
        plain = tokens * float(predictor.costs.target.at(1, predictor.context)) / batch
        drafted = cells - 1
        if drafted < len(ks):
            drafted = min(drafted, len(_with_neighbours(ks, best.k)))
        decoding = plain * (1 + drafted / best.predicted.value)
        if _spent_with_next_visit(points) > _SHARE_OF_DECODING * decoding:
            return True
        factors = timing_factors(predictor, best.prediction, _DRAWS, prefills=False)
        low, high = quantiles(np.log(factors), (0.025, 0.975))
        small = _SHARE_OF_DISTANCE * abs(math.log(best.predicted.value))
        interval = estimate(best.predicted)
        if interval is not None and interval.low > 0:
            of_requests = math.log(interval.high / interval.low) / 2
            small = max(small, _SHARE_OF_REQUESTS * of_requests)
        return bool((high - low) / 2 <= min(max(small, _FINEST), _COARSEST))

    return enough


def _unstalled(point: CostPoint) -> int:
    """How many passes took about as long as their median."""
    middle = median(point.seconds)
    return sum(middle / STALL <= seconds <= middle * STALL for seconds in point.seconds)


def _spent_with_next_visit(points: Sequence[CostPoint]) -> float:
    """Seconds of all visits and of one more to every step, without stalls; in each visit a pass
    also runs once untimed.
    """
    seconds = 0.0
    for point in points:
        of_prompt = point.what == "prefill"
        samples = 1 if of_prompt else SAMPLES_PER_VISIT
        visits = len(point.seconds) // samples + (not of_prompt)
        seconds += visits * (samples + 1) * median(point.seconds)
    return seconds
