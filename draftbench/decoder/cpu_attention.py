"""Attention of a few tokens on a CPU, in float32 whatever the type of the cache is.

Queries are shared among threads. Of many tokens PyTorch's attention takes less time.
"""

# Kernels are compiled from functions whose values have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import carray, cfunc, float32, int32, int64, intp, njit, types, uint16, void
from numba.extending import intrinsic, overload
from torch import Tensor

from draftbench.decoder.compiling import (
    THREADED_FROM,
    OfThisProcess,
    address_of,
    called,
    compiled,
    floats_at,
    halves_at,
    in_parallel,
    integers_at,
    on_stack,
    thread_number,
    threads_allowed,
    threads_there,
)
from draftbench.decoder.cpu_kernels import exp, of_bits

# Most products of a query's and a key's number, or of a share and a value's, that are taken here
# where a row has several tokens; for any number of threads, since PyTorch's rounds differently. Of
# one token in each row PyTorch's attention takes longer in any case; of several rows it takes as
# long for each as for the one with most, and two thirds of the time for each product. A row alone
# is computed in the same way whatever rows are idle beside it.
MOST_PRODUCTS = 1 << 23


@intrinsic
def _to_bits(typing, number):
    """The 32 bits of a float32."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return int32(float32), generate


def _wide(kept):
    """A cached number in float32."""


def _kept(number, like):
    """A number as the cache of `like` keeps it: bfloat16 rounds to the nearest, ties to even."""


@overload(_wide, inline="always")
def _(kept):
    if kept == float32:
        return lambda kept: kept
    return lambda kept: of_bits(int32(kept) << int32(16))


@overload(_kept, inline="always")
def _(number, like):
    if like == float32:
        return lambda number, like: number

    def rounded(number, like):
        bits = _to_bits(number)
        return uint16((bits + int32(0x7FFF) + ((bits >> int32(16)) & int32(1))) >> int32(16))

    return rounded


@njit
def _mix(queries, keys, values, scale, shares, results):
    """What queries [some, head] mix of values [reach, head], by how much they agree with keys."""
    (some, head), reach = queries.shape, len(keys)
    for j in range(reach):
        for g in range(some):
            score = np.float32(0)
            for i in range(head):
                score += queries[g, i] * _wide(keys[j, i])
            shares[g, j] = score * scale
    for g in range(some):
        largest, total = shares[g, 0], np.float32(0)
        for j in range(reach):
            largest = max(largest, shares[g, j])
        for j in range(reach):
            shares[g, j] = exp(shares[g, j] - largest)
            total += shares[g, j]
        for j in range(reach):
            shares[g, j] /= total
    results[:] = 0
    for j in range(0, reach - 3, 4):  # of four at once: each sum waits for the one before
        for g in range(some):
            a, b, c, d = shares[g, j], shares[g, j + 1], shares[g, j + 2], shares[g, j + 3]
            for i in range(head):
                results[g, i] += (
                    a * _wide(values[j, i])
                    + b * _wide(values[j + 1, i])
                    + c * _wide(values[j + 2, i])
                    + d * _wide(values[j + 3, i])
                )
    for j in range(reach - reach % 4, reach):
        for g in range(some):
            for i in range(head):
                results[g, i] += shares[g, j] * _wide(values[j, i])


# What a kernel is asked to do with a layer: store its tokens, or mix, alone or among threads.
_STORE, _MIX, _SHARE = range(3)
# How many bytes of a `FewTokens`'s numbers lie before its shape, its tables, and its tokens.
_SHAPE, _TABLES, _TOKENS = 8 * 6, 8 * 12, 8 * 17


_OF_TYPE = [void(types.CPointer(int64), *[types.CPointer(kind)] * 2) for kind in (float32, uint16)]


@compiled(_OF_TYPE)
def _in_layer(numbers, keys_at, values_at):
    """Rotate and store every token, or let this thread's queries see the tokens of their row up to
    their own. It must not raise: nobody would hear of it.
    """
    asked, place, _, _, qkv, apart, mixed = carray(numbers, 7)
    n, heads, key_heads, head, slab_rows, capacity = carray(integers_at(place + _SHAPE), 6)
    cos, sin, positions, shares, reach = carray(integers_at(place + _TABLES), 5)
    rows, places = carray(integers_at(place + _TOKENS), (2, n))
    keys = carray(keys_at, (slab_rows, key_heads, capacity, head))
    values = carray(values_at, (slab_rows, key_heads, capacity, head))
    group, turning = heads // key_heads, heads + key_heads
    if asked == _STORE:
        cosines = carray(floats_at(cos), (positions, head))
        sines = carray(floats_at(sin), (positions, head))
        half = head // 2
        for t in range(n):
            x = carray(floats_at(qkv + 4 * t * apart), (turning + key_heads, head))
            row, at = rows[t], places[t]
            c, s = cosines[min(at, positions - 1)], sines[min(at, positions - 1)]
            for h in range(turning):
                for i in range(half):
                    low, high = x[h, i], x[h, half + i]
                    x[h, i] = low * c[i] + high * s[i]
                    x[h, half + i] = high * c[half + i] + low * s[half + i]
            for h in range(key_heads):
                for i in range(head):
                    like = keys[row, h, at, i]
                    keys[row, h, at, i] = _kept(x[heads + h, i], like)
                    values[row, h, at, i] = _kept(x[turning + h, i], like)
        return
    thread, threads = (thread_number(), threads_there()) if asked == _SHARE else (0, 1)
    mine = carray(floats_at(shares + 4 * thread * group * reach), (group, reach))
    scale = np.float32(1) / np.sqrt(np.float32(head))
    query, last = n * heads * thread // threads, n * heads * (thread + 1) // threads
    while query < last:
        t, h = query // heads, query % heads // group
        some = min(last, t * heads + (h + 1) * group) - query  # that share a key head
        seen, row = places[t] + 1, rows[t]
        _mix(
            carray(floats_at(qkv + 4 * (t * apart + query % heads * head)), (some, head)),
            keys[row, h, :seen],
            values[row, h, :seen],
            scale,
            mine,
            carray(floats_at(mixed + 4 * query * head), (some, head)),
        )
        query += some


def _of_float32(numbers):
    task = carray(numbers, 4)
    _in_layer(numbers, floats_at(task[2]), floats_at(task[3]))


def _of_bfloat16(numbers):
    task = carray(numbers, 4)
    _in_layer(numbers, halves_at(task[2]), halves_at(task[3]))


# The types of cache that are read, and their kernels, each compiled when it is first asked for.
CACHED = {torch.float32: _of_float32, torch.bfloat16: _of_bfloat16}


@cache
def _kernel(dtype: torch.dtype) -> Any:
    return compiled(void(types.CPointer(int64)), by=cfunc)(CACHED[dtype])


@compiled(void(*[intp] * 5))
def attend(place, layer, qkv, apart, mixed):
    """`FewTokens.attend`, given its address, for tokens whose queries lie `apart`."""
    kernel, threads, products, slabs, of_layer, of_half = carray(integers_at(place), 6)
    keys = slabs + layer * of_layer
    given = place, keys, keys + of_half, qkv, apart, mixed
    called(kernel, on_stack((_STORE, *given)))
    if threads > 1 and products >= THREADED_FROM:
        in_parallel(kernel, on_stack((_SHARE, *given)), threads, 0)
    else:
        called(kernel, on_stack((_MIX, *given)))


def is_fast(slabs: Tensor, lengths: Sequence[int], counts: Sequence[int], group: int) -> bool:
    """Whether `FewTokens` of these takes less time than PyTorch's attention."""
    busy = [(n, length + n) for length, n in zip(lengths, counts, strict=True) if n]
    seen = sum(n * end for n, end in busy)
    products = 2 * seen * group * slabs.shape[3] * slabs.shape[5]
    if max(counts) == 1 or products <= MOST_PRODUCTS:
        return True
    padded = len(counts) * max(counts) * max(end for _, end in busy)
    return len(busy) > 1 and 3 * seen <= 2 * padded


class FewTokens(OfThisProcess):
    """The `Placement` of `counts[r]` tokens after the `lengths[r]` valid ones of each row r.

    Args:
        slabs: [layers, 2, rows, key heads, capacity, head], keys first and then values.
        group: queries to a key.
        cos, sin: [positions, 1, head]; sin carries the sign of the swapped half.
    """

    def __init__(
        self,
        slabs: Tensor,
        lengths: Sequence[int],
        counts: Sequence[int],
        group: int,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        _, _, slab_rows, key_heads, capacity, head = slabs.shape
        rows = [row for row, count in enumerate(counts) for _ in range(count)]
        places = [at + i for at, n in zip(lengths, counts, strict=True) for i in range(n)]
        n, reach, queries = len(rows), max(places) + 1, group * key_heads
        if reach > capacity:
            raise IndexError(f"place {reach - 1} of a cache for {capacity} tokens")
        if not slabs.is_contiguous():
            raise TypeError(f"a cache in steps of {slabs.stride()}")
        threads = threads_allowed()
        shares = cos.new_empty(threads, group, reach)
        self._read = slabs, cos, sin, shares  # their memory, which must not go
        of_layer, of_half = (slabs.element_size() * step for step in slabs.stride()[:2])
        products = 2 * (sum(places) + n) * queries * head
        work = _kernel(slabs.dtype).address, threads, products
        layers = slabs.data_ptr(), of_layer, of_half
        shape = n, queries, key_heads, head, slab_rows, capacity
        tables = address_of(cos), address_of(sin), len(cos)
        rest = shares.data_ptr(), reach
        self._numbers = np.array([*work, *layers, *shape, *tables, *rest, *rows, *places])
        self.address, self.heads = self._numbers.ctypes.data, (queries, key_heads, head)

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        mixed = qkv.new_empty(len(qkv), self.heads[0] * self.heads[2])
        given = address_of(qkv), qkv[0].numel(), mixed.data_ptr()
        attend(self.address, layer, *given)
        return mixed
