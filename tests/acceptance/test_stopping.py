"""Rules that stop drafting against every accept/reject outcome, and against a fixed k."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import lookup, replayed, trajectory

from draftbench.acceptance.rounds import expected_rounds, law_of
from draftbench.acceptance.stopping import stopped, stopping_rules
from draftbench.records import DraftingMode

probabilities = st.sampled_from([0.0, 1.0]) | st.floats(0, 1, allow_subnormal=False)
Counts = tuple[int, int, int, int]  # rounds, draft steps, drafted, accepted


def outcomes(
    positions: list[tuple[float, bool]], length: int, k: int, start: int = 1
) -> Iterator[tuple[float, Counts]]:
    """Every way to decode: `positions` holds a_j and whether the draft is sure, where it drafts."""
    if start >= length:
        yield 1.0, (0, 0, 0, 0)
        return
    so_far, steps, drafted = 1.0, 0, 0
    for accepted in range(k + 1):
        position = start + accepted
        ends = accepted == k or position > len(positions)
        if not ends:
            accept, sure = positions[position - 1]
            steps += 1
            drafted += sure
            ends = not sure
        here = so_far if ends else so_far * (1 - accept)
        for probability, rest in outcomes(positions, length, k, position + 1):
            one = (1, steps, drafted, accepted)
            yield here * probability, tuple(map(sum, zip(one, rest, strict=True)))  # type: ignore[misc]
        if ends:
            return
        so_far *= accept


@given(
    st.lists(st.tuples(probabilities, st.booleans()), min_size=1, max_size=7),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_rounds_and_what_is_seen_of_drafting_match_all_outcomes(
    positions: list[tuple[float, bool]], k: int, room: int
) -> None:
    length = len(positions) + 1
    limit = length + room
    confidence = tuple(0.9 if sure else 0.1 for _, sure in positions)
    accept = [accept for accept, _ in positions]
    pair = replayed(accept, limit=limit, confidence=confidence, draftable=length + 5)
    wanted = np.zeros(4)
    for probability, counts in outcomes(positions[: limit - 2], length, k):
        wanted += probability * np.array(counts)
    tokens, steps, accepted = stopped([pair], k, 0.5)
    rounds, every_step, drafted, taken = wanted
    np.testing.assert_allclose(tokens.addends, [[length - 1, rounds]], atol=1e-12)
    np.testing.assert_allclose(steps.addends, [[every_step, rounds]], atol=1e-12)
    np.testing.assert_allclose(accepted.addends, [[taken, drafted]], atol=1e-12)


@given(st.lists(probabilities, min_size=1, max_size=20), st.integers(1, 6), st.integers(0, 8))
def test_a_rule_that_never_stops_has_the_rounds_of_fixed_k_and_fewer_seen_steps(
    accept: list[float], k: int, draftable: int
) -> None:
    pair = replayed(accept, draftable=draftable)
    fixed = expected_rounds([law_of(*pair)], k)
    tokens, steps, accepted = stopped([pair], k, 0.0)
    assert tokens.addends[0, 1] == pytest.approx(fixed.target_passes[0])
    assert accepted.addends[0, 0] == pytest.approx(fixed.accepted[0])
    assert steps.addends[0, 0] <= fixed.proposed[0] + 1e-9


def test_by_hand_the_unsure_token_costs_a_step_but_is_not_drafted() -> None:
    sure = (0.9, 0.3, 0.9, 0.9, 0.9)
    pair = replayed([1.0, 1.0, 1.0, 0.0, 1.0], limit=9, confidence=sure)
    tokens, steps, accepted = stopped([pair], 3, 0.5)
    # Round 1: one accepted, then unsure. Round 2: one accepted, one rejected. Round 3: accepted.
    assert tokens.addends.tolist() == [[5, 3]]
    assert steps.addends.tolist() == [[5, 3]]
    assert accepted.addends.tolist() == [[3, 4]]


def test_rules_begin_with_fixed_k_whose_figures_are_exact() -> None:
    changes = {"confidence": (0.9, 0.4, 0.9), "limit": 9, "draftable": 9}
    pairs = [replayed([1.0, 0.0, 1.0], name, **changes) for name in "abcde"]
    fixed, stopping = stopping_rules(pairs, 2, (0.5,))
    assert (fixed.k, fixed.threshold, stopping.threshold) == (2, None, 0.5)
    figures = (fixed.tokens_per_round, fixed.draft_steps_per_round, fixed.accepted_per_drafted)
    # Fixed: rounds at 1 and 3, two drafted in each, one of them past the end the second time.
    assert [figure.value for figure in figures if figure] == [3 / 2, 4 / 2, 2 / 4]
    rule = (stopping.tokens_per_round, stopping.accepted_per_drafted)
    assert [figure.value for figure in rule if figure] == [3 / 2, 1.0]


def test_rounds_without_a_draft_are_rounds() -> None:
    (fixed,) = stopping_rules([replayed([0.0] * 3, name) for name in "abcde"], 1, ())
    assert fixed.draft_steps_per_round is not None
    # The limit leaves no room to draft at the last of three rounds.
    assert fixed.draft_steps_per_round.value == pytest.approx(2 / 3)


def test_prompt_lookup_has_no_confidence_to_stop_by() -> None:
    assert stopping_rules([(trajectory("r", 2), lookup((1,), (1,)))], 2) == ()


def test_the_rule_may_be_asked_of_a_sampled_draft() -> None:
    sampled = {"mode": DraftingMode.SAMPLED, "confidence": (0.9, 0.1), "limit": 9}
    tokens, _, _ = stopped([replayed([0.5, 0.5], **sampled)], 2, 0.5)
    assert tokens.addends.tolist() == [[2, 1.5]]  # half of the time one round does both
