"""New tokens of one row, or of several rows at different lengths → keys and values in their place
and what the tokens attend to.

Everything but attention works on the tokens of all rows side by side, so a batch whose rows bring
different numbers of tokens costs no padding there. Only here rows are padded to the widest. Slabs
are [rows, key heads, capacity, head]; queries are grouped by key head, so that no key is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

# Tokens of one row in one pass: enough to be bound by arithmetic, few enough that masks stay small.
PIECE = 512


class Placement(Protocol):
    """Where the tokens of one pass go, the same for all layers."""

    positions: slice | Tensor

    def attend(
        self, query: Tensor, new: tuple[Tensor, Tensor], slabs: tuple[Tensor, Tensor]
    ) -> Tensor:
        """Store the new keys and values, each [n, key heads, head], and mix the values that each
        query of [n, heads, head] sees: [n, heads · head].
        """
        ...


class OneRow:
    """n ≤ PIECE tokens behind the valid ones of one row."""

    def __init__(self, row: int, start: int, n: int, future: Tensor) -> None:
        self.row, self.n = row, n
        self.positions = slice(start, start + n)
        self.mask: Tensor | None = None
        if n > 1:
            self.mask = future.new_zeros(n, start + n)
            self.mask[:, start:] = future[:n, :n]

    def attend(
        self, query: Tensor, new: tuple[Tensor, Tensor], slabs: tuple[Tensor, Tensor]
    ) -> Tensor:
        keys, values = (slab[self.row : self.row + 1] for slab in slabs)
        keys[0, :, self.positions].copy_(new[0].transpose(0, 1))
        values[0, :, self.positions].copy_(new[1].transpose(0, 1))
        heads, kv_heads, head = query.shape[1], keys.shape[1], query.shape[2]
        mask = self.mask if self.mask is None else self.mask.repeat(heads // kv_heads, 1)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(0, 1).reshape(1, kv_heads, -1, head),
            keys[:, :, : self.positions.stop],
            values[:, :, : self.positions.stop],
            attn_mask=mask,
        )
        return mixed.view(heads, self.n, head).transpose(0, 1).reshape(self.n, -1)


class ManyRows:
    """`counts[r]` tokens behind the `lengths[r]` valid ones of row r.

    Rows without tokens take part with a query that nobody reads: leaving them out would copy the
    others' keys.
    """

    def __init__(self, lengths: Sequence[int], counts: Sequence[int], like: Tensor) -> None:
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
        self.mask = like.new_zeros(future.shape).masked_fill_(future, float("-inf")).unsqueeze(1)
        self._grouped: Tensor | None = None

    def attend(
        self, query: Tensor, new: tuple[Tensor, Tensor], slabs: tuple[Tensor, Tensor]
    ) -> Tensor:
        keys, values = slabs
        keys[self.row, :, self.positions] = new[0]
        values[self.row, :, self.positions] = new[1]
        heads, kv_heads, head = query.shape[1], keys.shape[1], query.shape[2]
        if self._grouped is None:
            self._grouped = self.mask.repeat(1, 1, heads // kv_heads, 1)
        mixed = functional.scaled_dot_product_attention(
            self._padded(query).transpose(1, 2).reshape(self.rows, kv_heads, -1, head),
            keys[:, :, : self.end],
            values[:, :, : self.end],
            attn_mask=self._grouped,
        )
        mixed = mixed.view(self.rows, heads, self.width, head).transpose(1, 2)
        found = mixed.reshape(-1, heads * head) if self.even else mixed[self.row, self.slot]
        return found.reshape(-1, heads * head)

    def _padded(self, query: Tensor) -> Tensor:
        """Queries [rows, width, heads, head]."""
        shape = (self.rows, self.width, *query.shape[1:])
        if self.even:
            return query.view(shape)
        padded = query.new_zeros(shape)
        padded[self.row, self.slot] = query
        return padded
