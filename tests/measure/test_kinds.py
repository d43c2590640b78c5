"""What kind of text a token is, by its piece in two families of vocabularies."""

import pytest

from draftbench.measure.kinds import KINDS, TokenKinds, kind_of, tally
from draftbench.records import Candidate, DraftingMode, Replay


@pytest.mark.parametrize(
    ("piece", "kind"),
    [
        ("Ġ", "whitespace"),
        ("ĊĊ", "whitespace"),
        ("▁▁", "whitespace"),
        ("<0x0A>", "whitespace"),
        ("7", "digits"),
        ("Ġ12", "digits"),
        ("x1", "digits"),
        ("Ġ==", "punctuation"),
        ("):", "punctuation"),
        ("Ġreturn", "word start"),
        ("▁the", "word start"),
        ("ing", "inside a word"),
        ("Ã©", "inside a word"),
    ],
)
def test_a_piece_has_one_kind(piece, kind):
    assert kind_of(piece) == kind
    assert kind in KINDS


def test_special_tokens_and_unknown_ids_are_special(text):
    kinds = TokenKinds(text.tokenizer)
    assert kinds.of(text.tokenizer.all_special_ids[0]) == "special"
    assert kinds.of(10**6) == "special"


class Pieces:
    """A tokenizer of three tokens."""

    all_special_ids = (9,)

    def convert_ids_to_tokens(self, token):
        return {0: "Ġa", 1: "1", 2: ","}[token]


def replay(accept, overlap=None, draftable=9):
    count = len(accept)
    return Replay(
        request="r",
        sample=0,
        candidate=Candidate(draft="d"),
        mode=DraftingMode.GREEDY,
        draftable=draftable,
        accept=accept,
        confidence=(0.5,) * count,
        margin=(0.0,) * count,
        rank=(0,) * count,
        overlap=overlap,
    )


def test_acceptance_is_summed_by_the_kind_of_the_targets_token():
    """The first token, y_0, comes from the prefill and is nobody's."""
    words, digits = (0,) * 8, (1,) * 9
    accept = (1.0,) * 6 + (0.0,) * 2 + (1.0,) * 9
    found = tally(replay(accept, draftable=17), (2, *words, *digits), TokenKinds(Pieces()))
    assert found == {"word start": (8, 6.0, 4.0), "digits": (9, 9.0, 4.5)}
    over = tally(replay((1.0,) * 8, overlap=(0.25,) * 8), (1, *words), TokenKinds(Pieces()))
    assert over == {"word start": (8, 2.0, 4.0)}


def test_kinds_of_few_positions_are_left_out():
    """Their sums would tell which positions they are."""
    tokens = (2, *(0,) * 8, *(1,) * 7)
    found = tally(replay((1.0,) * 15, draftable=15), tokens, TokenKinds(Pieces()))
    assert set(found) == {"word start"}


def test_positions_that_the_draft_cannot_reach_are_not_counted():
    found = tally(replay((1.0,) * 20, draftable=8), (0, *(1,) * 20), TokenKinds(Pieces()))
    assert found == {"digits": (8, 8.0, 4.0)}
