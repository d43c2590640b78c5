"""New tokens of one row, or of several rows at different lengths → keys and values in their place
and what the tokens attend to.

Everything but attention works on the tokens of all rows side by side, so a batch whose rows bring
different numbers of tokens costs no padding there. Only here rows are padded to the widest. Slabs
are [rows, 2, key heads, capacity, head], keys and then values; queries are grouped by key head, so
that no key is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.decode.traced import scripted

_attention = functional.scaled_dot_product_attention
# Tokens of one row in one pass: enough to be bound by arithmetic, few enough that masks stay small.
PIECE = 512


class Placement(Protocol):
    """Where the tokens of one pass go, the same for all layers."""

    def at(self, table: Tensor) -> Tensor:
        """The entries of a table [positions, ...] that the tokens are at, [n, ...]."""
        ...

    def attend(self, query: Tensor, new: Tensor, slab: Tensor) -> Tensor:
        """Store the new keys and values [n, 2 · key heads, head], and mix the values that each
        query of [n, heads, head] sees: [n, heads · head].
        """
        ...


# What depends on a row's length, as functions that read it when they run: a trace holds the calls
# and not the number.
_SCRIPT = """
def at(table: Tensor, start: Tensor, n: int) -> Tensor:
    return table.narrow(0, int(start), n)

def mask(future: Tensor, start: Tensor, n: int, group: int) -> Tensor:
    past = int(start)
    own = future.new_zeros([n, past + n])
    own.narrow(1, past, n).copy_(future.narrow(0, 0, n).narrow(1, 0, n))
    return own.repeat([group, 1])

def attend(
    query: Tensor, new: Tensor, slab: Tensor, start: Tensor, mask: Optional[Tensor]
) -> Tensor:
    past, n = int(start), query.size(0)
    kv_heads, head = slab.size(1), slab.size(3)
    place = slab.narrow(2, past, n)
    place.copy_(new.view(n, 2, kv_heads, head).permute(1, 2, 0, 3))
    seen = slab.narrow(2, 0, past + n).unsqueeze(1)
    if n == 1:
        grouped = query.view(1, kv_heads, -1, head)
        mixed = torch._C._nn.scaled_dot_product_attention(grouped, seen[0], seen[1])
        return mixed.reshape(1, -1)
    grouped = query.transpose(0, 1).reshape(1, kv_heads, -1, head)
    mixed = torch._C._nn.scaled_dot_product_attention(grouped, seen[0], seen[1], mask)
    return mixed.view(-1, n, head).transpose(0, 1).reshape(n, -1)
"""


@cache
def _scripted() -> Any:
    return scripted(_SCRIPT)


class OneRow:
    """n ≤ PIECE tokens behind the valid ones of one row, whose slabs lack the first dimension.

    Args:
        start: [] valid tokens, on the host.
        group: queries to a key.
        future: [PIECE, PIECE], -inf above the diagonal.
    """

    def __init__(self, start: Tensor, n: int, group: int, future: Tensor) -> None:
        self.start, self.n = start, n
        self.mask = _scripted().mask(future, start, n, group) if n > 1 else None

    def at(self, table: Tensor) -> Tensor:
        return _scripted().at(table, self.start, self.n)  # type: ignore[no-any-return]

    def attend(self, query: Tensor, new: Tensor, slab: Tensor) -> Tensor:
        return _scripted().attend(  # type: ignore[no-any-return]
            query, new, slab, self.start, self.mask
        )


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

    def at(self, table: Tensor) -> Tensor:
        return table[self.positions]

    def attend(self, query: Tensor, new: Tensor, slab: Tensor) -> Tensor:
        slab[self.row, :, :, self.positions] = new.view(-1, 2, *slab.shape[2::2])
        mixed = _mixed(self._padded(query), slab, self.end, self.mask)
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


class FixedRows:
    """`width` tokens behind the valid ones of every row, wherever those end: only the numbers in
    `starts` differ between two passes, nothing that a recording of one would hold.

    Args:
        starts: [rows] valid tokens.
        reach: keys that are looked at, at least every start + width.
        group: queries to a key.
        like: what the mask is made like.
        last: the last position that the model knows; what lies beyond is never read.
    """

    def __init__(
        self, starts: Tensor, width: int, reach: int, group: int, like: Tensor, last: int
    ) -> None:
        self.rows, self.width, self.reach = len(starts), width, reach
        device = starts.device
        places = starts.unsqueeze(1) + torch.arange(width, device=device)
        self.place = places.flatten()
        self._known = self.place.clamp(max=last)
        rows = torch.arange(self.rows, device=device)
        self.row = rows.unsqueeze(1).expand(-1, width).reshape(-1)
        future = torch.arange(reach, device=device) > places.unsqueeze(2)
        mask = torch.zeros(future.shape, dtype=like.dtype, device=device)
        self.mask = mask.masked_fill_(future, float("-inf")).unsqueeze(1).repeat(1, 1, group, 1)

    def at(self, table: Tensor) -> Tensor:
        return table[self._known]

    def attend(self, query: Tensor, new: Tensor, slab: Tensor) -> Tensor:
        slab[self.row, :, :, self.place] = new.view(-1, 2, *slab.shape[2::2])
        padded = query.view(self.rows, self.width, *query.shape[1:])
        return _mixed(padded, slab, self.reach, self.mask).reshape(len(self.row), -1)


def _mixed(query: Tensor, slab: Tensor, end: int, mask: Tensor) -> Tensor:
    """What queries [rows, width, heads, head] see of the first `end` entries, in their shape."""
    rows, width, _, head = query.shape
    keys, values = slab.narrow(3, 0, end).unbind(1)
    grouped = query.transpose(1, 2).reshape(rows, slab.shape[2], -1, head)
    mixed = _attention(grouped, keys, values, mask)
    return mixed.view(rows, -1, width, head).transpose(1, 2)
