"""What a sweep asks the planner while it measures: which k's are worth decoding or starting an
engine with, when the passes of a candidate are timed well enough, and when the answer is settled.

All answers follow from recorded observations alone, so a sweep that resumes gets the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from draftbench.acceptance.intervals import quantiles
from draftbench.acceptance.rounds import Floats
from draftbench.planner.cells import ks_of
from draftbench.planner.decide import HARDLY_MORE_LOSS, TIMING_NOISE, DecisionAt
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes import STALL
from draftbench.planner.recommendation import Configuration
from draftbench.records import SAMPLES_PER_VISIT, Candidate, CostPoint, DraftLength, Trajectory
from draftbench.run_folder.run import Run, part_of, waves

# What timing adds to the interval (half its width, as a logarithm) need not be below `_FINEST` and
# must not exceed `_COARSEST`. In between it may be these shares of what requests add, or of the
# distance to break-even.
_FINEST, _COARSEST = TIMING_NOISE / 2, 0.05
_SHARE_OF_REQUESTS, _SHARE_OF_DISTANCE = 1 / 2, 1 / 4
# At least this many passes of each size that did not stall: three visits.
_LEAST_PASSES = 3 * SAMPLES_PER_VISIT
# Timing takes at most half as long as decoding, a third of both together.
SHARE_OF_DECODING = 1 / 2
# How likely an answer stays as it is that is called settled.
_SETTLED = 0.95


def lengths_to_decode(
    run: Run, candidate: Candidate, concurrency: int = 1, most: int = 2
) -> list[DraftLength]:
    """The draft lengths at which to decode a candidate: the best predicted one, beside a rule the
    best fixed k, then those worth their time. Empty if its speed is unknown.
    """
    evaluator = Evaluator(run, DecisionOptions())
    own = evaluator.at(concurrency, candidate)
    found, further = list[Configuration](), own.best_of_draft
    while further and len(found) < most:
        found.append(further)
        fixed = own.best_of([each for each in own.competing if each.stop is None])
        if further.stop and fixed and fixed not in found:
            further = fixed
        else:
            further = _worth_timing(evaluator, concurrency, own.competing, found)
    return sorted((each.length for each in found), key=lambda length: (length.k, str(length)))


def _worth_timing(
    evaluator: Evaluator,
    concurrency: int,
    some: Sequence[Configuration],
    timed: Sequence[Configuration] = (),
) -> Configuration | None:
    """The one of some whose decoding improves the choice most for its time, besides those that will
    be `timed`; None if none improves it enough. The unit of time is decoding without a draft.
    """
    here = evaluator.at(concurrency)

    def gain(together: Sequence[Configuration]) -> float:
        return _gain(here, evaluator.simulated_timings(together)) if together else 0.0

    before = gain(timed)
    worth = {
        each: (gain([*timed, each]) - before) * (here.table.value(each) or 0.0)
        for each in some
        if each not in timed
    }
    best = max(worth, key=lambda each: worth[each], default=None)
    return best if best and worth[best] >= HARDLY_MORE_LOSS else None


def _gain(here: DecisionAt, timings: Floats) -> float:
    """How much faster the choice is expected to be, as a logarithm, if it is made after one more
    timing of some configurations [draws, configurations] (the knowledge gradient of correlated
    beliefs, Frazier et al. 2009).
    """
    shown, expected = timings - timings.mean(axis=0), here.drawn.mean(axis=0)
    learned = np.linalg.lstsq(shown, here.drawn - expected, rcond=None)[0]
    return float((expected + shown @ learned).max(axis=1).mean() - expected.max())


def next_start(
    run: Run, candidate: Candidate, concurrency: int = 1, ks: Sequence[int] = ()
) -> DraftLength | None:
    """The draft length with which to start a serving engine next; None if another start would
    change nothing.

    First comes the smallest of `ks`, then the largest: together they show what a drafted token
    costs. A draft that only the engine runs begins with the largest, which shows the hazards of all
    smaller ones. Then come the best predicted length and those worth their time, as long as the
    best one may be faster than plain decoding.
    """
    ks = sorted(ks) or ks_of(run)
    rows = [
        row for row in run.decodes if (row.candidate, row.concurrency) == (candidate, concurrency)
    ]
    started = {row.length for row in rows}
    is_replayed = any(replay.candidate == candidate for replay in run.replays)
    ends = [DraftLength(k) for k in ((ks[0], ks[-1]) if is_replayed else (ks[-1], ks[0]))]
    if len(started) < 2 and (not_started := [end for end in ends if end not in started]):
        return not_started[0]
    evaluator = Evaluator(run, DecisionOptions())
    here = evaluator.at(concurrency)
    own = [each for each in here.competing if each.candidate == candidate and each.k in ks]
    best = here.best_of(own)
    expected = here.table.estimate(best) if best else None
    if best is None or (expected and expected.high < 1 + TIMING_NOISE):
        return None
    if best.length in started:
        others = [each for each in own if each.length not in started]
        best = _worth_timing(evaluator, concurrency, others)
    return best.length if best else None


def timed_enough(
    run: Run,
    candidate: Candidate,
    concurrency: int,
    decoded: Sequence[Trajectory],
    cells: int,
    points: Sequence[CostPoint],
) -> bool:
    """Whether one block is timed well enough at one concurrency, asked after every turn.

    Timing continues until what it adds to the interval of the best predicted speed-up is at most
    half of what all the requests will add, or a quarter of the distance to break-even. It need not
    be finer than half the noise of a decoding run and must not be coarser than 5%. After three
    visits to every pass that did not stall, it also ends if one more would exceed a third of the
    time of timing and decoding together. (In a sweep with five decoded requests, three visits are
    40% of that time.) Stalls are not counted.

    Args:
        decoded: the responses that will be decoded.
        cells: at how many k's at most, the baseline included.
    """
    evaluator = Evaluator(replace(run, costs=tuple(points)), DecisionOptions())
    best = evaluator.at(concurrency, candidate).best_of_draft
    if best is None:
        return True
    evidence = evaluator.evidence(best)
    if evidence.block is None or evidence.variance_by_cause is None:
        return True
    spent = 0.0  # by all visits and one more to every step, without stalls
    for point in points:
        of_prompt, middle = point.what == "prefill", median(point.seconds)
        alone = sum(middle / STALL <= seconds <= middle * STALL for seconds in point.seconds)
        if alone < _LEAST_PASSES and not of_prompt:
            return False
        # In each visit a pass also runs once untimed.
        samples = 1 if of_prompt else SAMPLES_PER_VISIT
        spent += (len(point.seconds) // samples + (not of_prompt)) * (samples + 1) * middle
    speed = evaluator.table(concurrency).value(best) or 1.0
    step = float(evidence.block.target.at(1, evidence.rounds.context)[0, 0])
    tokens = sum(t.output_tokens for t in decoded)
    decoding = tokens * step / concurrency * (1 + (cells - 1) / speed)
    if spent > SHARE_OF_DECODING * decoding:
        return True
    low, high = quantiles(evidence.by_drawn_passes, (0.025, 0.975))
    # With --until settled others may follow, and all together leave less doubt.
    measured = len({trajectory.request for trajectory in run.trajectories})
    share = min(1.0, measured / run.manifest.traffic.requests)
    of_requests = 1.96 * math.sqrt(share * evidence.variance_by_cause[0])
    small = max(_SHARE_OF_DISTANCE * abs(math.log(speed)), _SHARE_OF_REQUESTS * of_requests)
    return bool((high - low) / 2 <= min(max(small, _FINEST), _COARSEST))


def settled(run: Run, weights: Mapping[str, float]) -> bool:
    """Whether the answer is settled: with 95% probability, measuring all the requests, of which
    those of the run are a random sample, would give the same decision at every load, and no choice
    that is faster by more than timing noise.

    Requests differ from each other as those of the run do, and count as often as they occur: one
    that is half of the log decides nearly alone, so nothing is settled before it is measured.

    Args:
        weights: how often each of all requests occurs, by id.
    """
    measured = {trajectory.request for trajectory in run.trajectories}
    of_all = np.array(list(weights.values())) / sum(weights.values())
    now = np.where([request in measured for request in weights], of_all, 0)
    now /= now.sum()
    doubt = now @ now
    learned, left = float(((now - of_all) ** 2).sum() / doubt), float(of_all @ of_all / doubt)
    evaluator = Evaluator(run, DecisionOptions())
    decisions = map(evaluator.at, evaluator.concurrencies())
    return all(decision.chance_unchanged(learned, left) >= _SETTLED for decision in decisions)


def settled_after(run: Run) -> int | None:
    """The requests, in waves, that would have settled a run's answer; None: no fewer than all."""
    weights, begun = {t.request: t.weight for t in run.trajectories}, list[str]()
    for wave in waves(weights)[:-1]:
        begun += wave
        if settled(part_of(run, set(begun)), weights):
            return len(begun)
    return None
