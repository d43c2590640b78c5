"""Repeats of one timed ratio, before and after → the change with its interval.

For figures that are timed instead of counted over requests. The repeats of a process share its
luck: the interval says nothing about another start of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from draftbench.acceptance.intervals import Estimate
from draftbench.gate.noninferiority import TAIL, Gain


def median_interval(repeats: Sequence[float]) -> Estimate | None:
    """The median between two order statistics, by the sign test; None under six repeats."""
    ordered, count = sorted(repeats), len(repeats)
    below, outside = 0.0, 0
    while outside < count // 2:
        below += math.comb(count, outside) / 2**count
        if below > TAIL:
            break
        outside += 1
    if outside == 0:
        return None
    return Estimate(median(ordered), ordered[outside - 1], ordered[count - outside])


def rise(old: Sequence[float], new: Sequence[float], *, relative: bool) -> Gain:
    """The change of the median, new against old: positive where it rose."""
    requests = min(len(old), len(new))
    if tuple(old) == tuple(new) and old:
        return Gain(Estimate(0.0, 0.0, 0.0), 0.0, requests)
    before, after = median_interval(old), median_interval(new)
    if before is None or after is None:
        return Gain(None, None, requests)
    return Gain(independent_change(before, after, relative=relative), None, requests)


def independent_change(old: Estimate, new: Estimate, *, relative: bool) -> Estimate:
    """new - old, or new / old - 1 of positive figures, with the interval of the change.

    Two independent intervals are joined by MOVER: the distances to their ends are combined in
    quadrature, for a ratio on the logarithm (Zou & Donner 2008).
    """
    o, n = (_scaled(estimate, relative) for estimate in (old, new))
    value = n.value - o.value
    low = value - math.hypot(n.value - n.low, o.high - o.value)
    high = value + math.hypot(n.high - n.value, o.value - o.low)
    if relative:
        value, low, high = (math.expm1(end) for end in (value, low, high))
    return Estimate(value, low, high)


def _scaled(estimate: Estimate, relative: bool) -> Estimate:
    if not relative:
        return estimate
    return Estimate(math.log(estimate.value), math.log(estimate.low), math.log(estimate.high))
