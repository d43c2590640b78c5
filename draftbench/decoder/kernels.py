"""GPU kernels with which a layer of a recorded pass takes few launches (`fused.py`).

A product over a few tokens is memory-bound, and a launch takes a few microseconds in which no
weight is read. So a product here also norms its input tokens, and gates or adds its results.
Weights may have 8 bits; then it rounds the tokens to 8 bits too. Attention, for any number of rows
and tokens, also norms, rotates and stores what the product before it made. For many tokens PyTorch
computes the products, and there are kernels for what lies between.

Triton, which comes with PyTorch's builds for CUDA, compiles them at their first call. Without a GPU
they run in its interpreter (TRITON_INTERPRET=1). `scripts/bench_kernels.py` times them.
"""

# Kernels are written in Triton's language, whose values have no Python types.
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

import os
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftbench.decoder.linear import Matrix

# The fewest tokens that a tensor core takes, and the most that a program takes.
LEAST_TOKENS, MOST_TOKENS = 16, 64
# The most tokens for which a product by 16-bit weights is made here: of more, PyTorch's is faster.
# Weights of 8 bits are multiplied here in any case. A single token is rounded by the product, whose
# loop has as many instructions then (int8), or half as many again (e4m3 on Hopper). With two it
# would have three times as many: several are rounded by a launch of their own.
FEW = 16
# The largest code of 8 bits, and what stands for the largest value of a token of zeros.
TOPS, SMALLEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}, tl.constexpr(1e-12)
# Keys that one program of attention goes through: one program a key head would keep 8 of an H200's
# 132 multiprocessors busy. Results of several are joined, as in Flash-Decoding (Dao et al. 2023).
CHUNK = 256
# Keys and queries that it multiplies at a time, and how many blocks of keys are being loaded.
KEYS, QUERIES, BLOCKS = 64, 64, 3
# The logarithm of a sum of exponentials over no keys, but finite.
NOTHING = tl.constexpr(-1e30)
# Elements of a row that one program of SwiGLU takes.
GATED = 1024
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may use, into which loops load pieces ahead."""
    if device.type == "cpu":
        return 227 << 10
    card: Any = torch.cuda.get_device_properties(device)
    return card.shared_memory_per_block_optin


@triton.jit
def _dot(a, b, sums):
    if INTERPRETED:  # which would multiply the codes of bfloat16 and 8-bit numbers
        sums = tl.dot(a.to(tl.float32), b.to(tl.float32), sums, input_precision="ieee")
    elif a.dtype == tl.int8:
        sums += tl.dot(a, b).to(tl.float32)
    else:
        sums = tl.dot(a, b, sums, input_precision="ieee")
    return sums


@triton.jit
def _begin(tokens, table, norm, sums, normed, squares, largest, width, block: tl.constexpr):
    """One program a token: its row of the table and its sum of squares; that times the norm's
    weights, and the largest of these values.
    """
    row, at = tl.program_id(0), tl.arange(0, block)
    here = at < width
    stored = sums.dtype.element_ty  # Triton compiles no tuple that holds a type
    embedded = tl.load(table + tl.load(tokens + row) * width + at, mask=here, other=0.0).to(stored)
    exact = embedded.to(tl.float32)
    weights = tl.load(norm + at, mask=here, other=0.0).to(tl.float32)
    tl.store(sums + row * width + at, embedded, mask=here)
    weighted = (exact * weights).to(stored)
    tl.store(normed + row * width + at, weighted, mask=here)
    tl.store(squares + row, tl.sum(exact * exact, axis=0))
    tl.store(largest + row, tl.max(tl.abs(weighted.to(tl.float32)), axis=0))


@torch.library.custom_op("draftbench::begin", mutates_args=())
def begin(tokens: Tensor, table: Tensor, norm: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The residual stream of tokens [n], rows of an embedding's table, [n, hidden]; that multiplied
    by a norm's weights; the sums of squares of the former and the largest values of the latter, [1,
    n] each.
    """
    begun, width = _begun(tokens, table, norm), len(norm)
    _begin[(len(tokens),)](tokens, table, norm, *begun, width, block=triton.next_power_of_2(width))
    return begun


@begin.register_fake
def _begun(tokens, table, norm):
    n, width = len(tokens), len(norm)
    sums, normed = (norm.new_empty(n, width) for _ in range(2))
    squares, largest = (norm.new_empty(1, n, dtype=torch.float32) for _ in range(2))
    return sums, normed, squares, largest


@triton.jit
def _codes(exact, largest, top: tl.constexpr, kind: tl.constexpr):
    """Numbers in 8 bits, of which `top` stands for the largest."""
    code = exact * (top / tl.maximum(largest, SMALLEST))
    if kind == tl.int8:
        code = tl.floor(code + 0.5)
    return code.to(kind)


@triton.jit
def _round(x, codes, largest, width, top: tl.constexpr, block: tl.constexpr):
    """One program a token."""
    row, at = tl.program_id(0), tl.arange(0, block)
    here = at < width
    exact = tl.load(x + row * width + at, mask=here, other=0.0).to(tl.float32)
    most = tl.max(tl.abs(exact), axis=0)
    kind: tl.constexpr = codes.dtype.element_ty
    tl.store(codes + row * width + at, _codes(exact, most, top, kind), mask=here)
    tl.store(largest + row, most)


@torch.library.custom_op("draftbench::round_tokens", mutates_args=())
def round_tokens(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tokens x [n, width] in 8 bits, and their largest values [1, n]."""
    (n, width), (codes, largest) = x.shape, _rounded(x, dtype)
    block = triton.next_power_of_2(width)
    _round[(n,)](x, codes, largest, width, top=TOPS[dtype], block=block)
    return codes, largest


@round_tokens.register_fake
def _rounded(x, dtype):
    return torch.empty_like(x, dtype=dtype), x.new_empty(1, len(x), dtype=torch.float32)


@triton.jit
def _left(parts_of, parts, token, n, most: tl.constexpr):
    """What programs before left of each token [parts, n], of which `most` is at least the parts."""
    part = tl.arange(0, most)
    has = (part < parts)[:, None] & (token < n)[None, :]
    return tl.load(parts_of + part[:, None] * n + token[None, :], mask=has, other=0.0)


@triton.jit
def _product(
    x, squares, square_parts, eps, largest, largest_parts, weight, scale, bias, out, n, inputs,
    outputs, apart, norm, normed, sums_of_squares, largest_of_out,
    then: tl.constexpr, scaled: tl.constexpr, narrow: tl.constexpr, biased: tl.constexpr,
    most_squares: tl.constexpr, most_largest: tl.constexpr, top: tl.constexpr,
    block: tl.constexpr, tokens: tl.constexpr, depth: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """One program some tokens and `block` pairs of a matrix's rows, which lie `apart`: gates and
    what they open, or any two. A norm's factor is the same for all inputs of a token, so that it is
    applied to the sums.
    """
    number = tl.program_id(0) * block + tl.arange(0, block)
    token = tl.program_id(1) * tokens + tl.arange(0, tokens)
    first = number // apart * 2 * apart + number % apart
    second = first + apart
    ones = tl.zeros((block, tokens), tl.float32)
    others = tl.zeros((block, tokens), tl.float32)
    to_first = weight + first.to(tl.int64)[:, None] * inputs
    to_second = weight + second.to(tl.int64)[:, None] * inputs
    kind: tl.constexpr = weight.dtype.element_ty
    rounds: tl.constexpr = narrow and x.dtype.element_ty != kind
    if narrow:
        most = tl.max(_left(largest, largest_parts, token, n, most_largest), axis=0)
    for start in tl.range(0, inputs, depth, num_stages=stages):
        at = start + tl.arange(0, depth)
        inside = at < inputs
        if rounds:  # the only token, for which sums of the others are not stored
            exact = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
            codes = _codes(exact, tl.max(most, axis=0), top, kind)
            states = tl.broadcast_to(codes[:, None, None], (depth, tokens, 1))
            states = tl.reshape(states, (depth, tokens))
        else:
            given = inside[:, None] & (token < n)[None, :]
            states = tl.load(x + token[None, :] * inputs + at[:, None], mask=given, other=0.0)
        has_first = (first < outputs)[:, None] & inside[None, :]
        has_second = (second < outputs)[:, None] & inside[None, :]
        one = tl.load(to_first + at[None, :], mask=has_first, other=0.0)
        other = tl.load(to_second + at[None, :], mask=has_second, other=0.0)
        ones = _dot(one, states, ones)
        others = _dot(other, states, others)
    if scaled:
        total = tl.sum(_left(squares, square_parts, token, n, most_squares), axis=0)
        factor = 1 / tl.sqrt(total / inputs + eps)
        ones *= factor[None, :]
        others *= factor[None, :]
    if narrow:
        factor = (tl.maximum(most, SMALLEST) / top)[None, :]
        ones *= tl.load(scale + first, mask=first < outputs, other=0.0)[:, None] * factor
        others *= tl.load(scale + second, mask=second < outputs, other=0.0)[:, None] * factor
    if biased:
        ones += tl.load(bias + first, mask=first < outputs, other=0.0).to(tl.float32)[:, None]
        others += tl.load(bias + second, mask=second < outputs, other=0.0).to(tl.float32)[:, None]
    stored = out.dtype.element_ty
    one, other = ones.to(stored), others.to(stored)
    has_first = (first < outputs)[:, None] & (token < n)[None, :]
    has_second = (second < outputs)[:, None] & (token < n)[None, :]
    to_part = tl.program_id(0) * n + token
    if then == "gate":
        gate = one.to(tl.float32)
        silu = (gate / (1 + tl.exp(-gate))).to(stored).to(tl.float32)
        gated = (silu * other.to(tl.float32)).to(stored)
        tl.store(out + token[None, :] * apart + first[:, None], gated, mask=has_second)
        if narrow:
            size = tl.where(has_second, tl.abs(gated.to(tl.float32)), 0.0)
            tl.store(largest_of_out + to_part, tl.max(size, axis=0), mask=token < n)
    else:
        to = out + token.to(tl.int64)[None, :] * outputs
        to_first, to_second = to + first[:, None], to + second[:, None]
        if then == "add":
            sums = one.to(tl.float32) + tl.load(to_first, mask=has_first, other=0.0).to(tl.float32)
            one = sums.to(stored)
            sums = other.to(tl.float32)
            sums += tl.load(to_second, mask=has_second, other=0.0).to(tl.float32)
            other = sums.to(stored)
            ones, others = one.to(tl.float32), other.to(tl.float32)
            total = tl.sum(tl.where(has_first, ones * ones, 0.0), axis=0)
            total += tl.sum(tl.where(has_second, others * others, 0.0), axis=0)
            tl.store(sums_of_squares + to_part, total, mask=token < n)
            to = normed + token.to(tl.int64)[None, :] * outputs
            weights = tl.load(norm + first, mask=first < outputs, other=0.0).to(tl.float32)
            ones = (ones * weights[:, None]).to(stored)
            weights = tl.load(norm + second, mask=second < outputs, other=0.0).to(tl.float32)
            others = (others * weights[:, None]).to(stored)
            tl.store(to + first[:, None], ones, mask=has_first)
            tl.store(to + second[:, None], others, mask=has_second)
            if narrow:
                size = tl.where(has_first, tl.abs(ones.to(tl.float32)), 0.0)
                beside = tl.where(has_second, tl.abs(others.to(tl.float32)), 0.0)
                size = tl.max(tl.maximum(size, beside), axis=0)
                tl.store(largest_of_out + to_part, size, mask=token < n)
        tl.store(to_first, one, mask=has_first)
        tl.store(to_second, other, mask=has_second)


def tile(outputs: int) -> tuple[int, int, int, int]:
    """Pairs of rows that a program takes of a matrix, inputs that it takes at a time, such pieces
    on their way, and warps: what was fastest on an H200 for models of .3 to 8 billion weights.
    """
    if outputs >= 16384:
        return 32, 256, 3, 2
    # If there are more programs than multiprocessors, two have to share one's memory.
    return 16, 256, 4 if outputs > 4096 else 6, 2


def programs_of(outputs: int) -> int:
    """The number of programs that share a matrix's rows."""
    return triton.cdiv(outputs, 2 * tile(outputs)[0])


def _multiply(
    then: str, x: Tensor, squares: Tensor | None, eps: float, largest: Tensor | None,
    matrix: Matrix, apart: int | None, out: Tensor, *left: Tensor | None,
) -> None:  # fmt: skip
    """Launch a product of x [n, inputs]; `apart` is None if any two rows may be a pair. It also
    writes what is `left` for later products.
    """
    weight, scale, bias = matrix
    (n, inputs), outputs = x.shape, len(weight)
    block, depth, stages, warps = tile(outputs)
    tokens = min(MOST_TOKENS, max(LEAST_TOKENS, triton.next_power_of_2(n)))
    # The piece that is multiplied is in registers.
    piece = (2 * block + tokens) * depth * weight.itemsize
    stages = min(stages, 1 + shared_memory(x.device) // piece)
    square_parts, largest_parts = (1 if of is None else len(of) for of in (squares, largest))
    _product[(programs_of(outputs), triton.cdiv(n, tokens))](
        x, squares, square_parts, eps, largest, largest_parts, weight, scale, bias, out, n, inputs,
        outputs, apart or block, *left,
        then=then, scaled=squares is not None, narrow=scale is not None, biased=bias is not None,
        most_squares=triton.next_power_of_2(square_parts),
        most_largest=triton.next_power_of_2(largest_parts), top=TOPS.get(weight.dtype),
        block=block, tokens=tokens, depth=depth, stages=stages, num_warps=warps,
    )  # fmt: skip


# Tokens; the sums of squares and the eps by which they are normed; their largest values, if the
# matrix has 8 bits; and the matrix.
Given = tuple[Tensor, Tensor | None, float, Tensor | None, Tensor, Tensor | None, Tensor | None]


def given(
    x: Tensor, squares: Tensor | None, eps: float, largest: Tensor | None, matrix: Matrix
) -> Given:
    """The inputs of a product of x with a matrix. For one of 8 bits, tokens are rounded here,
    except for a single one whose `largest` values are known.
    """
    if matrix.scale is None:
        largest = None
    elif largest is None or len(x) > 1:
        x, largest = round_tokens(x, matrix.weight.dtype)
    return x, squares, eps, largest, *matrix


@torch.library.custom_op("draftbench::product", mutates_args=())
def product(
    x: Tensor, squares: Tensor | None, eps: float, largest: Tensor | None,
    weight: Tensor, scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """x [n, inputs] times a matrix [n, outputs].

    Args:
        squares: sums of squares [parts, n] by which x is normed.
        largest: values [parts, n] of x, in 8 bits or to be rounded to them, for a matrix of 8 bits.
    """
    out = x.new_empty(len(x), len(weight), dtype=dtype)
    left = (None,) * 4
    _multiply("write", x, squares, eps, largest, Matrix(weight, scale, bias), None, out, *left)
    return out


@product.register_fake
def _(x, squares, eps, largest, weight, scale, bias, dtype):
    return x.new_empty(len(x), len(weight), dtype=dtype)


@torch.library.custom_op("draftbench::add_product", mutates_args={"sums"})
def add_product(
    sums: Tensor, norm: Tensor,
    x: Tensor, squares: Tensor | None, eps: float, largest: Tensor | None,
    weight: Tensor, scale: Tensor | None, bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Add the product of x [n, inputs] to `sums` [n, outputs] in place. Returns these multiplied by
    a norm's weights; the sums of squares of the former [parts, n]; and, of a matrix of 8 bits, the
    largest values of the latter [parts, n].
    """
    left = _added(sums, norm, x, squares, eps, largest, weight, scale, bias)
    matrix = Matrix(weight, scale, bias)
    _multiply("add", x, squares, eps, largest, matrix, None, sums, norm, *left)
    return left


@add_product.register_fake
def _added(sums, norm, x, squares, eps, largest, weight, scale, bias):
    parts = programs_of(len(weight))
    squares, largest = (sums.new_empty(parts, len(sums), dtype=torch.float32) for _ in range(2))
    return torch.empty_like(sums), squares, largest


@torch.library.custom_op("draftbench::gated_product", mutates_args=())
def gated_product(
    x: Tensor, squares: Tensor | None, eps: float, largest: Tensor | None,
    weight: Tensor, scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """SwiGLU (Shazeer 2020, eq. 6) of the product with gates and then ups in the matrix's rows;
    and, of a matrix of 8 bits, its largest values [parts, n].
    """
    gated, largest_of_gated = _gated(x, squares, eps, largest, weight, scale, bias, dtype)
    _multiply(
        "gate", x, squares, eps, largest, Matrix(weight, scale, bias), len(weight) // 2, gated,
        None, None, None, largest_of_gated,
    )  # fmt: skip
    return gated, largest_of_gated


@gated_product.register_fake
def _gated(x, squares, eps, largest, weight, scale, bias, dtype):
    parts = programs_of(len(weight))
    gated = x.new_empty(len(x), len(weight) // 2, dtype=dtype)
    return gated, x.new_empty(parts, len(x), dtype=torch.float32)


@triton.jit
def _rotated(qkv, to, inside, norm, eps, cos, sin, place, at, head, normed: tl.constexpr):
    """The heads that lie at `to` in qkv, normed if there is a norm, and rotated to their places."""
    beside = (at + head // 2) % head
    stored = qkv.dtype.element_ty
    one = tl.load(qkv + to[:, None] + at[None, :], mask=inside, other=0.0).to(tl.float32)
    other = tl.load(qkv + to[:, None] + beside[None, :], mask=inside, other=0.0).to(tl.float32)
    if normed:
        factor = 1 / tl.sqrt(tl.sum(one * one, axis=1) / head + eps)[:, None]
        weights = tl.load(norm + at, mask=at < head, other=0.0).to(tl.float32)[None, :]
        one = (one * factor * weights).to(stored).to(tl.float32)
        weights = tl.load(norm + beside, mask=at < head, other=0.0).to(tl.float32)[None, :]
        other = (other * factor * weights).to(stored).to(tl.float32)
    in_table = place[:, None] * head + at[None, :]
    turned = (one * tl.load(cos + in_table, mask=inside, other=0.0)).to(stored).to(tl.float32)
    # sin carries the sign of the half beside
    turned += other * tl.load(sin + in_table, mask=inside, other=0.0)
    return turned.to(stored)


@triton.jit
def _attend(
    qkv, query_norm, key_norm, eps, slab, starts, cos, sin, mixed, sums, largest, n, width, heads,
    kv_heads, head, positions, chunk, scale, to_values, to_row, to_head,
    normed: tl.constexpr, whole: tl.constexpr, queries: tl.constexpr, brought: tl.constexpr,
    keys: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program for each row and key head, chunk of keys, and block of queries to them. It stores
    the new keys and values of its chunk, and stops at the row's last one. Programs that share a
    chunk store the same.
    """
    row, kv_head = (tl.program_id(0) // kv_heads).to(tl.int64), tl.program_id(0) % kv_heads
    part, group = tl.program_id(1), heads // kv_heads
    number, at = tl.program_id(2) * queries + tl.arange(0, queries), tl.arange(0, block)
    slot, asks = number // group, number < group * width
    asking = kv_head * group + number % group
    start, every = tl.load(starts + row), heads + 2 * kv_heads
    is_query = asks[:, None] & (at < head)[None, :]
    from_query = ((row * width + slot) * every + asking) * head
    turn = tl.minimum(start + slot, positions - 1)
    asked = _rotated(qkv, from_query, is_query, query_norm, eps, cos, sin, turn, at, head, normed)
    held = slab + row * to_row + kv_head * to_head
    begin = part * chunk
    end = tl.minimum(begin + chunk, start + width)
    if end > start:
        new = tl.arange(0, brought)
        new_place = start + new
        kept = ((new_place >= begin) & (new_place < end))[:, None] & (at < head)[None, :]
        from_key = ((row * width + new) * every + heads + kv_head) * head
        new_turn = tl.minimum(new_place, positions - 1)
        new_key = _rotated(qkv, from_key, kept, key_norm, eps, cos, sin, new_turn, at, head, normed)
        from_value = qkv + from_key[:, None] + kv_heads * head + at[None, :]
        new_value = tl.load(from_value, mask=kept, other=0.0)
        there = held + new_place[:, None] * head + at[None, :]
        tl.store(there, new_key, mask=kept)
        tl.store(there + to_values, new_value, mask=kept)
        tl.debug_barrier()  # other threads of this program read them
    most = tl.full((queries,), NOTHING, tl.float32)
    total = tl.zeros((queries,), tl.float32)
    mix = tl.zeros((queries, block), tl.float32)
    for first in tl.range(begin, end, keys):
        place = first + tl.arange(0, keys)
        seen = (place < end)[:, None] & (at < head)[None, :]
        to = held + place[:, None] * head + at[None, :]
        key = tl.load(to, mask=seen, other=0.0)
        value = tl.load(to + to_values, mask=seen, other=0.0)
        score = _dot(asked, tl.trans(key), tl.zeros((queries, keys), tl.float32)) * scale
        visible = (place[None, :] <= (start + slot)[:, None]) & (place < end)[None, :]
        higher = tl.maximum(most, tl.max(tl.where(visible, score, NOTHING), axis=1))
        weight = tl.exp(tl.where(visible, score - higher[:, None], NOTHING))
        shrunk = tl.exp(most - higher)
        total = total * shrunk + tl.sum(weight, axis=1)
        mix = _dot(weight.to(value.dtype), value, mix * shrunk[:, None])
        most = higher
    some = total > 0
    total = tl.where(some, total, 1.0)
    mix = (mix / total[:, None]).to(mixed.dtype.element_ty)
    asker = (part.to(tl.int64) * n + row * width + slot) * heads + asking
    tl.store(mixed + asker[:, None] * head + at[None, :], mix, mask=is_query)
    if whole:
        size = tl.max(tl.abs(mix.to(tl.float32)), axis=1)
        tl.store(largest + asking * n + row * width + slot, size, mask=asks)
    else:
        tl.store(sums + asker, tl.where(some, most + tl.log(total), NOTHING), mask=asks)


@triton.jit
def _join(
    mixed, sums, joined, largest, n, heads, head, chunks, parts: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    """One program a token and head. A chunk's share is its part of the sum of exponentials."""
    token, asking = tl.program_id(0), tl.program_id(1)
    part, at = tl.arange(0, parts), tl.arange(0, block)
    to = (part.to(tl.int64) * n + token) * heads + asking
    logs = tl.load(sums + to, mask=part < chunks, other=NOTHING)
    share = tl.exp(logs - tl.max(logs, axis=0))
    share /= tl.sum(share, axis=0)
    has = (part < chunks)[:, None] & (at < head)[None, :]
    mix = tl.load(mixed + to[:, None] * head + at[None, :], mask=has, other=0.0)
    whole = tl.sum(mix * share[:, None], axis=0).to(joined.dtype.element_ty)
    tl.store(joined + (token * heads + asking) * head + at, whole, mask=at < head)
    tl.store(largest + asking * n + token, tl.max(tl.abs(whole.to(tl.float32)), axis=0))


@torch.library.custom_op("draftbench::attend", mutates_args={"slab"})
def attend(
    qkv: Tensor, query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    starts: Tensor, cos: Tensor, sin: Tensor, slab: Tensor, chunks: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The attention output over each chunk of keys [chunks · rows · width, heads, head], and the
    logarithms of their sums of exponentials; of a single chunk, instead of these, the output's
    largest values [heads, rows · width]. See `attention`.
    """
    kv_heads, head, n, rows = slab.shape[2], slab.shape[4], len(qkv), len(starts)
    heads, width = qkv.shape[1] // head - 2 * kv_heads, n // rows
    mixed, sums, largest = _seen(qkv, query_norm, key_norm, eps, starts, cos, sin, slab, chunks)
    asking = heads // kv_heads * width
    queries = min(QUERIES, max(LEAST_TOKENS, triton.next_power_of_2(asking)))
    chunk, block = CHUNK if chunks > 1 else slab.shape[3], triton.next_power_of_2(head)
    # From Hopper on, all that is multiplied is in shared memory.
    room = shared_memory(slab.device) - queries * block * slab.itemsize
    stages = max(1, min(BLOCKS, room // (2 * KEYS * block * slab.itemsize)))
    _attend[(rows * kv_heads, chunks, triton.cdiv(asking, queries))](
        qkv, query_norm, key_norm, eps, slab, starts, cos, sin, mixed, sums, largest, n, width,
        heads, kv_heads, head, len(cos), chunk, head**-0.5, *slab.stride()[:3],
        normed=query_norm is not None, whole=chunks == 1, queries=queries,
        brought=triton.next_power_of_2(width), keys=KEYS, block=block, num_stages=stages,
    )  # fmt: skip
    return mixed, sums, largest


@attend.register_fake
def _seen(qkv, query_norm, key_norm, eps, starts, cos, sin, slab, chunks):
    n, head = len(qkv), slab.shape[4]
    heads = qkv.shape[1] // head - 2 * slab.shape[2]
    exact = torch.float32 if chunks > 1 else qkv.dtype
    mixed = qkv.new_empty(chunks * n, heads, head, dtype=exact)
    sums = qkv.new_empty(chunks * n, heads, dtype=torch.float32)
    return mixed, sums, qkv.new_empty(heads, n, dtype=torch.float32)


@torch.library.custom_op("draftbench::join", mutates_args=())
def join(mixed: Tensor, sums: Tensor, chunks: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The chunks' results of `attend` as one [rows · width, heads, head], and its largest values
    [heads, rows · width].
    """
    joined, largest = _joined(mixed, sums, chunks, dtype)
    n, heads, head = joined.shape
    _join[(n, heads)](
        mixed, sums, joined, largest, n, heads, head, chunks,
        parts=triton.next_power_of_2(chunks), block=triton.next_power_of_2(head), num_warps=2,
    )  # fmt: skip
    return joined, largest


@join.register_fake
def _joined(mixed, sums, chunks, dtype):
    n, heads = len(mixed) // chunks, mixed.shape[1]
    return (
        mixed.new_empty(n, *mixed.shape[1:], dtype=dtype),
        mixed.new_empty(heads, n, dtype=torch.float32),
    )


def attention(
    qkv: Tensor, query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    starts: Tensor, cos: Tensor, sin: Tensor, slab: Tensor, reach: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The attention output [rows · width, heads · head] of what lies in qkv [rows · width, (heads +
    2 · key heads) · head], and its largest values [heads, rows · width]. Queries and keys are
    normed by head if there are norms, and rotated; keys and values are written after the `starts`
    [rows] valid tokens of each row of a layer's slab [2, rows, key heads, capacity, head].

    Args:
        reach: keys to look at, at least every start + width that is read later.
    """
    chunks = triton.cdiv(reach, CHUNK)
    mixed, sums, largest = attend(qkv, query_norm, key_norm, eps, starts, cos, sin, slab, chunks)
    if chunks > 1:
        mixed, largest = join(mixed, sums, chunks, qkv.dtype)
    return mixed.flatten(1), largest


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
def _(sums, added, weight, eps):
    return torch.empty_like(sums)


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


@torch.library.custom_op("draftbench::swiglu", mutates_args=())
def swiglu(gate_up: Tensor) -> Tensor:
    """[n, 2 · inner], gates and then ups, → silu(gate) · up [n, inner]."""
    n, inner = gate_up.shape[0], gate_up.shape[1] // 2
    gated = gate_up.new_empty(n, inner)
    _swiglu[(n, triton.cdiv(inner, GATED))](gate_up, gated, inner, block=GATED)
    return gated


@swiglu.register_fake
def _(gate_up):
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
