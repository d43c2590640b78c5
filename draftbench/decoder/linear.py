"""Unquantized linear layers: on a CPU, weights in the layout that is fastest for the rows at hand.

A pass over one token streams a matrix once, as fast as the memory gives it. A pass over a few
tokens should cost little more, and does where oneDNN finds the weights packed in blocks; row after
row, as checkpoints have them, they take half as long again. Large matrices are streamed faster in
rows than in blocks, and get both layouts. `scripts/bench_layouts.py` times all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

# [n, inputs] → [n, outputs].
Product = Callable[[Tensor], Tensor]
# By the bytes of a matrix: smaller ones stay in a processor's cache, where oneDNN's call takes
# longer than its blocks save.
BLOCKS_FROM = 300_000
# Between these sizes blocks are as fast as anything for one token. Below, PyTorch's product is
# faster, above it oneDNN's over rows.
BLOCKS_ALONE = range(600_000, 8 << 20)
# oneDNN packs for a number of rows: for 1 (float32: not at all), and alike for all others.
SEVERAL = 8
# Up to so many rows a product is made at its exact size.
EXACT_SIZE_ROWS = 32


def has_onednn() -> bool:
    """Whether PyTorch was built with it."""
    return torch.backends.mkldnn.is_available()


def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it: without, a pass over n tokens takes n steps."""
    return has_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def wide_dtype() -> torch.dtype:
    """The type in which this CPU multiplies quantized weights with many tokens."""
    return torch.bfloat16 if multiplies_bfloat16() else torch.float32


def multiplies_integers() -> bool:
    """Whether this CPU sums products of bytes without overflow (AVX-VNNI or AMX)."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))


def unquantized_linear(
    weight: Tensor, bias: Tensor | None, *, two_layouts: bool = True, copied: bool = True
) -> nn.Linear | PackedLinear:
    """The fastest layer for a matrix of this type and size on its device.

    Args:
        weight: [out, in].
        two_layouts: a matrix may be held twice; else one that is streamed faster in rows keeps
            them, since a step of one token is the baseline of every speed-up.
        copied: the weight is no piece of a mapped file, which a layer would keep in memory whole.
    """
    narrow = weight.dtype == torch.bfloat16 and multiplies_bfloat16()
    packs = has_onednn() and (narrow or weight.dtype == torch.float32)
    if weight.device.type != "cpu" or not packs or weight.nbytes < BLOCKS_FROM:
        return plain_linear(weight, bias)
    if not narrow and weight.nbytes in BLOCKS_ALONE:
        blocks = in_blocks(weight, bias)
        return PackedLinear(weight, blocks, blocks)
    if narrow:
        rows = None
        one = _onednn(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1), bias)
    else:
        rows = weight.contiguous() if copied else weight.clone()
        small = weight.nbytes < BLOCKS_ALONE.start
        one = partial(functional.linear, weight=rows, bias=bias) if small else _onednn(rows, bias)
    return PackedLinear(weight, one, in_blocks(weight, bias) if two_layouts else one, rows)


def in_blocks(weight: Tensor, bias: Tensor | None) -> Product:
    """The product with a packed copy of the weights."""
    return _onednn(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), SEVERAL), bias)


def _onednn(held: Tensor, bias: Tensor | None) -> Product:
    multiply = torch.ops.mkldnn._linear_pointwise.default

    def product(x: Tensor) -> Tensor:
        if x.shape[0] <= EXACT_SIZE_ROWS:
            return multiply(x, held, bias, "none", [], "")
        return multiply(padded(x), held, bias, "none", [], "")[: x.shape[0]]

    return product


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """PyTorch's layer around these tensors."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


class PackedLinear(nn.Module):
    """A layer by one product for one token and another for several, which may be the same.

    Args:
        weight: for sizes alone.
        rows: the weights as they came where they are among those that are held; they may be an
            embedding's too.
    """

    def __init__(
        self, weight: Tensor, one: Product, several: Product, rows: Tensor | None = None
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.nbytes
        self.second_layout_bytes = weight.nbytes if one is not several else 0
        self.address = None if rows is None else rows.data_ptr()
        self.product = one if one is several else _by_rows(one, several)

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x.reshape(-1, self.in_features))
        return out.view(*x.shape[:-1], self.out_features)


def _by_rows(one: Product, several: Product) -> Product:
    return lambda x: one(x) if x.shape[0] == 1 else several(x)


def as_function(layer: nn.Module) -> Product:
    """A function that computes `layer` on [n, in], without the module around it where possible.

    A step calls a hundred layers, and the weights of each empty the cache before the next: entering
    a module, of which the interpreter reads a dozen attributes, then takes as long as an operation.
    """
    if isinstance(layer, nn.Linear):
        return partial(functional.linear, weight=layer.weight, bias=layer.bias)
    return getattr(layer, "product", layer)


def holds_two_layouts(layers: Iterable[nn.Module]) -> bool:
    """Whether one of them holds its weights twice."""
    return any(getattr(layer, "second_layout_bytes", 0) for layer in layers)


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
