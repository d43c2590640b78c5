"""What kind of text a token is, by its piece in two families of vocabularies."""

import pytest

from draftbench.measure.kinds import KINDS, TokenKinds, kind_of, tally
from draftbench.records import DraftingMode, Replay


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
        draft="d",
        quant="none",
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
    found = tally(replay((1.0, 0.0, 1.0)), (1, 0, 1, 0), TokenKinds(Pieces()))
    assert found == {"word start": (2, 2.0, 1.0), "digits": (1, 0.0, 0.5)}
    overlapping = tally(replay((1.0,), overlap=(0.25,)), (1, 2), TokenKinds(Pieces()))
    assert overlapping == {"punctuation": (1, 0.25, 0.5)}


def test_positions_that_the_draft_cannot_reach_are_not_counted():
    found = tally(replay((1.0, 0.0), draftable=1), (0, 1, 2), TokenKinds(Pieces()))
    assert found == {"digits": (1, 1.0, 0.5)}
