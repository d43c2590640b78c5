"""The closed form against the tables of Leviathan et al. 2023 and values computed by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftbench.errors import UsageError
from draftbench.planner.formula import (
    best_k,
    break_even_alpha,
    expected_tokens,
    formula_table,
    speedup,
)

rates = st.floats(0, 1)
lengths = st.integers(1, 20)
costs = st.floats(0, 2)


@pytest.mark.parametrize(
    ("alpha", "k", "speed"),
    # The last is the paper's unigram draft.
    [
        *((0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71)),
        *((0.9, 10, 6.86), (0.2, 3, 1.248)),
    ],
)
def test_table_1_of_leviathan_et_al(alpha, k, speed):
    assert speedup(alpha, k, 0) == pytest.approx(speed, abs=0.006)


@pytest.mark.parametrize(
    ("alpha", "best"),
    [
        (0.6, [(6, 2.17), (4, 1.92), (3, 1.67), (2, 1.40), (1, 1.23)]),
        (0.7, [(8, 2.76), (6, 2.35), (4, 1.98), (3, 1.58), (2, 1.37)]),
        (0.8, [(11, 3.82), (8, 3.09), (6, 2.47), (4, 1.87), (3, 1.55)]),
        (0.9, [(19, 6.37), (13, 4.67), (10, 3.43), (7, 2.37), (5, 1.87)]),
    ],
)
def test_the_best_draft_length_by_acceptance_and_cost(alpha, best):
    for cost, (k, speed) in zip([0.02, 0.05, 0.1, 0.2, 0.3], best, strict=True):
        assert best_k(alpha, cost) == k
        assert speedup(alpha, k, cost) == pytest.approx(speed, abs=0.006)


def test_dividing_by_one_plus_the_cost_of_a_token_promises_too_much():
    tokens = 1 + 0.8 + 0.64 + 0.512 + 0.4096 + 0.32768
    assert speedup(0.8, 5, 0.1) == pytest.approx(tokens / 1.5)
    assert tokens / (1 + 0.1) > 1.3 * speedup(0.8, 5, 0.1)
    # With c as the cost of the whole draft pass, 5 tokens at 0.1 each, the two forms agree.
    assert tokens / (1 + 0.5) == pytest.approx(speedup(0.8, 5, 0.1))


def test_a_perfect_draft_gives_every_token_and_the_added_one():
    assert expected_tokens(1.0, 7) == 8
    assert speedup(1.0, 7, 0.5) == pytest.approx(8 / 4.5)
    assert expected_tokens(1 - 1e-12, 7) == pytest.approx(8)
    assert best_k(1.0, 0.0, range(1, 10)) == 9


@given(rates, lengths)
def test_the_sum_of_powers_is_the_closed_form(alpha, k):
    assert expected_tokens(alpha, k) * (1 - alpha) == pytest.approx(1 - alpha ** (k + 1), abs=1e-9)


@given(lengths, costs)
def test_speculation_breaks_even_at_the_break_even_acceptance(k, cost):
    alpha = break_even_alpha(k, cost)
    if cost > 1:
        assert alpha is None
    else:
        assert speedup(alpha, k, cost) == pytest.approx(1)
        assert alpha >= cost - 1e-12  # corollary 3.9: below c no k helps


def test_one_drafted_token_breaks_even_at_its_cost():
    assert break_even_alpha(1, 0.3) == pytest.approx(0.3)
    assert break_even_alpha(2, 0.3) == pytest.approx((-1 + (1 + 4 * 0.6) ** 0.5) / 2)
    assert break_even_alpha(4, 0.0) == 0
    assert break_even_alpha(4, 1.0) == 1


@given(rates, costs)
def test_no_draft_length_is_best_exactly_where_acceptance_does_not_exceed_cost(alpha, cost):
    if abs(alpha - cost) > 1e-9:
        assert (best_k(alpha, cost, range(1, 21)) > 0) == (alpha > cost)


@pytest.mark.parametrize(
    ("alpha", "k", "cost", "verify", "words"),
    [
        (75, 3, 0.1, 1.0, "not a probability"),
        (-0.1, 3, 0.1, 1.0, "not a probability"),
        (0.5, -1, 0.1, 1.0, "draft length"),
        (0.5, 3, -0.1, 1.0, "draft cost ratio"),
        (0.5, 3, 0.1, 0.0, "verify ratio"),
        (0.5, 3, 0.1, float("nan"), "verify ratio"),
    ],
)
def test_impossible_numbers_are_usage_errors(alpha, k, cost, verify, words):
    with pytest.raises(UsageError, match=words) as caught:
        speedup(alpha, k, cost, verify=verify)
    assert caught.value.hint


def test_verifying_is_added_to_the_price_of_a_round():
    # 1 + 0.5 + 0.25 tokens for 2·0.1 + 1.55 steps.
    assert speedup(0.5, 2, 0.1, verify=1.55) == pytest.approx(1.75 / 1.75)
    assert break_even_alpha(2, 0.1, verify=1.55) == pytest.approx(0.5)
    # A dear one leaves nothing to gain; plain decoding pays neither.
    assert best_k(0.5, 0.1, verify=dict.fromkeys(range(1, 65), 2.0)) == 0
    assert break_even_alpha(1, 0.1, verify=2.0) is None
    assert speedup(0.5, 0, 0.1, verify=2.0) == 1


def test_each_draft_length_has_its_own_verification_and_one_without_a_row_may_be_faster():
    """By hand at α = 0.5, c = 0.1: 1.5 / (0.1 + 1.1), 1.75 / (0.2 + 1.55), 1.875 / (0.3 + 1.7)."""
    found = formula_table(0.5, 0.1, (1, 2, 3), (1.1, 1.55, 1.7))
    assert [row.speedup for row in found.rows] == pytest.approx([1.25, 1, 0.9375])
    assert (found.verify_ratio, found.best_k, found.faster_k) == (None, 1, None)
    with pytest.raises(UsageError, match="2 verify ratios do not fit 3 draft lengths"):
        formula_table(0.5, 0.1, (1, 2, 3), (1.1, 1.2))
    # 3.69 tokens for 1.5 steps. At k = 6, which has no row, it is 3.95 for 1.6.
    found = formula_table(0.8, 0.1, (1, 5, 20))
    assert (found.best_k, found.faster_k, [row.k for row in found.rows]) == (5, 6, [1, 5, 20])
    speeds = found.best_speedup, found.faster_speedup
    assert speeds == pytest.approx((2.46, 2.47), abs=0.006)
    # At k = 20 (1 - 0.8^21) / 0.2 tokens cost 3 steps.
    assert found.rows[-1].speedup == pytest.approx((1 - 0.8**21) / 0.2 / 3)
