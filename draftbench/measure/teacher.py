"""Teacher forcing: the next-token logits at every position of given responses, side by side.

Passes go by chunks, which bound the memory to [CHUNK × vocabulary], however long the responses are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from draftbench.decoder.attention import PIECE
from draftbench.decoder.runner import Runner
from draftbench.errors import ModelError

CHUNK = 128
# Tokens of cache that the rows of one pass may take together; a longer text passes alone.
TOKENS_AT_ONCE = 16_384
Tokens = Sequence[int]


class _Text(NamedTuple):
    """A prompt, and the part of its response that predicts another token."""

    row: int
    prompt: Tokens
    known: Tokens

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.known)


def teacher_forced(
    runner: Runner,
    texts: Sequence[tuple[Tokens, Tokens]],
    first: int,
    context: int | None = None,
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield (row, j, logits [n, vocab]): the logits that predict the tokens j … j+n-1 of one
    response, from token `first` (0 or 1) on; the parts of a row in order, those of the rows in
    turn.

    A row ends early where the model's context does, and a prompt beyond it yields nothing. How the
    texts are parted depends on them and on the context, not on the model.

    Args:
        texts: prompt and response of each row.
        context: the shorter context of another model that reads the same texts.

    Raises:
        ModelError: NaN logits.
    """
    most = min(runner.context_length, context or runner.context_length)
    together: list[_Text] = []
    for row, (prompt, response) in enumerate(texts):
        if len(prompt) > most:
            continue
        text = _Text(row, prompt, response[: min(len(response) - 1, most - len(prompt))])
        longest = max(other.length for other in (*together, text))
        if together and (len(together) + 1) * longest > TOKENS_AT_ONCE:
            yield from _side_by_side(runner, together, first)
            together = []
        together.append(text)
    if together:
        yield from _side_by_side(runner, together, first)


def _side_by_side(
    runner: Runner, texts: Sequence[_Text], first: int
) -> Iterator[tuple[int, int, Tensor]]:
    cache = runner.new_cache(max(text.length for text in texts), len(texts))

    def read(parts: Sequence[Tokens], *, every: bool) -> Tensor:
        tokens = torch.tensor(list(chain(*parts)), device=runner.device)
        # One without a row in the vocabulary becomes the last, as the decoder's draft reads it.
        tokens.clamp_(max=runner.vocab_size - 1)
        logits = runner.forward(tokens, cache, every=every, counts=[len(part) for part in parts])
        if bool(torch.isnan(logits).any()):
            raise ModelError(
                "the model's logits are NaN",
                hint="try another dtype or quantization; the weights may be damaged",
            )
        return logits

    share = max(1, PIECE // len(texts))
    for start in range(0, max(len(text.prompt) for text in texts), share):
        parts = [text.prompt[start : start + share] for text in texts]
        busy = [text for text, part in zip(texts, parts, strict=True) if part]
        for text, last in zip(busy, read(parts, every=False).split(1), strict=True):
            if first == 0 and start < len(text.prompt) <= start + share:
                yield text.row, 0, last
    share = max(1, CHUNK // len(texts))
    for start in range(0, max(len(text.known) for text in texts), share):
        parts = [text.known[start : start + share] for text in texts]
        logits = read(parts, every=True).split([len(part) for part in parts])
        for text, own in zip(texts, logits, strict=True):
            if len(own):
                yield text.row, start + 1, own


def top_two_margin(logits: Tensor) -> Tensor:
    """Difference [n] of the best and the second-best logit, in float32."""
    top = torch.topk(logits, 2, dim=-1).values.float()
    return top[:, 0] - top[:, 1]
