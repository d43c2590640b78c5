"""Intervals against a textbook example, a known population, and by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import ratio

from draftbench.acceptance.definitions import HAZARD, Sample, quotient
from draftbench.acceptance.intervals import (
    estimate,
    estimates,
    paired_difference,
    paired_ratio,
    quantiles,
    requests_needed,
    resampled,
)


def known(sample, **options):
    found = estimate(sample, **options)
    assert found is not None
    return found


def test_bca_reproduces_the_textbook_interval_of_a_skewed_figure():
    # Efron & Tibshirani 1993, table 14.2: variance of the spatial test data, 90%:
    # BCa (115.8, 259.6), ABC (116.7, 260.9); the plain percentile interval is (100.8, 233.9).
    table = "48 36 20 29 42 42 20 42 22 41 45 14 6 0 33 28 34 4 32 24 47 41 24 26 30 41"
    scores = np.array([float(score) for score in table.split()])
    moments = np.stack([np.ones(26), scores, scores**2], axis=1)

    def variance(sums):
        mean = sums / sums[..., :1]
        return np.asarray(mean[..., 2] - mean[..., 1] ** 2)

    sample = Sample(HAZARD, tuple(map(str, range(26))), np.ones(26), moments, variance)
    [found] = resampled([sample], [0.9], 20000)
    assert found is not None
    assert found.value == pytest.approx(171.5, abs=0.1)
    assert (found.low, found.high) == pytest.approx((116.0, 260.0), abs=3)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    # Long requests are accepted less: 10, 40 and 160 tokens at 0.9, 0.8 and 0.6.
    truth = (10 * 0.9 + 40 * 0.8 + 160 * 0.6) / 210
    rng = np.random.default_rng(7)
    length, mean = np.array([10, 40, 160]), np.array([0.9, 0.8, 0.6])
    trials, held = 500, 0
    for _ in range(trials):
        kind = rng.integers(3, size=60)
        rate = rng.beta(10 * mean[kind], 10 * (1 - mean[kind]))
        found = known(ratio(rng.binomial(length[kind], rate), length[kind]), resamples=500)
        held += found.low <= truth <= found.high
    # A coverage of 93 to 95% leaves these bounds with a probability below 1 in 1,000.
    assert 0.89 <= held / trials <= 0.985


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=5, max_size=20))
def test_an_interval_is_ordered_and_inside_what_single_requests_show(rows):
    sample = ratio([n for n, _ in rows], [d for _, d in rows])
    found = known(sample, resamples=200)
    shown = [n / d for n, d in rows]
    assert min(shown) - 1e-9 <= found.low <= found.high <= max(shown) + 1e-9
    assert found.value == pytest.approx(sum(n for n, _ in rows) / sum(d for _, d in rows))


def test_a_figure_always_has_the_same_interval_and_more_resamples_hardly_change_it():
    sample = ratio(np.random.default_rng(2).integers(0, 50, 40), np.full(40, 50))
    assert estimate(sample) == estimate(sample)
    more = known(sample, resamples=20000)
    assert more != known(sample)
    assert more.low == pytest.approx(known(sample).low, abs=0.02)


def test_a_heavy_request_counts_as_often_as_its_weight_says():
    plain = ratio([1, 0, 0, 0], [1, 1, 1, 1])
    weighted = Sample(
        plain.figure, ("a", "b"), np.array([1.0, 3.0]), plain.addends[:2], plain.combine
    )
    assert weighted.value == plain.value == 0.25
    rng = np.random.default_rng(5)
    addends, weights = rng.random((30, 2)), rng.integers(1, 9, 30).astype(float)
    names = tuple(map(str, range(30)))
    heavy = Sample(plain.figure, names, weights, addends, quotient)
    assert known(heavy) == known(ratio(*(addends * weights[:, None]).T))


def test_an_interval_is_the_same_in_another_unit():
    # Sums of multiples of 0.1 differ in their last bits, by the CPU too; resamples that draw the
    # figure itself must be counted as equal to it all the same.
    accepted = np.array([3, 1, 4, 1, 5, 2, 0, 5, 3, 5, 2, 4], float)
    once = known(ratio(accepted, np.full(12, 6.0)))
    tenth = known(ratio(accepted * 0.1, np.full(12, 6.0)))
    assert [tenth.low, tenth.high] == pytest.approx([0.1 * once.low, 0.1 * once.high], rel=1e-9)


def test_agreeing_requests_give_no_width():
    found = known(ratio([3.0] * 30, [10.0] * 30))
    assert (found.low, found.high) == pytest.approx((0.3, 0.3))


@pytest.mark.parametrize(
    ("numerator", "denominator"),
    [
        ([], []),
        ([1], [2]),
        ([0, 0], [0, 0]),
        ([1, 0, 0], [2, 0, 0]),
        ([1, 1] + [0] * 30, [1, 1] + [0] * 30),
    ],
    ids=["no request", "one request", "nothing counted", "hangs on one", "hangs on two of many"],
)
def test_what_cannot_be_computed_is_unknown(numerator, denominator):
    assert estimate(ratio(numerator, denominator)) is None
    assert len(numerator) > 3 or requests_needed(ratio(numerator, denominator), 0.1) is None


def test_pairing_removes_what_requests_have_in_common():
    rng = np.random.default_rng(3)
    drafted = rng.integers(20, 200, 50).astype(float)
    shared = drafted * rng.beta(2, 2, 50)
    a, b = ratio(shared + 0.1 * drafted, drafted), ratio(shared, drafted)
    difference = known(paired_difference(a, b))
    assert (difference.low, difference.high) == pytest.approx((0.1, 0.1))
    single = known(a)
    assert single.high - single.low > 0.05
    twice = known(paired_ratio(ratio(2 * shared, drafted), b))
    assert (twice.value, twice.low, twice.high) == pytest.approx((2, 2, 2))


def test_pairs_are_the_requests_that_both_have():
    a = replace(ratio([1, 2, 9], [10, 10, 10], "xyz"), weights=np.array([1.0, 2.0, 3.0]))
    b = ratio([3, 1, 7], [10, 10, 10], "yxw")
    pair = paired_difference(a, b)
    assert pair.requests == ("x", "y")
    assert pair.addends.tolist() == [[1, 10, 1, 10], [2, 10, 3, 10]]
    assert pair.value == pytest.approx((1 + 2 * 2) / 30 - (1 + 2 * 3) / 30)
    assert paired_ratio(a, ratio([0, 0], [1, 1], "xy")).value is None


def test_requests_needed_follow_from_the_standard_error():
    # Half of 100 requests are at 1, half at 0: s² = 25/99; 1.96² s² / 0.05² = 388.03.
    sample = ratio([1.0, 0.0] * 50, [1.0] * 100)
    assert requests_needed(sample, 0.1) == 389
    assert requests_needed(sample, 0.05) == 1553  # a quarter of the width, squared: 1552.1
    assert requests_needed(ratio([1.0] * 9, [1.0] * 9), 0.1) is None  # no spread to learn from


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.25, 2.0), (0.6, 3.4), (0.9, 7.6), (1.0, 10.0)]
)
def test_a_quantile_lies_between_the_two_draws_around_it(share, value):
    assert quantiles(np.array([3.0, 1.0, 10.0, 2.0, 4.0]), [share])[0] == pytest.approx(value)


def test_figures_asked_for_together_are_those_asked_for_alone():
    rng = np.random.default_rng(1)
    tokens = rng.integers(2, 60, 40)
    whole = [ratio(rng.binomial(tokens, rate), tokens) for rate in (0.2, 0.8)]
    part = ratio([3, 1, 4, 1, 5, 9], [9, 9, 9, 9, 9, 9], "abcdef")
    samples = [whole[0], None, part, ratio([1], [2]), whole[1], whole[0]]
    assert estimates(samples) == [estimate(sample) for sample in samples]
    assert [at for at, found in enumerate(estimates(samples)) if found is None] == [1, 3]
