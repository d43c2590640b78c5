"""Recorded rounds beside replays; the numbers are by hand."""

import math

import msgspec
import pytest
import scenes
from scenes import SMALL

from draftbench.audit.audit import Tally, at_least, better, is_idle, never_right, once, tally_of
from draftbench.audit.explained import Compared, ReplayedResponse, recorded, tie_margin
from draftbench.records import DraftLength, InBlock, LookupReplay, RoundCounts
from draftbench.run_folder.run import run_of


def head(matched, margin=(), **changes):
    """A head's replay with a window of 4."""
    return LookupReplay(
        request="r",
        sample=0,
        candidate=SMALL,
        window=4,
        proposed=(4,) * len(matched),
        matched=tuple(matched),
        margin=margin,
        **changes,
    )


def rounds_of(*rounds, **settings):
    """What a run whose decoder did these rounds, (proposed, accepted), says of each."""
    return [each.outcome for each in compared(*rounds, **settings)]


def compared(*rounds, k=2, replay, **of_response):
    tokens = 2 + sum(accepted + 1 for _, accepted in rounds) - 1
    response = scenes.trajectory("r", of_response.pop("length", tokens), limit=99)
    difference = of_response.pop("first_difference", None)
    digest = "" if difference is None else "other"
    row = scenes.decode(
        SMALL,
        k,
        1.0,
        proposed=tuple(proposed for proposed, _ in rounds),
        accepted=tuple(accepted for _, accepted in rounds),
        cut=(0,) * len(rounds),
        draft_seconds=(1.0,) * len(rounds),
        verify_seconds=(1.0,) * len(rounds),
        output_tokens=tokens,
        first_difference=difference,
        digest=digest,
    )
    run = run_of(scenes.manifest(ks=(2, 4)), [response, replay, row])
    (answer,) = recorded(run, SMALL)
    margin = tie_margin(run)
    return list(ReplayedResponse.of(run, replay, DraftLength(k), margin).compared(answer))


def test_one_token_that_differs_is_one_difference_at_every_k():
    """At each the second drafted token is refused, and replay accepts it."""
    found = [compared((k, 1), (k, 0), k=k, replay=head((3, 0, 0))) for k in (2, 4)]
    assert [[each.outcome for each in of_k] for of_k in found] == [["differs", "equal"]] * 2
    assert {of_k[0].of for of_k in found} == {(("r", 0), 2)}


def test_each_round_is_compared_from_where_it_began():
    # Starts 1, 4 and 5: replay matches 2, 0 and 1 tokens there; the second accepted one too many.
    replay = head((2, 0, 0, 0, 0, 1, 0))
    assert rounds_of((2, 2), (2, 1), (2, 1), replay=replay) == ["equal", "differs", "equal"]


def test_a_round_accepts_no_more_than_it_proposes():
    assert rounds_of((2, 2), (2, 0), replay=head((4, 0, 0, 0))) == ["equal", "equal"]


def test_where_two_tokens_nearly_tie_a_round_may_go_either_way():
    replay = head((1, 0, 0, 0), margin=(0.0009, 1.0, 1.0, 1.0))
    assert rounds_of((2, 2), (2, 0), replay=replay) == ["near tie", "equal"]
    clear = head((1, 0, 0, 0), margin=(0.002, 1.0, 1.0, 1.0))
    assert rounds_of((2, 2), (2, 0), replay=clear) == ["differs", "equal"]


def test_nothing_is_compared_after_the_text_differs():
    replay = head((0, 1, 0, 0, 0))
    found = rounds_of((2, 0), (2, 2), (2, 0), length=6, first_difference=3, replay=replay)
    assert found == ["equal", "equal"]  # the second begins before, and reaches, the difference


def test_a_round_that_proposed_nothing_is_a_step_whatever_a_replay_says():
    """A rule may stop a round before its first token."""
    replay = head((2, 0, 0, 1, 0))
    assert rounds_of((0, 0), (2, 0), (0, 0), (2, 1), replay=replay, length=6) == ["equal"] * 2


def test_blocks_of_k_tokens_are_compared_with_blocks_of_k():
    blocks = tuple(InBlock(matched=(n, 0, 0, 0), margin=(1.0,) * 4) for n in (0, 2, 0))
    replay = head((1, 0, 0, 0), margin=(1.0,) * 4, at_once=True, blocks=blocks)
    assert rounds_of((2, 2), (2, 0), replay=replay) == ["equal", "equal"]


def test_rounds_of_which_little_was_accepted_are_those_of_any_broken_draft():
    # Two drafted tokens a round, the right replay of which says what was counted.
    right = head((1, 0) + (0,) * 60)
    found = compared((2, 1), *[(2, 0)] * 59, replay=right)
    assert tally_of(never_right(found)) == Tally(equal=59, differ=1)
    assert is_idle(found)  # one of 60 is 1.7 %
    # Ten of thirty were right.
    often = compared(*[(2, 1), (2, 0), (2, 0)] * 10, replay=head((1, 0, 0, 0) * 10))
    assert tally_of(never_right(often)) == Tally(equal=20, differ=10)
    assert not is_idle(often)


def sums_of(counts, replay, length=6, **of_response):
    run = run_of(
        scenes.manifest(ks=(2, 4), engine="llama.cpp"),
        [
            scenes.trajectory("r", length, origin="engine", margins=(), argmax=(), **of_response),
            replay,
            scenes.served(SMALL, 2, *[1.0 + n for n in range(length)], **counts),
        ],
    )
    (answer,) = recorded(run, SMALL)
    response = ReplayedResponse.of(run, replay, DraftLength(2), tie_margin(run, "float32"))
    return [each.outcome for each in response.compared(answer)]


@pytest.mark.parametrize(
    ("counts", "outcome"),
    [
        # Rounds start at 1 (2 accepted) and 4 (0): there is room for one more token at 4.
        ({"rounds": 2, "drafted": 3, "accepted": 2}, "equal"),
        ({"rounds": 2, "drafted": 3, "accepted": 1}, "differs"),
        ({"rounds": 3, "drafted": 5, "accepted": 1}, "differs"),
    ],
)
def test_sums_are_compared_with_those_of_the_simulated_rounds(counts, outcome):
    assert sums_of(counts, head((2, 0, 0, 0, 0))) == [outcome]


@pytest.mark.parametrize(
    ("by_position", "margin", "outcome"),
    [
        # Rounds start at 1 (2 accepted), 4 (1) and 6 (1, and perhaps one past the end).
        ((3, 1), (), "equal"),
        ((3, 2), (), "equal"),
        ((2, 2), (), "differs"),
        ((2, 2), (0.0005,) * 6, "near tie"),
    ],
)
def test_where_a_server_counts_by_position_each_position_is_compared(by_position, margin, outcome):
    counts = {"rounds": 3, "drafted": 6, "accepted": 4, "by_position": by_position}
    replay = head((2, 0, 0, 1, 0, 1), margin)
    assert sums_of(counts, replay, length=7, limit=99) == [outcome]


def test_near_ties_of_sums_are_those_of_float16_where_llama_cpp_computes_in_float32():
    near = head((2, 0, 0, 0, 0), margin=(0.05, 1.0, 1.0, 1.0, 1.0))
    assert sums_of({"rounds": 3, "drafted": 5, "accepted": 1}, near) == ["near tie"]


def test_a_draft_model_accepts_up_to_its_first_wrong_token():
    # At 1 one, at 3 two, and at 6 one, which the decoder did not accept.
    replay = scenes.replay((1, 0, 1, 1, 0, 1))
    found = rounds_of((2, 1), (2, 2), (1, 0), replay=replay, length=7)
    assert found == ["equal", "equal", "differs"]


def test_chance_is_computed_exactly():
    assert at_least(0, 3, 0.5) == 1.0
    assert at_least(2, 3, 0.5) == pytest.approx(0.5)  # 3/8 + 1/8
    assert at_least(1, 50, 0.01) == pytest.approx(1 - 0.99**50)
    assert math.isclose(at_least(5, 5, 0.5), 1 / 32)


def rounds_that(*outcomes, at=None):
    """Rounds that part, or begin, each at another token of a response, or at these."""
    places = at or range(len(outcomes))
    return [Compared(each, "", (("r", 0), n)) for each, n in zip(outcomes, places, strict=True)]


def test_a_hypothesis_is_better_only_beyond_chance():
    base, other = rounds_that(*["differs"] * 8), rounds_that(*["equal"] * 8)
    assert better(other, base, 0.01)  # 1/256
    assert not better(other[:6], base[:6], 0.01)  # 1/64
    assert not better(base, other, 0.01)
    assert not better(other, other, 0.01)


def test_a_token_that_several_ks_reach_is_explained_once():
    # At k = 1, 3 and 5 the same four tokens: not 12 that differ, but 4, of which all have 1/16.
    tokens = [1, 5, 9, 13] * 3
    base, other = rounds_that(*["differs"] * 12, at=tokens), rounds_that(*["equal"] * 12)
    assert better(other, base, 0.1)
    assert not better(other, base, 0.05)
    assert once(base) == Tally(differ=4)


def test_of_a_tokens_rounds_the_worst_counts():
    found = rounds_that("equal", "differs", "near tie", "equal", at=[1, 1, 2, 2])
    assert once(found) == Tally(near_ties=1, differ=1)
    assert tally_of(found) == Tally(equal=2, near_ties=1, differ=1)


def test_near_ties_are_left_out_of_the_share():
    tally = tally_of(rounds_that("equal", "equal", "equal", "near tie", "differs"))
    assert tally == Tally(equal=3, near_ties=1, differ=1)
    assert (tally.compared, tally.share) == (5, 0.75)
    assert Tally(near_ties=4).share is None


def test_what_an_engine_does_not_count_is_not_compared():
    run = run_of(
        scenes.manifest(ks=(2,), engine="vllm"),
        [
            scenes.trajectory("r", 3, origin="engine", margins=(), argmax=()),
            msgspec.structs.replace(head((0, 0)), window=2, proposed=(2, 2)),
            scenes.served(SMALL, 2, 1.0, 2.0, 3.0),
        ],
    )
    (answer,) = recorded(run, SMALL)
    assert answer.rounds is None
    assert answer.sums in (None, RoundCounts())
    (replay,) = run.replays
    response = ReplayedResponse.of(run, replay, DraftLength(2), 0.001)
    assert [*response.compared(answer)] == []
