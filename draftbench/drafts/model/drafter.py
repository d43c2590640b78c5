"""A draft model in rounds: one forward pass per token for all rows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from draftbench.decoder.drafters import Draft, Proposal, ProposalRequest, going_on
from draftbench.decoder.runner import DecodeTask, Runner, on_device, singly
from draftbench.decoder.sampling import (
    best,
    distribution,
    draw,
    equal_places,
    filters_of,
    temperature_only,
)
from draftbench.records import DraftingMode, Sampling, StopRule


class ModelDrafter:
    """A model that proposes its argmax or samples: one forward pass per token for all rows, without
    waiting between passes unless a rule looks at each token. A rule looks at the logits, before
    anything is drawn, so that sampled drafting stays exact.

    Args:
        runner: the draft (or the target itself, for the control).
        mode: how the draft proposes for requests above temperature 0.
    """

    reads: Sequence[int] = ()

    def __init__(self, runner: Runner, mode: DraftingMode) -> None:
        self.runner, self.mode = runner, mode

    def open(self, rows: int, capacity: int, widths: Collection[int] = ()) -> None:
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

    def propose(
        self, asks: Sequence[ProposalRequest], stop: StopRule | None = None
    ) -> list[Proposal | None]:
        drafts = [Draft(ask, min(ask.k, self._room - len(ask.context) + 1), stop) for ask in asks]
        active = [draft for draft in drafts if draft.most > 0]
        unread = [draft.ask.context[self.cache.lengths[draft.ask.row] :] for draft in active]
        tokens = on_device(list(chain(*unread)), self.runner.device)
        counts = [len(new) for new in unread]
        while active:
            logits = self._forward([draft.ask.row for draft in active], tokens, counts)
            tokens = self._next(active, logits)
            rest = going_on(active, logits, stop)
            if len(rest) < len(active):
                tokens = tokens.index_select(0, on_device(rest, self.runner.device))
            active, counts = [active[at] for at in rest], [1] * len(rest)
        return [draft.proposal for draft in drafts]

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        if self.cache.lengths[row] > length:
            self.cache.rewind(row, length)

    def _forward(self, rows: Sequence[int], tokens: Tensor, counts: Sequence[int]) -> Tensor:
        """Logits after the last new token of each of `rows`."""
        sizes = dict(zip(rows, counts, strict=True))
        by_row = [sizes.get(row, 0) for row in range(len(self._samplers))]
        return self.runner.forward(tokens, self.cache, every=False, counts=by_row)

    def _next(self, drafts: Sequence[Draft], logits: Tensor) -> Tensor:
        """The next token [n] of each draft, from logits [n, vocab]: the best one, or one drawn with
        its position's uniform number. It is appended to the draft.
        """
        samplers = [self._samplers[draft.ask.row] for draft in drafts]
        groups = equal_places(sampler.filters if sampler else None for sampler in samplers)
        for filters, members in groups.items():
            some = logits
            if len(groups) > 1:
                some = torch.cat([logits.narrow(0, at, 1) for at in members])
            if filters is None:
                tokens = best(some)
            else:
                q = distribution(some, filters)
                uniforms = [s.uniform(drafts[at]) for at in members if (s := samplers[at])]
                tokens = draw(q, torch.cat(uniforms))
                for at, one in zip(members, singly(q), strict=True):
                    drafts[at].q.append(one)
            for at, token in zip(members, singly(tokens), strict=True):
                drafts[at].tokens.append(token)
        return tokens if len(groups) == 1 else torch.cat([draft.tokens[-1] for draft in drafts])


class _Sampler(NamedTuple):
    """With what the draft samples along one response."""

    filters: Sampling
    uniforms: Tensor
    prompt_length: int

    def uniform(self, draft: Draft) -> Tensor:
        """The uniform number [1] for the position of a draft's next token."""
        length = len(draft.ask.context) + len(draft.tokens)
        return self.uniforms.narrow(0, length - self.prompt_length, 1)
