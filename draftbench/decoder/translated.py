"""Lets a draft with another vocabulary use the target's ids, through the tokens that both have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import torch
from torch import Tensor

from draftbench.decoder.runner import HiddenStates, KVCache, Runner


class TranslatedRunner:
    """Reads the target's ids and returns logits over them: -inf for tokens that the draft lacks,
    which it reads as its unknown token. Drafters never see the draft's own ids, and sampling
    follows the draft's distribution over the shared tokens.

    Args:
        rows: the target's vocabulary size.
        shared: target id → draft id of the tokens that both have.
        unknown: the draft's id for any other token.
    """

    def __init__(self, runner: Runner, rows: int, shared: Mapping[int, int], unknown: int) -> None:
        self.runner, self.vocab_size = runner, rows
        self.new_cache, self.forget_caches = runner.new_cache, runner.forget_caches
        self.modules, self.tensors = runner.modules, runner.tensors
        self.name, self.device = runner.name, runner.device
        self.context_length = runner.context_length
        ids = torch.full((rows,), unknown)
        ids[list(shared)] = torch.tensor(list(shared.values()))
        lacking = torch.ones(rows, dtype=torch.bool)
        lacking[list(shared)] = False
        self._ids, self._lacking = ids.to(runner.device), lacking.to(runner.device)

    def around(self, runner: Runner) -> TranslatedRunner:
        """The same translation of the same weights in another runner."""
        other = copy(self)
        other.runner = runner
        return other

    def reading(self, unknown: int) -> TranslatedRunner:
        """The same draft, reading tokens that it lacks as another one."""
        other = copy(self)
        other._ids = torch.where(self._lacking, unknown, self._ids)
        return other

    @property
    def embedding(self) -> Tensor:
        return self.runner.embedding[self._ids]

    def continued(self, states: Tensor) -> Tensor:
        return self._in_target_ids(self.runner.continued(states))

    def forward(
        self,
        tokens: Tensor,
        cache: KVCache,
        *,
        every: bool,
        counts: Sequence[int] | None = None,
        hidden: HiddenStates | None = None,
    ) -> Tensor:
        ids = self._ids[tokens]
        return self._in_target_ids(
            self.runner.forward(ids, cache, every=every, counts=counts, hidden=hidden)
        )

    def _in_target_ids(self, logits: Tensor) -> Tensor:
        return logits.index_select(1, self._ids).masked_fill_(self._lacking, -torch.inf)
