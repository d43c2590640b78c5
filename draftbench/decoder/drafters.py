"""Drafters, which propose up to k tokens for each row: a draft model, prompt lookup, or a stack of
prompt lookup and another drafter. Heads are in `heads.py`.

A drafter keeps a state along each response and learns after each round how much of its proposal was
accepted. It never sees the target's logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from draftbench.decoder.runner import DecodeTask, Runner, on_device
from draftbench.decoder.sampling import (
    best,
    distribution,
    draw,
    equal_places,
    filters_of,
    temperature_only,
)
from draftbench.records import BUILT_IN_LOOKUP, DraftingMode, LookupRule, Sampling


class Proposal(NamedTuple):
    """Draft tokens, each a tensor [1], and the distribution [1, vocab] that each was drawn from if
    they were sampled. They are separate tensors so that those of all rows can be joined at once.
    """

    tokens: Sequence[Tensor]
    q: Sequence[Tensor] = ()


class ProposalRequest(NamedTuple):
    """Asks for up to `k` tokens after one row's context (prompt and output so far)."""

    row: int
    context: list[int]
    k: int


class Drafter(Protocol):
    """Proposes along responses, one in each row. If it `reads` layers, it is given the target's
    hidden states before these layers for every token that the target reads.
    """

    reads: Sequence[int]

    def open(self, rows: int, capacity: int) -> None:
        """Prepare for `rows` sequences of up to `capacity` tokens."""

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        """Read the prompt of a row's next response."""

    def propose(self, asks: Sequence[ProposalRequest]) -> list[Proposal | None]:
        """A proposal for each request; None where there is nothing to propose."""
        ...

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        """Keep the first `length` tokens of a row's context and forget drafted ones after them."""


class ModelDrafter:
    """A model that proposes its argmax or samples: one forward pass per token for all rows, without
    waiting between passes.

    Args:
        runner: the draft (or the target itself, for the control).
        mode: how the draft proposes for requests above temperature 0.
    """

    reads: Sequence[int] = ()

    def __init__(self, runner: Runner, mode: DraftingMode) -> None:
        self.runner, self.mode = runner, mode

    def open(self, rows: int, capacity: int) -> None:
        self._room = min(capacity, self.runner.context_length)
        # A round reads one new token, or two after a full one.
        self.cache = self.runner.new_cache(self._room, rows, widths=(1, 2))
        self._samplers: list[_Sampler | None] = [None] * rows

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        self._samplers[row] = None
        if self.mode is not DraftingMode.GREEDY and task.sampling.temperature > 0:
            filtered = self.mode is DraftingMode.SAMPLED
            filters = (filters_of if filtered else temperature_only)(task.sampling)
            uniforms = torch.from_numpy(task.uniforms.stream("draft")).to(self.runner.device)
            self._samplers[row] = _Sampler(filters, uniforms, len(task.prompt))
        self.cache.rewind(row, 0)
        # The first round reads the first output token.
        if len(task.prompt) <= self._room:
            self._forward([row], on_device(task.prompt, self.runner.device), [len(task.prompt)])

    def propose(self, asks: Sequence[ProposalRequest]) -> list[Proposal | None]:
        drafts = [
            _Draft(ask, min(ask.k, self._room - len(ask.context) + 1), self._samplers[ask.row])
            for ask in asks
        ]
        active = [draft for draft in drafts if draft.wanted > 0]
        unread = [draft.ask.context[self.cache.lengths[draft.ask.row] :] for draft in active]
        tokens = on_device(list(chain(*unread)), self.runner.device)
        counts = [len(new) for new in unread]
        while active:
            logits = self._forward([draft.ask.row for draft in active], tokens, counts)
            tokens = self._next(active, logits)
            rest = [at for at, draft in enumerate(active) if len(draft.tokens) < draft.wanted]
            if len(rest) < len(active):
                tokens = tokens.index_select(0, on_device(rest, self.runner.device))
            active, counts = [active[at] for at in rest], [1] * len(rest)
        return [Proposal(draft.tokens, draft.q) if draft.tokens else None for draft in drafts]

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        if self.cache.lengths[row] > length:
            self.cache.rewind(row, length)

    def _forward(self, rows: Sequence[int], tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """Logits after the last new token of each of `rows`."""
        sizes = dict(zip(rows, counts, strict=True))
        by_row = [sizes.get(row, 0) for row in range(len(self._samplers))]
        return self.runner.forward(tokens, self.cache, every=False, counts=by_row)

    def _next(self, drafts: Sequence[_Draft], logits: Tensor) -> Tensor:
        """The next token [n] of each draft, from logits [n, vocab]: the best one, or one drawn with
        its position's uniform number. It is appended to the draft.
        """
        groups = equal_places(draft.sampler.filters if draft.sampler else None for draft in drafts)
        for filters, members in groups.items():
            some = logits
            if len(groups) > 1:
                some = torch.cat([logits.narrow(0, at, 1) for at in members])
            if filters is None:
                tokens = best(some)
            else:
                q = distribution(some, filters)
                tokens = draw(q, torch.cat([drafts[at].uniform() for at in members]))
                for at, one in zip(members, q.split(1), strict=True):
                    drafts[at].q.append(one)
            for at, token in zip(members, tokens.split(1), strict=True):
                drafts[at].tokens.append(token)
        return tokens if len(groups) == 1 else torch.cat([draft.tokens[-1] for draft in drafts])


class _Sampler(NamedTuple):
    """With what the draft samples along one response."""

    filters: Sampling
    uniforms: Tensor
    prompt_length: int


@dataclass
class _Draft:
    """An unfinished proposal of at most `wanted` tokens."""

    ask: ProposalRequest
    wanted: int
    sampler: _Sampler | None
    tokens: list[Tensor] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)

    def uniform(self) -> Tensor:
        """The uniform number [1] for the next token's position."""
        assert self.sampler is not None
        length = len(self.ask.context) + len(self.tokens)
        return self.sampler.uniforms.narrow(0, length - self.sampler.prompt_length, 1)


class LookupIndex:
    """Finds the longest n-gram at the end of a growing text that occurred before, and what followed
    it.

    Args:
        longest, shortest: the n-gram sizes to look up (vLLM: prompt_lookup_max, prompt_lookup_min).
    """

    def __init__(self, longest: int, shortest: int, rule: LookupRule = BUILT_IN_LOOKUP) -> None:
        self.longest, self.shortest = shortest if rule.one_size else longest, shortest
        self.rule = rule
        self.tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: list[int]) -> None:
        """Append tokens; an n-gram can be found as soon as a token follows it."""
        for token in tokens:
            end = len(self.tokens) - self.rule.unseen
            for size in range(self.shortest, min(self.longest, end - self.rule.begin) + 1):
                ending = tuple(self.tokens[end - size : end])
                if self.rule.first:
                    self._after.setdefault(ending, end)
                else:
                    self._after[ending] = end
            self.tokens.append(token)

    def lookup(self, k: int) -> list[int]:
        """Up to k tokens that followed an earlier occurrence of the longest possible ending."""
        end = len(self.tokens)
        copied: list[int] = []
        for size in range(min(self.longest, end), self.shortest - 1, -1):
            start = self._after.get(tuple(self.tokens[end - size :]))
            if start is not None:
                copied = self.tokens[start : min(start + k, end - self.rule.unseen)]
                break
        if self.rule.one_size and len(copied) < self.shortest:
            copied = []
        return copied + self.tokens[-1:] * (k - len(copied)) if self.rule.fills else copied


class LookupDrafter:
    """Prompt lookup, which copies what followed the same tokens earlier and needs no model."""

    reads: Sequence[int] = ()

    def __init__(self, longest: int, shortest: int, device: str) -> None:
        self.sizes, self.device = (longest, shortest), device

    def open(self, rows: int, capacity: int) -> None:
        self.indexes = [LookupIndex(*self.sizes) for _ in range(rows)]

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        self.indexes[row] = LookupIndex(*self.sizes)
        self.indexes[row].extend(task.prompt)

    def propose(self, asks: Sequence[ProposalRequest]) -> list[Proposal | None]:
        proposals: list[Proposal | None] = []
        for ask in asks:
            index, tokens = self.indexes[ask.row], []
            if ask.k > 0:
                index.extend(ask.context[len(index.tokens) :])
                tokens = index.lookup(ask.k)
            copied = Proposal(on_device(tokens, self.device).split(1)) if tokens else None
            proposals.append(copied)
        return proposals

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        """Nothing to do: drafted tokens are not stored."""


class StackDrafter:
    """Prompt lookup and, if it finds nothing, its fallback, which then reads what was written since
    it last drafted.
    """

    def __init__(self, lookup: LookupDrafter, fallback: Drafter) -> None:
        self.lookup, self.fallback, self.reads = lookup, fallback, fallback.reads

    def open(self, rows: int, capacity: int) -> None:
        self.lookup.open(rows, capacity)
        self.fallback.open(rows, capacity)

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        self.lookup.begin(row, task)
        self.fallback.begin(row, task, states)

    def propose(self, asks: Sequence[ProposalRequest]) -> list[Proposal | None]:
        found = self.lookup.propose(asks)
        rest = [ask for ask, proposal in zip(asks, found, strict=True) if proposal is None]
        drafted = iter(self.fallback.propose(rest) if rest else ())
        return [proposal or next(drafted) for proposal in found]

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        self.fallback.keep(row, length, states)
