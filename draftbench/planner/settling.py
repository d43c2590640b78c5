"""An open decision → how large a sweep would settle it, and how surely.

More requests narrow the part of an interval that requests show, more processes that of what one
process has to itself. Where the next interval will lie is as uncertain as the truth now and itself
together (the assurance of O'Hagan, Stevens & Campbell 2005): taking the present estimate for the
truth would promise too much.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from draftbench.planner.recommendation import SETTLES, LargerSweep

# More than so many times the requests that there are is no advice; where no advice can be given,
# so many are tried next.
_FAR, _NEXT = 50, 10
# More are advised as long as twice as many settle it so much more often. Nine of ten is an average
# over what the truth may be, and the least requests for it leave out the truths nearest to the
# asked speed-up: at 4 % from it 68 % of such advice settled it (simulated), with this 90 %.
_HARDLY_MORE = 0.01
_PROCESSES = (1, 3, 5)
_NORMAL = NormalDist()
_REACH = _NORMAL.inv_cdf(0.975)


@dataclass(frozen=True)
class OpenInterval:
    """A deciding interval with the asked speed-up in it, in logarithms of the speed-up.

    `distance` is that of its middle from the asked one, `of_requests` half of its 95% interval on
    that side for what `requests` show. `besides` gives half the 95% interval, and the standard
    deviation, of what they do not show in a number of processes; today there are `processes`.
    """

    distance: float
    of_requests: float
    requests: int
    besides: Callable[[int], tuple[float, float]]
    processes: int

    def chance(self, times: float, processes: int) -> float:
        """How often a sweep of so many times the requests leaves the asked speed-up out."""
        narrowed = self.of_requests / math.sqrt(times)
        doubt, scatter = self.besides(processes)
        half = math.hypot(narrowed, doubt)
        of_both = math.hypot(self.of_requests, narrowed) / _REACH
        spread = math.hypot(of_both, self.besides(self.processes)[1], scatter)
        distance = abs(self.distance)
        return sum(_NORMAL.cdf((end - half) / spread) for end in (distance, -distance))


def larger_sweep(interval: OpenInterval, rows: int, *, processes_help: bool) -> LargerSweep | None:
    """The least work that settles it in nine of ten cases, and if that is within reason hardly less
    often than twice the requests, with the `rows` of the traffic where they can; where none does,
    the next one worth trying, with no more than these while there are more than now. None where
    requests show nothing.
    """
    if interval.of_requests <= 0:
        return None
    now = interval.processes
    counts = sorted({now, *(each for each in _PROCESSES if each > now and processes_help)})

    def sweep(requests: int, processes: int) -> LargerSweep:
        chance = interval.chance(requests / interval.requests, processes)
        return LargerSweep(requests, processes, chance, rows if requests > rows else None)

    found = [sweep(n, count) for count in counts if (n := _least_requests(interval, count))]
    if found:
        return min(found, key=lambda each: (bool(each.rows), each.requests * each.processes))
    requests = _NEXT * interval.requests
    if rows > interval.requests:
        requests = min(requests, rows)
    return sweep(requests, counts[min(1, len(counts) - 1)])


def _least_requests(interval: OpenInterval, processes: int) -> int | None:
    """How many settle it, at least as many as now; None where that is no advice."""
    now = interval.requests

    def enough(requests: int) -> bool:
        times = requests / now
        chance = interval.chance(times, processes)
        return chance >= max(SETTLES, interval.chance(2 * times, processes) - _HARDLY_MORE)

    if interval.chance(_FAR, processes) < SETTLES:
        return None
    return now + bisect_left(range(now, _FAR * now), True, key=enough)
