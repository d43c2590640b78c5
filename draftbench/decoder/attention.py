"""Attention over cached keys and values, for one row or several rows of different lengths.

Only attention pads rows to the widest one; everything else works on the tokens of all rows side by
side (except in recorded passes, which are always as wide as their widest row). Slabs are [layers,
2, rows, key heads, capacity, head], keys first and then values; queries are grouped by key head, so
that no key is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.decoder.cpu_attention import CACHED, FewTokens, is_fast
from draftbench.decoder.runner import on_device, only_row

# Most tokens of one row in one pass: enough to be compute-bound, few enough for small masks.
PIECE = 512


class Rotary(NamedTuple):
    """cos and sin [positions, 1, head]; sin carries the sign of the swapped half."""

    cos: Tensor
    sin: Tensor

    def at(self, place: Tensor) -> Rotary:
        """Those of some places [n]; behind the last position that the model knows, of that one."""
        position = place.clamp(max=len(self.cos) - 1)
        return type(self)(self.cos.index_select(0, position), self.sin.index_select(0, position))

    def cached(self, new: Tensor) -> Tensor:
        """What a cache keeps of rotated keys and of values [n, 2 · key heads, head]: a subclass may
        round them.
        """
        return new


class Placement(Protocol):
    """Where one pass's tokens are stored in the slabs, and what they attend to."""

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """Rotate the queries and keys in qkv [n, heads + 2 · key heads, head], store the new keys
        and values, and return the attention output of each query [n, heads · head].
        """
        ...


def in_pieces(lengths: Sequence[int], counts: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """A pass's lengths and counts; those of several passes if one row gets more than PIECE."""
    if sum(counts) <= PIECE or (row := only_row(counts)) is None:
        return [(list(lengths), list(counts))]
    passes = []
    for done in range(0, counts[row], PIECE):
        at, some = list(lengths), [0] * len(counts)
        at[row] += done
        some[row] = min(PIECE, counts[row] - done)
        passes.append((at, some))
    return passes


def placed(
    slabs: Tensor,
    lengths: Sequence[int],
    counts: Sequence[int],
    rotary: Rotary,
    group: int,
    future: Tensor,
) -> Placement:
    """Where `counts[r]` tokens are stored after the `lengths[r]` valid ones of each row r: in a
    CPU's kernel if they are few.

    Args:
        slabs: [layers, 2, rows, key heads, capacity, head].
        group: queries to a key.
        future: [PIECE, PIECE], -inf above the diagonal.
    """
    kernels = slabs.is_cpu and slabs.dtype in CACHED and type(rotary) is Rotary
    if kernels and is_fast(slabs, lengths, counts, group):
        return FewTokens(slabs, lengths, counts, group, *rotary)
    if (row := only_row(counts)) is not None:
        return OneRow(slabs[:, :, row], lengths[row], counts[row], rotary, group, future)
    if min(counts) == max(counts):
        starts, width = on_device(list(lengths), str(slabs.device)), counts[0]
        return EvenRows(slabs, starts, width, max(lengths) + width, rotary, group)
    return ManyRows(slabs, lengths, counts, rotary, group)


class OneRow:
    """n ≤ PIECE tokens after the `start` valid ones of one row.

    Args:
        slabs: this row's [layers, 2, key heads, capacity, head].
        group: queries to a key.
        future: [PIECE, PIECE], -inf above the diagonal.
    """

    def __init__(
        self, slabs: Tensor, start: int, n: int, rotary: Rotary, group: int, future: Tensor
    ) -> None:
        self.n, self.kv_heads = n, slabs.shape[2]
        self.rotary = type(rotary)(*(table.narrow(0, start, n) for table in rotary))
        self.places = slabs.narrow(3, start, n).unbind()
        keys, values = slabs.narrow(3, 0, start + n).unsqueeze(2).unbind(1)
        self.seen = list(zip(keys.unbind(), values.unbind(), strict=True))
        self.mask = None
        if n > 1:
            past = future.new_zeros(n, start)
            self.mask = torch.cat([past, future[:n, :n]], dim=1).repeat(group, 1)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        n, kv_heads, head = self.n, self.kv_heads, qkv.shape[2]
        query, new = _rotated(qkv, kv_heads, self.rotary)
        keys, values = self.seen[layer]
        self.places[layer].copy_(new.view(n, 2, kv_heads, head).permute(1, 2, 0, 3))
        grouped = query.transpose(0, 1).reshape(1, kv_heads, -1, head)
        mixed = _attention(grouped, keys, values, self.mask)
        return mixed.reshape(-1, n, head).transpose(0, 1).reshape(n, -1)


class ManyRows:
    """`counts[r]` tokens after the `lengths[r]` valid ones of row r.

    Rows without tokens take part with a query whose result is not read, since leaving them out
    would copy the other rows' keys.

    Args:
        group: queries to a key.
    """

    def __init__(
        self,
        slabs: Tensor,
        lengths: Sequence[int],
        counts: Sequence[int],
        rotary: Rotary,
        group: int,
    ) -> None:
        self.slabs, device = slabs, slabs.device
        self.rows, self.width = len(counts), max(counts)
        places = [
            (row, slot, length + slot)
            for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
            for slot in range(count)
        ]
        self.row, self.slot, self.place = on_device(places, str(device)).unbind(1)
        self.rotary = rotary.at(self.place)
        last = [
            [length + min(slot, max(count - 1, 0)) for slot in range(self.width)]
            for length, count in zip(lengths, counts, strict=True)
        ]
        reach = max(length + count for length, count in zip(lengths, counts, strict=True))
        seen = torch.arange(reach, device=device)
        self.mask = _mask(seen, on_device(last, str(device)), group, slabs)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        slab = self.slabs[layer]
        query = _store(qkv, slab, self.row, self.place, self.rotary)
        padded = query.new_zeros(self.rows, self.width, *query.shape[1:])
        padded[self.row, self.slot] = query
        grouped = _grouped(padded, slab.shape[2])
        mixed = _mixed(grouped, slab, self.mask, self.width)[self.row, self.slot]
        return mixed.reshape(len(self.row), -1)


class EvenRows:
    """`width` tokens after the valid ones of every row. Two passes of the same width and reach
    differ only in the numbers in `starts`, so that the pass can be recorded.

    Args:
        starts: [rows] valid tokens.
        reach: number of keys to look at, at least every start + width.
        group: queries to a key.

    Results past the last position that the model knows are never read.
    """

    def __init__(
        self, slabs: Tensor, starts: Tensor, width: int, reach: int, rotary: Rotary, group: int
    ) -> None:
        self.slabs, self.rows, self.width, device = slabs, len(starts), width, starts.device
        places = starts.unsqueeze(1) + torch.arange(width, device=device)
        self.mask = _mask(torch.arange(reach, device=device), places, group, slabs)
        self.place = places.flatten()
        self.rotary = rotary.at(self.place)
        each = torch.arange(self.rows, device=device)
        self.row = each.unsqueeze(1).expand(-1, width).reshape(-1)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        slab = self.slabs.select(0, layer)
        query = _store(qkv, slab, self.row, self.place, self.rotary)
        grouped = _grouped(query.view(self.rows, self.width, *query.shape[1:]), slab.shape[2])
        return _mixed(grouped, slab, self.mask, self.width).reshape(len(qkv), -1)


class Sees(NamedTuple):
    """What a layer's queries see: of their own block the tokens up to themselves, or all; of
    everything the last `window` tokens, or all.
    """

    causal: bool
    window: int | None

    def hides(self, query: Tensor, key: Tensor, *, own: Tensor) -> Tensor:
        """Whether queries at some places do not see keys at others, which may be of their `own`
        block; the three are broadcast.
        """
        hidden = (key > query) & (~own | self.causal)
        return hidden if self.window is None else hidden | (query - key >= self.window)


class BlockRows:
    """A block of `width` tokens after the valid ones of every row, or of `some` rows. As in
    `EvenRows`, two passes differ only in numbers, so that the pass can be recorded.

    Args:
        starts: [rows] valid tokens.
        reach: number of keys to look at, at least every start + width.
        group: queries to a key.
        sees: by layer.
        some: [blocks] rows; others take part with queries that are not read, as in `ManyRows`.
    """

    def __init__(
        self,
        slabs: Tensor,
        starts: Tensor,
        width: int,
        reach: int,
        rotary: Rotary,
        group: int,
        sees: Sequence[Sees],
        some: Tensor | None = None,
    ) -> None:
        self.slabs, self.width, self.sees, self.some = slabs, width, sees, some
        device = starts.device
        places = starts.unsqueeze(1) + torch.arange(width, device=device)
        stored = places if some is None else places[some]
        of_row = torch.arange(len(starts), device=device) if some is None else some
        self.row = of_row.unsqueeze(1).expand(-1, width).reshape(-1)
        self.place = stored.flatten()
        self.rotary = rotary.at(self.place)
        seen = torch.arange(reach, device=device)
        own = (seen >= places[:, :1]) & (seen < places[:, :1] + width)
        self.masks = {
            each: _hiding(each.hides(places[:, :, None], seen, own=own[:, None]), group, slabs)
            for each in set(sees)
        }

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        slab, width = self.slabs.select(0, layer), self.width
        query = _store(qkv, slab, self.row, self.place, self.rotary).unflatten(0, (-1, width))
        if self.some is not None:
            padded = query.new_zeros(slab.shape[1], *query.shape[1:])
            padded[self.some] = query
            query = padded
        mixed = _mixed(_grouped(query, slab.shape[2]), slab, self.masks[self.sees[layer]], width)
        return (mixed if self.some is None else mixed[self.some]).reshape(len(qkv), -1)


class TextBlocks:
    """Blocks of `width` tokens that begin after some of a text's tokens, each for itself: they see
    the text before them and their own tokens.

    Args:
        slabs: [layers, 2, key heads, capacity, head], with the keys and values of the text.
        starts: tokens of the text before each block.
        group: queries to a key.
        sees: by layer.
    """

    def __init__(
        self,
        slabs: Tensor,
        starts: Tensor,
        width: int,
        rotary: Rotary,
        group: int,
        sees: Sequence[Sees],
    ) -> None:
        self.slabs, self.reach, self.sees, device = slabs, int(starts.max()), sees, slabs.device
        places = (starts[:, None] + torch.arange(width, device=device)).flatten()
        self.rotary = rotary.at(places)
        block = torch.arange(len(starts), device=device).repeat_interleave(width)
        seen = torch.arange(self.reach, device=device)
        own, text = block[:, None] == block, starts[block][:, None]
        nowhere = torch.zeros((), dtype=torch.bool, device=device)
        self.masks = {}
        for each in set(sees):
            before = (seen >= text) | each.hides(places[:, None], seen, own=nowhere)
            within = ~own | each.hides(places[:, None], places, own=own)
            self.masks[each] = _hiding(torch.cat([before, within], dim=1)[None], group, slabs)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        n, head, kv_heads = len(qkv), qkv.shape[2], self.slabs.shape[2]
        query, new = _rotated(qkv, kv_heads, self.rotary)
        of_text = self.slabs[layer].narrow(2, 0, self.reach)
        of_blocks = new.view(n, 2, kv_heads, head).permute(1, 2, 0, 3).to(of_text.dtype)
        keys, values = torch.cat([of_text, of_blocks], 2)
        grouped = query.transpose(0, 1).reshape(1, kv_heads, -1, head)
        mixed = _attention(grouped, keys[None], values[None], self.masks[self.sees[layer]])
        return mixed.reshape(-1, n, head).transpose(0, 1).reshape(n, -1)


def store(kv: Tensor, slab: Tensor, row: Tensor, place: Tensor, rotary: Rotary) -> None:
    """Rotate keys and store them beside values, both in kv [n, 2 · key heads, head]."""
    _store(kv, slab, row, place, rotary.at(place))


class LaterDepths:
    """n rows of one text at depths 1, 2, … of a head, one pass for each depth: a row sees the keys
    of depth 0 up to its own, and its own keys of later depths. Its position advances with the
    depth.

    Args:
        slabs: [layers, 2, key heads, capacity, head], with the rows' keys at depth 0 after the
            `start` ones before them.
        group: queries to a key.
    """

    advance = 1

    def __init__(self, slabs: Tensor, start: int, n: int, rotary: Rotary, group: int) -> None:
        self.rotary, self.group = rotary, group
        self.keys, self.values = slabs[0].narrow(2, 0, start + n).unbind()
        rows = torch.arange(start, start + n, device=slabs.device)
        self.place, seen = rows, torch.arange(start + n, device=slabs.device)
        nowhere = slabs.new_full((), float("-inf"))
        self.mask = torch.where(seen <= rows[:, None], slabs.new_zeros(()), nowhere)
        self.own = torch.where(rows == rows[:, None], slabs.new_zeros(()), nowhere)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        n, head, kv_heads = len(qkv), qkv.shape[2], self.keys.shape[0]
        self.place = self.place + self.advance
        query, new = _rotated(qkv, kv_heads, self.rotary.at(self.place))
        keys, values = new.view(n, 2, kv_heads, head).permute(1, 2, 0, 3).to(self.keys.dtype)
        self.keys = torch.cat([self.keys, keys], dim=1)
        self.values = torch.cat([self.values, values], dim=1)
        self.mask = torch.cat([self.mask, self.own], dim=1)
        grouped = query.transpose(0, 1).reshape(1, kv_heads, -1, head)
        mask = self.mask.repeat(self.group, 1)
        mixed = _attention(grouped, self.keys[None], self.values[None], mask)
        return mixed.reshape(-1, n, head).transpose(0, 1).reshape(n, -1)


def _rotated(qkv: Tensor, kv_heads: int, rotary: Rotary) -> tuple[Tensor, Tensor]:
    """Queries [n, heads, head], and keys and values side by side as in the cache [n, 2 · key heads,
    head]; queries and keys are rotated in place.
    """
    heads = qkv.shape[1] - 2 * kv_heads
    turning = qkv.narrow(1, 0, heads + kv_heads)
    swapped = turning.roll(qkv.shape[2] // 2, -1)
    turning.mul_(rotary.cos).addcmul_(swapped, rotary.sin)
    # `split` takes longer than both, as it is written in Python.
    query, new = qkv.narrow(1, 0, heads), qkv.narrow(1, heads, 2 * kv_heads)
    return query, rotary.cached(new)


def _store(qkv: Tensor, slab: Tensor, row: Tensor, place: Tensor, rotary: Rotary) -> Tensor:
    """Rotate, write each token's keys and values to its row and place, and return the queries."""
    query, new = _rotated(qkv, slab.shape[2], rotary)
    values = new.view(-1, 2, *slab.shape[2::2]).to(slab.dtype)
    torch.ops.aten.index_put_.default(slab, [None, row, None, place], values)
    return query


def _attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """In the type of the cache; the result has the query's."""
    narrow = query.to(keys.dtype)
    return functional.scaled_dot_product_attention(narrow, keys, values, mask).to(query.dtype)


def _mask(seen: Tensor, last: Tensor, group: int, like: Tensor) -> Tensor:
    """[rows, 1, group · width, reach], -inf where a key of `seen` [reach] comes after the query's
    `last` visible place [rows, width].
    """
    return _hiding(seen > last.unsqueeze(2), group, like)


def _hiding(hidden: Tensor, group: int, like: Tensor) -> Tensor:
    """[rows, 1, group · width, reach], -inf where a key is hidden [rows, width, reach]."""
    mask = torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, float("-inf"))
    return mask.unsqueeze(1).repeat(1, 1, group, 1)


def _grouped(query: Tensor, kv_heads: int) -> Tensor:
    """Queries [rows, width, heads, head] by key head [rows, key heads, group · width, head]."""
    return query.transpose(1, 2).reshape(len(query), kv_heads, -1, query.shape[3])


def _mixed(grouped: Tensor, slab: Tensor, mask: Tensor, width: int) -> Tensor:
    """Attention of `_grouped` queries, by token [rows, width, key heads, group, head]."""
    keys, values = slab.narrow(3, 0, mask.shape[3]).unbind()
    mixed = _attention(grouped, keys, values, mask)
    # However a GPU's kernel lays its results out, these are views.
    return mixed.unflatten(2, (-1, width)).permute(0, 3, 1, 2, 4)
