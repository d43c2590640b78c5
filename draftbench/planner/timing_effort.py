"""When the steps of a candidate are timed well enough for the decision.

Timing continues until what it adds to the interval of the best predicted speed-up is at most half
of what the requests add, or a quarter of the distance to break-even. It need not be finer than half
the noise of a decoding run and must not be coarser than 5%. After three visits to every pass that
did not stall, it also ends where one more would exceed a third of the time of timing and decoding
together. (In a sweep with five decoded requests three visits are 40% of it.) Stalls count on
neither side. Only recorded seconds are used, so that whoever reads them finds the same number of
visits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from draftbench.acceptance.intervals import estimate, quantiles
from draftbench.planner.alternatives import alternatives_of
from draftbench.planner.cost_sources import costs_in
from draftbench.planner.costs import STALL
from draftbench.planner.predict import draft_lengths, replayed, timing_factors
from draftbench.planner.rank import TIMING_NOISE, Ranking
from draftbench.records import SAMPLES_PER_VISIT, Candidate, CostPoint, Trajectory
from draftbench.run_folder.run import Run

_FINEST, _COARSEST = TIMING_NOISE / 2, 0.05
_OF_REQUESTS, _OF_DISTANCE = 1 / 2, 1 / 4
_DRAWS = 2000
# Passes of each size that did not stall: those of three visits.
_LEAST_PASSES = 3 * SAMPLES_PER_VISIT
# Timing takes at most a third of what it and decoding take.
_OF_DECODING = 1 / 2


def timed_enough(
    run: Run, candidate: Candidate, batch: int, decoded: Sequence[Trajectory], cells: int
) -> Callable[[Sequence[CostPoint]], bool]:
    """Judges the points of one block and batch size as they are timed, turn by turn.

    Args:
        decoded: responses that will be decoded, at no more than so many `cells`, the baseline
            among them.
    """
    along, ks = replayed(replace(run, decodes=()), candidate), draft_lengths(run)
    tokens = sum(t.output_tokens for t in decoded)

    def enough(points: Sequence[CostPoint]) -> bool:
        source = costs_in(replace(run, costs=tuple(points), decodes=()), (candidate,))
        predictor = along.at(batch, source)
        if predictor.costs is None or not along.laws:
            return True
        if any(_steady(point) < _LEAST_PASSES for point in points if point.what != "prefill"):
            return False
        best = Ranking(alternatives_of(predictor, ks, {})).best
        if best is None or best.predicted is None or not best.predicted.value:
            return True
        plain = tokens * float(predictor.costs.target.at(1, predictor.context)) / batch
        drafted = cells - 1
        if drafted < len(ks):  # the best k and its neighbours
            at = ks.index(best.k)
            drafted = min(drafted, len(ks[max(at - 1, 0) : at + 2]))
        decoding = plain * (1 + drafted / best.predicted.value)
        if _spent_with_next(points) > _OF_DECODING * decoding:
            return True
        factors = timing_factors(predictor, best.prediction, _DRAWS, prefills=False)
        low, high = quantiles(np.log(factors), (0.025, 0.975))
        small = _OF_DISTANCE * abs(math.log(best.predicted.value))
        interval = estimate(best.predicted)
        if interval is not None and interval.low > 0:
            of_requests = math.log(interval.high / interval.low) / 2
            small = max(small, _OF_REQUESTS * of_requests)
        return bool((high - low) / 2 <= min(max(small, _FINEST), _COARSEST))

    return enough


def _steady(point: CostPoint) -> int:
    """How many passes took about as long as their median."""
    middle = median(point.seconds)
    return sum(middle / STALL <= seconds <= middle * STALL for seconds in point.seconds)


def _spent_with_next(points: Sequence[CostPoint]) -> float:
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
