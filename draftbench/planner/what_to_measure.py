"""What a sweep asks the planner while it measures: which k's are worth decoding or starting an
engine with, and when the passes of a candidate are timed well enough.

All answers follow from recorded observations alone, so that a sweep that resumes gets the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

from draftbench.acceptance.intervals import quantiles
from draftbench.planner.cells import asked_ks
from draftbench.planner.decide import TIMING_NOISE, Alternative, Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes import STALL
from draftbench.records import SAMPLES_PER_VISIT, Candidate, CostPoint, Trajectory
from draftbench.run_folder.run import Run

# Timing need not add less to the interval (half its width, of the logarithm) than `_FINEST`, and
# not more than `_COARSEST`; between these, at most such shares of what requests add and of the
# distance to break-even.
_FINEST, _COARSEST = TIMING_NOISE / 2, 0.05
_SHARE_OF_REQUESTS, _SHARE_OF_DISTANCE = 1 / 2, 1 / 4
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
    best = _best(_alone(replace(run, decodes=()), candidate), candidate, batch)
    return _with_neighbours(asked_ks(run), best.k) if best else []


def _alone(run: Run, candidate: Candidate) -> Evaluator:
    """The decisions on a run as if it had no other candidate."""
    replays = tuple(replay for replay in run.replays if replay.candidate == candidate)
    return Evaluator(replace(run, replays=replays), DecisionOptions())


def _best(evaluator: Evaluator, candidate: Candidate, load: int) -> Alternative | None:
    """The k that is expected to be the fastest; among ties the smallest."""
    known = [a for a in evaluator.at(load, candidate).alternatives if a.decoding is not None]
    speeds = {a: a.value("expected") or 0.0 for a in known}
    least = (1 - TIMING_NOISE) * max(speeds.values(), default=0.0)
    return min((a for a in known if speeds[a] >= least), key=lambda a: a.k, default=None)


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
    rows = [row for row in run.decodes if (row.candidate, row.batch) == (candidate, concurrency)]
    started = {row.k for row in rows}
    is_replayed = any(replay.candidate == candidate for replay in run.replays)
    for k in (ks[0], ks[-1]) if is_replayed else (ks[-1], ks[0]):
        if len(started) < 2 and k not in started:
            return k
    every = Evaluator(run, DecisionOptions()).at(concurrency, candidate).alternatives
    known = {a.k: a for a in every if a.decoding is not None and a.k in ks}
    if not known:
        return None
    speeds = {k: a.value("expected") or 0.0 for k, a in known.items()}
    best = max(speeds, key=lambda k: speeds[k])
    fastest_started = max((speeds[k] for k in started if k in speeds), default=0.0)
    if fastest_started >= (1 - TIMING_NOISE) * speeds[best]:
        return None
    sure = known[best].expected
    return None if sure and sure.high < 1 + TIMING_NOISE else best


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
    ks, tokens = asked_ks(run), sum(t.output_tokens for t in decoded)
    responses = _alone(run, candidate).responses(candidate)

    def enough(points: Sequence[CostPoint]) -> bool:
        evaluator = _alone(replace(run, costs=tuple(points), decodes=()), candidate)
        best = _best(evaluator, candidate, batch) if responses.along.laws else None
        if best is None or best.block is None or best.parts is None:
            return True
        if any(_unstalled(point) < _LEAST_PASSES for point in points if point.what != "prefill"):
            return False
        speed = best.value("expected") or 1.0
        step = float(best.block.target.at(1, responses.context)[0, 0])
        plain, drafted = tokens * step / batch, cells - 1
        if drafted < len(ks):
            drafted = min(drafted, len(_with_neighbours(ks, best.k)))
        decoding = plain * (1 + drafted / speed)
        if _spent_with_next_visit(points) > _SHARE_OF_DECODING * decoding:
            return True
        low, high = quantiles(evaluator.timing(best), (0.025, 0.975))
        of_requests = 1.96 * math.sqrt(best.parts.requests)
        small = max(_SHARE_OF_DISTANCE * abs(math.log(speed)), _SHARE_OF_REQUESTS * of_requests)
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
