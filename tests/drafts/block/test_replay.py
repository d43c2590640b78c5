"""What the replay of a block drafter says of rounds of each length, by hand."""

import msgspec
import pytest
from scenes import lookup, trajectory

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.rounds import expected_rounds
from draftbench.drafts.laws import drafted_from, law_of
from draftbench.records import Confidences, InBlock, StopRule

RESPONSE = trajectory("r", 6, limit=20)
# From the starts 1 to 5: blocks of one token, of two, and of three.
ONE, TWO, THREE = (1, 0, 1, 0, 1), (0, 2, 0, 1, 0), (3, 0, 0, 2, 0)
SURE = (0.9, 0.5, 0.2)


def sure_of(tokens):
    values = SURE[:tokens] * 5
    return Confidences(lengths=(tokens,) * 5, of_all=values, of_ten=values)


REPLAY = msgspec.structs.replace(
    lookup((3,) * 5, THREE, window=3),
    at_once=True,
    confidences=sure_of(3),
    blocks=tuple(InBlock(m, (0.5,) * 5, sure_of(n)) for n, m in enumerate((ONE, TWO), 1)),
)


@pytest.mark.parametrize(
    ("k", "accepted", "passes"),
    [
        (1, 1 + 1 + 1, 3),  # starts 1, 3, 5
        (2, 0 + 2 + 0, 3),  # starts 1, 2, 5
        (3, 3 + 0, 2),  # starts 1, 5
    ],
)
def test_rounds_of_each_length_are_those_of_blocks_of_that_length(k, accepted, passes):
    rounds = expected_rounds([law_of(RESPONSE, REPLAY)], k)
    assert (rounds.accepted[0], rounds.target_passes[0]) == (accepted, passes)
    every = CandidateRounds.of(((RESPONSE, REPLAY),), (1, 2, 3)).at(k)
    assert (every.accepted[0], every.target_passes[0]) == (accepted, passes)


def test_blocks_longer_than_the_longest_are_the_longest():
    assert REPLAY.of_length(3) is REPLAY
    assert REPLAY.of_length(2).matched == TWO
    assert REPLAY.of_length(2).proposed == (2,) * 5


def test_a_rule_cuts_what_is_proposed_of_a_block_and_not_what_is_drafted():
    """Of three tokens, as sure as .9, .5 and .2."""
    drafts = drafted_from(RESPONSE, REPLAY, 3)
    for kind, threshold, proposed in (("after", 0.6, 2), ("before", 0.6, 1), ("product", 0.1, 3)):
        drafted, kept, matched = drafts.under(3, StopRule(kind=kind, threshold=threshold))
        assert drafted.tolist() == [3] * 5
        assert kept.tolist() == [proposed] * 5
        assert matched.tolist() == [min(m, proposed) for m in THREE]


@pytest.mark.parametrize(("k", "accepted", "passes"), [(2, 0 + 2 + 0, 3), (3, 2 + 2, 2)])
def test_a_rule_cuts_the_blocks_of_the_length_that_was_asked_for(k, accepted, passes):
    """All but the first two tokens are cut. Rounds start at 1, 2, 5, or at 1 and 4."""
    rounds = CandidateRounds.of(((RESPONSE, REPLAY),), (2, 3))
    stopped = rounds.at(k, StopRule(kind="after", threshold=0.6))
    assert (stopped.accepted[0], stopped.target_passes[0]) == (accepted, passes)


def test_a_record_whose_blocks_are_of_other_responses_is_refused():
    with pytest.raises(ValueError, match="`blocks` has 4 entries, not 5"):
        msgspec.structs.replace(REPLAY, blocks=(InBlock(ONE[:4], (0.5,) * 4),))
