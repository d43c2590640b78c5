"""Kernels of recorded passes: what a layer does between its products and its attention.

A pass over a few tokens is bound by memory, and each of PyTorch's operations takes a launch of a
few microseconds: a sum and its norm two, SwiGLU two, a norm of heads two, rotary embedding, cache
write and grouping of queries five. Here each of these is one launch. The kernels round where
PyTorch's operations round, so that a recorded pass writes what the same pass launched call by call
does.

Triton, which comes with PyTorch's builds for CUDA, compiles them at their first call. Without a GPU
they run in its interpreter (TRITON_INTERPRET=1).
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftbench.decoder.attention import EvenRows, Rotary
from draftbench.decoder.llama import PlainStream, RootMeanSquare

# Elements of a row that one program of SwiGLU takes.
GATED = 1024


class FusedStream(PlainStream):
    """The residual stream, by fused kernels."""

    def add_normed(self, out: Tensor, norm: RootMeanSquare) -> Tensor:
        return add_norm(self._sum, out, norm.weight, norm.eps)

    def gated(self, gate_up: Tensor) -> Tensor:
        return swiglu(gate_up)

    def norm_heads(self, heads: Tensor, norm: RootMeanSquare) -> None:
        norm_heads(heads, norm.weight, norm.eps)


class FusedRows(EvenRows):
    """Rows whose queries, keys and values one kernel rotates and stores."""

    def _find_places(self, places: Tensor, rotary: Rotary) -> None:
        self.rotary = rotary  # the kernel finds them

    def _store(self, qkv: Tensor, slab: Tensor) -> Tensor:
        return rotate_and_store(qkv, self.starts, *self.rotary, slab)


@triton.jit
def _add_norm(sums, added, weight, normed, width, eps, block: tl.constexpr):
    """One program a token."""
    row, at = tl.program_id(0), tl.arange(0, block)
    here = at < width
    places = row * width + at
    stored = sums.dtype.element_ty
    total = tl.load(sums + places, mask=here, other=0.0).to(tl.float32)
    total += tl.load(added + places, mask=here, other=0.0).to(tl.float32)
    total = total.to(stored)
    tl.store(sums + places, total, mask=here)
    exact = total.to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(exact * exact, axis=0) / width + eps)
    weights = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
    tl.store(normed + places, (exact * scale * weights).to(stored), mask=here)


@triton.jit
def _norm_heads(heads, weight, to_token, head, eps, block: tl.constexpr):
    """One program a token and a head, whose elements follow each other."""
    at = tl.arange(0, block)
    here = at < head
    places = tl.program_id(0) * to_token + tl.program_id(1) * head + at
    exact = tl.load(heads + places, mask=here, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(exact * exact, axis=0) / head + eps)
    weights = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
    tl.store(heads + places, (exact * scale * weights).to(heads.dtype.element_ty), mask=here)


@triton.jit
def _swiglu(gate_up, gated, inner, block: tl.constexpr):
    """One program a token and `block` neurons."""
    row, at = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    here = at < inner
    stored = gated.dtype.element_ty
    gate = tl.load(gate_up + 2 * row * inner + at, mask=here, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (2 * row + 1) * inner + at, mask=here, other=0.0).to(tl.float32)
    silu = (gate / (1 + tl.exp(-gate))).to(stored).to(tl.float32)
    tl.store(gated + row * inner + at, (silu * up).to(stored), mask=here)


@triton.jit
def _rotate_and_store(
    qkv, starts, cos, sin, query, slab,
    width, heads, kv_heads, half, positions, to_values, to_row, to_head,
    block: tl.constexpr,
):  # fmt: skip
    """One program a token and a head of a query, key or value."""
    token, number, at = tl.program_id(0), tl.program_id(1), tl.arange(0, block)
    here, head, group = at < half, 2 * half, heads // kv_heads
    row, slot = (token // width).to(tl.int64), token % width
    place = tl.load(starts + row) + slot
    stored = query.dtype.element_ty
    source = qkv + (token * (heads + 2 * kv_heads) + number) * head + at
    first = tl.load(source, mask=here, other=0.0)
    second = tl.load(source + half, mask=here, other=0.0)
    if number < heads + kv_heads:
        table = tl.minimum(place, positions - 1) * head + at
        one, other = first.to(tl.float32), second.to(tl.float32)
        # sin carries the sign of the swapped half
        first = (one * tl.load(cos + table, mask=here)).to(stored).to(tl.float32)
        second = (other * tl.load(cos + table + half, mask=here)).to(stored).to(tl.float32)
        first = (first + other * tl.load(sin + table, mask=here)).to(stored)
        second = (second + one * tl.load(sin + table + half, mask=here)).to(stored)
    if number < heads:
        grouped = ((row * kv_heads + number // group) * group + number % group) * width + slot
        tl.store(query + grouped * head + at, first, mask=here)
        tl.store(query + grouped * head + half + at, second, mask=here)
    else:
        of_values = (number - heads) // kv_heads
        to = of_values * to_values + row * to_row + (number - heads) % kv_heads * to_head
        tl.store(slab + to + place * head + at, first, mask=here)
        tl.store(slab + to + place * head + half + at, second, mask=here)


@torch.library.custom_op("draftbench::add_norm", mutates_args={"sums"})
def add_norm(sums: Tensor, added: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add to `sums` [n, width] in place, and return their RMSNorm."""
    normed, width = torch.empty_like(sums), sums.shape[1]
    block = triton.next_power_of_2(width)
    _add_norm[(len(sums),)](
        sums, added, weight, normed, width, eps, block=block, num_warps=8 if block > 1024 else 4
    )
    return normed


@add_norm.register_fake
def _(sums: Tensor, added: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty_like(sums)


@torch.library.custom_op("draftbench::norm_heads", mutates_args={"heads"})
def norm_heads(heads: Tensor, weight: Tensor, eps: float) -> None:
    """RMSNorm of each of [n, heads, head] in place, some heads next to each other of a token's."""
    n, count, head = heads.shape
    block = triton.next_power_of_2(head)
    _norm_heads[(n, count)](heads, weight, heads.stride(0), head, eps, block=block, num_warps=1)


@norm_heads.register_fake
def _(heads: Tensor, weight: Tensor, eps: float) -> None:
    pass


@torch.library.custom_op("draftbench::swiglu", mutates_args=())
def swiglu(gate_up: Tensor) -> Tensor:
    """[n, 2 · inner], gates and then ups, → silu(gate) · up [n, inner]."""
    n, inner = gate_up.shape[0], gate_up.shape[1] // 2
    gated = gate_up.new_empty(n, inner)
    _swiglu[(n, triton.cdiv(inner, GATED))](gate_up, gated, inner, block=GATED)
    return gated


@swiglu.register_fake
def _(gate_up: Tensor) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


@torch.library.custom_op("draftbench::rotate_and_store", mutates_args={"slab"})
def rotate_and_store(qkv: Tensor, starts: Tensor, cos: Tensor, sin: Tensor, slab: Tensor) -> Tensor:
    """Rotate queries and keys in qkv [rows · width, heads + 2 · key heads, head], write keys and
    values behind the `starts` [rows] valid tokens of each row of a layer's slab, and return the
    queries by key head [rows, key heads, group · width, head].
    """
    n, every, head = qkv.shape
    rows, kv_heads = len(starts), slab.shape[2]
    heads, width = every - 2 * kv_heads, n // rows
    query = qkv.new_empty(rows, kv_heads, heads // kv_heads * width, head)
    _rotate_and_store[(n, every)](
        qkv, starts, cos, sin, query, slab,
        width, heads, kv_heads, head // 2, len(cos), *slab.stride()[:3],
        block=triton.next_power_of_2(head // 2), num_warps=1,
    )  # fmt: skip
    return query


@rotate_and_store.register_fake
def _(qkv: Tensor, starts: Tensor, cos: Tensor, sin: Tensor, slab: Tensor) -> Tensor:
    n, every, head = qkv.shape
    rows, kv_heads = len(starts), slab.shape[2]
    return qkv.new_empty(rows, kv_heads, (every // kv_heads - 2) * n // rows, head)
