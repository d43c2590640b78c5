"""New tokens of one row, or of several rows at different lengths → keys and values in their place
and what the tokens attend to.

Everything but attention works on the tokens of all rows side by side, so a batch whose rows bring
different numbers of tokens costs no padding there. Only here rows are padded to the widest. Slabs
are [rows, 2, key heads, capacity, head], keys and then values; queries are grouped by key head, so
that no key is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

_attention = functional.scaled_dot_product_attention
# Tokens of one row in one pass: enough to be bound by arithmetic, few enough that masks stay small.
PIECE = 512


class Placement(Protocol):
    """Where the tokens of one pass go, the same for all layers."""

    @property
    def positions(self) -> slice | Tensor:
        """Of the tokens in their rows."""
        ...

    def attend(self, query: Tensor, new: Tensor, slab: Tensor) -> Tensor:
        """Store the new keys and values [n, 2 · key heads, head], and mix the values that each
        query of [n, heads, head] sees: [n, heads · head].
        """
        ...


class OneRow:
    """n ≤ PIECE tokens behind the valid ones of one row.

    Args:
        group: queries to a key.
        future: [PIECE, PIECE], -inf above the diagonal.
    """

    def __init__(self, row: int, start: int, n: int, group: int, future: Tensor) -> None:
        self.row, self.start, self.n, self.end = row, start, n, start + n
        self.positions = slice(start, start + n)
        self.mask: Tensor | None = None
        if n > 1:
            mask = future.new_zeros(n, start + n)
            mask[:, start:] = future[:n, :n]
            self.mask = mask.repeat(group, 1)

    def attend(self, query: Tensor, new: Tensor, slab: Tensor) -> Tensor:
        own = slab[self.row]
        kv_heads, head = own.shape[1], own.shape[3]
        place = own.narrow(2, self.start, self.n)
        place.copy_(new.view(self.n, 2, kv_heads, head).permute(1, 2, 0, 3))
        keys, values = own.narrow(2, 0, self.end).unsqueeze(1).unbind()
        if self.n == 1:
            grouped = query.view(1, kv_heads, -1, head)
            return _attention(grouped, keys, values).reshape(1, -1)
        grouped = query.transpose(0, 1).reshape(1, kv_heads, -1, head)
        mixed = _attention(grouped, keys, values, self.mask)
        return mixed.view(-1, self.n, head).transpose(0, 1).reshape(self.n, -1)


class ManyRows:
    """`counts[r]` tokens behind the `lengths[r]` valid ones of row r.

    Rows without tokens take part with a query that nobody reads: leaving them out would copy the
    others' keys.

    Args:
        group: queries to a key.
        like: what the mask is made like.
    """

    def __init__(
        self, lengths: Sequence[int], counts: Sequence[int], group: int, like: Tensor
    ) -> None:
        self.rows, self.width = len(counts), max(counts)
        self.even = min(counts) == self.width
        places = [
            (row, slot, length + slot)
            for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
            for slot in range(count)
        ]
        self.row, self.slot, self.positions = torch.tensor(places, device=like.device).unbind(1)
        self.end = max(length + count for length, count in zip(lengths, counts, strict=True))
        seen = [
            [length + min(slot, max(count - 1, 0)) for slot in range(self.width)]
            for length, count in zip(lengths, counts, strict=True)
        ]
        future = torch.arange(self.end, device=like.device) > torch.tensor(
            seen, device=like.device
        ).unsqueeze(2)
        mask = like.new_zeros(future.shape).masked_fill_(future, float("-inf"))
        self.mask = mask.unsqueeze(1).repeat(1, 1, group, 1)

    def attend(self, query: Tensor, new: Tensor, slab: Tensor) -> Tensor:
        kv_heads, head = slab.shape[2], slab.shape[4]
        slab[self.row, :, :, self.positions] = new.view(-1, 2, kv_heads, head)
        keys, values = slab.narrow(3, 0, self.end).unbind(1)
        grouped = self._padded(query).transpose(1, 2).reshape(self.rows, kv_heads, -1, head)
        mixed = _attention(grouped, keys, values, self.mask)
        mixed = mixed.view(self.rows, -1, self.width, head).transpose(1, 2)
        if not self.even:
            mixed = mixed[self.row, self.slot]
        return mixed.reshape(len(self.row), -1)

    def _padded(self, query: Tensor) -> Tensor:
        """Queries [rows, width, heads, head]."""
        shape = (self.rows, self.width, *query.shape[1:])
        if self.even:
            return query.view(shape)
        padded = query.new_zeros(shape)
        padded[self.row, self.slot] = query
        return padded
