"""CPU kernels for norms and gates of a few tokens.

They compute in float32, whatever the type of weights is, on one thread: of more than a few tokens
PyTorch's own operations, which use all threads, take less time.
"""

# Kernels are compiled from functions whose values have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from typing import Protocol

import numpy as np
import torch
from llvmlite import ir
from numba import carray, float32, int32, intp, njit, void
from numba.extending import intrinsic
from torch import Tensor

from draftbench.decoder.compiling import address_of, compiled, floats_at

# Most numbers that a norm or gate takes here.
MOST_NUMBERS = 1 << 16
# e^x = 2^n · e^r with n = round(x / ln 2); ln 2 in two parts, so that r is exact; e^r by the
# polynomial of Cephes' expf (Moshier), within one step of float32.
_LOWEST, _HIGHEST, _PER_LN2 = np.float32(-87), np.float32(88), np.float32(1.44269504)
_LN2, _LN2_REST = np.float32(0.693359375), np.float32(-2.12194440e-4)
_E5, _E4 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3)
_E3, _E2 = np.float32(8.3334519073e-3), np.float32(4.1665795894e-2)
_E1, _E0 = np.float32(1.6666665459e-1), np.float32(0.5)


@intrinsic
def of_bits(typing, bits):
    """The float32 of 32 bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return float32(int32), generate


@njit(inline="always")
def exp(x):
    x = _LOWEST if x < _LOWEST else (_HIGHEST if x > _HIGHEST else x)  # NaN stays
    n = np.floor(x * _PER_LN2 + np.float32(0.5))
    r = x - n * _LN2 - n * _LN2_REST
    p = ((((_E5 * r + _E4) * r + _E3) * r + _E2) * r + _E1) * r + _E0
    return (p * r * r + r + np.float32(1)) * of_bits((int32(n) + int32(127)) << int32(23))


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
            out[t, i] = gate / (np.float32(1) + exp(-gate)) * both[t, inner + i]


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
    """A residual stream [n, hidden] of few tokens. Results are valid until the next."""

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
