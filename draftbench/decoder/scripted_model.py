"""A model that is a function of the tokens so far, so that its output is known exactly."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from draftbench.decoder.runner import HiddenStates, last_of_each

Script = Callable[[Sequence[int]], Tensor]


class ScriptedCache:
    """The tokens that each row has read, of which the first `lengths[row]` are valid."""

    def __init__(self, rows: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.lengths = [0] * rows

    def rewind(self, row: int, length: int) -> None:
        assert length <= len(self.tokens[row])
        self.lengths[row] = length


@dataclass
class ScriptedRunner:
    """A model that is a function."""

    script: Script
    vocab_size: int
    context_length: int = 4096
    device: str = "cpu"
    name: str = "scripted"

    @property
    def embedding(self) -> Tensor:
        """Empty: a function reads ids, which have no vectors."""
        return torch.empty(self.vocab_size, 0)

    def continued(self, states: Tensor) -> Tensor:
        """Nothing: a function has no states."""
        return torch.empty(len(states), self.vocab_size)

    def new_cache(
        self, capacity: int, rows: int = 1, widths: Collection[int] = (), reads: Sequence[int] = ()
    ) -> ScriptedCache:
        return ScriptedCache(rows)

    def forget_caches(self) -> None:
        """Nothing to do: a cache's memory is freed with the cache."""

    def forward(
        self,
        tokens: Tensor,
        cache: ScriptedCache,
        *,
        every: bool,
        counts: Sequence[int] | None = None,
        hidden: HiddenStates | None = None,
    ) -> Tensor:
        logits, new, counts = [], tokens.tolist(), counts or [len(tokens)]
        for row, count in enumerate(counts):
            have, length = cache.tokens[row], cache.lengths[row]
            for end, token in enumerate(new[:count], start=length + 1):
                have[end - 1 : end] = [token]
                logits.append(self.script(have[:end]))
            del new[:count]
            cache.lengths[row] = length + count
            assert cache.lengths[row] <= self.context_length
        return torch.stack(logits)[... if every else last_of_each(counts)]

    def modules(self) -> Iterator[nn.Module]:
        return iter(())

    def tensors(self) -> Iterator[Tensor]:
        return iter(())


def markov(table: Tensor) -> Script:
    """The script of a first-order Markov chain: logits [vocab, vocab], row = last token."""
    return lambda tokens: table[tokens[-1]]
