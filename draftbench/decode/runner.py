"""The seam between models and everything that decodes: token ids in, next-token logits out, with a
cache that can be rewound.

A runner knows one model on one device. It knows nothing of text, sampling, drafts or rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn


class KVCache(Protocol):
    """The keys and values of one sequence, in memory allocated once."""

    length: int

    def rewind(self, length: int) -> None:
        """Forget everything after the first `length` tokens. Nothing is copied."""
        ...


class Runner(Protocol):
    """One model that continues a sequence."""

    @property
    def name(self) -> str:
        """Which implementation runs the model, in words for reports."""
        ...

    vocab_size: int
    context_length: int
    device: str

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for up to `capacity` tokens."""
        ...

    def forward(self, tokens: Tensor, cache: Any, keep: int) -> Tensor:
        """Append tokens [n] to a cache of this runner's own making; logits [keep, vocab_size] after
        each of the last `keep` of them.
        """
        ...

    def modules(self) -> Iterator[nn.Module]:
        """The linear layers, for counting what a quantization level touched."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """The weights outside linear layers."""
        ...
