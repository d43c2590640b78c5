"""What has been said so far → up to k proposed tokens for each row: a draft model, or prompt
lookup.

A drafter keeps its own state along each response and is told after each round how much of its
proposal stands. It does not know the target's logits and never decides what is accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from draftbench.decode.runner import Runner
from draftbench.decode.sampling import distribution, draw, temperature_only
from draftbench.decode.task import Task
from draftbench.records import DraftingMode, Sampling


@dataclass(frozen=True)
class Proposal:
    """Draft tokens [k'] and, where they were sampled, the distributions [k', vocab] that they were
    drawn from.
    """

    tokens: Tensor
    q: Tensor | None = None


@dataclass(frozen=True)
class Ask:
    """Up to `k` tokens are wanted after the context (prompt and output so far) of one row."""

    row: int
    context: list[int]
    k: int


class Drafter(Protocol):
    """Proposes along responses, a row each."""

    def open(self, rows: int, capacity: int) -> None:
        """Make room for `rows` sequences of `capacity` tokens each."""
        ...

    def begin(self, row: int, task: Task) -> None:
        """Read the prompt of a row's next response."""
        ...

    def propose(self, asks: Sequence[Ask]) -> list[Proposal | None]:
        """For each ask a proposal, None where there is nothing to propose."""
        ...

    def keep(self, row: int, length: int) -> None:
        """The first `length` tokens of a row's context stand; forget what was drafted beyond."""
        ...


class ModelDrafter:
    """A model proposes its argmax, or samples; one forward pass a token for all rows, no wait
    between them.

    Args:
        runner: the draft (or the target itself, for the control).
        mode: whether a row whose request samples is drafted by sampling, and from what.
        vocab_size: the target's; the draft's tokens beyond it are not proposed.
    """

    def __init__(self, runner: Runner, mode: DraftingMode, vocab_size: int) -> None:
        self.runner, self.mode, self.vocab_size = runner, mode, vocab_size

    def open(self, rows: int, capacity: int) -> None:
        """A cache as long as the responses, or as the draft's own context."""
        self._room = min(capacity, self.runner.context_length)
        self.cache = self.runner.new_cache(self._room, rows)
        self._laws: list[_Law | None] = [None] * rows

    def begin(self, row: int, task: Task) -> None:
        """Prefill all of the prompt; the first round reads the first output token."""
        samples = self.mode is not DraftingMode.GREEDY and task.sampling.temperature > 0
        self._laws[row] = _Law.of(task, self.mode) if samples else None
        self.cache.rewind(row, 0)
        if len(task.prompt) <= self._room:
            self._forward([row], self._readable(task.prompt), [len(task.prompt)])

    def propose(self, asks: Sequence[Ask]) -> list[Proposal | None]:
        """Greedy or sampled tokens; fewer than k where the draft's own context ends."""
        sizes = [min(ask.k, self._room - len(ask.context) + 1) for ask in asks]
        going = [at for at, size in enumerate(sizes) if size > 0]
        unread = [asks[at].context[self.cache.lengths[asks[at].row] :] for at in going]
        tokens, counts = self._readable(list(chain(*unread))), [len(new) for new in unread]
        drafted: list[Tensor] = []
        order: list[list[int]] = [[] for _ in asks]
        laws: list[list[Tensor]] = [[] for _ in asks]
        for step in range(max(sizes, default=0)):
            logits = self._forward([asks[at].row for at in going], tokens, counts)
            tokens = self._choose(
                [asks[at] for at in going], logits, step, [laws[at] for at in going]
            )
            for place, at in enumerate(going, start=sum(map(len, drafted))):
                order[at].append(place)
            drafted.append(tokens)
            on = [place for place, at in enumerate(going) if sizes[at] > step + 1]
            tokens = tokens if len(on) == len(going) else tokens[on]
            going, counts = [going[place] for place in on], [1] * len(on)
        if not drafted:
            return [None] * len(asks)
        by_ask = torch.cat(drafted)[list(chain(*order))].split([len(own) for own in order])
        return [
            Proposal(own, _padded(q, self.vocab_size) if q else None) if len(own) else None
            for own, q in zip(by_ask, laws, strict=True)
        ]

    def keep(self, row: int, length: int) -> None:
        """Rewind the draft's cache to what the target kept."""
        if self.cache.lengths[row] > length:
            self.cache.rewind(row, length)

    def _forward(self, rows: Sequence[int], tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """Logits after the last new token of each of `rows`, over the target's vocabulary."""
        sizes = dict(zip(rows, counts, strict=True))
        by_row = [sizes.get(row, 0) for row in range(len(self._laws))]
        logits = self.runner.forward(tokens, self.cache, every=False, counts=by_row)
        return logits[:, : self.vocab_size]

    def _choose(
        self, asks: Sequence[Ask], logits: Tensor, step: int, laws: Sequence[list[Tensor]]
    ) -> Tensor:
        """One token per ask [n]; where it is sampled, what from is added to its `laws`."""
        if not any(self._laws):
            return logits.argmax(dim=-1)
        tokens = []
        for ask, z, drawn_from in zip(asks, logits.split(1), laws, strict=True):
            law = self._laws[ask.row]
            if law is None:
                tokens.append(z.argmax(dim=-1))
                continue
            q = distribution(z, law.filters)
            drawn_from.append(q)
            tokens.append(draw(q, law.uniform(len(ask.context) + step, q)))
        return torch.cat(tokens)

    def _readable(self, tokens: list[int]) -> Tensor:
        """Ids as the draft can read them: a token that it has no row for becomes its last one."""
        return torch.tensor(tokens, device=self.runner.device).clamp_(
            max=self.runner.vocab_size - 1
        )


@dataclass(frozen=True)
class _Law:
    """What the draft samples from along one response, and with which numbers."""

    filters: Sampling
    uniforms: np.ndarray
    prompt_length: int

    @classmethod
    def of(cls, task: Task, mode: DraftingMode) -> _Law:
        whole = mode is DraftingMode.SAMPLED
        filters = task.sampling if whole else temperature_only(task.sampling)
        return cls(filters, task.uniforms.stream("draft"), len(task.prompt))

    def uniform(self, length: int, like: Tensor) -> Tensor:
        """The number that belongs to the token after a context of `length`."""
        at = length - self.prompt_length
        return torch.tensor(self.uniforms[at : at + 1], device=like.device)


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

    def open(self, rows: int, capacity: int) -> None:
        """One index a row."""
        self.indexes = [LookupIndex(*self.sizes) for _ in range(rows)]

    def begin(self, row: int, task: Task) -> None:
        """Index the prompt."""
        self.indexes[row] = LookupIndex(*self.sizes)
        self.indexes[row].extend(task.prompt)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal | None]:
        """A copied continuation for each, or None without a match."""
        return [self._copied(ask) if ask.k > 0 else None for ask in asks]

    def _copied(self, ask: Ask) -> Proposal | None:
        index = self.indexes[ask.row]
        index.extend(ask.context[len(index.tokens) :])
        found = index.lookup(ask.k)
        return Proposal(torch.tensor(found, device=self.device)) if found else None

    def keep(self, row: int, length: int) -> None:
        """Nothing drafted is stored."""
