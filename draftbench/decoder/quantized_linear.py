"""Linear layers at a quantization level, and the levels for which a device has a fast kernel.

Activations are never quantized with one scale for all tokens: if a token's result depended on its
neighbours, replay could not predict the decoder.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder.cpu_products import TYPES, PanelProduct
from draftbench.decoder.device import Capability, capability, has_triton
from draftbench.decoder.linear import (
    IN_16_BITS,
    INT8_FBGEMM,
    INT8_HALVES,
    INT8_ONEDNN,
    INT8_WEIGHT_ONLY,
    Matrix,
    Product,
    ProductLinear,
    has_onednn,
    in_blocks,
    int8_way,
    multiplies_bfloat16,
    padded,
    unquantized_linear,
    wide_dtype,
    with_packed,
)
from draftbench.memory import INT4_GROUP, fits_level

# The most rows for which the weight-only kernels are fastest. int4's reads the weights once for
# four rows; how many more rows it takes until the wide copy is faster is a matter of the CPU.
INT8_KERNEL_ROWS = 16
# PyTorch's int8 kernel reads this many inputs at once, even past the end of a row.
INT8_KERNEL_INPUTS = 16
INT4_KERNEL_ROWS = {"bfloat16": 2, "AVX512": 8}
INT4_KERNEL_ROWS_ELSE = 4
# The layout of 4-bit weights without a copy for passes over several tokens.
INT4_ALONE = "int4 alone"
# For matrices of fewer weights the weight-only kernel is faster: rounding a token to integers would
# take longer than its product.
INTEGERS_FROM = 500_000
# The code of 0 in 8-bit activations, whose codes are unsigned.
UINT8_ZERO = 128
# The largest 8-bit code.
INT8_TOP = 127
# 7-bit activations: the largest code, the unsigned code of 0, and into how many parts a code is
# divided. What the nearest code leaves out is at most half a code, 63 of these parts.
INT7_TOP, UINT7_ZERO, FINER = 63, 64, 126
# Used in place of the largest value of a row of zeros.
SMALLEST = 1e-8


def make_linear(
    weight: Tensor,
    bias: Tensor | None,
    level: str,
    *,
    two_layouts: bool = True,
    copied: bool = False,
) -> nn.Module:
    """The layer that computes `x @ weight.T + bias` at `level`: unquantized if the matrix cannot be
    divided into the level's blocks, simulated if the device has no kernel for the level.

    Args:
        weight: [out, in] on its final device.
        bias: [out] or None.
        two_layouts: whether weights may be held twice, for one token and for several.
        copied: whether the weight is in memory already; a piece of a mapped file would keep the
            whole file in memory.
    """
    if level == "none" or not fits_level(level, *weight.shape):
        return unquantized_linear(weight, bias, two_layouts=two_layouts, copied=copied)
    kernel = kernel_of(level, str(weight.device))
    if kernel is None:
        return SimulatedLinear(weight, bias, level)
    return kernel.layer(weight, bias, two_layouts)


class SimulatedLinear(nn.Module):
    """Weights rounded to a level's values but kept in their type: the right acceptance, but an
    unknown cost. At fp8 each token's activations are rounded too, as in engines.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, level: str) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.round_activations = partial(_rounded, rows=fp8_rows) if level == "fp8" else None
        self.weight = GRIDS[level](weight).to(weight.dtype)
        self.bias = bias
        self.weight_bytes = self.weight.nbytes

    def forward(self, x: Tensor) -> Tensor:
        if self.round_activations is not None:
            x = self.round_activations(x).to(x.dtype)
        return functional.linear(x.to(self.weight.dtype), self.weight, self.bias).to(x.dtype)


def _rounded(x: Tensor, rows: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Tensor:
    codes, scale = rows(x)
    return codes.float() * scale


def _rounded_to_int4(weight: Tensor) -> Tensor:
    codes, scale, offset = int4_grid(weight)
    exact = (codes - 8) * scale.float()[:, :, None] + offset.float()[:, :, None]
    return exact.reshape(weight.shape)


def int8_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of a matrix [out, in], and the scale [out, 1] of each output."""
    exact = weight.float()
    scale = exact.abs().amax(1, keepdim=True).clamp_(min=SMALLEST) / INT8_TOP
    return (exact / scale).round_().to(torch.int8), scale


def fp8_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """e4m3 codes of x [..., n], and the scale [..., 1] of each row; a row of zeros stays zeros."""
    exact = x.float()
    largest = exact.abs().amax(-1, keepdim=True).clamp(min=1e-12)
    scale = largest / torch.finfo(torch.float8_e4m3fn).max
    return (exact / scale).to(torch.float8_e4m3fn), scale


# A matrix → its values at each level, in float32.
GRIDS: dict[str, Callable[[Tensor], Tensor]] = {
    "fp8": partial(_rounded, rows=fp8_rows),
    "int8": partial(_rounded, rows=int8_rows),
    "int4": _rounded_to_int4,
}


class Int8Linear(ProductLinear):
    """int8 weights with one scale per output, multiplied by integer activations with one scale per
    token. Integer products are summed exactly, as fast as the weights can be read.

    Args:
        way: a way from `int8_way`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, way: str) -> None:
        super().__init__(weight)
        codes, scale = int8_rows(weight)
        self.layout = way
        self.weight_bytes = codes.numel() + 4 * scale.numel()
        multiply = INT8_PRODUCTS[way](codes, scale[:, 0])

        def product(x: Tensor) -> Tensor:
            largest = x.abs().amax(1, True)
            # The kernels take one scale for all tokens, so each token's is applied before and after
            # the product. Of a row of zeros, which is divided by 0, any integers will do:
            # their product is multiplied by 0.
            out = multiply(x, largest).mul_(largest)
            return out if bias is None else out.add_(bias)

        self.product = product


# Rows, and their largest values → their products, each divided by its row's largest value.
Int8Product = Callable[[Tensor, Tensor], Tensor]


def _int8_fbgemm(codes: Tensor, scale: Tensor) -> Int8Product:
    """8-bit activations, rounded by FBGEMM."""
    packed, multiply = _fbgemm_packed(codes, scale)
    return lambda rows, largest: multiply(rows / largest, 1 / INT8_TOP, UINT8_ZERO, packed)


def _int8_halves(codes: Tensor, scale: Tensor) -> Int8Product:
    """A token as two rows, for which the weights are read once: its 7-bit codes, and their
    remainders in 126ths of a code. Sums of two products of 7 and 8 bits fit into 16 bits.
    """
    packed, multiply = _fbgemm_packed(codes, scale / INT7_TOP)

    def product(rows: Tensor, largest: Tensor) -> Tensor:
        exact = rows / largest * INT7_TOP
        coarse = exact.round()
        sums = multiply(torch.cat([coarse, (exact - coarse).mul_(FINER)]), 1.0, UINT7_ZERO, packed)
        return sums[: len(rows)].add_(sums[len(rows) :], alpha=1 / FINER)

    return product


def _fbgemm_packed(codes: Tensor, scale: Tensor) -> tuple[Any, Callable[..., Tensor]]:
    """Weights in FBGEMM's layout, and its function (rows, scale, zero point, weights) → product."""
    zeros = torch.zeros(len(codes), dtype=torch.int64)
    with warnings.catch_warnings():
        # PyTorch deprecates tensors that hold their scale; FBGEMM takes the scale from one.
        warnings.simplefilter("ignore", UserWarning)
        scaled = torch._make_per_channel_quantized_tensor(codes, scale.double(), zeros, 0)
    packed = torch.ops.quantized.linear_prepack(scaled, None)
    operator = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
    return packed, with_packed(operator)


def _int8_onednn(codes: Tensor, scale: Tensor) -> Int8Product:
    """8-bit activations with oneDNN. They are unsigned around `UINT8_ZERO`: CPUs with AVX-512 but
    without AMX have no kernel for a product of signed bytes, and oneDNN's reference implementation
    takes hundreds of times as long.
    """
    packed = torch.ops.onednn.qlinear_prepack(codes, None)
    multiply = torch.ops.onednn.qlinear_pointwise.default
    scale, zero_point = scale / INT8_TOP, torch.zeros(len(codes), dtype=torch.int32)
    # Conversion to integers cuts digits off; with a half added it rounds.
    middle = torch.tensor(UINT8_ZERO + 0.5)

    def product(rows: Tensor, largest: Tensor) -> Tensor:
        codes = torch.addcdiv(middle, rows, largest, value=INT8_TOP).to(torch.uint8)
        sums = multiply(
            padded(codes), 1.0, UINT8_ZERO, packed, scale, zero_point, None,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip
        return sums[: len(rows)]

    return product


# What each way earns over the layers of a 0.5B and a 1.5B model, for 1 to 8 rows on two cores of an
# EPYC with AVX-512 VNNI: oneDNN takes 1.1 to 1.7 times as long as FBGEMM. With AVX2, simulated
# there, the weight-only kernel takes 1.4 to 2.0 times as long as two halves. AMX and AVX-VNNI, for
# which oneDNN is taken, were not at hand.
INT8_PRODUCTS = {INT8_FBGEMM: _int8_fbgemm, INT8_HALVES: _int8_halves, INT8_ONEDNN: _int8_onednn}


class Int8WeightOnlyLinear(ProductLinear):
    """int8 weights with one scale per output and activations in bfloat16, for small matrices and
    for CPUs on which PyTorch cannot multiply integers.
    """

    layout = INT8_WEIGHT_ONLY

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight)
        exact = weight.float()
        self.scale = (exact.abs().amax(1).clamp(min=SMALLEST) / INT8_TOP).to(torch.bfloat16)
        # Codes by the rounded scale, whose rounding would else stretch or shrink a whole output.
        codes = (exact / self.scale.float()[:, None]).round_()
        self.weight = codes.clamp_(-INT8_TOP, INT8_TOP).to(torch.int8)
        self.weight_bytes = self.weight.nbytes + self.scale.nbytes
        weight, scale = self.weight, self.scale
        kernel_rows = 0 if self.in_features % INT8_KERNEL_INPUTS else INT8_KERNEL_ROWS

        def product(x: Tensor) -> Tensor:
            if x.shape[0] <= kernel_rows:
                out = torch._weight_int8pack_mm(x.to(torch.bfloat16), weight, scale)
            else:  # the same product, since integers up to 128 are exact in bfloat16
                rows = padded(x.to(torch.bfloat16)).to(wide_dtype())
                out = functional.linear(rows, weight.to(wide_dtype()))[: x.shape[0]] * scale
            return out.float() if bias is None else out.float().add_(bias)

        self.product = product


def int4_grid(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes 0 … 15 [out, groups, group], and scale and offset [out, groups] in bfloat16: a weight
    is (code - 8) · scale + offset.
    """
    groups = weight.float().view(weight.shape[0], -1, INT4_GROUP)
    low, high = groups.amin(2), groups.amax(2)
    scale = ((high - low) / 15).clamp(min=SMALLEST).to(torch.bfloat16)
    offset = (low + 8 * scale.float()).to(torch.bfloat16)
    shift = (groups - offset.float().unsqueeze(2)) / scale.float().unsqueeze(2)
    return (shift.round() + 8).clamp(0, 15), scale, offset


class Int4Linear(ProductLinear):
    """4-bit weights in groups of 32 inputs with scale and offset, activations in bfloat16.

    The 4-bit kernel takes longer with every few rows. So a copy of the weights in 16 or 32 bits,
    whichever this CPU multiplies, is kept for passes over several tokens (prompts, replay,
    verification).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, two_layouts: bool = True) -> None:
        super().__init__(weight)
        codes, scale, offset = int4_grid(weight)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            codes.to(torch.int32).reshape(weight.shape), 1
        )
        scale_and_offset = torch.stack([scale, offset], dim=2).transpose(0, 1).contiguous()
        kernel = torch.ops.aten._weight_int4pack_mm_for_cpu.default
        self.weight_bytes = packed.numel() + 2 * scale_and_offset.numel()
        self.layout, self.second_layout_bytes = INT4_ALONE, 0

        def by_codes(x: Tensor) -> Tensor:
            # The kernel refuses rows that are not contiguous in memory.
            return kernel(x.to(torch.bfloat16).contiguous(), packed, INT4_GROUP, scale_and_offset)

        by_copy: Product = by_codes
        kind = "bfloat16" if multiplies_bfloat16() else torch.backends.cpu.get_cpu_capability()
        kernel_rows = INT4_KERNEL_ROWS.get(kind, INT4_KERNEL_ROWS_ELSE)
        if two_layouts:
            wide, size, by_copy = _wide_copy(_rounded_to_int4(weight))
            self.layout = f"int4 up to {kernel_rows} rows, then {wide}"
            self.second_layout_bytes = size * weight.numel()

        def product(x: Tensor) -> Tensor:
            multiply = by_codes if x.shape[0] <= kernel_rows else by_copy
            out = multiply(x).float()
            return out if bias is None else out.add_(bias)

        self.by_codes, self.by_copy, self.product = by_codes, by_copy, product


def _wide_copy(weight: Tensor) -> tuple[str, int, Product]:
    """How the copy of float32 weights is kept beside their 4-bit codes, bytes of each, and its
    product.
    """
    if multiplies_bfloat16():
        return "bfloat16", 2, in_blocks(weight.bfloat16(), None)
    if torch.float16 in TYPES and weight.abs().amax() <= torch.finfo(torch.float16).max:
        return IN_16_BITS, 2, PanelProduct(weight.half(), None)
    if has_onednn():
        return "float32", 4, in_blocks(weight, None)
    return "float32", 4, partial(functional.linear, weight=weight)


class Int4CudaLinear(ProductLinear):
    """4-bit weights on a GPU with PyTorch's tinygemm and activations in bfloat16: one launch for
    each product, which reads the weights once for every 16 tokens.

    The kernel's widest width (in tiles of 16 inputs) that divides the inputs is used, so that
    nothing is padded (pytorch-labs/gpt-fast, quantize.py).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight)
        codes, scale, offset = int4_grid(weight)
        first, second = codes.to(torch.uint8).view(self.out_features, -1, 2).unbind(2)
        tiles = next(tiles for tiles in (8, 4, 2) if self.in_features % (16 * tiles) == 0)
        packed = torch.ops.aten._convert_weight_to_int4pack(first * 16 + second, tiles)
        scale_and_offset = torch.stack([scale.t(), offset.t()], dim=2)
        kernel = torch.ops.aten._weight_int4pack_mm.default
        self.weight_bytes = packed.nbytes + scale_and_offset.nbytes

        def product(x: Tensor) -> Tensor:
            out = kernel(x.contiguous(), packed, INT4_GROUP, scale_and_offset)
            return out if bias is None else out.add_(bias)

        self.product = product


class EightBitLinear(ProductLinear):
    """Weights and tokens in 8 bits on a GPU, with one scale per output and per group of a token's
    values: half the bytes of 16 bits. Serving engines have one scale per token or per group.

    Args:
        dtype: of the codes, int8 or float8_e4m3fn.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> None:
        from draftbench.decoder import kernels

        super().__init__(weight)
        codes, scale = int8_rows(weight) if dtype == torch.int8 else fp8_rows(weight)
        self.matrix = Matrix(codes, scale[:, 0].contiguous(), bias)
        self.weight_bytes = codes.nbytes + scale.nbytes
        self.product = lambda x: kernels.product(
            *kernels.given(x.contiguous(), None, 0.0, None, self.matrix), x.dtype
        )


def _int8_on_cpu(weight: Tensor, bias: Tensor | None, two_layouts: bool) -> nn.Module:
    way = int8_way()
    if way == INT8_WEIGHT_ONLY or weight.numel() < INTEGERS_FROM:
        return Int8WeightOnlyLinear(weight, bias)
    return Int8Linear(weight, bias, way)


@dataclass(frozen=True)
class Kernel:
    """A layer that, on one kind of device, is faster with a level's weights than unquantized."""

    words: Callable[[], str]
    layer: Callable[[Tensor, Tensor | None, bool], nn.Module]  # weight, bias, two layouts → layer
    least: Capability = (0, 0)  # compute capability that a GPU needs
    triton: bool = False  # whether it is compiled by Triton


# By kind of device and level. Levels that are not listed need --simulate-quant there.
KERNELS = {
    ("cpu", "int8"): Kernel(
        lambda: f"{int8_way()}, one scale per token; small matrices {INT8_WEIGHT_ONLY}",
        _int8_on_cpu,
    ),
    ("cpu", "int4"): Kernel(
        lambda: "PyTorch, weight-only; a copy in 16 or 32 bits for passes over several tokens",
        lambda weight, bias, two_layouts: Int4Linear(weight, bias, two_layouts=two_layouts),
    ),
    ("cuda", "int4"): Kernel(
        lambda: "PyTorch's tinygemm, weight-only",
        lambda weight, bias, two_layouts: Int4CudaLinear(weight, bias),
        (8, 0),
    ),
    ("cuda", "int8"): Kernel(
        lambda: "Triton, activations in 8 bits too, one scale per 32 values of a token",
        lambda weight, bias, two_layouts: EightBitLinear(weight, bias, torch.int8),
        (8, 0),
        triton=True,
    ),
    # The first capability whose instructions convert e4m3.
    ("cuda", "fp8"): Kernel(
        lambda: "Triton, activations in 8 bits too, one scale per 32 values of a token",
        lambda weight, bias, two_layouts: EightBitLinear(weight, bias, torch.float8_e4m3fn),
        (8, 9),
        triton=True,
    ),
}


def kernel_of(level: str, device: str) -> Kernel | None:
    """A quantized level's kernel on a device (`cpu`, `cuda`, `cuda:1`, `auto`); None if there is
    none.
    """
    kernel = KERNELS.get(("cpu" if device == "cpu" else "cuda", level))
    if kernel is None or (device != "cpu" and capability(device) < kernel.least):
        return None
    return None if kernel.triton and not has_triton(device) else kernel
