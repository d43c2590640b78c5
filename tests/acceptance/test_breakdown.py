"""Groups and readings by hand."""

import pytest
from scenes import lookup, replayed, trajectory

from draftbench.acceptance.breakdown import (
    FALLING,
    RISING,
    breakdown,
    context_range,
    in_order,
    rounds_by_group,
)
from draftbench.acceptance.rounds import expected_rounds
from draftbench.drafts.laws import law_of
from draftbench.records import Sampling


def groups(pairs, by):
    return {group.name: group for group in breakdown(pairs).groups if group.by == by}


def rates(pairs, by):
    found = groups(pairs, by).items()
    return {name: group.alpha.value for name, group in found if group.alpha is not None}


def alike(accept, requests, **changes):
    return [replayed(accept, request, **changes) for request in requests]


def test_segments_and_temperatures_split_requests():
    pairs = alike([1.0, 0.0], "abcde", segment="chat")
    pairs += alike([1.0] * 4, "fghij", segment="code", sampling=Sampling(temperature=0.7))
    assert rates(pairs, "segment") == {"chat": 0.5, "code": 1.0}
    assert rates(pairs, "temperature") == {"0": 0.5, "0.7": 1.0}
    code = groups(pairs, "segment")["code"]
    assert (code.requests, code.equal_requests, code.positions) == (5, 5, 20)
    assert code.confidence == pytest.approx(0.9)
    assert list(rates(alike([1.0], "abcde"), "segment")) == ["no segment"]


@pytest.mark.parametrize(
    ("accept", "reading"),
    [
        ([0.0, 0.0, 1.0, 1.0, 1.0, 1.0], RISING),
        ([1.0, 1.0, 1.0, 1.0, 0.0, 0.0], FALLING),
        ([1.0, 0.0, 1.0, 1.0, 1.0, 0.0], None),
    ],
)
def test_thirds_are_read_only_where_they_differ_beyond_doubt(accept, reading):
    pairs = alike(accept, "abcde")
    found = breakdown(pairs)
    thirds = {"early": sum(accept[:2]) / 2, "middle": 1.0, "late": sum(accept[4:]) / 2}
    assert rates(pairs, "third") == thirds
    assert found.reading == reading
    assert found.late_less_early is not None
    assert found.late_less_early.value == thirds["late"] - thirds["early"]


def test_a_difference_that_some_requests_contradict_has_no_reading():
    pairs = [*alike([0.0, 1.0, 1.0], "abc"), *alike([1.0, 1.0, 0.0], "de")]
    assert breakdown(pairs).reading is None


def test_a_position_follows_a_rejected_token_as_likely_as_that_was_rejected():
    # Behind 0.25 stands 0.5, behind that 1; nothing stands before the first position.
    pairs = alike([0.25, 0.5, 1.0], "abcde")
    after = groups(pairs, "after")
    assert rates(pairs, "after") == {
        "an accepted token": pytest.approx((0.25 * 0.5 + 0.5 * 1) / 0.75),
        "a rejected token": pytest.approx((0.75 * 0.5 + 0.5 * 1) / 1.25),
    }
    assert after["an accepted token"].positions == pytest.approx(5 * 0.75)
    assert after["a rejected token"].positions == pytest.approx(5 * 1.25)


def test_confidence_stands_beside_what_was_accepted():
    pairs = alike([1.0, 0.0, 1.0, 1.0], "abcde", confidence=(0.96, 0.5, 0.96, 1.0))
    assert rates(pairs, "confidence") == {"0.4 to 0.6": 0.0, "0.95 to 1": 1.0}
    assert groups(pairs, "confidence")["0.95 to 1"].confidence == pytest.approx(2.92 / 3)


def test_positions_that_the_draft_cannot_reach_are_in_no_group():
    pairs = alike([1.0, 0.0, 0.0, 0.0, 0.0, 0.0], "ab", draftable=1)
    found = groups(pairs, "third")
    assert [(name, group.positions) for name, group in found.items()] == [("early", 2)]
    assert groups(pairs, "after") == {}
    assert breakdown(pairs).late_less_early is None


def test_prompt_lookup_has_no_groups():
    assert breakdown([(trajectory("r", 2), lookup((1,), (1,)))]) is None


def test_rounds_are_those_of_the_group_at_each_k():
    pairs = alike([1.0] * 4, "abcde", segment="code")
    pairs += alike([0.0] * 4, "fghij", segment="chat")
    laws = [law_of(*pair) for pair in pairs]
    rounds = {k: expected_rounds(laws, k) for k in (1, 3)}
    found = [
        (group.by, group.name, group.k, group.requests, group.tokens_per_round.value)
        for group in rounds_by_group([response for response, _ in pairs], rounds)
        if group.tokens_per_round
    ]
    # Four tokens after the first: refused each takes a round; accepted they take two rounds of two
    # at k = 1 and one of four at k = 3.
    assert found == [
        ("segment", "chat", 1, 5, 1.0),
        ("segment", "chat", 3, 5, 1.0),
        ("segment", "code", 1, 5, 2.0),
        ("segment", "code", 3, 5, 4.0),
    ]


@pytest.mark.parametrize(
    ("tokens", "name"),
    [
        (0, "up to 1k"),
        (1024, "up to 1k"),
        (1024.5, "1k to 8k"),
        (8192, "1k to 8k"),
        (32768, "8k to 32k"),
        (32769, "over 32k"),
    ],
)
def test_a_range_of_contexts_ends_with_the_number_that_names_it(tokens, name):
    assert context_range(tokens) == name


def test_ranges_of_contexts_stand_by_length_and_segments_by_the_alphabet():
    ranges = ["over 32k", "up to 1k", "8k to 32k", "1k to 8k", "up to 1k"]
    assert in_order(ranges) == ["up to 1k", "1k to 8k", "8k to 32k", "over 32k"]
    assert in_order(["tests", "class"]) == ["class", "tests"]
