"""Teacher forcing: computes the next-token logits at every position of given responses.

Responses are read side by side and in chunks, so that logits take [CHUNK × vocabulary], however
long the responses are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from draftbench.decoder.attention import PIECE
from draftbench.decoder.runner import Runner
from draftbench.errors import ModelError

CHUNK = 128
# Tokens of cache that the rows of one pass may take together; a longer text is read alone.
TOKENS_AT_ONCE = 16_384
Tokens = Sequence[int]


# What is read together: row, prompt, and response without its last token, which predicts nothing.
_Text = tuple[int, Tokens, Tokens]
# Takes the rows that were read, and their cache, a row of which holds prompt and response.
OnceRead = Callable[[Sequence[int], Any], None]


def teacher_forced(
    runner: Runner,
    texts: Sequence[tuple[Tokens, Tokens]],
    first: int,
    context: int | None = None,
    *,
    room: int = 0,
    once_read: OnceRead | None = None,
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield (row, j, logits [n, vocab]): the logits that predict the tokens j … j+n-1 of one
    response, from token `first` (0 or 1) on. The parts of a row come in order, those of several
    rows in turn.

    A row ends where the model's context does; a prompt that is longer yields nothing. Which parts
    are yielded depends on the texts and the context alone, so that two models yield the same ones.

    Args:
        texts: prompt and response of each row.
        context: the shorter context of another model that reads the same texts.
        room: how many tokens more than the longest text each row of the cache has room for.
        once_read: called with rows that were read side by side, once they are read to their ends.

    Raises:
        ModelError: NaN logits.
    """
    most = min(runner.context_length, context or runner.context_length)
    group: list[_Text] = []
    longest = 0
    for row, (prompt, response) in enumerate(texts):
        if len(prompt) > most:
            continue
        read = response[: min(len(response) - 1, most - len(prompt))]
        longest = max(longest, len(prompt) + len(read))
        if group and (len(group) + 1) * longest > TOKENS_AT_ONCE:
            yield from _side_by_side(runner, group, first, room, once_read)
            group, longest = [], len(prompt) + len(read)
        group.append((row, prompt, read))
    if group:
        yield from _side_by_side(runner, group, first, room, once_read)


def refuse_nan(values: Tensor) -> None:
    """Raise a ModelError if logits, or what was computed from them, are NaN."""
    if bool(torch.isnan(values).any()):
        raise ModelError(
            "the model's logits are NaN",
            hint="try another dtype or quantization; the weights may be damaged",
        )


def _side_by_side(
    runner: Runner, texts: Sequence[_Text], first: int, room: int, once_read: OnceRead | None
) -> Iterator[tuple[int, int, Tensor]]:
    prompts, responses = [text[1] for text in texts], [text[2] for text in texts]
    longest = max(len(prompt) + len(response) for _, prompt, response in texts)
    cache = runner.new_cache(longest + room, len(texts))

    def read(parts: Sequence[Tokens], *, every: bool) -> Tensor:
        tokens = torch.tensor(list(chain(*parts)), device=runner.device)
        logits = runner.forward(tokens, cache, every=every, counts=[len(part) for part in parts])
        refuse_nan(logits)
        return logits

    share = max(1, PIECE // len(texts))
    for start in range(0, max(map(len, prompts)), share):
        parts = [prompt[start : start + share] for prompt in prompts]
        busy = [text for text, part in zip(texts, parts, strict=True) if part]
        for (row, prompt, _), last in zip(busy, read(parts, every=False).split(1), strict=True):
            if first == 0 and start < len(prompt) <= start + share:
                yield row, 0, last
    share = max(1, CHUNK // len(texts))
    for start in range(0, max(map(len, responses)), share):
        parts = [response[start : start + share] for response in responses]
        by_text = read(parts, every=True).split([len(part) for part in parts])
        for (row, _, _), logits in zip(texts, by_text, strict=True):
            if len(logits):
                yield row, start + 1, logits
    if once_read is not None:
        once_read([row for row, _, _ in texts], cache)
