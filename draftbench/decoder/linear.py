"""Unquantized linear layers: on a CPU, weights held in the way that is fastest for a few rows.

A pass over one token streams every matrix once; a pass over a few should cost little more. In rows,
as checkpoints have weights, it takes up to twice as long. So, on CPUs that have no instructions for
bfloat16, weights that fit into 16 bits are held in these and multiplied in float32 by FBGEMM: half
the bytes, the same values, one layout for any number of rows. Weights that need 32 bits are packed
in blocks by oneDNN, and the large ones kept in rows as well, which are streamed faster for one
token. `scripts/bench_layouts.py` times all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

# [n, inputs] → [n, outputs].
Product = Callable[[Tensor], Tensor]
# By the bytes of a float32 matrix: smaller ones stay in a processor's cache, where a library's call
# takes longer than its layout saves.
PACKED_FROM = 600_000
# Of weights that need 32 bits, larger ones are streamed faster in rows than in blocks.
ROWS_FROM = 8 << 20
# oneDNN packs for a number of rows: for 1 (float32: not at all), and alike for all others.
SEVERAL = 8
# Up to so many rows oneDNN's product is made at its exact size.
EXACT_SIZE_ROWS = 32
# What 16 bits may lose of a weight: half the step of float16's smallest numbers, and little of the
# largest weight. bfloat16 has smaller numbers, of which a sum with others notices nothing.
LOST, LOST_OF_LARGEST = 2.0**-25, 2.0**-16
# How a layer holds its weights: float16 numbers; oneDNN's packed copy; rows as they came; these
# and blocks.
IN_16_BITS, PACKED, IN_ROWS, TWICE = "16-bit weights", "packed", "rows", "two layouts"
# How this CPU multiplies int8 weights: by 8-bit activations, by 14-bit ones in two halves, or as
# numbers.
INT8_FBGEMM, INT8_ONEDNN = "int8 by FBGEMM", "int8 by oneDNN"
INT8_HALVES, INT8_WEIGHT_ONLY = "int8 by FBGEMM in 14 bits", "int8 weight-only"


def has_onednn() -> bool:
    """Whether PyTorch was built with it."""
    return torch.backends.mkldnn.is_available()


def has_fbgemm() -> bool:
    """Whether PyTorch was built with it, and this CPU can convert float16."""
    capabilities = torch.cpu.get_capabilities()
    built = "fbgemm" in torch.backends.quantized.supported_engines
    return built and bool(capabilities.get("avx2") and capabilities.get("f16c"))


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it: without, a pass over n tokens takes up to n steps.

    PyTorch takes AVX-512 for enough, and then converts every weight for every token.
    """
    if not has_onednn() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    capabilities = torch.cpu.get_capabilities()
    native = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return bool(native) or capabilities.get("architecture") != "x86_64"


def wide_dtype() -> torch.dtype:
    """The type in which this CPU multiplies quantized weights with many tokens."""
    return torch.bfloat16 if multiplies_bfloat16() else torch.float32


def int8_way() -> str:
    """The fastest way to multiply int8 weights on this CPU: by oneDNN, which alone uses AMX and
    AVX-VNNI, or by FBGEMM, which has less around its products. Without VNNI both sum two products
    of bytes in 16 bits, which those of 8-bit activations overflow.
    """
    has = torch.cpu.get_capabilities().get
    # Unlike the CPU's list it follows `ATEN_CPU_CAPABILITY`.
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    if has_onednn() and (has("avx_vnni") or (wide and has("amx_int8"))):
        return INT8_ONEDNN
    operator = "linear_with_input_q_dq_qweight_dq_output_fp32"
    if has_fbgemm() and hasattr(torch.ops.quantized, operator):
        return INT8_FBGEMM if wide and has("avx512_vnni") else INT8_HALVES
    return INT8_ONEDNN if has_onednn() and wide and has("avx512_vnni") else INT8_WEIGHT_ONLY


def fits_16_bits(weight: Tensor) -> bool:
    """Whether these float32 weights on a CPU are float16 or bfloat16 numbers, as those of nearly
    every checkpoint are.
    """
    if weight.device.type != "cpu" or weight.dtype != torch.float32 or not has_fbgemm():
        return False
    pieces = weight.split(1024)
    largest = max((float(piece.abs().amax()) for piece in pieces if piece.numel()), default=0.0)
    lost = min(LOST, LOST_OF_LARGEST * largest)
    return all(bool(((p.half().float() - p).abs_() <= lost).all()) for p in pieces)


def unquantized_linear(
    weight: Tensor, bias: Tensor | None, *, two_layouts: bool = True, copied: bool = True
) -> nn.Linear | PackedLinear:
    """The fastest layer for a matrix of this type and size on its device.

    Args:
        weight: [out, in].
        two_layouts: a matrix that needs 32 bits may be held twice; else one that is streamed faster
            in rows keeps them, since a step of one token is the baseline of every speed-up.
        copied: the weight is no piece of a mapped file, which a layer would keep in memory whole.
    """
    layout = None
    if weight.device.type == "cpu":
        narrow = fits_16_bits(weight)
        layout = layout_on_cpu(weight.numel(), weight.dtype, narrow, two_layouts=two_layouts)
    if layout is None:
        return plain_linear(weight, bias)
    if layout == IN_16_BITS:
        return PackedLinear(weight, layout, in_16_bits(weight, bias))
    if layout == PACKED:
        rows = 1 if weight.dtype == torch.bfloat16 else SEVERAL
        return PackedLinear(weight, layout, in_blocks(weight, bias, rows))
    held = weight.contiguous() if copied else weight.clone()
    several = in_blocks(weight, bias) if layout == TWICE else None
    return PackedLinear(weight, layout, _onednn(held, bias), several, held)


def layout_on_cpu(
    weights: int, dtype: torch.dtype, narrow: bool, *, two_layouts: bool = True
) -> str | None:
    """How a CPU holds a matrix of so many weights; None: in the rows of PyTorch's layer.

    Args:
        narrow: whether 16 bits hold its float32 weights.
    """
    bfloat16 = dtype == torch.bfloat16 and multiplies_bfloat16()
    size = weights * dtype.itemsize
    if size < PACKED_FROM or not (has_onednn() and (bfloat16 or dtype == torch.float32)):
        return None
    if narrow:
        return IN_16_BITS
    if bfloat16 or size < ROWS_FROM:
        return PACKED
    return TWICE if two_layouts else IN_ROWS


def in_blocks(weight: Tensor, bias: Tensor | None, rows: int = SEVERAL) -> Product:
    """The product with a copy of the weights packed for so many rows."""
    return _onednn(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows), bias)


def _onednn(held: Tensor, bias: Tensor | None) -> Product:
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(x: Tensor) -> Tensor:
        if x.shape[0] <= EXACT_SIZE_ROWS:
            return multiply(x, held, bias, "none", [], "")
        return multiply(padded(x), held, bias, "none", [], "")[: x.shape[0]]

    return product


def in_16_bits(weight: Tensor, bias: Tensor | None) -> Product:
    """The product of float32 activations with the weights as float16, summed in float32."""
    held = torch.ops.quantized.linear_prepack_fp16(weight.contiguous(), bias)
    multiply = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: multiply(x, held)


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """PyTorch's layer around these tensors."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


class ProductLinear(nn.Module):
    """A linear layer by its `product`, for tokens of any shape."""

    product: Product

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x.reshape(-1, self.in_features))
        return out.view(*x.shape[:-1], self.out_features)


class PackedLinear(ProductLinear):
    """A layer by one product for one token and, where weights are held twice, another for several.

    Args:
        weight: for sizes alone.
        rows: the weights as they came where they are among those that are held; they may be an
            embedding's too.
    """

    def __init__(
        self,
        weight: Tensor,
        layout: str,
        one: Product,
        several: Product | None = None,
        rows: Tensor | None = None,
    ) -> None:
        super().__init__(weight)
        self.layout = layout
        self.weight_bytes = 2 * weight.numel() if layout == IN_16_BITS else weight.nbytes
        self.second_layout_bytes = weight.nbytes if layout == TWICE else 0
        self.address = None if rows is None else rows.data_ptr()
        self.product = one
        if several is not None:
            self.product = lambda x: one(x) if x.shape[0] == 1 else several(x)


def as_function(layer: nn.Module) -> Product:
    """A function that computes `layer` on [n, in], without the module around it where possible.

    A step calls a hundred layers, and the weights of each empty the cache before the next: entering
    a module, of which the interpreter reads a dozen attributes, then takes as long as an operation.
    """
    if isinstance(layer, nn.Linear):
        return partial(functional.linear, weight=layer.weight, bias=layer.bias)
    return getattr(layer, "product", layer)


def layouts_of(layers: Iterable[nn.Module]) -> str:
    """What a runner's name says of how its layers hold and multiply their weights."""
    held: set[str] = {getattr(layer, "layout", PACKED) for layer in layers}
    return "".join(f", {layout}" for layout in sorted(held - {PACKED, IN_ROWS}))


def padded_size(rows: int) -> int:
    """Rows that a product over `rows` rows is made with: eight sizes to each doubling.

    oneDNN compiles kernels for every size and keeps them, mostly for good: passes over prompts and
    responses have thousands of sizes, and each took 0.7 MB of a small model's memory and longer
    than the rows of zeros do.
    """
    if rows <= EXACT_SIZE_ROWS:
        return rows
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step


def padded(x: Tensor) -> Tensor:
    """x [rows, inputs] with zeros below, up to `padded_size`."""
    missing = padded_size(len(x)) - len(x)
    return functional.pad(x, (0, 0, 0, missing)) if missing else x
