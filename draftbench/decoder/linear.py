"""Unquantized linear layers: the fastest one for a weight matrix on its device; what this CPU can.

A step should read its weights at the speed of the memory, and a pass over several tokens cost
little more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder import avx512_kernel
from draftbench.decoder.traces import scripted

Product = Callable[[Tensor], Tensor]
# Under so many bytes oneDNN's call takes longer than it saves.
CACHED_BYTES = 1 << 20
# Of 8-bit activations, whose codes are unsigned.
UINT8_ZERO = 128
# Up to so many rows a product is made at its exact size.
EXACT_SIZE_ROWS = 32


def has_onednn() -> bool:
    """Whether PyTorch was built with it."""
    return torch.backends.mkldnn.is_available()


@cache  # a trace cannot hold the question
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
    weight: Tensor, bias: Tensor | None, *, copied: bool = True
) -> nn.Linear | PackedLinear:
    """The fastest layer for its type on this device. Small float32 matrices stay in the cache of a
    CPU, where a plain layer is fastest.

    Args:
        copied: the weight is no piece of a mapped file, which a layer would keep in memory whole.
    """
    narrow = weight.dtype == torch.bfloat16 and multiplies_bfloat16()
    if narrow and (kernels := avx512_kernel.kernels_for(weight)):
        return StreamedLinear(weight if copied else weight.clone(), bias, kernels)
    large = weight.dtype == torch.float32 and weight.nbytes >= CACHED_BYTES and has_onednn()
    if weight.device.type == "cpu" and (narrow or large):
        return PackedLinear(weight, bias)
    return plain_linear(weight, bias)


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """PyTorch's layer around these tensors."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    _hold(layer, weight, bias)
    return layer


def _hold(layer: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)


class StreamedLinear(nn.Linear):
    """bfloat16 weights as they lie in memory, by the kernel compiled for this machine.

    Args:
        weight: [out, in], not copied.
    """

    streams = True

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: avx512_kernel.Kernels) -> None:
        outputs, inputs = weight.shape
        kernel = kernels.bfloat16
        super().__init__(inputs, outputs, bias=bias is not None, device="meta")
        held = weight.contiguous()
        _hold(self, held, bias)

        def product(x: Tensor) -> Tensor:
            rows = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
            rows = rows if rows.stride(1) == 1 else rows.contiguous()
            out = kernel(rows, held, bias)
            return out if x.ndim == 2 else out.view(*x.shape[:-1], outputs)

        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class PackedLinear(nn.Module):
    """Weights in oneDNN's blocked layout; the original is not kept. `packed` are tensors that a
    trace cannot hold and has to be given.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        outputs, inputs = self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.numel() * weight.element_size()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1)
        self.packed = [packed]
        kernel = onednn().packed_linear
        exact_size = EXACT_SIZE_ROWS * inputs

        def product(x: Tensor) -> Tensor:
            if x.numel() <= exact_size:
                return kernel(x, packed, bias)  # type: ignore[no-any-return]
            rows = x.reshape(-1, inputs)
            out = kernel(padded(rows), packed, bias)[: len(rows)]
            return out.view(*x.shape[:-1], outputs)  # type: ignore[no-any-return]

        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


def as_function(layer: nn.Module) -> Product:
    """A function that computes `layer` on [n, in], without the module around it where possible.

    A step calls a hundred layers, and the weights of each empty the cache before the next: entering
    a module, of which the interpreter reads a dozen attributes, then takes as long as an operation.
    """
    return getattr(layer, "product", layer)


def streams(layers: Iterable[nn.Module]) -> bool:
    """Whether one of them reads its weights by the kernel compiled for this machine."""
    return any(getattr(layer, "streams", False) for layer in layers)


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


# oneDNN's operations as functions that a trace can hold: it cannot hold the empty lists among their
# arguments.
_SCRIPT = f"""
def packed_linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")

def int8_linear(x: Tensor, weight: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
    return torch.ops.onednn.qlinear_pointwise(
        x, 1.0, {UINT8_ZERO}, weight, scale, zero_point, None, 1.0, 0, torch.float32, "none", [], ""
    )
"""


@cache
def onednn() -> Any:
    """`packed_linear` and `int8_linear`."""
    return scripted(_SCRIPT)
