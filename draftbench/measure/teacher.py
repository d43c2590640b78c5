"""Teacher forcing: computes the next-token logits at every position of given responses.

Responses are read side by side and in chunks, so that logits take [CHUNK × vocabulary], however
long the responses are.
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
# Tokens of cache that the rows of one pass may take together; a longer text is read alone.
TOKENS_AT_ONCE = 16_384
Tokens = Sequence[int]


class _Text(NamedTuple):
    """What is read of one prompt and response."""

    row: int
    prompt: Tokens
    response: Tokens  # without the last token, which predicts nothing

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.response)


def teacher_forced(
    runner: Runner, texts: Sequence[tuple[Tokens, Tokens]], first: int, context: int | None = None
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield (row, j, logits [n, vocab]): the logits that predict the tokens j … j+n-1 of one
    response, from token `first` (0 or 1) on. The parts of a row come in order, those of several
    rows in turn.

    A row ends where the model's context does; a prompt that is longer yields nothing. Which parts
    are yielded depends on the texts and the context alone, so that two models yield the same ones.

    Args:
        texts: prompt and response of each row.
        context: the shorter context of another model that reads the same texts.

    Raises:
        ModelError: NaN logits.
    """
    most = min(runner.context_length, context or runner.context_length)
    group: list[_Text] = []
    for row, (prompt, response) in enumerate(texts):
        if len(prompt) > most:
            continue
        text = _Text(row, prompt, response[: min(len(response) - 1, most - len(prompt))])
        longest = max(other.length for other in (*group, text))
        if group and (len(group) + 1) * longest > TOKENS_AT_ONCE:
            yield from _side_by_side(runner, group, first)
            group = []
        group.append(text)
    if group:
        yield from _side_by_side(runner, group, first)


def _side_by_side(
    runner: Runner, texts: Sequence[_Text], first: int
) -> Iterator[tuple[int, int, Tensor]]:
    cache = runner.new_cache(max(text.length for text in texts), len(texts))

    def read(parts: Sequence[Tokens], *, every: bool) -> Tensor:
        tokens = torch.tensor(list(chain(*parts)), device=runner.device)
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
    for start in range(0, max(len(text.response) for text in texts), share):
        parts = [text.response[start : start + share] for text in texts]
        by_text = read(parts, every=True).split([len(part) for part in parts])
        for text, logits in zip(texts, by_text, strict=True):
            if len(logits):
                yield text.row, start + 1, logits
