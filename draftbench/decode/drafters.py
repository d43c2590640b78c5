"""What has been said so far → up to k proposed tokens: a draft model, or prompt lookup.

A drafter keeps its own state along one response and is told after each round how much of its
proposal stands. It does not know the target's logits and never decides what is accepted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from draftbench.decode.runner import Runner
from draftbench.decode.sampling import distribution, draw, temperature_only
from draftbench.records import DraftingMode, Sampling


@dataclass(frozen=True)
class Proposal:
    """Draft tokens [k'] and, where they were sampled, the distributions [k', vocab] that they were
    drawn from.
    """

    tokens: Tensor
    q: Tensor | None = None


class Drafter(Protocol):
    """Proposes along one response."""

    def begin(self, prompt: list[int], capacity: int) -> None:
        """Read the prompt; `capacity` bounds prompt and response together."""
        ...

    def propose(self, context: list[int], k: int) -> Proposal | None:
        """Up to `k` tokens after `context` (prompt and output so far), None where there is nothing
        to propose.
        """
        ...

    def keep(self, length: int) -> None:
        """The context's first `length` tokens stand; forget what was drafted beyond."""
        ...


class ModelDrafter:
    """A model proposes its argmax, or samples; one forward pass a token, no wait between them.

    Args:
        runner: the draft (or the target itself, for the control).
        sampling: the request's settings; what is sampled from follows `mode`.
        uniforms: one number per output position, used where `mode` samples.
    """

    def __init__(
        self,
        runner: Runner,
        mode: DraftingMode,
        sampling: Sampling,
        uniforms: np.ndarray | None,
        vocab_size: int,
    ) -> None:
        self.runner, self.uniforms, self.vocab_size = runner, uniforms, vocab_size
        samples = mode is not DraftingMode.GREEDY and sampling.temperature > 0
        filters = sampling if mode is DraftingMode.SAMPLED else temperature_only(sampling)
        self.sampling = filters if samples else None
        self._prompt_length = 0

    def begin(self, prompt: list[int], capacity: int) -> None:
        """Prefill all of the prompt; the first round reads the first output token."""
        self._prompt_length = len(prompt)
        self._room = min(capacity, self.runner.context_length)
        self.cache = self.runner.new_cache(self._room)
        if len(prompt) <= self._room:
            self.runner.forward(self._readable(prompt), self.cache, 1)

    def propose(self, context: list[int], k: int) -> Proposal | None:
        """Greedy or sampled tokens; fewer than k where the draft's own context ends."""
        k = min(k, self._room - len(context) + 1)
        if k < 1:
            return None
        tokens = self._readable(context[self.cache.length :])
        drafted, laws = [], []
        for step in range(k):
            logits = self.runner.forward(tokens, self.cache, 1)[:, : self.vocab_size]
            if self.sampling is None:
                tokens = logits.argmax(dim=-1)
            else:
                q = distribution(logits, self.sampling)
                tokens = draw(q, self._uniform(len(context) - self._prompt_length + step, q))
                laws.append(q)
            drafted.append(tokens)
        return Proposal(torch.cat(drafted), _padded(laws, self.vocab_size) if laws else None)

    def _readable(self, tokens: list[int]) -> Tensor:
        """Ids as the draft can read them: a token that it has no row for becomes its last one."""
        return torch.tensor(tokens, device=self.runner.device).clamp_(
            max=self.runner.vocab_size - 1
        )

    def _uniform(self, position: int, like: Tensor) -> Tensor:
        assert self.uniforms is not None
        return torch.tensor(self.uniforms[position : position + 1], device=like.device)

    def keep(self, length: int) -> None:
        """Rewind the draft's cache to what the target kept."""
        if self.cache.length > length:
            self.cache.rewind(length)


def _padded(laws: list[Tensor], vocab_size: int) -> Tensor:
    """Draft distributions over the target's vocabulary; tokens only the target has get q = 0."""
    q = torch.cat(laws)
    missing = vocab_size - q.shape[1]
    return q if missing <= 0 else torch.nn.functional.pad(q, (0, missing))


class LookupIndex:
    """Where each n-gram of a growing sequence last began a continuation; longest n-grams first.

    Args:
        longest, shortest: n-gram sizes that are looked up (vLLM: prompt_lookup_max,
        prompt_lookup_min).
    """

    def __init__(self, longest: int, shortest: int) -> None:
        self.longest, self.shortest = longest, shortest
        self.tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: list[int]) -> None:
        """Append tokens; an n-gram becomes findable once a token follows it."""
        for token in tokens:
            end = len(self.tokens)
            for size in range(self.shortest, min(self.longest, end) + 1):
                self._after[tuple(self.tokens[end - size :])] = end
            self.tokens.append(token)

    def lookup(self, k: int) -> list[int]:
        """The (up to k) tokens that followed the most recent earlier occurrence of the longest
        matching ending.
        """
        end = len(self.tokens)
        for size in range(min(self.longest, end), self.shortest - 1, -1):
            start = self._after.get(tuple(self.tokens[end - size :]))
            if start is not None:
                return self.tokens[start : start + k]
        return []


class LookupDrafter:
    """Prompt lookup: copies what followed the same words before; needs no model."""

    def __init__(self, longest: int, shortest: int, device: str) -> None:
        self.sizes, self.device = (longest, shortest), device

    def begin(self, prompt: list[int], capacity: int) -> None:
        """Index the prompt."""
        self.index = LookupIndex(*self.sizes)
        self.index.extend(prompt)

    def propose(self, context: list[int], k: int) -> Proposal | None:
        """A copied continuation, or None without a match."""
        self.index.extend(context[len(self.index.tokens) :])
        found = self.index.lookup(k)
        return Proposal(torch.tensor(found, device=self.device)) if found else None

    def keep(self, length: int) -> None:
        """Nothing drafted is stored."""
