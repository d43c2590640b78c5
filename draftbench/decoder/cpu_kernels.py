"""CPU kernels for what lies between two products of a few tokens: norms, gates, attention.

PyTorch needs about thirty calls for these in each layer, which take longer than the products of a
small model. Here they are four, compiled by Numba for this CPU at their first import and kept in
its cache. They compute in float32, whatever the type of weights and cache is, on one thread: of
more than a few tokens PyTorch's own operations, which use all threads, take less time.
`scripts/bench_llama_cpp.py` times steps made of them.
"""

# Kernels are compiled from functions whose values have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from llvmlite import ir
from numba import carray, float32, int32, intp, njit, uint16, void
from numba.extending import intrinsic, overload
from torch import Tensor

from draftbench.decoder.compiled import address_of, compiled, floats_at

# The types of cache that are read, as Numba knows them: it has no bfloat16.
CACHED = {torch.float32: float32, torch.bfloat16: uint16}
# Most numbers that a norm or gate takes here, and most products of a query's and a key's number
# that attention does.
MOST_NUMBERS, MOST_PRODUCTS = 1 << 16, 1 << 21
# e^x = 2^n · e^r with n = round(x / ln 2); ln 2 in two parts, so that r is exact; e^r by the
# polynomial of Cephes' expf (Moshier), within one step of float32.
_LOWEST, _HIGHEST, _PER_LN2 = np.float32(-87), np.float32(88), np.float32(1.44269504)
_LN2, _LN2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
_E5, _E4 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3)
_E3, _E2 = np.float32(8.3334519073e-3), np.float32(4.1665795894e-2)
_E1, _E0 = np.float32(1.6666665459e-1), np.float32(0.5)


@intrinsic
def _of_bits(typing, bits):
    """The float32 of 32 bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return float32(int32), generate


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
    return lambda kept: _of_bits(int32(kept) << int32(16))


@overload(_kept, inline="always")
def _(number, like):
    if like == float32:
        return lambda number, like: number

    def rounded(number, like):
        bits = _to_bits(number)
        return uint16((bits + int32(0x7FFF) + ((bits >> int32(16)) & int32(1))) >> int32(16))

    return rounded


@njit(inline="always")
def _exp(x):
    x = _LOWEST if x < _LOWEST else (_HIGHEST if x > _HIGHEST else x)  # NaN stays
    n = np.floor(x * _PER_LN2 + np.float32(0.5))
    r = x - n * _LN2 - n * _LN2_REST
    p = ((((_E5 * r + _E4) * r + _E3) * r + _E2) * r + _E1) * r + _E0
    return (p * r * r + r + np.float32(1)) * _of_bits((int32(n) + int32(127)) << int32(23))


@compiled(void(intp, intp, intp, intp, intp, float32))
def norm_into(numbers, weights, normed, n, width, eps):
    x, w = carray(floats_at(numbers), (n, width)), carray(floats_at(weights), width)
    out = carray(floats_at(normed), (n, width))
    for t in range(n):
        squares = np.float32(0)
        for i in range(width):
            squares += x[t, i] * x[t, i]
        factor = np.float32(1) / np.sqrt(squares / np.float32(width) + eps)
        for i in range(width):
            out[t, i] = x[t, i] * factor * w[i]


@compiled(void(intp, intp, intp, intp, intp, intp, intp, float32))
def add_norm_into(sums, normed, more, apart, weights, n, width, eps):
    x, y = carray(floats_at(sums), (n, width)), carray(floats_at(more), (n, apart))
    for t in range(n):
        for i in range(width):
            x[t, i] += y[t, i]
    norm_into(sums, weights, normed, n, width, eps)


@compiled(void(intp, intp, intp, intp, intp))
def swiglu_into(gate_up, apart, gated, n, inner):
    both, out = carray(floats_at(gate_up), (n, apart)), carray(floats_at(gated), (n, inner))
    for t in range(n):
        for i in range(inner):
            gate = both[t, i]
            out[t, i] = gate / (np.float32(1) + _exp(-gate)) * both[t, inner + i]


@compiled()
def attention_into(qkv, apart, mixed, tables, slabs, layer, rows, places):
    """Rotate and store every token; then each sees the tokens of its row up to itself."""
    cos, sin, positions, heads = tables
    n, key_heads, capacity, head = len(rows), slabs.shape[3], slabs.shape[4], slabs.shape[5]
    group, half, turning = heads // key_heads, head // 2, heads + key_heads
    out = carray(floats_at(mixed), (n, heads, head))
    cosines = carray(floats_at(cos), (positions, head))
    sines = carray(floats_at(sin), (positions, head))
    for t in range(n):
        x = carray(floats_at(qkv + 4 * t * apart), (turning + key_heads, head))
        row, place = rows[t], places[t]
        c, s = cosines[min(place, positions - 1)], sines[min(place, positions - 1)]
        for h in range(turning):
            for i in range(half):
                low, high = x[h, i], x[h, half + i]
                x[h, i] = low * c[i] + high * s[i]
                x[h, half + i] = high * c[half + i] + low * s[half + i]
        for h in range(key_heads):
            for i in range(head):
                like = slabs[layer, 0, row, h, place, i]
                slabs[layer, 0, row, h, place, i] = _kept(x[heads + h, i], like)
                slabs[layer, 1, row, h, place, i] = _kept(x[turning + h, i], like)
    scale = np.float32(1) / np.sqrt(np.float32(head))
    shares = np.empty((group, capacity), np.float32)
    for t in range(n):
        x = carray(floats_at(qkv + 4 * t * apart), (key_heads, group, head))
        reach = places[t] + 1
        for h in range(key_heads):
            keys, values = slabs[layer, 0, rows[t], h], slabs[layer, 1, rows[t], h]
            for j in range(reach):
                for g in range(group):
                    score = np.float32(0)
                    for i in range(head):
                        score += x[h, g, i] * _wide(keys[j, i])
                    shares[g, j] = score * scale
            for g in range(group):
                largest, total = shares[g, 0], np.float32(0)
                for j in range(reach):
                    largest = max(largest, shares[g, j])
                for j in range(reach):
                    shares[g, j] = _exp(shares[g, j] - largest)
                    total += shares[g, j]
                for j in range(reach):
                    shares[g, j] /= total
            result = out[t, h * group : (h + 1) * group]
            result[:] = 0
            for j in range(0, reach - 3, 4):  # of four at once: each sum waits for the one before
                for g in range(group):
                    a, b, c, d = shares[g, j], shares[g, j + 1], shares[g, j + 2], shares[g, j + 3]
                    for i in range(head):
                        result[g, i] += (
                            a * _wide(values[j, i])
                            + b * _wide(values[j + 1, i])
                            + c * _wide(values[j + 2, i])
                            + d * _wide(values[j + 3, i])
                        )
            for j in range(reach - reach % 4, reach):
                for g in range(group):
                    for i in range(head):
                        result[g, i] += shares[g, j] * _wide(values[j, i])


def is_few(x: Tensor) -> bool:
    """Whether x is small enough for a kernel of one thread, on a CPU."""
    return x.is_cpu and x.dtype is torch.float32 and x.numel() <= MOST_NUMBERS


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean of x² + eps) · weight over the last dimension."""
    x, width = x.contiguous(), x.shape[-1]
    normed = torch.empty_like(x)
    n = x.numel() // width
    norm_into(address_of(x), address_of(weight), address_of(normed), n, width, eps)
    return normed


def swiglu(gate_up: Tensor) -> Tensor:
    """[n, 2 · inner], gates and then ups, → silu(gate) · up [n, inner]."""
    n, both = gate_up.shape
    gated = gate_up.new_empty(n, both // 2)
    swiglu_into(address_of(gate_up.contiguous()), both, address_of(gated), n, both // 2)
    return gated


class Norm(Protocol):
    """Its weights, in float32, and what it adds to the mean square."""

    wide: Tensor
    eps: float


class SmallStream:
    """A residual stream [n, hidden] of few tokens. Results are valid until the next: no memory is
    allocated in a layer.
    """

    def __init__(self, sums: Tensor) -> None:
        self._normed, self._gated = torch.empty_like(sums), sums.new_empty(0)
        self._at, self._shape = (address_of(sums), address_of(self._normed)), tuple(sums.shape)

    def add_normed(self, more: Tensor, norm: Norm) -> Tensor:
        """Add to the stream, and norm it."""
        add_norm_into(
            *self._at,
            address_of(more),
            self._shape[1],
            norm.wide.data_ptr(),
            *self._shape,
            norm.eps,
        )
        return self._normed

    def gated(self, gate_up: Tensor) -> Tensor:
        """`swiglu`."""
        n, both = gate_up.shape
        if not self._gated.numel():
            self._gated = gate_up.new_empty(n, both // 2)
        swiglu_into(address_of(gate_up), both, self._gated.data_ptr(), n, both // 2)
        return self._gated


class FewTokens:
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
        narrow = slabs.dtype == torch.bfloat16
        self.slabs = (slabs.view(torch.uint16) if narrow else slabs).numpy()
        rows = [row for row, count in enumerate(counts) for _ in range(count)]
        places = [at + i for at, n in zip(lengths, counts, strict=True) for i in range(n)]
        if max(places) >= slabs.shape[4]:
            raise IndexError(f"place {max(places)} of a cache for {slabs.shape[4]} tokens")
        self.where = np.array(rows), np.array(places)
        self.tables = address_of(cos), address_of(sin), len(cos), group * slabs.shape[3]

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        mixed = qkv.new_empty(len(qkv), self.tables[-1] * qkv.shape[2])
        given = address_of(qkv), qkv[0].numel(), mixed.data_ptr()
        attention_into(*given, self.tables, self.slabs, layer, *self.where)
        return mixed
