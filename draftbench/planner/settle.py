"""What would settle an open decision: what to measure, and how many requests and processes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from draftbench.acceptance.intervals import FEW_REQUESTS
from draftbench.planner.caveat_kinds import FEW_DECODED
from draftbench.planner.decide import DecisionAt, faster_than
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.evidence import REACH
from draftbench.planner.recommendation import SETTLES, Caveat, LargerSweep, NextSweep, Remedy
from draftbench.records import SELF, Candidate
from draftbench.run_folder.manifest import repeat_flag
from draftbench.run_folder.run import Run, to_decode

# A sweep is advised up to this many times the requests; if none of these would settle it, the next
# one to try has this many times the requests.
_MOST_TIMES, _NEXT_TIMES = 50, 10
# A sweep with a 90% chance of settling it is still enlarged while doubling it adds more than this
# to the chance: where the truth was 4% away from the required speed-up, the first size that reached
# 90% settled only 68% of simulations, and this rule settles 90%.
_HARDLY_MORE = 0.01
_NORMAL = NormalDist()


def settled_by(
    evaluator: Evaluator, decided: DecisionAt, doubts: Sequence[Caveat]
) -> Remedy | None:
    """What to do next to settle an open decision, or to clear up a doubt; None: nothing."""
    leader, run = decided.leader, evaluator.run
    kinds = {doubt.kind for doubt in doubts}
    if "unfinished" in kinds:
        return "resuming"
    if "impossible" in kinds:
        return "quiet"
    if not (run.has_baseline or evaluator.foreign):
        return "baseline"
    if decided.decision != "inconclusive" or decided.impossible:
        return None
    if leader is None:
        replayed = run.manifest.effort.measure == "replay" and _can_be_timed(run)
        asked = decided.concurrency in run.manifest.question.concurrency
        return "timing" if replayed and asked else None
    evidence = evaluator.evidence(leader)
    if evidence.cells or evaluator.on_engine or evaluator.foreign:
        return "sample"
    if evidence.note:
        return "load"
    enough = len(to_decode(evidence.rounds.trajectories, FEW_DECODED)) >= FEW_DECODED
    if not enough:
        return "sample"
    # A sweep keeps to the k's of a draft that it began with, unless it decodes at all of them.
    begun = {(own.candidate, own.concurrency) for own in evaluator.cells if own.k}
    return "every-k" if (leader.candidate, decided.concurrency) in begun else "decoding"


def next_sweep(
    remedy: Remedy | None,
    larger: LargerSweep | None,
    *,
    concurrency: int,
    requests: int,
    distinct: int,
    engine: str | None,
) -> NextSweep | None:
    """The sweep that a remedy asks for, by the flags in which it differs from the last one.

    Args:
        requests: how many were measured.
        distinct: how many the traffic has.
    """
    match remedy:
        case "resuming":
            return NextSweep(flags={}, resumes=True)
        case "quiet":
            return NextSweep(flags={})
        case "baseline":
            return NextSweep(flags=None)
        case "timing":
            return NextSweep(flags={"--measure": "best"}, resumes=True)
        case "decoding" | "every-k":
            ks = "best" if remedy == "decoding" else "all"
            flags = {"--measure": ks, "--measure-requests": str(requests)}
            return NextSweep(flags=flags, resumes=True)
        case "load":
            return NextSweep(flags={"--concurrency": str(concurrency)})
    if larger:
        flags = {"--sample": str(larger.requests)}
        if engine:  # by default a draft is asked fewer than are replayed
            flags["--measure-requests"] = str(larger.requests)
        if larger.processes > 1:
            flags[repeat_flag(engine)] = str(larger.processes)
        return NextSweep(flags=flags, advised=larger.enough and larger.requests <= distinct)
    if remedy is None:
        return None
    flags = {"--sample": str(FEW_REQUESTS)} if requests < FEW_REQUESTS else {}
    return NextSweep(flags=flags, advised=requests < FEW_REQUESTS <= distinct)


def _can_be_timed(run: Run) -> bool:
    """Whether the built-in decoder can time a draft that did not fail, and none is to be tried
    again first. The speed of a simulated level says nothing about the level, and the target as its
    own draft is a control.
    """
    failed = {failure.candidate for failure in run.failures}

    def simulated(model: Candidate | None) -> bool:
        return (facts := run.facts_of(model)) is not None and not facts.has_kernel

    return (
        run.manifest.question.engine is None
        and not any(failure.tried_again for failure in run.failures)
        and not simulated(None)
        and any(
            each.draft != SELF and each not in failed and not simulated(each)
            for each in run.candidates
        )
    )


def larger_sweep(evaluator: Evaluator, decided: DecisionAt) -> LargerSweep | None:
    """The smallest sweep that settles an open decision in nine of ten cases, or the next one worth
    trying; None if the leader has no interval that more requests would narrow.

    More requests narrow the requests' part of the interval, more processes the cells' part. The
    truth lies somewhere in the present interval, and the next estimate around it (assurance,
    O'Hagan, Stevens & Campbell 2005): taking the present estimate as the truth would promise too
    much.
    """
    leader, deciding = decided.leader, decided.deciding
    if leader is None or deciding is None:
        return None
    evidence = evaluator.evidence(leader)
    if not evidence.variance_by_cause:
        return None
    requests, cells, undecoded = evidence.variance_by_cause
    least = faster_than(decided.min_speedup)
    now = max(len(evidence.cells), 1)  # processes, or starts of an engine
    if requests <= 1e-12:
        return None
    distance = math.log(deciding.value / least)
    # As wide as the interval is on the side of the required speed-up.
    end = deciding.low if distance > 0 else deciding.high
    total = requests + cells + undecoded
    scale = (math.log(deciding.value / end) / REACH) ** 2 / total
    distinct = evaluator.run.manifest.traffic.distinct
    given = any(not facts.started for facts in evaluator.run.engines)
    more = (1, 3, 5) if evidence.cells and not (evaluator.foreign or given) else ()
    counts = [now, *(count for count in more if count > now)]

    def chance(times: float, count: int) -> float:
        new = requests / times + cells * now / count + undecoded
        spread, half = math.sqrt(scale * (total + new)), REACH * math.sqrt(scale * new)
        return sum(_NORMAL.cdf((end - half) / spread) for end in (abs(distance), -abs(distance)))

    def enough(times: float, count: int) -> bool:
        return chance(times, count) >= max(SETTLES, chance(2 * times, count) - _HARDLY_MORE)

    def sweep(times: float, count: int) -> LargerSweep:
        larger = math.ceil(times * evidence.requests)
        few = distinct if larger > distinct else None
        return LargerSweep(larger, count, chance(times, count), few)

    steps = np.exp(np.linspace(0, math.log(_MOST_TIMES), 200)).tolist()
    settling = [
        sweep(next((t for t in steps if enough(t, count)), float(_MOST_TIMES)), count)
        for count in counts
        if chance(_MOST_TIMES, count) >= SETTLES
    ]
    if settling:
        return min(settling, key=lambda each: (bool(each.distinct), each.requests * each.processes))
    most = float(_NEXT_TIMES)
    if distinct > evidence.requests:
        most = min(most, distinct / evidence.requests)
    return sweep(most, counts[min(1, len(counts) - 1)])
