"""Groups, readings and lost rounds by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from draftbench.acceptance.breakdown import (
    FEWER_EARLY,
    FEWER_LATE,
    Breakdown,
    Crossing,
    Group,
    GroupRounds,
    breakdown,
    costliest_disagreements,
    rounds_by_group,
)
from draftbench.acceptance.rounds import expected_rounds, law_of
from draftbench.records import Candidate, DraftingMode, LookupReplay, Replay, Sampling, Trajectory

Make = Callable[..., Trajectory]
MakeReplay = Callable[..., Replay]
Pair = tuple[Trajectory, Replay]
Pairs = Sequence[Pair]
MakePair = Callable[[str, str | None, float, list[float]], Pair]


def broken_down(pairs: Pairs) -> Breakdown:
    found = breakdown(pairs)
    assert found is not None
    return found


def groups(pairs: Pairs, by: str) -> dict[str, Group]:
    return {group.name: group for group in broken_down(pairs).groups if group.by == by}


def rates(pairs: Pairs, by: str) -> dict[str, float]:
    found = groups(pairs, by).items()
    return {name: group.alpha.value for name, group in found if group.alpha is not None}


@pytest.fixture
def alike(trajectory: Make, replay: MakeReplay) -> Callable[..., Pairs]:
    """alike(accept, count, trajectory's fields, **replay's fields): equal requests."""

    def make(accept: Sequence[float], count: int, at: str, changes: dict[str, object]) -> Pairs:
        names = [f"{at}{i}" for i in range(count)]
        return [
            (trajectory(name, len(accept) + 1, **changes), replay(accept, name)) for name in names
        ]

    return make


def test_segments_and_temperatures_split_requests(alike: Callable[..., Pairs]) -> None:
    hot = {"segment": "code", "sampling": Sampling(temperature=0.7)}
    pairs = [*alike([1.0, 0.0], 3, "a", {"segment": "chat"}), *alike([1.0] * 4, 2, "b", hot)]
    assert rates(pairs, "segment") == {"chat": 0.5, "code": 1.0}
    assert rates(pairs, "temperature") == {"0": 0.5, "0.7": 1.0}
    code = groups(pairs, "segment")["code"]
    assert (code.requests, code.positions) == (2, 8)
    assert code.confidence == pytest.approx(0.9)
    assert list(rates(alike([1.0], 2, "c", {}), "segment")) == ["no segment"]


@pytest.mark.parametrize(
    ("accept", "reading"),
    [
        ([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], FEWER_EARLY),
        ([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], FEWER_LATE),
        ([1.0, 0.0, 1.0, 1.0, 1.0, 0.0], None),
    ],
)
def test_thirds_are_read_only_where_they_differ_beyond_doubt(
    alike: Callable[..., Pairs], accept: list[float], reading: str | None
) -> None:
    pairs = alike(accept, 5, "r", {})
    found = broken_down(pairs)
    thirds = {"early": sum(accept[:2]) / 2, "middle": 1.0, "late": sum(accept[4:]) / 2}
    assert rates(pairs, "third") == thirds
    assert found.reading == reading
    assert found.late_less_early is not None
    assert found.late_less_early.value == thirds["late"] - thirds["early"]


def test_a_difference_that_some_requests_contradict_has_no_reading(
    alike: Callable[..., Pairs],
) -> None:
    pairs = [*alike([0.0, 1.0, 1.0], 3, "a", {}), *alike([1.0, 1.0, 0.0], 2, "b", {})]
    assert broken_down(pairs).reading is None


def test_a_position_follows_a_rejected_token_as_likely_as_that_was_rejected(
    alike: Callable[..., Pairs],
) -> None:
    # Behind 0.25 stands 0.5, behind that 1; nothing stands before the first position.
    pairs = alike([0.25, 0.5, 1.0], 2, "r", {})
    after = groups(pairs, "after")
    assert rates(pairs, "after") == {
        "an accepted token": pytest.approx((0.25 * 0.5 + 0.5 * 1) / 0.75),
        "a rejected token": pytest.approx((0.75 * 0.5 + 0.5 * 1) / 1.25),
    }
    assert after["an accepted token"].positions == pytest.approx(2 * 0.75)
    assert after["a rejected token"].positions == pytest.approx(2 * 1.25)


def test_confidence_stands_beside_what_was_accepted(trajectory: Make, replay: MakeReplay) -> None:
    sure = (0.96, 0.5, 0.96, 1.0)
    pairs = [
        (trajectory(r, 5), replay([1.0, 0.0, 1.0, 1.0], r, confidence=sure)) for r in ("a", "b")
    ]
    assert rates(pairs, "confidence") == {"0.4 to 0.6": 0.0, "0.95 to 1": 1.0}
    assert groups(pairs, "confidence")["0.95 to 1"].confidence == pytest.approx(2.92 / 3)


def test_positions_that_the_draft_cannot_reach_are_in_no_group(
    trajectory: Make, replay: MakeReplay
) -> None:
    pairs = [
        (trajectory(r, 7), replay([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], r, draftable=1)) for r in "ab"
    ]
    found = groups(pairs, "third")
    assert [(name, group.positions) for name, group in found.items()] == [("early", 2)]
    assert groups(pairs, "after") == {}
    assert broken_down(pairs).late_less_early is None


def test_groups_use_the_overlap_where_the_card_does(trajectory: Make, replay: MakeReplay) -> None:
    fields = {"mode": DraftingMode.SAMPLED, "overlap": (0.8, 0.6)}
    pairs = [(trajectory(r, 3), replay([1.0, 0.0], r, **fields)) for r in "ab"]
    assert rates(pairs, "segment")["no segment"] == pytest.approx(0.7)


def test_prompt_lookup_has_no_groups(trajectory: Make) -> None:
    lookup = LookupReplay(
        request="r",
        sample=0,
        candidate=Candidate(draft="ngram"),
        window=2,
        proposed=(1,),
        matched=(1,),
    )
    assert breakdown([(trajectory("r", 2), lookup)]) is None


def test_a_disagreement_costs_the_rounds_that_end_on_it(
    trajectory: Make, replay: MakeReplay
) -> None:
    pairs = [
        (trajectory("a", 5, limit=9), replay([0.0, 1.0, 0.0, 0.0], "a")),
        (trajectory("b", 5, limit=9, weight=2.0), replay([1.0, 0.0, 1.0, 1.0], "b")),
        (trajectory("c", 5, limit=9), replay([0.0] * 4, "c")),
    ]
    written = {("a", 0): (1, 10, 11, 12, 13), ("b", 0): (1, 10, 11, 12, 13)}
    drafted = {("a", 0): (20, 11, 22, 23), ("b", 0): (10, 21, 12, 13)}
    found = costliest_disagreements(pairs, 1, drafted, written)
    # k = 1. a: rejected at 1, accepted at 2, so 3 is the target's own and nothing is tried there,
    # rejected at 4. b: accepted at 1, 2 is the target's own: its wrong token costs nothing.
    shown = [(d.drafted, d.target, d.times, d.rounds_lost, d.share) for d in found]
    assert shown == [(20, 10, 1, 1.0, 0.5), (23, 13, 1, 1.0, 0.5)]
    deeper = costliest_disagreements(pairs, 2, drafted, written, most=1)
    # k = 2 tries b's wrong token behind its right one, and b weighs twice.
    assert [(d.drafted, d.target, d.rounds_lost) for d in deeper] == [(21, 11, 2.0)]


@pytest.fixture
def pair(trajectory: Make, replay: MakeReplay) -> MakePair:
    """pair(request, segment, temperature, accept)"""

    def make(request: str, segment: str | None, temperature: float, accept: list[float]) -> Pair:
        sampling = Sampling(temperature=temperature)
        along = trajectory(request, len(accept) + 1, segment=segment, sampling=sampling)
        return along, replay(accept, request)

    return make


def crossings(pairs: list[Pair]) -> dict[tuple[str, float], Crossing]:
    return {(cell.segment, cell.temperature): cell for cell in broken_down(pairs).crossings}


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
