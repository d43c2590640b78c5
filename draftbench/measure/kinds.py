"""A token of the target → what kind of text it is, so that acceptance can be read by kind while the
texts stay private.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from draftbench.records import Replay

KINDS = ("whitespace", "digits", "punctuation", "word start", "inside a word", "special")
LEAST_POSITIONS = 8
# How tokenizers write the space before a word (SentencePiece, byte-level BPE), and bytes of
# whitespace.
_SPACES = str.maketrans({"▁": " ", "Ġ": " ", "Ċ": "\n", "ĉ": "\t", "č": "\r"})
_BYTES_OF_SPACE = ("<0x09>", "<0x0A>", "<0x0D>", "<0x20>")


class TokenKinds:
    """The kinds of one tokenizer's tokens, each found once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(tokenizer.all_special_ids)
        self._known: dict[int, str] = {}

    def of(self, token: int) -> str:
        """One of KINDS."""
        if token not in self._known:
            piece = self._tokenizer.convert_ids_to_tokens(token)
            special = token in self._special or piece is None
            self._known[token] = "special" if special else kind_of(piece)
        return self._known[token]


def kind_of(piece: str) -> str:
    """The kind of a token by its piece in the vocabulary.

    A piece with a digit counts as digits, one with a letter as the start or the inside of a word.
    Half a character, as byte-level vocabularies have them, looks like a letter to its reader.
    """
    if piece in _BYTES_OF_SPACE:
        return "whitespace"
    text = piece.translate(_SPACES)
    if not text.strip():
        return "whitespace"
    if any(character.isdigit() for character in text):
        return "digits"
    if not any(character.isalpha() for character in text):
        return "punctuation"
    return "word start" if text[0].isspace() else "inside a word"


def tally(
    replay: Replay, tokens: Sequence[int], kinds: TokenKinds
) -> dict[str, tuple[int, float, float]]:
    """What `Replay.kinds` holds, for a replay along the response `tokens`: the kinds of which there
    are enough. From sums over a few positions one could tell which positions they were.
    """
    found: dict[str, tuple[int, float, float]] = {}
    accepted = replay.accept if replay.overlap is None else replay.overlap
    rows = zip(tokens[1:], accepted, replay.confidence, strict=True)
    for token, own, confidence in islice(rows, replay.draftable):
        count, both, sure = found.get(kind := kinds.of(token), (0, 0.0, 0.0))
        found[kind] = count + 1, round(both + own, 3), round(sure + confidence, 3)
    return {kind: sums for kind, sums in found.items() if sums[0] >= LEAST_POSITIONS}
