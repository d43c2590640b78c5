"""Verdicts by hand, p-values and quantiles by the tables, and what advice must satisfy."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import ratio

from draftbench.acceptance.intervals import Estimate, student_probability, student_quantile
from draftbench.gate.noninferiority import (
    Gain,
    Verdict,
    gain_of,
    holm,
    median_interval,
    rise,
    with_processes,
)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.01, 0.01, Verdict.PASS),
        (-0.02, 0.01, Verdict.PASS),
        (0.03, 0.05, Verdict.PASS),
        (-0.03, 0.01, Verdict.INCONCLUSIVE),
        (-0.03, -0.02, Verdict.INCONCLUSIVE),
        (-0.05, -0.021, Verdict.FAIL),
    ],
)
def test_the_interval_against_the_limit_decides(low, high, verdict):
    assert Gain(Estimate((low + high) / 2, low, high), 0.01, 40).verdict(0.02) is verdict


def test_a_relative_change_is_a_fraction_of_the_old_figure_and_negative_when_worse():
    old, new = ratio([20, 30, 40, 25, 35]), ratio([18, 27, 36, 22.5, 31.5])
    assert gain_of(old, new, relative=True).interval.value == pytest.approx(-0.1)
    assert gain_of(old, new, relative=False).interval.value == pytest.approx(-0.3)


def test_the_standard_error_is_that_of_the_mean_difference():
    # Differences 1 2 3 4 5 tenths: standard deviation √2.5, over √5 requests.
    gain = gain_of(ratio([20] * 5), ratio([21, 22, 23, 24, 25]), relative=False)
    assert gain.error == pytest.approx(0.1 * (2.5 / 5) ** 0.5)


def test_equal_samples_have_an_interval_without_width_and_under_five_others_none():
    nothing = Estimate(0.0, 0.0, 0.0)
    assert gain_of(ratio([20]), ratio([20]), relative=True).interval == nothing
    assert rise([0.3], [0.3], relative=True).interval == nothing
    assert gain_of(ratio([20] * 4), ratio([10] * 4), relative=True).interval is None


@pytest.mark.parametrize(("freedom", "t"), [(4, 2.776), (9, 2.262), (29, 2.045), (239, 1.970)])
def test_students_distribution_agrees_with_the_tables(freedom, t):
    assert student_quantile(0.975, freedom) == pytest.approx(t, abs=0.02)
    assert student_probability(t, freedom) == pytest.approx(0.975, abs=0.001)
    assert student_probability(-t, freedom) == pytest.approx(0.025, abs=0.001)


@given(st.floats(0.001, 0.999), st.integers(1, 500))
def test_quantile_and_probability_are_inverse(probability, freedom):
    t = student_quantile(probability, freedom)
    assert student_probability(t, freedom) == pytest.approx(probability, abs=1e-9)


def test_holm_corrects_the_smallest_p_value_most():
    # Sorted 0.005 0.01 0.03 0.04, times 4 3 2 1, never falling.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_never_lowers_a_p_value_nor_exceeds_bonferroni(values):
    for raw, adjusted in zip(values, holm(values), strict=True):
        assert raw <= adjusted <= min(1, len(values) * raw) + 1e-12


def test_the_p_value_is_that_of_the_one_sided_t_test_and_sure_without_spread():
    # Deviations squared 60 of 9, over 10 requests: the error is √(60 / 90) / 10 = 0.0816.
    drops = [1, 2, 3, 4, 5, 5, 6, 7, 8, 9]
    gain = gain_of(ratio([30] * 10), ratio([30.0 - d for d in drops]), relative=False)
    assert gain.error == pytest.approx(0.0816, abs=1e-4)
    assert gain.p_fail(0.5 - 2.262 * 0.08165) == pytest.approx(0.025, abs=5e-4)
    sure = Gain(Estimate(-0.5, -0.5, -0.5), 0.0, 20)
    assert (sure.p_fail(0.02), sure.p_fail(0.6)) == (0.0, 1.0)


def test_the_advised_number_brings_the_limit_to_3_24_standard_errors():
    # (1.960 + 1.282)² · (0.02 / 0.02)² = 10.507 times the sample.
    gain = Gain(Estimate(0.0, -0.04, 0.04), 0.02, 100)
    assert gain.advised_requests(0.02) == 1051
    assert gain.requests_to_settle(0.02) == 1051
    assert gain.smallest_detectable_drop(0.02) == pytest.approx(0.02 + 3.2415 * 0.02, rel=1e-3)


@pytest.mark.parametrize(
    ("value", "needed"),
    # Half a limit's distance to the limit: four times the advised 200 · 10.507 / 16; exactly at the
    # limit no number is named.
    [(-0.01, 526), (-0.02, None)],
)
def test_near_the_limit_more_requests_than_advised_are_needed(value, needed):
    gain = Gain(Estimate(value, value - 0.01, value + 0.01), 0.005, 200)
    assert gain.advised_requests(0.02) == 132
    assert gain.requests_to_settle(0.02) == needed


def test_without_an_interval_nothing_is_decided_or_advised():
    gain = Gain(None, None, 1)
    assert gain.verdict(0.02) is Verdict.INCONCLUSIVE
    assert gain.p_fail(0.02) == 1.0
    assert gain.requests_to_settle(0.02) is None
    assert gain.smallest_detectable_drop(0.02) is None


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # The sign test's table: the 2nd and 8th of 9 cover 96.1%, the 5th and 13th of 17 95.1%.
    [(6, 1, 6), (9, 2, 8), (17, 5, 13)],
)
def test_the_median_lies_between_the_order_statistics_of_the_sign_test(count, low, high):
    interval = median_interval([float(i) for i in range(count, 0, -1)])
    assert interval == Estimate((count + 1) / 2, low, high)


def test_five_repeats_give_no_interval():
    assert median_interval([1.0] * 5) is None
    assert rise([1.0] * 5, [2.0] * 5, relative=True).interval is None


OLD = [0.9, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.2, 1.2]
NEW = [1.8, 1.8, 2.0, 2.0, 2.0, 2.0, 2.0, 2.3, 2.3]


def test_two_medians_join_the_distances_in_quadrature_and_a_ratio_on_the_logarithm():
    interval = rise(OLD, NEW, relative=False).interval
    assert interval.value == pytest.approx(1.0)
    assert interval.low == pytest.approx(1 - (0.2**2 + 0.2**2) ** 0.5)
    assert interval.high == pytest.approx(1 + (0.3**2 + 0.1**2) ** 0.5)
    interval = rise(OLD, NEW, relative=True).interval
    assert interval.value == pytest.approx(1.0)
    # ln(2/1.8) = 0.10536, ln 1.2 = 0.18232: exp(0.69315 - 0.21058) - 1.
    assert interval.low == pytest.approx(0.6202, abs=1e-3)


def test_what_processes_differ_by_is_in_the_error_of_a_time():
    # Logarithms of 0 and ±.03 in three processes a side: √(2 · .0009 / 3) · .8 = .0196; with .02 of
    # 25 requests .028.
    sides = [[math.exp(at) for at in (-0.03, 0.0, 0.03)]] * 2
    found = with_processes(Gain(Estimate(-0.2, -0.25, -0.15), 0.02, 25), *sides, relative=True)
    assert found.error == pytest.approx(0.0280, rel=1e-3)
