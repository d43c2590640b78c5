"""The probability of a try at each position against every accept/reject outcome, and by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftbench.acceptance.tried import drafted_positions, tried
from draftbench.records import Replay, Trajectory

probabilities = st.sampled_from([0.0, 1.0]) | st.floats(0, 1, allow_subnormal=False)


def outcomes(accept: list[float], k: int, start: int = 0) -> Iterator[tuple[float, set[int]]]:
    """Every way to decode from `start`, as its probability and the positions tried."""
    if start >= len(accept):
        yield 1.0, set()
        return
    so_far = 1.0
    for position in range(start, start + k + 1):
        full = position == start + k or position >= len(accept)
        here = so_far if full else so_far * (1 - accept[position])
        seen = set(range(start, position if full else position + 1))
        for probability, rest in outcomes(accept, k, position + 1):
            yield here * probability, seen | rest
        if full:
            return
        so_far *= accept[position]


@given(st.lists(st.lists(probabilities, max_size=7), min_size=1, max_size=3), st.integers(1, 4))
def test_each_position_is_tried_as_often_as_in_all_outcomes(
    responses: list[list[float]], k: int
) -> None:
    found = tried([np.array(accept) for accept in responses], k)
    for accept, reached in zip(responses, found, strict=True):
        wanted = np.zeros(len(accept))
        for probability, positions in outcomes(accept, k):
            wanted[list(positions)] += probability
        np.testing.assert_allclose(reached, wanted, atol=1e-12)


def test_the_token_behind_a_fully_accepted_round_is_the_targets_own() -> None:
    (reached,) = tried([np.array([1.0, 1.0, 1.0, 1.0, 0.0, 1.0])], 2)
    # Two accepted, one of the target, one accepted, one rejected, and one more.
    assert reached.tolist() == [1, 1, 0, 1, 1, 1]


def test_long_responses_do_not_change_what_short_ones_beside_them_give() -> None:
    short, long = np.array([0.5, 0.5, 0.5]), np.full(300, 0.5)
    (alone,) = tried([short], 1)
    together = tried([long, *[short] * 200], 1)
    assert alone.tolist() == [1.0, 0.5, 0.75]  # 1 - a(1 - 0), 1 - a(1 - a·1/2)
    assert all(np.array_equal(each, alone) for each in together[1:])
    assert len(together[0]) == 300


@pytest.mark.parametrize(
    ("fields", "draftable", "last"),
    [
        ({"output_tokens": 6, "limit": 9}, 9, 5),  # the response ends before the limit
        ({"output_tokens": 6, "limit": 6}, 9, 4),  # at the last position only the target writes
        ({"output_tokens": 6, "limit": 9}, 2, 2),  # the draft's context is full
        ({"output_tokens": 1, "limit": 1}, 9, 0),
    ],
)
def test_drafting_ends_at_the_limit_and_at_the_drafts_context(
    trajectory: Callable[..., Trajectory],
    replay: Callable[..., Replay],
    fields: dict[str, int],
    draftable: int,
    last: int,
) -> None:
    along = replay([1.0] * (fields["output_tokens"] - 1), draftable=draftable)
    assert drafted_positions(trajectory("r", **fields), along) == last
