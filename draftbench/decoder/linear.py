"""Unquantized linear layers; a CPU keeps their weights in the layout that is fastest for few rows.

A pass over one token reads every matrix once, and a pass over a few tokens should cost little more.
With weights in rows, as in checkpoints, it costs up to twice as much. So on a CPU weights that fit
into 16 bits stay in 16 bits, with tokens and sums in float32: half the bytes, the same values, one
layout for any number of rows (`cpu_products`). For many rows, a CPU with bfloat16 instructions
computes products in half the time, with a second copy that oneDNN packed. Weights
that need 32 bits are packed in blocks by oneDNN, and large ones are also kept in rows, which are
faster to read for one token. `scripts/bench_layouts.py` times these layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder import cpu_products

# [n, inputs] → [n, outputs], on a CPU in float32 (`between_products`).
Product = Callable[[Tensor], Tensor]
# Matrices with fewer bytes are not packed by oneDNN, whose call takes longer than it saves.
PACKED_FROM = 600_000
# Matrices of 32-bit weights with more bytes than this are read faster in rows than in blocks.
ROWS_FROM = 8 << 20
# oneDNN packs for 1 row (float32: not at all), or in the same way for any other number of rows.
SEVERAL = 8
# Up to this many rows, oneDNN's product is computed at its exact size.
EXACT_SIZE_ROWS = 32
# Up to this many rows a product of 16-bit weights in float32 takes less time than oneDNN's in
# bfloat16.
FEW_ROWS = 9
# How a layer holds its weights: in 16 bits; as oneDNN's packed copy; in rows as they came; as the
# last two; as the first two. Runs that name another layout are not resumed.
IN_16_BITS, PACKED, IN_ROWS, TWICE = "16 bits in panels", "packed", "rows", "two layouts"
FEW_APART = f"{IN_16_BITS} up to {FEW_ROWS} rows, then bfloat16"
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
    """Whether PyTorch was built with it, and this CPU has its instructions."""
    built = "fbgemm" in torch.backends.quantized.supported_engines
    return built and bool(torch.cpu.get_capabilities().get("avx2"))


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


def narrow_type(weight: Tensor) -> torch.dtype | None:
    """The 16-bit type that represents every weight on a CPU exactly; nearly every checkpoint has
    one.
    """
    if weight.device.type != "cpu":
        return None
    if weight.dtype in cpu_products.TYPES:
        return weight.dtype
    for dtype in cpu_products.TYPES:
        if all(torch.equal(rows.to(dtype).to(rows.dtype), rows) for rows in weight.split(1024)):
            return dtype
    return None


def unquantized_linear(
    weight: Tensor, bias: Tensor | None, *, two_layouts: bool = True, copied: bool = True
) -> nn.Linear | PackedLinear:
    """The fastest layer for a matrix of this type and size on its device (see `make_linear`).
    Without `two_layouts` a large matrix of 32-bit weights stays in rows, since a step of one token
    is the baseline of every speed-up.
    """
    layout, narrow = None, narrow_type(weight)
    if weight.device.type == "cpu":
        layout = layout_on_cpu(
            weight.numel(), weight.dtype, narrow is not None, two_layouts=two_layouts
        )
    if layout is None:
        return plain_linear(weight, bias)
    if narrow is not None and layout in (IN_16_BITS, FEW_APART):
        few = cpu_products.PanelProduct(weight.to(narrow), bias)
        more = in_blocks(weight, bias) if layout == FEW_APART else None
        return PackedLinear(weight, layout, few, more, most=FEW_ROWS)
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
        narrow: whether its weights fit into 16 bits.
    """
    size = weights * dtype.itemsize
    if narrow:
        several = dtype == torch.bfloat16 and two_layouts and multiplies_bfloat16()
        return FEW_APART if several else IN_16_BITS
    if dtype != torch.float32 or not has_onednn() or size < PACKED_FROM:
        return None
    if size < ROWS_FROM:
        return PACKED
    return TWICE if two_layouts else IN_ROWS


def in_blocks(weight: Tensor, bias: Tensor | None) -> Product:
    """The product with a copy of the weights packed for several rows."""
    return _onednn(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), SEVERAL), bias)


def _onednn(held: Tensor, bias: Tensor | None) -> Product:
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(x: Tensor) -> Tensor:
        if x.shape[0] <= EXACT_SIZE_ROWS:
            return multiply(x, held, bias, "none", [], "")
        return multiply(padded(x), held, bias, "none", [], "")[: x.shape[0]]

    return in_type(held.dtype, product)


def in_type(dtype: torch.dtype, product: Product) -> Product:
    """A CPU's product that is computed in some type, of tokens in float32."""
    if dtype == torch.float32:
        return product
    return lambda x: product(x.to(dtype)).float()


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


class TwoProducts:
    """One product for up to `most` rows, another for more."""

    def __init__(self, few: Product, more: Product, most: int) -> None:
        self._few, self._more, self.most = few, more, most
        self.record = getattr(few, "record", None)

    def __call__(self, x: Tensor) -> Tensor:
        return self._few(x) if x.shape[0] <= self.most else self._more(x)


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
        self.product = one if several is None else TwoProducts(one, several, most)


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


def padded_size(rows: int) -> int:
    """The number of rows to which more than 32 are padded for a product: one of eight sizes between
    n and 2n.

    oneDNN compiles kernels for every size and hardly ever frees them. Prompts and responses have
    thousands of sizes; each took 0.7 MB for a small model, and more time than rows of zeros take.
    """
    if rows <= EXACT_SIZE_ROWS:
        return rows
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step


def padded(x: Tensor) -> Tensor:
    """x [rows, inputs] with zeros below, up to `padded_size`."""
    missing = padded_size(len(x)) - len(x)
    return functional.pad(x, (0, 0, 0, missing)) if missing else x
