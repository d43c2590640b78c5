"""What would settle an inconclusive decision, how large a sweep, and how surely.

More requests narrow the part of an interval that comes from requests, more processes the part that
all requests of one process share. Where the next interval will lie is uncertain twice: the truth
may differ from the present estimate, and the next estimate from the truth (assurance, O'Hagan,
Stevens & Campbell 2005). To take the present estimate for the truth would promise too much.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from msgspec import structs

from draftbench.acceptance.intervals import estimate
from draftbench.planner.at_concurrency import LoadDecision
from draftbench.planner.rank import TIMING_NOISE
from draftbench.planner.recommendation import FEW_DECODED, SETTLES, LargerSweep, Remedy
from draftbench.run_folder.run import to_decode

# No sweep of more than so many times the requests is advised; where none can be, so many times as
# many are tried next.
_MOST_TIMES, _NEXT_TIMES = 50, 10
# More requests are advised as long as twice as many settle it so much more often. Nine of ten is an
# average over what the truth may be, and the least requests for it leave out the truths nearest to
# the asked speed-up: at 4 % from it 68 % of such advice settled it (simulated), with this 90 %.
_HARDLY_MORE = 0.01
_PROCESSES = (1, 3, 5)
_NORMAL = NormalDist()
_REACH = _NORMAL.inv_cdf(0.975)


def settled_by(decided: LoadDecision) -> Remedy | None:
    """The kind of measuring that would settle an inconclusive decision; None where none would."""
    leader = decided.leader
    if not (decided.has_baseline or decided.foreign):
        return "baseline"
    if decided.decision != "inconclusive" or decided.impossible or leader is None:
        return None
    if leader.corrected or leader.predictor.round_costs or decided.foreign:
        return "sample"
    if leader.predictor.interpolated:
        return "load"
    enough = len(to_decode(leader.prediction.trajectories, FEW_DECODED)) >= FEW_DECODED
    return "decoding" if enough else "sample"


def larger_sweep(decided: LoadDecision) -> LargerSweep | None:
    """The sweep that settles a decision, or the next worth trying; None where it is not the size of
    the sample that leaves it open.
    """
    interval, leader = estimate(decided.sample), decided.leader
    if settled_by(decided) != "sample" or interval is None or leader is None:
        return None
    assert decided.sample is not None
    asked = decided.min_speedup * (1 + TIMING_NOISE)
    distance = math.log(interval.value / asked) - decided.ranking.luck
    end = interval.low if distance > 0 else interval.high
    if end <= 0:
        return None
    costs = leader.predictor.round_costs
    sweep = sweep_that_settles(
        OpenInterval(
            distance,
            abs(math.log(interval.value / end)),
            len(decided.sample.requests),
            lambda processes: decided.ranking.doubt_in(leader, processes),
            leader.processes,
        ),
        decided.rows,
        processes_help=leader.corrected and not decided.foreign and not (costs and costs.given),
    )
    if sweep is None or costs is None:
        return sweep
    # A k that joined in a later turn has fewer starts than the sweep was asked for.
    joined = costs.turns - leader.processes
    return structs.replace(sweep, processes=sweep.processes + joined)


@dataclass(frozen=True)
class OpenInterval:
    """A deciding interval that includes the asked speed-up; all figures are of its logarithm.

    `distance` is from the asked speed-up to the interval's middle. `of_requests` is half of the 95%
    interval on the asked one's side, as far as today's `requests` cause it; `of_processes` gives
    half of the 95% interval and the standard deviation that all else causes in a number of
    processes; today there are `processes`.
    """

    distance: float
    of_requests: float
    requests: int
    of_processes: Callable[[int], tuple[float, float]]
    processes: int

    def chance(self, times: float, processes: int) -> float:
        """How often a sweep of so many `times` the requests excludes the asked speed-up."""
        narrowed = self.of_requests / math.sqrt(times)
        half_of_processes, sd_of_processes = self.of_processes(processes)
        half = math.hypot(narrowed, half_of_processes)
        of_both = math.hypot(self.of_requests, narrowed) / _REACH
        spread = math.hypot(of_both, self.of_processes(self.processes)[1], sd_of_processes)
        distance = abs(self.distance)
        return sum(_NORMAL.cdf((end - half) / spread) for end in (distance, -distance))


def sweep_that_settles(
    interval: OpenInterval, rows: int, *, processes_help: bool
) -> LargerSweep | None:
    """The least work that settles the decision in nine of ten cases, and hardly less often than
    twice its requests would; with no more than the `rows` of the traffic where these can. If none
    does, the next sweep worth trying. None where the requests show no variation.
    """
    if interval.of_requests <= 0:
        return None
    now = interval.processes
    counts = sorted({now, *(count for count in _PROCESSES if count > now and processes_help)})

    def sweep(requests: int, processes: int) -> LargerSweep:
        chance = interval.chance(requests / interval.requests, processes)
        return LargerSweep(requests, processes, chance, rows if requests > rows else None)

    settling = [sweep(n, count) for count in counts if (n := _least_requests(interval, count))]
    if settling:
        return min(settling, key=lambda each: (bool(each.rows), each.requests * each.processes))
    requests = _NEXT_TIMES * interval.requests
    if rows > interval.requests:
        requests = min(requests, rows)
    return sweep(requests, counts[min(1, len(counts) - 1)])


def _least_requests(interval: OpenInterval, processes: int) -> int | None:
    """How many requests settle it, at least as many as now; None where more than `_MOST_TIMES` as
    many would be needed.
    """
    now = interval.requests

    def enough(requests: int) -> bool:
        times = requests / now
        chance = interval.chance(times, processes)
        return chance >= max(SETTLES, interval.chance(2 * times, processes) - _HARDLY_MORE)

    if interval.chance(_MOST_TIMES, processes) < SETTLES:
        return None
    return now + bisect_left(range(now, _MOST_TIMES * now), True, key=enough)
