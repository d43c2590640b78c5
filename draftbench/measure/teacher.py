"""A prompt and a given response → next-token logits at every position of the response, in one pass
by chunks.

Chunks bound the memory to [CHUNK × vocabulary], whatever the response's length.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from draftbench.decode.runner import Runner
from draftbench.errors import ModelError

CHUNK = 128


def teacher_forced(
    runner: Runner, prompt: tuple[int, ...], response: tuple[int, ...], first: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield (j, logits [n, vocab]): the logits that predict the response's tokens j … j+n-1, from
    token `first` (0 or 1) on.

    Ends early where the model's context does.

    Raises:
        ModelError: NaN logits.
    """
    capacity = min(len(prompt) + len(response), runner.context_length)
    if len(prompt) > capacity:
        return
    cache = runner.new_cache(capacity)
    logits = runner.forward(_readable(prompt, runner), cache, 1)
    if first == 0:
        yield 0, _finite(logits)
    known = response[: min(len(response) - 1, capacity - len(prompt))]
    for start in range(0, len(known), CHUNK):
        tokens = _readable(known[start : start + CHUNK], runner)
        yield start + 1, _finite(runner.forward(tokens, cache, len(tokens)))


def _readable(tokens: tuple[int, ...], runner: Runner) -> Tensor:
    """As the decoder's draft reads them: a token without a row becomes the model's last."""
    return torch.tensor(tokens, device=runner.device).clamp_(max=runner.vocab_size - 1)


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
