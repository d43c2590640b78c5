"""The seam between models and everything that decodes: token ids in, next-token logits out, with a
cache of several rows that can be rewound one by one.

A runner knows one model on one device. It knows nothing of text, sampling, drafts or rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class KVCache(Protocol):
    """The keys and values of one or more sequences, a row each, in memory allocated once."""

    @property
    def lengths(self) -> list[int]:
        """Valid tokens of each row."""
        ...

    def rewind(self, row: int, length: int) -> None:
        """Forget everything after the first `length` tokens of a row. Nothing is copied."""
        ...


class Runner(Protocol):
    """One model that continues sequences."""

    @property
    def name(self) -> str:
        """Which implementation runs the model, in words for reports."""
        ...

    vocab_size: int
    context_length: int
    device: str

    def new_cache(self, capacity: int, rows: int = 1, widths: Collection[int] = ()) -> KVCache:
        """An empty cache for up to `capacity` tokens in each of `rows` rows.

        Args:
            widths: tokens a row of passes that are going to be timed: what they need made once is
                made now.
        """
        ...

    def forward(
        self, tokens: Tensor, cache: Any, *, every: bool, counts: Sequence[int] | None = None
    ) -> Tensor:
        """Append tokens [n] to a cache of this runner's own making and continue them.

        Args:
            every: logits after every token [n, vocab_size], or else only after the last new token
                of each row that has any.
            counts: how many of the tokens go to each row, in the order of the rows, 0 allowed; all
                to the only row by default.
        """
        ...

    def modules(self) -> Iterator[nn.Module]:
        """The linear layers, for counting what a quantization level touched."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """The weights outside linear layers."""
        ...


def on_device(values: list[Any], device: str) -> Tensor:
    """Integers on a device; the host does not wait for what runs there."""
    if device == "cpu":
        return torch.tensor(values, dtype=torch.long)
    pinned = torch.tensor(values, dtype=torch.long, pin_memory=True)
    return pinned.to(device, non_blocking=True)


def last_of_each(counts: Sequence[int]) -> list[int]:
    """Where, among tokens that lie row after row, the last one of each row is."""
    ends, end = [], 0
    for count in counts:
        end += count
        if count:
            ends.append(end - 1)
    return ends


def only_row(counts: Sequence[int]) -> int | None:
    """The row that gets all the tokens, None where several get some."""
    busy = [row for row, count in enumerate(counts) if count]
    return busy[0] if len(busy) == 1 else None
