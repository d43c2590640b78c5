"""GPU kernels with which a layer of a recorded pass takes few launches (`fused.py`).

A product over a few tokens is memory-bound, and a launch takes a few microseconds in which no
weight is read. So a product here also norms its input tokens, and rotates and stores, gates or adds
its results. Weights may have 8 bits; then the tokens have 8 bits too. Attention is one kernel for
any number of rows and tokens. For many tokens PyTorch computes the products, and there are kernels
for what lies between.

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
# Weights of 8 bits are multiplied here in any case.
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
def _begin(tokens, table, norm, sums, normed, squares, width, block: tl.constexpr):
    """One program a token: its row of the table, that times the norm's weights, and its sum of
    squares.
    """
    row, at = tl.program_id(0), tl.arange(0, block)
    here = at < width
    stored = sums.dtype.element_ty  # Triton compiles no tuple that holds a type
    embedded = tl.load(table + tl.load(tokens + row) * width + at, mask=here, other=0.0).to(stored)
    exact = embedded.to(tl.float32)
    weights = tl.load(norm + at, mask=here, other=0.0).to(tl.float32)
    tl.store(sums + row * width + at, embedded, mask=here)
    tl.store(normed + row * width + at, (exact * weights).to(stored), mask=here)
    tl.store(squares + row, tl.sum(exact * exact, axis=0))


@torch.library.custom_op("draftbench::begin", mutates_args=())
def begin(tokens: Tensor, table: Tensor, norm: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The residual stream of tokens [n], rows of an embedding's table, [n, hidden]; that multiplied
    by a norm's weights; and its sums of squares [1, n].
    """
    sums, normed, squares = _begun(tokens, table, norm)
    width = len(norm)
    _begin[(len(tokens),)](
        tokens, table, norm, sums, normed, squares, width, block=triton.next_power_of_2(width)
    )
    return sums, normed, squares


@begin.register_fake
def _begun(tokens, table, norm):
    n, width = len(tokens), len(norm)
    sums, normed = (norm.new_empty(n, width) for _ in range(2))
    return sums, normed, norm.new_empty(1, n, dtype=torch.float32)


@triton.jit
def _round(
    x, squares, parts, eps, codes, factors, n, width, top: tl.constexpr,
    scaled: tl.constexpr, most: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program a token."""
    row, at = tl.program_id(0), tl.arange(0, block)
    here = at < width
    exact = tl.load(x + row * width + at, mask=here, other=0.0).to(tl.float32)
    factor = tl.maximum(tl.max(tl.abs(exact), axis=0), SMALLEST) / top
    kind = codes.dtype.element_ty
    code = exact / factor
    if kind == tl.int8:
        code = tl.floor(code + 0.5)
    tl.store(codes + row * width + at, code.to(kind), mask=here)
    if scaled:
        part = tl.arange(0, most)
        total = tl.load(squares + part * n + row, mask=part < parts, other=0.0)
        factor /= tl.sqrt(tl.sum(total, axis=0) / width + eps)
    tl.store(factors + row, factor)


@torch.library.custom_op("draftbench::round_tokens", mutates_args=())
def round_tokens(
    x: Tensor, squares: Tensor | None, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """The tokens x [n, width] in 8 bits and each one's factor [n], which includes its norm's factor
    if there are `squares`.
    """
    n, width = x.shape
    codes, factors = _rounded(x, squares, eps, dtype)
    parts = 1 if squares is None else len(squares)
    _round[(n,)](
        x, squares, parts, eps, codes, factors, n, width, top=TOPS[dtype],
        scaled=squares is not None, most=triton.next_power_of_2(parts),
        block=triton.next_power_of_2(width),
    )  # fmt: skip
    return codes, factors


@round_tokens.register_fake
def _rounded(x, squares, eps, dtype):
    return torch.empty_like(x, dtype=dtype), x.new_empty(len(x), dtype=torch.float32)


@triton.jit
def _place(
    one, other, head, at, token, row, place, here, query, slab, cos, sin,
    half, heads, kv_heads, positions, to_values, to_row, to_head,
):  # fmt: skip
    """Rotate two halves of queries and keys; write queries by token, and keys and values to their
    row and place.
    """
    stored = query.dtype.element_ty
    table = tl.minimum(place, positions - 1) * 2 * half + at
    exact, swapped = one.to(tl.float32), other.to(tl.float32)
    # sin carries the sign of the swapped half
    turned = (exact * tl.load(cos + table, mask=here, other=0.0)).to(stored).to(tl.float32)
    turned += swapped * tl.load(sin + table, mask=here, other=0.0)
    beside = (swapped * tl.load(cos + table + half, mask=here, other=0.0)).to(stored).to(tl.float32)
    beside += exact * tl.load(sin + table + half, mask=here, other=0.0)
    turns, asks = head < heads + kv_heads, here & (head < heads)
    one = tl.where(turns, turned.to(stored), one)
    other = tl.where(turns, beside.to(stored), other)
    to = query + (token * heads + head) * 2 * half + at
    tl.store(to, one, mask=asks)
    tl.store(to + half, other, mask=asks)
    kept = head - heads
    to = kept // kv_heads * to_values + row * to_row + kept % kv_heads * to_head
    to = slab + to + place * 2 * half + at
    tl.store(to, one, mask=here & (kept >= 0))
    tl.store(to + half, other, mask=here & (kept >= 0))


@triton.jit
def _product(
    x, squares, parts, eps, factors, weight, scale, bias, out, n, inputs, outputs, apart,
    norm, normed, sums_of_squares,
    slab, starts, cos, sin, width, heads, kv_heads, positions, to_values, to_row, to_head,
    then: tl.constexpr, scaled: tl.constexpr, rounded: tl.constexpr, biased: tl.constexpr,
    most: tl.constexpr, block: tl.constexpr, tokens: tl.constexpr, depth: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    """One program some tokens and `block` pairs of a matrix's rows, which lie `apart`: halves of a
    head, which are rotated together, or gates and what they open. A norm's factor is the same for
    all inputs of a token, so that it is applied to the sums.
    """
    number = tl.program_id(0) * block + tl.arange(0, block)
    token = tl.program_id(1) * tokens + tl.arange(0, tokens)
    first = number // apart * 2 * apart + number % apart
    second = first + apart
    ones = tl.zeros((block, tokens), tl.float32)
    others = tl.zeros((block, tokens), tl.float32)
    to_first = weight + first.to(tl.int64)[:, None] * inputs
    to_second = weight + second.to(tl.int64)[:, None] * inputs
    for start in tl.range(0, inputs, depth, num_stages=stages):
        at = start + tl.arange(0, depth)
        inside = at < inputs
        given = inside[:, None] & (token < n)[None, :]
        states = tl.load(x + token[None, :] * inputs + at[:, None], mask=given, other=0.0)
        has_first = (first < outputs)[:, None] & inside[None, :]
        has_second = (second < outputs)[:, None] & inside[None, :]
        one = tl.load(to_first + at[None, :], mask=has_first, other=0.0)
        other = tl.load(to_second + at[None, :], mask=has_second, other=0.0)
        ones = _dot(one, states, ones)
        others = _dot(other, states, others)
    if scaled:
        part = tl.arange(0, most)
        has = (part < parts)[:, None] & (token < n)[None, :]
        total = tl.load(squares + part[:, None] * n + token[None, :], mask=has, other=0.0)
        factor = 1 / tl.sqrt(tl.sum(total, axis=0) / inputs + eps)
        ones *= factor[None, :]
        others *= factor[None, :]
    if rounded:
        factor = tl.load(factors + token, mask=token < n, other=0.0)[None, :]
        ones *= tl.load(scale + first, mask=first < outputs, other=0.0)[:, None] * factor
        others *= tl.load(scale + second, mask=second < outputs, other=0.0)[:, None] * factor
    if biased:
        ones += tl.load(bias + first, mask=first < outputs, other=0.0).to(tl.float32)[:, None]
        others += tl.load(bias + second, mask=second < outputs, other=0.0).to(tl.float32)[:, None]
    stored = out.dtype.element_ty
    one, other = ones.to(stored), others.to(stored)
    has_first = (first < outputs)[:, None] & (token < n)[None, :]
    has_second = (second < outputs)[:, None] & (token < n)[None, :]
    if then == "rotate":
        head, at = (first // (2 * apart))[:, None], (first % apart)[:, None]
        row = (token // width).to(tl.int64)
        place = (tl.load(starts + row, mask=token < n, other=0) + token % width)[None, :]
        _place(
            one, other, head, at, token[None, :], row[None, :], place, has_second, out, slab, cos,
            sin, apart, heads, kv_heads, positions, to_values, to_row, to_head,
        )  # fmt: skip
    elif then == "gate":
        gate = one.to(tl.float32)
        silu = (gate / (1 + tl.exp(-gate))).to(stored).to(tl.float32)
        to = out + token[None, :] * apart + first[:, None]
        tl.store(to, (silu * other.to(tl.float32)).to(stored), mask=has_second)
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
            to_total = sums_of_squares + tl.program_id(0) * n + token
            tl.store(to_total, total, mask=token < n)
            to = normed + token.to(tl.int64)[None, :] * outputs
            weights = tl.load(norm + first, mask=first < outputs, other=0.0).to(tl.float32)
            tl.store(to + first[:, None], (ones * weights[:, None]).to(stored), mask=has_first)
            weights = tl.load(norm + second, mask=second < outputs, other=0.0).to(tl.float32)
            tl.store(to + second[:, None], (others * weights[:, None]).to(stored), mask=has_second)
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
    then: str, x: Tensor, squares: Tensor | None, eps: float, factors: Tensor | None,
    matrix: Matrix, apart: int | None, out: Tensor, *,
    adding: tuple[Any, ...] = (None,) * 3, placing: tuple[Any, ...] = (None,) * 11,
) -> None:  # fmt: skip
    """Launch a product of x [n, inputs]; `apart` is None if any two rows may be a pair."""
    weight, scale, bias = matrix
    (n, inputs), outputs = x.shape, len(weight)
    block, depth, stages, warps = tile(outputs)
    tokens = min(MOST_TOKENS, max(LEAST_TOKENS, triton.next_power_of_2(n)))
    # The piece that is multiplied is in registers.
    piece = (2 * block + tokens) * depth * weight.itemsize
    stages = min(stages, 1 + shared_memory(x.device) // piece)
    parts = 1 if squares is None else len(squares)
    _product[(programs_of(outputs), triton.cdiv(n, tokens))](
        x, squares, parts, eps, factors, weight, scale, bias, out, n, inputs, outputs,
        apart or block, *adding, *placing,
        then=then, scaled=squares is not None, rounded=scale is not None, biased=bias is not None,
        most=triton.next_power_of_2(parts), block=block, tokens=tokens, depth=depth, stages=stages,
        num_warps=warps,
    )  # fmt: skip


# Tokens, the sums of squares and the eps by which they are normed, the factors of tokens in 8 bits,
# and a matrix.
Given = tuple[Tensor, Tensor | None, float, Tensor | None, Tensor, Tensor | None, Tensor | None]


def given(x: Tensor, squares: Tensor | None, eps: float, matrix: Matrix) -> Given:
    """The inputs of a product of x with a matrix; for a matrix with 8 bits these are rounded
    tokens, whose factors include their norm's.
    """
    if matrix.scale is None:
        return x, squares, eps, None, *matrix
    codes, factors = round_tokens(x, squares, eps, matrix.weight.dtype)
    return codes, None, 0.0, factors, *matrix


@torch.library.custom_op("draftbench::product", mutates_args=())
def product(
    x: Tensor, squares: Tensor | None, eps: float, factors: Tensor | None,
    weight: Tensor, scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """x [n, inputs] times a matrix [n, outputs].

    Args:
        squares: sums of squares [parts, n] by which x is normed.
        factors: of tokens in 8 bits [n], for which the matrix has 8 bits too, and a scale.
    """
    out = x.new_empty(len(x), len(weight), dtype=dtype)
    _multiply("write", x, squares, eps, factors, Matrix(weight, scale, bias), None, out)
    return out


@product.register_fake
def _(x, squares, eps, factors, weight, scale, bias, dtype):
    return x.new_empty(len(x), len(weight), dtype=dtype)


@torch.library.custom_op("draftbench::add_product", mutates_args={"sums"})
def add_product(
    sums: Tensor, norm: Tensor,
    x: Tensor, squares: Tensor | None, eps: float, factors: Tensor | None,
    weight: Tensor, scale: Tensor | None, bias: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Add the product of x [n, inputs] to `sums` [n, outputs] in place. Returns these multiplied by
    a norm's weights, and their sums of squares [parts, n].
    """
    begun = _added(sums, norm, x, squares, eps, factors, weight, scale, bias)
    matrix = Matrix(weight, scale, bias)
    _multiply("add", x, squares, eps, factors, matrix, None, sums, adding=(norm, *begun))
    return begun


@add_product.register_fake
def _added(sums, norm, x, squares, eps, factors, weight, scale, bias):
    parts = programs_of(len(weight))
    return torch.empty_like(sums), sums.new_empty(parts, len(sums), dtype=torch.float32)


@torch.library.custom_op("draftbench::gated_product", mutates_args=())
def gated_product(
    x: Tensor, squares: Tensor | None, eps: float, factors: Tensor | None,
    weight: Tensor, scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """SwiGLU (Shazeer 2020, eq. 6) of the product with gates and then ups in the matrix's rows."""
    inner = len(weight) // 2
    gated = x.new_empty(len(x), inner, dtype=dtype)
    _multiply("gate", x, squares, eps, factors, Matrix(weight, scale, bias), inner, gated)
    return gated


@gated_product.register_fake
def _(x, squares, eps, factors, weight, scale, bias, dtype):
    return x.new_empty(len(x), len(weight) // 2, dtype=dtype)


@torch.library.custom_op("draftbench::rotated_product", mutates_args={"slab"})
def rotated_product(
    x: Tensor, squares: Tensor | None, eps: float, factors: Tensor | None,
    weight: Tensor, scale: Tensor | None, bias: Tensor | None,
    starts: Tensor, cos: Tensor, sin: Tensor, slab: Tensor,
) -> Tensor:  # fmt: skip
    """`rotate` of the product with the matrix of queries, keys and values."""
    query, numbers = _placing(x, len(weight), starts, cos, slab)
    _multiply(
        "rotate", x, squares, eps, factors, Matrix(weight, scale, bias), slab.shape[4] // 2, query,
        placing=(slab, starts, cos, sin, *numbers),
    )  # fmt: skip
    return query


@rotated_product.register_fake
def _(x, squares, eps, factors, weight, scale, bias, starts, cos, sin, slab):
    return _placing(x, len(weight), starts, cos, slab)[0]


def _placing(
    x: Tensor, outputs: int, starts: Tensor, cos: Tensor, slab: Tensor
) -> tuple[Tensor, tuple[int, ...]]:
    """Room for the queries of x [rows · width, …], and the numbers that `_place` needs."""
    kv_heads, head = slab.shape[2], slab.shape[4]
    heads = outputs // head - 2 * kv_heads
    query = slab.new_empty(len(x), heads, head)
    return query, (len(x) // len(starts), heads, kv_heads, len(cos), *slab.stride()[:3])


@triton.jit
def _rotate(
    qkv, query_norm, key_norm, eps, query, slab, starts, cos, sin,
    half, width, heads, kv_heads, positions, to_values, to_row, to_head,
    normed: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program a token and a head of a query, key or value."""
    token, head, at = tl.program_id(0), tl.program_id(1), tl.arange(0, block)
    here = at < half
    source = qkv + (token * (heads + 2 * kv_heads) + head) * 2 * half + at
    one = tl.load(source, mask=here, other=0.0)
    other = tl.load(source + half, mask=here, other=0.0)
    if normed:  # noqa: SIM102  (what is known when a kernel is compiled is asked on its own)
        if head < heads + kv_heads:
            weight = query_norm if head < heads else key_norm
            exact, beside = one.to(tl.float32), other.to(tl.float32)
            squares = tl.sum(exact * exact, axis=0) + tl.sum(beside * beside, axis=0)
            factor = 1 / tl.sqrt(squares / (2 * half) + eps)
            weights = tl.load(weight + at, mask=here, other=0.0).to(tl.float32)
            one = (exact * factor * weights).to(one.dtype)
            weights = tl.load(weight + half + at, mask=here, other=0.0).to(tl.float32)
            other = (beside * factor * weights).to(one.dtype)
    row = (token // width).to(tl.int64)
    place = tl.load(starts + row) + token % width
    heads_of = head + tl.zeros((block,), tl.int32)
    _place(
        one, other, heads_of, at, token, row, place, here, query, slab, cos, sin,
        half, heads, kv_heads, positions, to_values, to_row, to_head,
    )  # fmt: skip


@torch.library.custom_op("draftbench::rotate", mutates_args={"slab"})
def rotate(
    qkv: Tensor,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
    eps: float,
    starts: Tensor,
    cos: Tensor,
    sin: Tensor,
    slab: Tensor,
) -> Tensor:
    """Rotate queries and keys in qkv [rows · width, (heads + 2 · key heads) · head], normed by head
    if there are norms, write keys and values after the `starts` [rows] valid tokens of each row of
    a layer's slab [2, rows, key heads, capacity, head], and return the queries [rows · width,
    heads, head].
    """
    half = slab.shape[4] // 2
    query, placing = _placing(qkv, qkv.shape[1], starts, cos, slab)
    _rotate[(len(qkv), qkv.shape[1] // (2 * half))](
        qkv, query_norm, key_norm, eps, query, slab, starts, cos, sin, half, *placing,
        normed=query_norm is not None, block=triton.next_power_of_2(half), num_warps=1,
    )  # fmt: skip
    return query


@rotate.register_fake
def _(qkv, query_norm, key_norm, eps, starts, cos, sin, slab):
    return _placing(qkv, qkv.shape[1], starts, cos, slab)[0]


@triton.jit
def _attend(
    query, slab, starts, mixed, sums, n, width, heads, kv_heads, head, chunk, scale,
    to_values, to_row, to_head,
    whole: tl.constexpr, queries: tl.constexpr, keys: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program for each row and key head, chunk of keys, and block of queries to them. It stops
    at the row's last valid key.
    """
    row, kv_head = (tl.program_id(0) // kv_heads).to(tl.int64), tl.program_id(0) % kv_heads
    part, group = tl.program_id(1), heads // kv_heads
    number, at = tl.program_id(2) * queries + tl.arange(0, queries), tl.arange(0, block)
    slot, asks = number // group, number < group * width
    asker = (row * width + slot) * heads + kv_head * group + number % group
    start = tl.load(starts + row)
    is_query = asks[:, None] & (at < head)[None, :]
    asked = tl.load(query + asker[:, None] * head + at[None, :], mask=is_query, other=0.0)
    held = slab + row * to_row + kv_head * to_head
    end = tl.minimum((part + 1) * chunk, start + width)
    most = tl.full((queries,), NOTHING, tl.float32)
    total = tl.zeros((queries,), tl.float32)
    mix = tl.zeros((queries, block), tl.float32)
    for first in tl.range(part * chunk, end, keys):
        place = first + tl.arange(0, keys)
        seen = (place < end)[:, None] & (at < head)[None, :]
        to = held + place[:, None] * head + at[None, :]
        key = tl.load(to, mask=seen, other=0.0)
        value = tl.load(to + to_values, mask=seen, other=0.0)
        score = _dot(asked, tl.trans(key), tl.zeros((queries, keys), tl.float32)) * scale
        visible = (place[None, :] <= (start + slot)[:, None]) & (place < end)[None, :]
        higher = tl.maximum(most, tl.max(tl.where(visible, score, NOTHING), axis=1))
        weight = tl.where(visible, tl.exp(score - higher[:, None]), 0.0)
        shrunk = tl.exp(most - higher)
        total = total * shrunk + tl.sum(weight, axis=1)
        mix = _dot(weight.to(value.dtype), value, mix * shrunk[:, None])
        most = higher
    some = total > 0
    total = tl.where(some, total, 1.0)
    mix = (mix / total[:, None]).to(mixed.dtype.element_ty)
    to = part.to(tl.int64) * n * heads + asker
    tl.store(mixed + to[:, None] * head + at[None, :], mix, mask=is_query)
    if not whole:
        tl.store(sums + to, tl.where(some, most + tl.log(total), NOTHING), mask=asks)


@triton.jit
def _join(mixed, sums, joined, askers, head, chunks, parts: tl.constexpr, block: tl.constexpr):
    """One program a token and head. A chunk's share is its part of the sum of exponentials."""
    asker, part, at = tl.program_id(0), tl.arange(0, parts), tl.arange(0, block)
    to = part.to(tl.int64) * askers + asker
    logs = tl.load(sums + to, mask=part < chunks, other=NOTHING)
    share = tl.exp(logs - tl.max(logs, axis=0))
    share /= tl.sum(share, axis=0)
    has = (part < chunks)[:, None] & (at < head)[None, :]
    mix = tl.load(mixed + to[:, None] * head + at[None, :], mask=has, other=0.0)
    whole = tl.sum(mix * share[:, None], axis=0)
    tl.store(joined + asker * head + at, whole.to(joined.dtype.element_ty), mask=at < head)


@torch.library.custom_op("draftbench::attend", mutates_args=())
def attend(query: Tensor, slab: Tensor, starts: Tensor, chunks: int) -> tuple[Tensor, Tensor]:
    """The attention output of queries [rows · width, heads, head] over each chunk of keys [chunks ·
    rows · width, heads, head], and the logarithms of their sums of exponentials (not for a single
    chunk).
    """
    (n, heads, head), kv_heads, rows = query.shape, slab.shape[2], len(starts)
    mixed, sums = _seen(query, slab, starts, chunks)
    asking = heads // kv_heads * (n // rows)
    queries = min(QUERIES, max(LEAST_TOKENS, triton.next_power_of_2(asking)))
    chunk, block = CHUNK if chunks > 1 else slab.shape[3], triton.next_power_of_2(head)
    # From Hopper on, all that is multiplied is in shared memory.
    room = shared_memory(slab.device) - queries * block * slab.itemsize
    stages = max(1, min(BLOCKS, room // (2 * KEYS * block * slab.itemsize)))
    _attend[(rows * kv_heads, chunks, triton.cdiv(asking, queries))](
        query, slab, starts, mixed, sums, n, n // rows, heads, kv_heads, head, chunk,
        head**-0.5, *slab.stride()[:3],
        whole=chunks == 1, queries=queries, keys=KEYS, block=block,
        num_stages=stages,
    )  # fmt: skip
    return mixed, sums


@attend.register_fake
def _seen(query, slab, starts, chunks):
    n, heads, head = query.shape
    exact = torch.float32 if chunks > 1 else query.dtype
    mixed = query.new_empty(chunks * n, heads, head, dtype=exact)
    return mixed, query.new_empty(chunks * n * (chunks > 1), heads, dtype=torch.float32)


@torch.library.custom_op("draftbench::join", mutates_args=())
def join(mixed: Tensor, sums: Tensor, chunks: int, dtype: torch.dtype) -> Tensor:
    """The chunks' results of `attend` as one [rows · width, heads, head]."""
    every, heads, head = mixed.shape
    joined = mixed.new_empty(every // chunks, heads, head, dtype=dtype)
    _join[(every // chunks * heads,)](
        mixed, sums, joined, every // chunks * heads, head, chunks,
        parts=triton.next_power_of_2(chunks), block=triton.next_power_of_2(head), num_warps=2,
    )  # fmt: skip
    return joined


@join.register_fake
def _(mixed, sums, chunks, dtype):
    return mixed.new_empty(len(mixed) // chunks, *mixed.shape[1:], dtype=dtype)


def attention(query: Tensor, slab: Tensor, starts: Tensor, reach: int) -> Tensor:
    """The attention output [rows · width, heads · head] of queries [rows · width, heads, head] over
    the keys in a layer's slab up to their own.
    """
    chunks = triton.cdiv(reach, CHUNK)
    mixed, sums = attend(query, slab, starts, chunks)
    if chunks > 1:
        mixed = join(mixed, sums, chunks, query.dtype)
    return mixed.flatten(1)


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
