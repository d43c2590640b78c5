"""Unquantized linear layers; a CPU keeps their weights in the layout that is fastest for few rows.

A pass over one token reads every matrix once, and a pass over a few tokens should cost little more.
With weights in rows, as in checkpoints, it costs up to twice as much. So on CPUs without bfloat16
instructions, weights that fit into 16 bits are stored in 16 bits and multiplied in float32 by
FBGEMM: half the bytes, the same values, one layout for any number of rows. Weights that need 32
bits are packed in blocks by oneDNN, and large ones are also kept in rows, which are faster to read
for one token. CPUs with bfloat16 instructions use weights that oneDNN packed in bfloat16. For a few
rows it reads them at two thirds of FBGEMM's speed, so these are multiplied by a second copy, in
float16, whose sums are in float32 as oneDNN's are. Without a second copy, some of these CPUs
take longer for one row than for four, so the fastest way is found by timing (`min_matmul_rows`).
`scripts/bench_layouts.py` times these layouts.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

# [n, inputs] → [n, outputs], on a CPU in float32 (`between_products`).
Product = Callable[[Tensor], Tensor]
# Matrices of fewer weights stay as they are: a processor's cache keeps them between two tokens.
NARROWED_FROM = 1 << 15
# Matrices with fewer bytes are not packed by oneDNN, whose call takes longer than it saves.
PACKED_FROM = 600_000
# Matrices of 32-bit weights with more bytes than this are read faster in rows than in blocks.
ROWS_FROM = 8 << 20
# oneDNN packs for 1 row (float32: not at all), or in the same way for any other number of rows.
SEVERAL = 8
# Up to this many rows, oneDNN's product is computed at its exact size.
EXACT_SIZE_ROWS = 32
# To how many rows a bfloat16 product over fewer may be padded; how often each is timed; the part of
# an unpadded row's time that padding has to save, more than timings are off; and how far its result
# may be from that of unpacked weights, in parts of it: bfloat16's step.
PADDED_TO, TIMES, SAVED, ROUNDING = (1, 2, 4, 8), 7, 0.05, 2.0**-7
# What float16 may change of a weight: half the step of its smallest numbers, and at most this part
# of its row's largest, an eighth of bfloat16's step. bfloat16 has smaller numbers, but they change
# no sum with larger ones. Rows of far smaller ones, as of tokens never trained, count as 0.
LOST, LOST_OF_LARGEST, NOTHING = 2.0**-25, 2.0**-12, 2.0**-40
# Up to this many rows FBGEMM's product of 16-bit weights takes less time than oneDNN's in bfloat16.
FEW_ROWS = 6
# How a layer holds its weights: as float16; as oneDNN's packed copy; in rows as they came; as the
# last two; as the first two.
IN_16_BITS, PACKED, IN_ROWS, TWICE = "16-bit weights", "packed", "rows", "two layouts"
FEW_APART = "few rows by 16-bit weights"
# How this CPU multiplies int8 weights: with 8-bit activations, with 14-bit ones in two halves, or
# with bfloat16 ones.
INT8_FBGEMM, INT8_ONEDNN = "int8 by FBGEMM", "int8 by oneDNN"
INT8_HALVES, INT8_WEIGHT_ONLY = "int8 by FBGEMM in 14 bits", "int8 weight-only"


def between_products(weights: torch.dtype, device: torch.device) -> torch.dtype:
    """The type of tokens between two products. On a CPU it is float32, as in llama.cpp: for a few
    tokens, to change the type back and forth takes longer than it saves.
    """
    return torch.float32 if device.type == "cpu" else weights


def has_onednn() -> bool:
    """Whether PyTorch was built with it."""
    return torch.backends.mkldnn.is_available()


def has_fbgemm() -> bool:
    """Whether PyTorch was built with it, and this CPU can convert float16."""
    capabilities = torch.cpu.get_capabilities()
    built = "fbgemm" in torch.backends.quantized.supported_engines
    return built and bool(capabilities.get("avx2") and capabilities.get("f16c"))


def multiplies_bfloat16() -> bool:
    """Whether this CPU has bfloat16 instructions. Without them a pass over n tokens takes as long
    as up to n steps: PyTorch also uses bfloat16 with plain AVX-512, and then converts every weight
    for every token.
    """
    if not has_onednn() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    capabilities = torch.cpu.get_capabilities()
    native = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return bool(native) or capabilities.get("architecture") != "x86_64"


def wide_dtype() -> torch.dtype:
    """The type in which this CPU multiplies quantized weights by many tokens."""
    return torch.bfloat16 if multiplies_bfloat16() else torch.float32


def int8_way() -> str:
    """The fastest way to multiply int8 weights on this CPU: oneDNN, which alone uses AMX and
    AVX-VNNI, or FBGEMM, which has less overhead. Without VNNI both add two products of bytes in 16
    bits, which overflow with 8-bit activations.
    """
    has = torch.cpu.get_capabilities().get
    # This, and not the list of capabilities, follows `ATEN_CPU_CAPABILITY`.
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if has_onednn() and (has("avx_vnni") or (wide and has("amx_int8"))):
        return INT8_ONEDNN
    operator = "linear_with_input_q_dq_qweight_dq_output_fp32"
    if has_fbgemm() and hasattr(torch.ops.quantized, operator):
        return INT8_FBGEMM if wide and has("avx512_vnni") else INT8_HALVES
    return INT8_ONEDNN if has_onednn() and wide and has("avx512_vnni") else INT8_WEIGHT_ONLY


def fits_16_bits(weight: Tensor) -> bool:
    """Whether float32 weights on a CPU are float16 or bfloat16 numbers, as in nearly every
    checkpoint.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not has_fbgemm():
        return False
    return all(
        bool(((rows.half().float() - rows).abs_() <= _may_lose(rows)).all())
        for rows in weight.split(1024)
        if rows.numel()
    )


def _may_lose(rows: Tensor) -> Tensor:
    """What float16 may change of each row's weights [rows, 1]."""
    largest = rows.abs().amax(1, keepdim=True)
    return torch.where(largest < NOTHING, LOST, (largest * LOST_OF_LARGEST).clamp_(max=LOST))


def unquantized_linear(
    weight: Tensor,
    bias: Tensor | None,
    *,
    two_layouts: bool = True,
    copied: bool = True,
    least: int = 1,
) -> nn.Linear | PackedLinear:
    """The fastest layer for a matrix of this type and size on its device (see `make_linear`).
    Without `two_layouts` a large matrix of 32-bit weights stays in rows, since a step of one token
    is the baseline of every speed-up.
    """
    layout = None
    if weight.device.type == "cpu":
        narrow = fits_16_bits(weight.float())
        layout = layout_on_cpu(weight.numel(), weight.dtype, narrow, two_layouts=two_layouts)
    if layout is None:
        return plain_linear(weight, bias)
    if layout == IN_16_BITS:
        return PackedLinear(weight, layout, in_16_bits(weight, bias))
    if layout == FEW_APART:
        few = in_16_bits(weight.float(), None if bias is None else bias.float())
        more = padded_to(1, weight, bias)
        return PackedLinear(weight, layout, few, more, most=FEW_ROWS)
    if layout == PACKED and weight.dtype == torch.bfloat16:
        words = layout if least == 1 else f"fewer than {least} rows padded to {least}"
        return PackedLinear(weight, words, padded_to(least, weight, bias))
    if layout == PACKED:
        return PackedLinear(weight, layout, in_blocks(weight, bias))
    held = weight.contiguous() if copied else weight.clone()
    several = in_blocks(weight, bias) if layout == TWICE else None
    return PackedLinear(weight, layout, _onednn(held, bias), several, held)


def layout_on_cpu(
    weights: int, dtype: torch.dtype, narrow: bool, *, two_layouts: bool = True
) -> str | None:
    """The layout in which a CPU keeps a matrix of this many weights; None: that of PyTorch's layer.

    Args:
        narrow: whether its weights fit into float16.
    """
    bfloat16 = dtype == torch.bfloat16 and multiplies_bfloat16()
    size, narrow = weights * dtype.itemsize, narrow and weights >= NARROWED_FROM
    if not (has_onednn() and (bfloat16 or dtype == torch.float32)):
        return None
    if narrow and not bfloat16:
        return IN_16_BITS
    if narrow and two_layouts:
        return FEW_APART
    if size < PACKED_FROM:
        return None
    if bfloat16 or size < ROWS_FROM:
        return PACKED
    return TWICE if two_layouts else IN_ROWS


@torch.inference_mode()
def min_matmul_rows(
    matrices: Iterable[Tensor],
    pack: Callable[[int, Tensor], Product] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """How many rows this CPU pads smaller products to: 1 unless one row takes clearly longer than
    several with the same result.

    Ways and shapes are timed in turn, each with its own copy of the weights, so that no weights are
    in a cache that would not be there in a model's step.

    Args:
        matrices: a model's matrices, of which one of each shape is timed.
    """
    kept = [
        m
        for m in matrices
        if m.device.type == "cpu"
        and m.dtype == torch.bfloat16
        and layout_on_cpu(m.numel(), m.dtype, narrow=False) == PACKED
    ]
    often, generator = Counter(m.shape for m in kept), torch.Generator().manual_seed(0)
    ways: dict[int, list[tuple[int, Tensor, Product]]] = {rows: [] for rows in PADDED_TO}
    for weight in {m.shape: m for m in kept}.values():
        token = torch.randn(1, weight.shape[1], generator=generator).bfloat16()
        exact = functional.linear(token, weight).float()
        for rows in list(ways):
            product = (pack or padded_to)(rows, weight)
            if rows > 1 and (product(token).float() - exact).norm() > ROUNDING * exact.norm():
                del ways[rows]
            else:
                ways[rows].append((often[weight.shape], token, product))
    least = defaultdict[tuple[int, int], float](lambda: math.inf)
    for _ in range(TIMES):
        for rows, products in ways.items():
            for at, (_, token, product) in enumerate(products):
                begun = clock()
                product(token)
                least[rows, at] = min(least[rows, at], clock() - begun)
    step = {
        rows: sum(count * least[rows, at] for at, (count, _, _) in enumerate(products))
        for rows, products in ways.items()
    }
    fastest = min(step, key=step.__getitem__)
    return fastest if step[fastest] < (1 - SAVED) * step[1] else 1


def in_blocks(weight: Tensor, bias: Tensor | None) -> Product:
    """The product with a copy of the weights packed for several rows."""
    return _onednn(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), SEVERAL), bias)


def padded_to(least: int, weight: Tensor, bias: Tensor | None = None) -> Product:
    """The product with weights packed for `least` rows; fewer rows are padded to `least`."""
    held = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), least)
    return _onednn(held, bias, least)


def _onednn(held: Tensor, bias: Tensor | None, least: int = 1) -> Product:
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(x: Tensor) -> Tensor:
        if least <= x.shape[0] <= EXACT_SIZE_ROWS:
            return multiply(x, held, bias, "none", [], "")
        return multiply(padded(x, least), held, bias, "none", [], "")[: x.shape[0]]

    return in_type(held.dtype, product)


def in_type(dtype: torch.dtype, product: Product) -> Product:
    """A CPU's product that is computed in some type, of tokens in float32."""
    if dtype == torch.float32:
        return product
    return lambda x: product(x.to(dtype)).float()


def in_16_bits(weight: Tensor, bias: Tensor | None) -> Product:
    """The product of float32 activations with the weights as float16, summed in float32."""
    held = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    multiply = with_packed(torch.ops.quantized.linear_dynamic_fp16.default)
    return lambda x: multiply(x, held)


def with_packed(operator: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """An operator that takes FBGEMM's packed weights. PyTorch asks each argument for a
    `__torch_function__`, and these answer by an exception of C++, which takes longer than the
    product of a small matrix; so it does not ask.
    """

    def multiply(*arguments: Any) -> Tensor:
        with torch._C.DisableTorchFunctionSubclass():
            return operator(*arguments)

    return multiply


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """PyTorch's layer around these tensors."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


class ProductLinear(nn.Module):
    """A linear layer that applies a `product` to tokens of any shape."""

    product: Product

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.reshape(-1, self.in_features).to(between_products(x.dtype, x.device))
        return self.product(tokens).to(x.dtype).view(*x.shape[:-1], self.out_features)


class PackedLinear(ProductLinear):
    """A layer with one product for up to `most` tokens and, if weights are kept twice, another for
    more.

    Args:
        weight: only for its size.
        rows: the weights in rows if the layer keeps them; an embedding may share them.
    """

    def __init__(
        self,
        weight: Tensor,
        layout: str,
        one: Product,
        several: Product | None = None,
        rows: Tensor | None = None,
        most: int = 1,
    ) -> None:
        super().__init__(weight)
        self.layout = layout
        self.weight_bytes = 2 * weight.numel() if layout == IN_16_BITS else weight.nbytes
        self.second_layout_bytes = 0 if several is None else weight.nbytes
        self.address = None if rows is None else rows.data_ptr()
        self.product = one
        if several is not None:
            self.product = lambda x: one(x) if x.shape[0] <= most else several(x)


class Matrix(NamedTuple):
    """A linear layer's weights [outputs, inputs], those of 8 bits with one scale [outputs] per
    output.
    """

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None


def matrix_of(layer: nn.Module) -> Matrix | None:
    """A layer's weights if it only multiplies by them; else None."""
    if isinstance(layer, nn.Linear):
        return Matrix(layer.weight, None, layer.bias)
    return getattr(layer, "matrix", None)


def as_function(layer: nn.Module) -> Product:
    """A function that computes `layer` on [n, in], if possible without the module around it.

    A step calls a hundred layers, and each one's weights empty the processor's cache before the
    next. Entering a module, which reads a dozen attributes, would then take as long as a product.
    """
    if isinstance(layer, nn.Linear):
        plain = partial(functional.linear, weight=layer.weight, bias=layer.bias)
        return in_type(layer.weight.dtype, plain) if layer.weight.is_cpu else plain
    return getattr(layer, "product", layer)


def runner_name(what: str, runner: Any, more: str = "") -> str:
    """A runner's or head's name for reports: what it is, its type and device, and how its layers
    store and multiply their weights.
    """
    held: set[str] = {getattr(layer, "layout", PACKED) for layer in runner.modules()}
    how = "".join(f", {layout}" for layout in sorted(held - {PACKED, IN_ROWS}))
    return f"{what} ({runner.dtype}, {runner.device}{how}{more})".replace("torch.", "")


def padded_size(rows: int, least: int = 1) -> int:
    """The number of rows to which `rows` are padded for a product: at least `least`, and one of
    eight sizes between n and 2n.

    oneDNN compiles kernels for every size and hardly ever frees them. Prompts and responses have
    thousands of sizes; each took 0.7 MB for a small model, and more time than rows of zeros take.
    """
    if rows <= EXACT_SIZE_ROWS:
        return max(rows, least)
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step


def padded(x: Tensor, least: int = 1) -> Tensor:
    """x [rows, inputs] with zeros below, up to `padded_size`."""
    missing = padded_size(len(x), least) - len(x)
    return functional.pad(x, (0, 0, 0, missing)) if missing else x
