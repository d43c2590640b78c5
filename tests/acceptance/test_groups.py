"""Segments, temperatures and both at once by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from draftbench.acceptance.breakdown import breakdown
from draftbench.acceptance.groups import Crossing, GroupRounds, rounds_by_group
from draftbench.acceptance.laws import law_of
from draftbench.acceptance.rounds import expected_rounds
from draftbench.records import Replay, Sampling, Trajectory

Make = Callable[..., Trajectory]
MakeReplay = Callable[..., Replay]
Pair = tuple[Trajectory, Replay]
MakePair = Callable[[str, str | None, float, list[float]], Pair]


@pytest.fixture
def pair(trajectory: Make, replay: MakeReplay) -> MakePair:
    """pair(request, segment, temperature, accept)"""

    def make(request: str, segment: str | None, temperature: float, accept: list[float]) -> Pair:
        sampling = Sampling(temperature=temperature)
        own = trajectory(request, len(accept) + 1, segment=segment, sampling=sampling)
        return own, replay(accept, request)

    return make


def crossings(pairs: list[Pair]) -> dict[tuple[str, float], Crossing]:
    found = breakdown(pairs)
    assert found is not None
    return {(cell.segment, cell.temperature): cell for cell in found.crossings}


def test_every_segment_stands_at_every_temperature_that_it_was_asked_at(pair: MakePair) -> None:
    pairs = [
        pair("a", "code", 0.0, [1.0, 0.0]),
        pair("b", "code", 0.0, [1.0, 0.0]),
        pair("c", "code", 1.0, [0.0, 0.0, 0.0, 1.0]),
        pair("d", "code", 1.0, [0.0, 0.0, 0.0, 1.0]),
        pair("e", "chat", 1.0, [1.0]),
    ]
    found = crossings(pairs)
    assert list(found) == [("chat", 1.0), ("code", 0.0), ("code", 1.0)]
    cold, hot = found["code", 0.0], found["code", 1.0]
    assert cold.alpha is not None
    assert hot.alpha is not None
    assert (cold.alpha.value, cold.requests, cold.positions) == (0.5, 2, 4)
    assert (hot.alpha.value, hot.requests, hot.positions) == (0.25, 2, 8)


def test_one_request_has_no_interval_and_so_no_figure(pair: MakePair) -> None:
    pairs = [pair("a", "chat", 0.0, [1.0]), pair("b", "code", 1.0, [1.0])]
    assert [(c.requests, c.alpha) for c in crossings(pairs).values()] == [(1, None), (1, None)]


@pytest.mark.parametrize("change", [("chat", 1.0), ("code", 0.0)])
def test_a_table_of_one_row_or_column_is_left_out(
    pair: MakePair, change: tuple[str, float]
) -> None:
    assert crossings([pair("a", "chat", 0.0, [1.0]), pair("b", *change, [1.0])]) == {}


def test_rounds_are_those_of_the_group_at_each_k(pair: MakePair) -> None:
    pairs = [pair(r, "code", 0.0, [1.0] * 4) for r in "ab"]
    pairs += [pair(r, "chat", 0.0, [0.0] * 4) for r in "cd"]
    laws = [law_of(trajectory, replay) for trajectory, replay in pairs]
    own = [trajectory for trajectory, _ in pairs]
    found = rounds_by_group(own, {k: expected_rounds(laws, k) for k in (1, 3)})
    # Four tokens after the first: refused each takes a round; accepted they take two rounds of two
    # at k = 1 and one of four at k = 3.
    assert [_row(group) for group in found] == [
        ("segment", "chat", 1, 2, 1.0),
        ("segment", "chat", 3, 2, 1.0),
        ("segment", "code", 1, 2, 2.0),
        ("segment", "code", 3, 2, 4.0),
    ]


def _row(group: GroupRounds) -> tuple[str, str, int, int, float]:
    assert group.tokens_per_round is not None
    return group.by, group.name, group.k, group.requests, group.tokens_per_round.value
