"""Attention over cached keys and values, for one row or several rows of different lengths.

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

from draftbench.decoder.traces import scripted

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


# Functions of a row's length that read it when they run: a trace holds the call, not the number.
_SCRIPT = """
def at(table: Tensor, start: Tensor, n: int) -> Tensor:
    return table.narrow(0, int(start), n)

def mask(future: Tensor, start: Tensor, n: int, group: int) -> Tensor:
    past = int(start)
    mask = future.new_zeros([n, past + n])
    mask.narrow(1, past, n).copy_(future.narrow(0, 0, n).narrow(1, 0, n))
    return mask.repeat([group, 1])

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
    return mixed.reshape(-1, n, head).transpose(0, 1).reshape(n, -1)

def reached(places: Tensor) -> Tensor:
    return torch.arange(int(places.max()) + 1)
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
        like: a tensor of the mask's type and device.
    """

    def __init__(
        self, lengths: Sequence[int], counts: Sequence[int], group: int, like: Tensor
    ) -> None:
        self.rows, self.width = len(counts), max(counts)
        places = [
            (row, slot, length + slot)
            for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
            for slot in range(count)
        ]
        self.row, self.slot, self.positions = torch.tensor(places, device=like.device).unbind(1)
        last = [
            [length + min(slot, max(count - 1, 0)) for slot in range(self.width)]
            for length, count in zip(lengths, counts, strict=True)
        ]
        reach = max(length + count for length, count in zip(lengths, counts, strict=True))
        seen = torch.arange(reach, device=like.device)
        self.mask = _mask(seen, torch.tensor(last, device=like.device), group, like)

    def at(self, table: Tensor) -> Tensor:
        return table[self.positions]

    def attend(self, query: Tensor, new: Tensor, slab: Tensor) -> Tensor:
        slab[self.row, :, :, self.positions] = new.view(-1, 2, *slab.shape[2::2])
        padded = query.new_zeros(self.rows, self.width, *query.shape[1:])
        padded[self.row, self.slot] = query
        mixed = _mixed(padded, slab, self.mask)[self.row, self.slot]
        return mixed.reshape(len(self.row), -1)


class EvenRows:
    """`width` tokens behind the valid ones of every row, wherever those end: only the numbers in
    `starts` differ between two passes, nothing that a trace or a recording holds.

    Args:
        starts: [rows] valid tokens.
        reach: number of keys to look at, at least every start + width; None: the least that does,
            read from the starts, which would make a host wait for a GPU.
        group: queries to a key.
        like: a tensor of the mask's type and device.
        last: the last position that the model knows; results beyond it are never read.
    """

    def __init__(
        self, starts: Tensor, width: int, reach: int | None, group: int, like: Tensor, last: int
    ) -> None:
        self.rows, self.width = len(starts), width
        device = starts.device
        places = starts.unsqueeze(1) + torch.arange(width, device=device)
        self.place = places.flatten()
        self.positions = self.place.clamp(max=last)
        rows = torch.arange(self.rows, device=device)
        self.row = rows.unsqueeze(1).expand(-1, width).reshape(-1)
        seen = _scripted().reached(places) if reach is None else torch.arange(reach, device=device)
        self.mask = _mask(seen, places, group, like)

    def at(self, table: Tensor) -> Tensor:
        return table[self.positions]

    def attend(self, query: Tensor, new: Tensor, slab: Tensor) -> Tensor:
        slab[self.row, :, :, self.place] = new.view(-1, 2, *slab.shape[2::2])
        padded = query.view(self.rows, self.width, *query.shape[1:])
        return _mixed(padded, slab, self.mask).reshape(len(self.row), -1)


def _mask(seen: Tensor, last: Tensor, group: int, like: Tensor) -> Tensor:
    """[rows, 1, group · width, reach], -inf where a key of `seen` [reach] comes after the query's
    `last` visible place [rows, width].
    """
    future = seen > last.unsqueeze(2)
    mask = torch.zeros_like(future, dtype=like.dtype).masked_fill_(future, float("-inf"))
    return mask.unsqueeze(1).repeat(1, 1, group, 1)


def _mixed(query: Tensor, slab: Tensor, mask: Tensor) -> Tensor:
    """The values mixed for queries [rows, width, heads, head], in their shape."""
    rows, width, _, head = query.shape
    keys, values = slab.narrow(3, 0, mask.shape[3]).unbind(1)
    grouped = query.transpose(1, 2).reshape(rows, slab.shape[2], -1, head)
    # Not a view: some of a GPU's kernels lay their result out as [rows, n, heads, head].
    mixed = _attention(grouped, keys, values, mask).reshape(rows, -1, width, head)
    return mixed.transpose(1, 2)
