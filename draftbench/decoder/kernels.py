"""GPU kernels with which a layer of a recorded pass takes few launches (`fused.py`).

A product over a few tokens is memory-bound, and a launch takes a few microseconds in which no
weight is read. So a product here also norms its input tokens, and gates or adds its results.
Attention, for any number of rows and tokens, also norms, rotates and stores what the product before
it made. Weights may have 8 bits; then whatever leaves tokens for them leaves these in 8 bits too.
For many tokens PyTorch computes the products, and there are kernels for what lies between.

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
LEAST_TOKENS, MOST_TOKENS = 8, 64
# The most tokens for which a product by 16-bit weights is made here: of more, PyTorch's is faster.
# Weights of 8 bits are multiplied here in any case.
FEW = 16
# Values of a token that share a scale in 8 bits: as many as a program leaves, so that it needs no
# others to round them, and as a tensor core sums at once.
GROUP = 32
# The largest code of 8 bits, and what stands for the largest value of a group of zeros.
TOPS, SMALLEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}, tl.constexpr(1e-12)
# Pieces of a product's matrix that are on their way, and the one that is multiplied, at most.
STAGES = 6
# Keys that one program of attention goes through: one program a key head would keep 8 of an H200's
# 132 multiprocessors busy. Results of several are joined, as in Flash-Decoding (Dao et al. 2023).
CHUNK = 256
# Keys and (at least and at most) queries that it multiplies at a time, and how many blocks of keys
# are being loaded.
KEYS, QUERIES, BLOCKS = 64, (16, 64), 3
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
def _leave(exact, most, to, inside, top: tl.constexpr):
    """Store numbers in the type of where they go; in 8 bits, `top` stands for `most`."""
    kind: tl.constexpr = to.dtype.element_ty
    if kind.primitive_bitwidth == 8:
        exact *= top / tl.maximum(most, SMALLEST)
        if kind == tl.int8:
            exact = tl.floor(exact + 0.5)
    tl.store(to, exact.to(kind), mask=inside)


@triton.jit
def _begin(
    tokens, table, norm, sums, normed, squares, largest, n, width,
    top: tl.constexpr, groups: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    """One program a token: its row of the table and its sum of squares; that times the norm's
    weights, in the type of `normed`, and the largest of each group of these.
    """
    row, part = tl.program_id(0), tl.arange(0, groups)
    at = part[:, None] * group + tl.arange(0, group)[None, :]
    here = at < width
    stored = sums.dtype.element_ty  # Triton compiles no tuple that holds a type
    embedded = tl.load(table + tl.load(tokens + row) * width + at, mask=here, other=0.0).to(stored)
    exact = embedded.to(tl.float32)
    tl.store(sums + row * width + at, embedded, mask=here)
    tl.store(squares + row, tl.sum(tl.sum(exact * exact, axis=1), axis=0))
    weighted = exact * tl.load(norm + at, mask=here, other=0.0).to(tl.float32)
    most = tl.max(tl.abs(weighted), axis=1)
    _leave(weighted, most[:, None], normed + row * width + at, here, top)
    tl.store(largest + part * n + row, most, mask=part * group < width)


@torch.library.custom_op("draftbench::begin", mutates_args=())
def begin(
    tokens: Tensor, table: Tensor, norm: Tensor, kind: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The residual stream of tokens [n], rows of an embedding's table, [n, hidden]; that multiplied
    by a norm's weights, as a `kind` of numbers; the sums of squares of the former [1, n] and the
    largest values of the latter [groups, n].
    """
    begun, n, width = _begun(tokens, table, norm, kind), len(tokens), len(norm)
    _begin[(n,)](
        tokens, table, norm, *begun, n, width, top=TOPS.get(kind),
        groups=triton.next_power_of_2(triton.cdiv(width, GROUP)), group=GROUP,
    )  # fmt: skip
    return begun


@begin.register_fake
def _begun(tokens, table, norm, kind):
    n, width = len(tokens), len(norm)
    sums, normed = norm.new_empty(n, width), norm.new_empty(n, width, dtype=kind)
    return sums, normed, norm.new_empty(1, n, dtype=torch.float32), _largest(sums)


def _largest(x: Tensor) -> Tensor:
    """Where the largest values of the groups of tokens x [n, width] go [groups, n]."""
    return x.new_empty(triton.cdiv(x.shape[1], GROUP), len(x), dtype=torch.float32)


@triton.jit
def _round(
    x, codes, largest, n, width, top: tl.constexpr, groups: tl.constexpr, group: tl.constexpr
):  # fmt: skip
    """One program a token."""
    row, part = tl.program_id(0), tl.arange(0, groups)
    at = part[:, None] * group + tl.arange(0, group)[None, :]
    here = at < width
    exact = tl.load(x + row * width + at, mask=here, other=0.0).to(tl.float32)
    most = tl.max(tl.abs(exact), axis=1)
    _leave(exact, most[:, None], codes + row * width + at, here, top)
    tl.store(largest + part * n + row, most, mask=part * group < width)


@torch.library.custom_op("draftbench::round_tokens", mutates_args=())
def round_tokens(x: Tensor, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """The tokens x [n, width] in 8 bits, and the largest values of their groups [groups, n]."""
    (n, width), (codes, largest) = x.shape, _rounded(x, kind)
    _round[(n,)](
        x, codes, largest, n, width, top=TOPS[kind],
        groups=triton.next_power_of_2(len(largest)), group=GROUP,
    )  # fmt: skip
    return codes, largest


@round_tokens.register_fake
def _rounded(x, kind):
    return torch.empty_like(x, dtype=kind), _largest(x)


@triton.jit
def _product(
    x, squares, parts, eps, largest, weight, scale, bias, out, n, inputs, outputs, apart,
    norm, normed, sums_of_squares, largest_of_out,
    then: tl.constexpr, scaled: tl.constexpr, narrow: tl.constexpr, biased: tl.constexpr,
    most_parts: tl.constexpr, top: tl.constexpr, top_of_out: tl.constexpr,
    block: tl.constexpr, tokens: tl.constexpr, pieces: tl.constexpr, piece: tl.constexpr,
    stages: tl.constexpr,
):  # fmt: skip
    """One program some tokens and `block` pairs of a matrix's rows, which lie `apart`: gates and
    what they open, or any two. Pieces of the inputs are summed on their own, so that each warp has
    its own and no sum waits for another; in 8 bits a piece is a group. A norm's factor is the same
    for all inputs of a token, so that it is applied to the sums.
    """
    number = tl.program_id(0) * block + tl.arange(0, block)
    token = tl.program_id(1) * tokens + tl.arange(0, tokens)
    first = number // apart * 2 * apart + number % apart
    second = first + apart
    has_first, has_second, is_token = first < outputs, second < outputs, token < n
    ones = tl.zeros((pieces, block, tokens), tl.float32)
    others = tl.zeros((pieces, block, tokens), tl.float32)
    part, within = tl.arange(0, pieces), tl.arange(0, piece)
    to_first = weight + first.to(tl.int64)[None, :, None] * inputs
    to_second = weight + second.to(tl.int64)[None, :, None] * inputs
    for start in tl.range(0, inputs, pieces * piece, num_stages=stages):
        at = start + part[:, None] * piece + within[None, :]
        inside = at < inputs
        given = inside[:, :, None] & is_token[None, None, :]
        states = tl.load(x + token[None, None, :] * inputs + at[:, :, None], mask=given, other=0.0)
        here = has_first[None, :, None] & inside[:, None, :]
        one = tl.load(to_first + at[:, None, :], mask=here, other=0.0)
        here = has_second[None, :, None] & inside[:, None, :]
        other = tl.load(to_second + at[:, None, :], mask=here, other=0.0)
        if narrow:
            group = start // piece + part
            given = (group * piece < inputs)[:, None] & is_token[None, :]
            sizes = tl.load(largest + group[:, None] * n + token[None, :], mask=given, other=0.0)
            none = tl.zeros((pieces, block, tokens), tl.float32)
            ones += _dot(one, states, none) * sizes[:, None, :]
            others += _dot(other, states, none) * sizes[:, None, :]
        else:
            ones = _dot(one, states, ones)
            others = _dot(other, states, others)
    ones, others = tl.sum(ones, axis=0), tl.sum(others, axis=0)
    if scaled:
        before = tl.arange(0, most_parts)
        given = (before < parts)[:, None] & is_token[None, :]
        left = tl.load(squares + before[:, None] * n + token[None, :], mask=given, other=0.0)
        factor = 1 / tl.sqrt(tl.sum(left, axis=0) / inputs + eps)
        ones *= factor[None, :]
        others *= factor[None, :]
    if narrow:
        ones *= tl.load(scale + first, mask=has_first, other=0.0)[:, None] / top
        others *= tl.load(scale + second, mask=has_second, other=0.0)[:, None] / top
    if biased:
        ones += tl.load(bias + first, mask=has_first, other=0.0).to(tl.float32)[:, None]
        others += tl.load(bias + second, mask=has_second, other=0.0).to(tl.float32)[:, None]
    inside, beside = has_first[:, None] & is_token[None, :], has_second[:, None] & is_token[None, :]
    to_part = tl.program_id(0) * n + token
    stored: tl.constexpr = out.dtype.element_ty
    if then == "gate":
        if stored.primitive_bitwidth > 8:
            ones, others = ones.to(stored).to(tl.float32), others.to(stored).to(tl.float32)
        gated = ones / (1 + tl.exp(-ones))
        if stored.primitive_bitwidth > 8:
            gated = gated.to(stored).to(tl.float32)
        gated = tl.where(beside, gated * others, 0.0)
        most = tl.max(tl.abs(gated), axis=0)
        _leave(gated, most, out + token[None, :] * apart + first[:, None], beside, top_of_out)
        tl.store(largest_of_out + to_part, most, mask=is_token)
    else:
        to = token.to(tl.int64)[None, :] * outputs
        to_first, to_second = to + first[:, None], to + second[:, None]
        if then == "add":
            ones = ones.to(stored).to(tl.float32)
            others = others.to(stored).to(tl.float32)
            ones += tl.load(out + to_first, mask=inside, other=0.0).to(tl.float32)
            others += tl.load(out + to_second, mask=beside, other=0.0).to(tl.float32)
        one, other = ones.to(stored), others.to(stored)
        tl.store(out + to_first, one, mask=inside)
        tl.store(out + to_second, other, mask=beside)
        if then == "add":
            ones = tl.where(inside, one.to(tl.float32), 0.0)
            others = tl.where(beside, other.to(tl.float32), 0.0)
            total = tl.sum(ones * ones, axis=0) + tl.sum(others * others, axis=0)
            tl.store(sums_of_squares + to_part, total, mask=is_token)
            ones *= tl.load(norm + first, mask=has_first, other=0.0).to(tl.float32)[:, None]
            others *= tl.load(norm + second, mask=has_second, other=0.0).to(tl.float32)[:, None]
            most = tl.maximum(tl.max(tl.abs(ones), axis=0), tl.max(tl.abs(others), axis=0))
            _leave(ones, most, normed + to_first, inside, top_of_out)
            _leave(others, most, normed + to_second, beside, top_of_out)
            tl.store(largest_of_out + to_part, most, mask=is_token)


def _multiply(
    then: str, x: Tensor, squares: Tensor | None, eps: float, largest: Tensor | None,
    matrix: Matrix, out: Tensor, kind: torch.dtype, *left: Tensor | None,
) -> None:  # fmt: skip
    """Launch a product of x [n, inputs]. It also writes what is `left` for later products, for
    which tokens are of some `kind`.
    """
    weight, scale, bias = matrix
    (n, inputs), outputs, narrow = x.shape, len(weight), scale is not None
    tokens = min(MOST_TOKENS, max(LEAST_TOKENS, triton.next_power_of_2(n)))
    # A program leaves a group of values for each token.
    block = GROUP if then == "gate" else GROUP // 2
    # At least a piece of the inputs for each warp, and two if the sums fit into registers.
    warps, piece = (8, GROUP) if narrow else (4, 2 * GROUP)
    pieces = warps * (1 + (narrow and block * tokens <= 256))
    # Loads are on their way in all of a multiprocessor's memory, which two programs share, so that
    # one begins while another ends. What is being multiplied is in it too.
    loaded = pieces * ((2 * block + tokens) * piece * weight.itemsize + 4 * tokens * narrow)
    stages = min(STAGES, 1 + shared_memory(x.device) // 2 // loaded)
    parts = 1 if squares is None else len(squares)
    _product[(triton.cdiv(outputs, 2 * block), triton.cdiv(n, tokens))](
        x, squares, parts, eps, largest, weight, scale, bias, out, n, inputs, outputs,
        outputs // 2 if then == "gate" else block, *left,
        then=then, scaled=squares is not None, narrow=narrow, biased=bias is not None,
        most_parts=triton.next_power_of_2(parts), top=TOPS.get(weight.dtype),
        top_of_out=TOPS.get(kind), block=block, tokens=tokens, pieces=pieces, piece=piece,
        stages=stages, num_warps=warps,
    )  # fmt: skip


# Tokens, of the matrix's type; the sums of squares and the eps by which they are normed; the
# largest values of their groups, if the matrix has 8 bits; and the matrix.
Given = tuple[Tensor, Tensor | None, float, Tensor | None, Tensor, Tensor | None, Tensor | None]


def given(
    x: Tensor, squares: Tensor | None, eps: float, largest: Tensor | None, matrix: Matrix
) -> Given:
    """The inputs of a product of x with a matrix; for one of 8 bits, tokens of other types are
    rounded here.
    """
    if matrix.scale is None:
        largest = None
    elif x.dtype != matrix.weight.dtype:
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
        largest: values of groups of x [groups, n], for a matrix of 8 bits.
    """
    out, left = x.new_empty(len(x), len(weight), dtype=dtype), (None,) * 4
    _multiply("write", x, squares, eps, largest, Matrix(weight, scale, bias), out, dtype, *left)
    return out


@product.register_fake
def _(x, squares, eps, largest, weight, scale, bias, dtype):
    return x.new_empty(len(x), len(weight), dtype=dtype)


@torch.library.custom_op("draftbench::add_product", mutates_args={"sums"})
def add_product(
    sums: Tensor, norm: Tensor, kind: torch.dtype,
    x: Tensor, squares: Tensor | None, eps: float, largest: Tensor | None,
    weight: Tensor, scale: Tensor | None, bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Add the product of x [n, inputs] to `sums` [n, outputs] in place. Returns these multiplied by
    a norm's weights, as a `kind` of numbers; the sums of squares of the former [groups, n]; and the
    largest values of the latter [groups, n].
    """
    left = _added(sums, norm, kind, x, squares, eps, largest, weight, scale, bias)
    matrix = Matrix(weight, scale, bias)
    _multiply("add", x, squares, eps, largest, matrix, sums, kind, norm, *left)
    return left


@add_product.register_fake
def _added(sums, norm, kind, x, squares, eps, largest, weight, scale, bias):
    return torch.empty_like(sums, dtype=kind), _largest(sums), _largest(sums)


@torch.library.custom_op("draftbench::gated_product", mutates_args=())
def gated_product(
    x: Tensor, squares: Tensor | None, eps: float, largest: Tensor | None,
    weight: Tensor, scale: Tensor | None, bias: Tensor | None, kind: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """SwiGLU (Shazeer 2020, eq. 6) of the product with gates and then ups in the matrix's rows, as
    a `kind` of numbers, and the largest values of its groups [groups, n].
    """
    gated, left = _gated(x, squares, eps, largest, weight, scale, bias, kind)
    matrix = Matrix(weight, scale, bias)
    _multiply("gate", x, squares, eps, largest, matrix, gated, kind, None, None, None, left)
    return gated, left


@gated_product.register_fake
def _gated(x, squares, eps, largest, weight, scale, bias, kind):
    gated = x.new_empty(len(x), len(weight) // 2, dtype=kind)
    return gated, _largest(gated)


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
    normed: tl.constexpr, whole: tl.constexpr, top: tl.constexpr, queries: tl.constexpr,
    brought: tl.constexpr, keys: tl.constexpr, block: tl.constexpr, groups: tl.constexpr,
    group: tl.constexpr,
):  # fmt: skip
    """One program for each row and key head, chunk of keys, and block of queries to them. It stores
    the new keys and values of its chunk, and stops at the row's last one. Programs that share a
    chunk store the same.
    """
    row, kv_head = (tl.program_id(0) // kv_heads).to(tl.int64), tl.program_id(0) % kv_heads
    part, sharing = tl.program_id(1), heads // kv_heads
    number, at = tl.program_id(2) * queries + tl.arange(0, queries), tl.arange(0, block)
    slot, asks = number // sharing, number < sharing * width
    asking = kv_head * sharing + number % sharing
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
    mix /= total[:, None]
    token = row * width + slot
    asker = (part.to(tl.int64) * n + token) * heads + asking
    kind: tl.constexpr = mixed.dtype.element_ty
    if kind.primitive_bitwidth == 8:
        of_head = tl.arange(0, groups)
        at = of_head[:, None] * group + tl.arange(0, group)[None, :]
        mix = tl.reshape(mix, (queries, groups, group))
        most = tl.max(tl.abs(mix), axis=2)
        to = mixed + asker[:, None, None] * head + at[None, :, :]
        inside = asks[:, None, None] & (at < head)[None, :, :]
        _leave(mix, most[:, :, None], to, inside, top)
        to = largest + (asking[:, None] * (head // group) + of_head[None, :]) * n + token[:, None]
        tl.store(to, most, mask=asks[:, None] & (of_head * group < head)[None, :])
    else:
        to = mixed + asker[:, None] * head + at[None, :]
        tl.store(to, mix.to(kind), mask=is_query)
    if not whole:
        tl.store(sums + asker, tl.where(some, most + tl.log(total), NOTHING), mask=asks)


@triton.jit
def _join(
    mixed, sums, joined, largest, n, heads, head, chunks,
    top: tl.constexpr, parts: tl.constexpr, groups: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    """One program a token and head. A chunk's share is its part of the sum of exponentials."""
    token, asking = tl.program_id(0), tl.program_id(1)
    part, of_head = tl.arange(0, parts), tl.arange(0, groups)
    at = of_head[:, None] * group + tl.arange(0, group)[None, :]
    to = (part.to(tl.int64) * n + token) * heads + asking
    logs = tl.load(sums + to, mask=part < chunks, other=NOTHING)
    share = tl.exp(logs - tl.max(logs, axis=0))
    share /= tl.sum(share, axis=0)
    has = (part < chunks)[:, None, None] & (at < head)[None, :, :]
    mix = tl.load(mixed + to[:, None, None] * head + at[None, :, :], mask=has, other=0.0)
    whole = tl.sum(mix * share[:, None, None], axis=0)
    most = tl.max(tl.abs(whole), axis=1)
    to = joined + (token * heads + asking) * head + at
    _leave(whole, most[:, None], to, at < head, top)
    to = largest + (asking * tl.cdiv(head, group) + of_head) * n + token
    tl.store(to, most, mask=of_head * group < head)


@torch.library.custom_op("draftbench::attend", mutates_args={"slab"})
def attend(
    qkv: Tensor, query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    starts: Tensor, cos: Tensor, sin: Tensor, slab: Tensor, chunks: int, kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The attention output over each chunk of keys [chunks · rows · width, heads, head], and the
    logarithms of their sums of exponentials; of a single chunk, instead of these, the largest
    values of the output's groups. See `attention`.
    """
    kv_heads, head, n, rows = slab.shape[2], slab.shape[4], len(qkv), len(starts)
    heads, width = qkv.shape[1] // head - 2 * kv_heads, n // rows
    seen = _seen(qkv, query_norm, key_norm, eps, starts, cos, sin, slab, chunks, kind)
    asking = heads // kv_heads * width
    queries = min(QUERIES[1], max(QUERIES[0], triton.next_power_of_2(asking)))
    chunk, block = CHUNK if chunks > 1 else slab.shape[3], triton.next_power_of_2(head)
    # From Hopper on, all that is multiplied is in shared memory.
    room = shared_memory(slab.device) - queries * block * slab.itemsize
    stages = max(1, min(BLOCKS, room // (2 * KEYS * block * slab.itemsize)))
    _attend[(rows * kv_heads, chunks, triton.cdiv(asking, queries))](
        qkv, query_norm, key_norm, eps, slab, starts, cos, sin, *seen, n, width,
        heads, kv_heads, head, len(cos), chunk, head**-0.5, *slab.stride()[:3],
        normed=query_norm is not None, whole=chunks == 1, top=TOPS.get(kind), queries=queries,
        brought=triton.next_power_of_2(width), keys=KEYS, block=block,
        groups=block // GROUP, group=GROUP, num_stages=stages,
    )  # fmt: skip
    return seen


@attend.register_fake
def _seen(qkv, query_norm, key_norm, eps, starts, cos, sin, slab, chunks, kind):
    n, head = len(qkv), slab.shape[4]
    heads = qkv.shape[1] // head - 2 * slab.shape[2]
    kind = torch.float32 if chunks > 1 else kind
    mixed = qkv.new_empty(chunks * n, heads, head, dtype=kind)
    sums = qkv.new_empty(chunks * n, heads, dtype=torch.float32)
    return mixed, sums, _largest_of_heads(mixed, n)


def _largest_of_heads(mixed: Tensor, n: int) -> Tensor:
    heads, head = mixed.shape[1:]
    return mixed.new_empty(heads * triton.cdiv(head, GROUP), n, dtype=torch.float32)


@torch.library.custom_op("draftbench::join", mutates_args=())
def join(mixed: Tensor, sums: Tensor, chunks: int, kind: torch.dtype) -> tuple[Tensor, Tensor]:
    """The chunks' results of `attend` as one [rows · width, heads, head], and the largest values of
    its groups.
    """
    joined, largest = _joined(mixed, sums, chunks, kind)
    n, heads, head = joined.shape
    _join[(n, heads)](
        mixed, sums, joined, largest, n, heads, head, chunks, top=TOPS.get(kind),
        parts=triton.next_power_of_2(chunks),
        groups=triton.next_power_of_2(triton.cdiv(head, GROUP)), group=GROUP, num_warps=2,
    )  # fmt: skip
    return joined, largest


@join.register_fake
def _joined(mixed, sums, chunks, kind):
    n = len(mixed) // chunks
    return mixed.new_empty(n, *mixed.shape[1:], dtype=kind), _largest_of_heads(mixed, n)


def attention(
    qkv: Tensor, query_norm: Tensor | None, key_norm: Tensor | None, eps: float,
    starts: Tensor, cos: Tensor, sin: Tensor, slab: Tensor, reach: int, kind: torch.dtype,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The attention output [rows · width, heads · head] of what lies in qkv [rows · width, (heads +
    2 · key heads) · head], and the largest values of its groups [groups, rows · width]. Queries and
    keys are normed by head if there are norms, and rotated; keys and values are written after the
    `starts` [rows] valid tokens of each row of a layer's slab [2, rows, key heads, capacity, head].

    Args:
        reach: keys to look at, at least every start + width that is read later.
        kind: of numbers to leave; not in 8 bits if heads are no whole groups.
    """
    kind, chunks = qkv.dtype if slab.shape[4] % GROUP else kind, triton.cdiv(reach, CHUNK)
    given = (qkv, query_norm, key_norm, eps, starts, cos, sin, slab, chunks, kind)
    mixed, sums, largest = attend(*given)
    if chunks > 1:
        mixed, largest = join(mixed, sums, chunks, kind)
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
