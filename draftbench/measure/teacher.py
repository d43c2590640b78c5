"""Prompts and given responses → next-token logits at every position of the responses, in one pass
by chunks, several responses side by side.

Chunks bound the memory to [CHUNK × vocabulary], however long and many the responses are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from draftbench.decoder.attention import PIECE
from draftbench.decoder.runner import Runner
from draftbench.errors import ModelError

CHUNK = 128
# Tokens of cache that the rows of one pass may take together; a longer text passes alone.
TOKENS_AT_ONCE = 16_384
Tokens = Sequence[int]


def teacher_forced(
    runner: Runner,
    texts: Sequence[tuple[Tokens, Tokens]],
    first: int,
    context: int | None = None,
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield (row, j, logits [n, vocab]): the logits that predict the tokens j … j+n-1 of one
    response, from token `first` (0 or 1) on; the parts of a row in order, those of the rows in
    turn.

    A row ends early where the model's context does, and a prompt beyond it gives nothing. The
    parts depend on the texts and on the context alone, not on the model.

    Args:
        texts: prompt and response of each row.
        context: the shorter context of another model that reads the same texts.

    Raises:
        ModelError: NaN logits.
    """
    longest = min(runner.context_length, context or runner.context_length)
    rows = [
        _Row(row, prompt, response[: min(len(response) - 1, longest - len(prompt))])
        for row, (prompt, response) in enumerate(texts)
        if len(prompt) <= longest
    ]
    for together in _passes(rows):
        yield from _side_by_side(runner, together, first)


@dataclass(frozen=True)
class _Row:
    """The tokens to read: all of a prompt, and of its response what predicts another token."""

    row: int
    prompt: Tokens
    known: Tokens

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.known)


def _passes(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Rows in their order, as many together as their caches may take."""
    together: list[_Row] = []
    for row in rows:
        longest = max((other.length for other in together), default=0)
        if together and (len(together) + 1) * max(longest, row.length) > TOKENS_AT_ONCE:
            yield together
            together = []
        together.append(row)
    if together:
        yield together


def _side_by_side(
    runner: Runner, rows: Sequence[_Row], first: int
) -> Iterator[tuple[int, int, Tensor]]:
    """One pass over the prompts and responses of some rows, by parts of each."""
    cache = runner.new_cache(max(row.length for row in rows), len(rows))
    share = max(1, PIECE // len(rows))
    for start in range(0, max(len(row.prompt) for row in rows), share):
        parts = [row.prompt[start : start + share] for row in rows]
        logits = _read(runner, parts, cache, every=False)
        busy = [(row, part) for row, part in zip(rows, parts, strict=True) if part]
        for (row, part), last in zip(busy, logits.split(1), strict=True):
            if first == 0 and start + len(part) == len(row.prompt):
                yield row.row, 0, _finite(last)
    share = max(1, CHUNK // len(rows))
    for start in range(0, max(len(row.known) for row in rows), share):
        parts = [row.known[start : start + share] for row in rows]
        logits = _finite(_read(runner, parts, cache, every=True))
        for row, own in zip(rows, logits.split([len(part) for part in parts]), strict=True):
            if len(own):
                yield row.row, start + 1, own


def _read(runner: Runner, parts: Sequence[Tokens], cache: object, *, every: bool) -> Tensor:
    """Read a part of each row. A token without a row in the vocabulary becomes the last one, as the
    decoder's draft reads it.
    """
    tokens = torch.tensor(list(chain(*parts)), device=runner.device)
    tokens.clamp_(max=runner.vocab_size - 1)
    return runner.forward(tokens, cache, every=every, counts=[len(part) for part in parts])


def _finite(logits: Tensor) -> Tensor:
    if bool(torch.isnan(logits).any()):
        raise ModelError(
            "the model's logits are NaN",
            hint="try another dtype or quantization; the weights may be damaged",
        )
    return logits


def top_two_margin(logits: Tensor) -> Tensor:
    """Difference [n] of the best and the second-best logit, in float32."""
    top = torch.topk(logits, 2, dim=-1).values.float()
    return top[:, 0] - top[:, 1]
