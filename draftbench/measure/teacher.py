"""Prompts and given responses → next-token logits at every position of the responses, in one pass
by chunks, several responses side by side.

Chunks bound the memory to [CHUNK × vocabulary], however long and many the responses are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from draftbench.decode.attention import PIECE
from draftbench.decode.runner import Runner
from draftbench.errors import ModelError

CHUNK = 128
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
    rows = [row for row, (prompt, _) in enumerate(texts) if len(prompt) <= longest]
    if not rows:
        return
    prompts = [texts[row][0] for row in rows]
    known = [
        texts[row][1][: min(len(texts[row][1]) - 1, longest - len(texts[row][0]))] for row in rows
    ]
    capacity = max(len(p) + len(k) for p, k in zip(prompts, known, strict=True))
    cache = runner.new_cache(capacity, len(rows))
    share = max(1, PIECE // len(rows))
    for start in range(0, max(map(len, prompts)), share):
        parts = [prompt[start : start + share] for prompt in prompts]
        logits = _read(runner, parts, cache, every=False)
        busy = [at for at, part in enumerate(parts) if part]
        for at, last in zip(busy, logits.split(1), strict=True):
            if first == 0 and start + len(parts[at]) == len(prompts[at]):
                yield rows[at], 0, _finite(last)
    share = max(1, CHUNK // len(rows))
    for start in range(0, max(map(len, known)), share):
        parts = [response[start : start + share] for response in known]
        logits = _finite(_read(runner, parts, cache, every=True))
        for row, own in zip(rows, logits.split([len(part) for part in parts]), strict=True):
            if len(own):
                yield row, start + 1, own


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
