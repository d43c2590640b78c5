"""A figure before and after, paired by request → pass, fail or inconclusive.

Non-inferiority with a margin, by the two-sided 95% interval of the gain (new against old, positive
is better): *pass* when its bad end is inside the limit, *fail* when even its good end is outside.
Each wrong verdict has a probability of at most about 2.5%, at a true drop of exactly the limit.

The interval is the BCa bootstrap over requests, widened for few requests. Since there are many
segments, a segment fails only if its p-value is small after Holm's correction. Ratios of times come
from repeats, not from requests, and have the interval of their median. The interval of a time
includes how much processes differ; with under three in a run that is unknown, and it cannot fail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import accumulate
from statistics import NormalDist, median

import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import (
    MIN_REQUESTS,
    Estimate,
    estimate,
    jackknife_error,
    paired_difference,
    paired_ratio,
    student_probability,
    student_quantile,
)
from draftbench.planner.passes import MIN_PROCESSES

LEVEL = 0.95
TAIL = (1 - LEVEL) / 2
# A sample that would have to be larger by more than this factor is not advised.
_FAR = 1000

_NORMAL = NormalDist()
# Distance from the limit, in standard errors, at which nine of ten samples decide. Eight are
# promised, since the standard error is itself an estimate.
_REACH = _NORMAL.inv_cdf(1 - TAIL) + _NORMAL.inv_cdf(0.9)


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Gain:
    """How much better the new run is than the old. `error` is the standard error, None if unknown.
    Limits are positive numbers in the unit of the gain.
    """

    interval: Estimate | None
    error: float | None
    requests: int
    may_fail: bool = True

    def verdict(self, limit: float) -> Verdict:
        """Where the interval lies against the limit."""
        if self.interval is None:
            return Verdict.INCONCLUSIVE
        if self.interval.low >= -limit:
            return Verdict.PASS
        failed = self.interval.high < -limit and self.may_fail
        return Verdict.FAIL if failed else Verdict.INCONCLUSIVE

    def p_fail(self, limit: float) -> float:
        """One-sided p-value of a drop of no more than the limit, by Student's t; 1 if unknown."""
        if self.interval is None or self.error is None:
            return 1.0
        beyond = -self.interval.value - limit
        if self.error == 0:
            return 0.0 if beyond > 0 else 1.0
        return 1 - student_probability(beyond / self.error, self.requests - 1)

    def advised_requests(self, distance: float) -> int | None:
        """Requests at which a true change so far from the limit is decided in 8 of 10 cases.

        At a distance of the limit itself, these are enough for no drop to pass and for a drop of
        twice the limit to fail. None if the spread of the requests is unknown or the number
        unrealistic.
        """
        if self.error is None or distance <= 0:
            return None
        factor = (_REACH * self.error / distance) ** 2
        return None if factor > _FAR else max(MIN_REQUESTS, math.ceil(self.requests * factor))

    def requests_to_settle(self, limit: float) -> int | None:
        """How many requests like these would turn an inconclusive verdict into pass or fail.

        If there are as many as `advised_requests` already, the true drop is probably near the
        limit, and the distance that was observed is used.
        """
        advised = self.advised_requests(limit)
        if advised is None or advised > self.requests or self.interval is None:
            return advised
        return self.advised_requests(abs(self.interval.value + limit))

    def smallest_detectable_drop(self, limit: float) -> float | None:
        """The true drop that fails a sample of this size in at least 8 of 10 cases."""
        return None if self.error is None else limit + _REACH * self.error


def gain_of(old: Sample, new: Sample, *, relative: bool) -> Gain:
    """new - old, or new / old - 1, of a figure that is better if higher; both samples have the same
    requests in the same order.

    Under five requests and for an undefined figure there is no interval; identical samples have one
    of no width.
    """
    if relative:
        ratio = paired_ratio(new, old)
        change = replace(ratio, combine=lambda sums: ratio.combine(sums) - 1.0)
    else:
        change = paired_difference(new, old)
    count = len(change.requests)
    if np.array_equal(old.addends, new.addends):
        return Gain(Estimate(0.0, 0.0, 0.0), 0.0, count)
    error = jackknife_error(change)
    return Gain(estimate(change, level=LEVEL), error, count)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the chance of any false rejection stays below the level (Holm 1979)."""
    raw = np.asarray(p_values, dtype=np.float64)
    order = raw.argsort(kind="stable")
    adjusted = np.empty_like(raw)
    scaled = raw[order] * np.arange(len(raw), 0, -1)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, scaled))
    return adjusted.tolist()


def chance_of(worse: int, better: int) -> float:
    """The probability that, of the requests that changed, at least `worse` became worse by chance
    (McNemar's exact test).
    """
    changed = worse + better
    return sum(math.comb(changed, i) for i in range(worse, changed + 1)) / 2**changed


def median_interval(repeats: Sequence[float]) -> Estimate | None:
    """The median, with two order statistics as its interval (sign test); None under six repeats."""
    ordered, count = sorted(repeats), len(repeats)
    below = accumulate(math.comb(count, i) / 2**count for i in range(count // 2))
    outside = sum(share <= TAIL for share in below)
    if outside == 0:
        return None
    return Estimate(median(ordered), ordered[outside - 1], ordered[count - outside])


def rise(old: Sequence[float], new: Sequence[float], *, relative: bool) -> Gain:
    """The change of the median of a timed ratio, positive if it rose; how much processes differ is
    added by `with_processes`.
    """
    repeats = min(len(old), len(new))
    if repeats and tuple(old) == tuple(new):
        return Gain(Estimate(0.0, 0.0, 0.0), 0.0, repeats)
    before, after = median_interval(old), median_interval(new)
    if before is None or after is None:
        return Gain(None, None, repeats)
    return Gain(independent_change(before, after, relative=relative), None, repeats)


def with_processes(
    gain: Gain, old: Sequence[float], new: Sequence[float], *, relative: bool
) -> Gain:
    """The gain of a time with the scatter between processes in its interval; `old` and `new` have
    one value for each process.

    The half-width by Welch's t (1947) on the logarithms is added in quadrature to that within one
    process. With under three processes in either run the gain cannot fail.
    """
    sides = [np.log(values) for values in (old, new)]
    fewest = min(map(len, sides))
    if fewest < MIN_PROCESSES or gain.interval is None:
        return replace(gain, may_fail=False)
    shares = [float(side.var(ddof=1)) / len(side) for side in sides]
    if sum(shares) == 0:
        return gain
    freedom = sum(shares) ** 2 / sum(
        share**2 / (len(side) - 1) for share, side in zip(shares, sides, strict=True)
    )
    value, low, high = gain.interval.value, gain.interval.low, gain.interval.high
    error = math.sqrt(sum(shares)) * (1 + value if relative else math.exp(float(sides[1].mean())))
    reach = student_quantile(1 - TAIL, freedom) * error
    if gain.error is not None:
        gain = replace(gain, error=math.hypot(gain.error, error))
    return replace(
        gain,
        interval=Estimate(
            value, value - math.hypot(value - low, reach), value + math.hypot(high - value, reach)
        ),
    )


def independent_change(old: Estimate, new: Estimate, *, relative: bool) -> Estimate:
    """new - old, or new / old - 1 of positive figures, with the interval of the change.

    Two independent intervals are joined by MOVER: the distances to their ends are combined in
    quadrature, for a ratio on the logarithm (Zou & Donner 2008).
    """
    if relative:
        old, new = (
            Estimate(math.log(e.value), math.log(e.low), math.log(e.high)) for e in (old, new)
        )
    value = new.value - old.value
    low = value - math.hypot(new.value - new.low, old.high - old.value)
    high = value + math.hypot(new.high - new.value, old.value - old.low)
    ends = (value, low, high)
    return Estimate(*map(math.expm1, ends)) if relative else Estimate(*ends)
