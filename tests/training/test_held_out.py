"""Rates of acceptance → speed-ups."""

import math

import numpy as np
import pytest
import scenes

from draftbench.acceptance.intervals import Estimate
from draftbench.training.held_out import Acceptance, Speeds, prove


def accepted(*rates, length=2001):
    """Long responses, so that their ends hardly count, of which every position is accepted so."""
    pairs = [
        (
            scenes.trajectory(f"r{at}", length, limit=length + 9),
            scenes.replay([rate] * (length - 1)),
        )
        for at, rate in enumerate(rates)
    ]
    return Acceptance(pairs, seconds=1.0)


def exactly(value):
    return Estimate(value, value, value)


@pytest.mark.parametrize(
    ("rate", "becomes", "by_k", "speedup", "k"),
    [
        (0.0, 0.0, {1: 0.8, 2: 0.7}, 0.8, 1),
        (0.0, 1.0, {1: 0.8, 2: 0.7}, 3 * 0.7, 2),  # the longest draft that pays, all of it
        # Of two tokens a rate a yields 1 + a + a²: 1.75 of .5, 2.3125 of .75, 1.3125 of .25.
        (0.0, 0.5, {2: 0.7}, 0.7 * 1.75, 2),
        (0.5, 0.75, {2: 0.7}, 0.7 * 2.3125 / 1.75, 2),
        (0.5, 0.25, {2: 0.7}, 0.7 * 1.3125 / 1.75, 2),
        (0.5, 0.5, {2: 0.7}, 0.7, 2),
        (1.0, 1.0, {2: 0.7}, 0.7, 2),
    ],
)
def test_a_draft_gains_by_what_its_rounds_yield_more(rate, becomes, by_k, speedup, k):
    speeds = Speeds({k: exactly(value) for k, value in by_k.items()}, exactly(1.0))
    found, _ = speeds.at(accepted(rate), np.full(100, becomes))
    assert (found.k, found.speedup.value) == (k, pytest.approx(speedup, rel=1e-3))


def test_a_proof_without_timings_compares_rates_and_tokens_at_the_largest_k():
    found = prove(accepted(0.0, 0.0), accepted(0.5, 0.5), None, [1, 2])
    assert (found.k, found.before, found.after, found.faster) == (2, None, None, None)
    assert found.rate.difference.value == pytest.approx(0.5)
    assert found.tokens_per_round.difference.value == pytest.approx(0.75, rel=1e-3)


def test_a_proof_with_timings_says_how_fast_the_draft_was_and_is():
    # Of one drafted token a half: 1.5 tokens a round instead of 1.
    found = prove(
        accepted(0.0, 0.0), accepted(0.5, 0.5), Speeds({1: exactly(0.8)}, exactly(1.0)), [1]
    )
    assert (found.before.k, found.before.speedup.value) == (1, pytest.approx(0.8))
    assert (found.after.k, found.after.speedup.value) == (1, pytest.approx(1.2, rel=1e-3))
    assert found.faster.value == pytest.approx(1.5, rel=1e-3)


def test_the_doubt_of_the_rate_and_of_the_timing_both_show():
    before = accepted(0.0)
    timed = {1: Estimate(0.8, 0.8 / 1.2, 0.8 * 1.2)}
    rate = np.random.default_rng(0).normal(0.5, 0.05, 2000)
    widths = []
    for by_k, draws in (({1: exactly(0.8)}, rate), (timed, np.full(2000, 0.5)), (timed, rate)):
        found = Speeds(by_k, exactly(1.0)).at(before, draws)[0]
        widths.append(found.speedup.high / found.speedup.low)
    assert widths[2] > max(widths[:2]) > 1.05


def test_of_counted_rounds_the_fastest_k_is_taken():
    speeds = Speeds({1: exactly(1.2), 2: exactly(1.1)}, exactly(1.2))
    found = speeds.with_tokens({1: exactly(1.1), 2: exactly(1.3)})
    assert (found.k, found.speedup.value) == (2, pytest.approx(1.43))


def test_a_product_of_two_figures_has_the_doubts_of_both():
    # Half-widths of .1 and .24 in the logarithm make .26.
    timed = Estimate(1.0, float(np.exp(-0.1)), float(np.exp(0.1)))
    tokens = Estimate(1.0, float(np.exp(-0.24)), float(np.exp(0.24)))
    speedup = Speeds({1: timed}, exactly(1.0)).with_tokens({1: tokens}).speedup
    assert np.log([speedup.low, speedup.high]) == pytest.approx([-0.26, 0.26])


def test_at_one_k_the_timings_are_the_same_before_and_after_and_doubt_nothing():
    one, two = Estimate(1.2, 0.9, 1.5), exactly(1.0)
    speeds = Speeds({1: one, 2: two}, one)
    ratio = Estimate(1.1, 1.05, 1.15)
    assert speeds.over(one, 1, ratio) == ratio
    other = speeds.over(one, 2, ratio)
    assert other.value == pytest.approx(1.1 * 1.0 / 1.2)
    assert other.high / other.low > 1.5 / 0.9


@pytest.mark.parametrize(
    ("fastest", "widths"),
    [
        (Estimate(1.2, 0.9, 1.6), []),  # the draft's own: it gains a half, however fast it is
        (exactly(1.3), [1.6 / 0.9]),
        (Estimate(1.25, 1.0, 1.5625), [1.6 / 0.9, 1.5625]),  # another draft's, in doubt too
    ],
)
def test_timings_that_both_share_cast_no_doubt_on_whether_training_makes_the_fastest(
    fastest, widths
):
    # Of one drafted token a half: 1.5 tokens a round instead of 1.
    speeds = Speeds({1: Estimate(1.2, 0.9, 1.6)}, fastest)
    _, forecast = speeds.at(accepted(0.0), np.full(20_000, 0.5))
    proved = prove(accepted(0.0, 0.0), accepted(0.5, 0.5), speeds, [1]).over_fastest
    for found in (forecast, proved):
        assert found.value == pytest.approx(1.5 * 1.2 / fastest.value, rel=1e-3)
        width = math.hypot(*map(math.log, widths))
        assert math.log(found.high / found.low) == pytest.approx(width, rel=0.05, abs=1e-3)
