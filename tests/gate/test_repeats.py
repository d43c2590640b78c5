"""Intervals of timed ratios by hand."""

from __future__ import annotations

import pytest

from draftbench.acceptance.intervals import Estimate
from draftbench.gate.repeats import median_interval, rise


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # The sign test's table: the 2nd and 8th of 9 cover 96.1 %, the 5th and 13th of 17 95.1 %.
    [(6, 1, 6), (9, 2, 8), (17, 5, 13)],
)
def test_the_median_lies_between_the_order_statistics_of_the_sign_test(
    count: int, low: int, high: int
) -> None:
    interval = median_interval([float(i) for i in range(count, 0, -1)])
    assert interval == Estimate((count + 1) / 2, low, high)


def test_five_repeats_give_no_interval() -> None:
    assert median_interval([1.0] * 5) is None
    assert rise([1.0] * 5, [2.0] * 5, relative=True).interval is None


OLD = [0.9, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.2, 1.2]
NEW = [1.8, 1.8, 2.0, 2.0, 2.0, 2.0, 2.0, 2.3, 2.3]


def test_a_difference_joins_the_distances_in_quadrature() -> None:
    interval = rise(OLD, NEW, relative=False).interval
    assert interval is not None
    assert interval.value == pytest.approx(1.0)
    assert interval.low == pytest.approx(1 - (0.2**2 + 0.2**2) ** 0.5)
    assert interval.high == pytest.approx(1 + (0.3**2 + 0.1**2) ** 0.5)


def test_a_ratio_joins_them_on_the_logarithm() -> None:
    interval = rise(OLD, NEW, relative=True).interval
    assert interval is not None
    assert interval.value == pytest.approx(1.0)
    # ln(2/1.8) = 0.10536, ln 1.2 = 0.18232: exp(0.69315 - 0.21058) - 1.
    assert interval.low == pytest.approx(0.6202, abs=1e-3)


def test_the_same_repeats_have_risen_by_nothing() -> None:
    assert rise([0.3], [0.3], relative=True).interval == Estimate(0.0, 0.0, 0.0)
