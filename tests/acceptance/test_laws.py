"""Which replay belongs to which response, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from draftbench.acceptance.laws import laws_of, replays_of
from draftbench.acceptance.rounds import PositionLaw, StartLaw
from draftbench.errors import RunFolderError
from draftbench.records import Candidate, DraftingMode, LookupReplay, Replay, Trajectory

Make = Callable[..., Trajectory]
MakeReplay = Callable[..., Replay]
SMALL, INT8 = Candidate(draft="small"), Candidate(draft="small", quant="int8")


def test_laws_stand_beside_their_responses_in_the_order_of_the_responses(
    trajectory: Make, replay: MakeReplay
) -> None:
    responses = [trajectory("a", 3, limit=9), trajectory("b", 2), trajectory("a", 2, sample=1)]
    replays = [replay([0.1], "a", sample=1), replay([0.5, 0.25], "a", draftable=7)]
    pairs = laws_of(SMALL, responses, replays)
    assert [(t.request, t.sample) for t, _ in pairs] == [("a", 0), ("a", 1)]
    law = pairs[0][1]
    assert isinstance(law, PositionLaw)
    assert (law.length, law.limit, law.draftable) == (3, 9, 7)
    assert law.accept.tolist() == [0.5, 0.25]


def test_other_drafts_and_quantization_levels_are_left_out(
    trajectory: Make, replay: MakeReplay
) -> None:
    others = [replay([1.0], candidate=Candidate(draft="big")), replay([1.0], candidate=INT8)]
    assert laws_of(SMALL, [trajectory("r", 2)], others) == ()
    assert len(laws_of(INT8, [trajectory("r", 2)], others)) == 1


def test_prompt_lookup_becomes_a_law_per_start(trajectory: Make) -> None:
    record = LookupReplay(
        request="r",
        sample=0,
        candidate=Candidate(draft="ngram"),
        window=4,
        proposed=(4, 0),
        matched=(1, 0),
    )
    ((_, law),) = laws_of(Candidate(draft="ngram"), [trajectory("r", 3)], [record])
    assert isinstance(law, StartLaw)
    assert (law.proposed.tolist(), law.matched.tolist(), law.window) == ([4, 0], [1, 0], 4)


def test_drafting_modes_are_not_mixed_but_one_can_be_chosen(
    trajectory: Make, replay: MakeReplay
) -> None:
    both = [replay([1.0]), replay([0.5], mode=DraftingMode.SAMPLED)]
    with pytest.raises(RunFolderError, match="greedy, sampled"):
        laws_of(SMALL, [trajectory("r", 2)], both)
    ((_, chosen),) = replays_of(SMALL, [trajectory("r", 2)], both, DraftingMode.GREEDY)
    assert isinstance(chosen, Replay)
    assert chosen.accept == (1.0,)


def test_a_replay_of_another_length_is_refused(trajectory: Make, replay: MakeReplay) -> None:
    with pytest.raises(RunFolderError, match="1 positions of a response of 5 tokens"):
        laws_of(SMALL, [trajectory("r", 5)], [replay([1.0])])
