"""A weight matrix → the fastest linear layer this device has for it, at a quantization level.

A CPU has kernels of its own (`kernels`, `quantized`); on CUDA, levels go through torchao. Knows
nothing of models; which layers are quantized is decided in `quantize`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder import streamed
from draftbench.decoder.kernels import multiplies_integers, plain_linear, unquantized_linear
from draftbench.decoder.quantized import Int4Linear, Int8Linear, Int8WeightOnlyLinear
from draftbench.memory import INT4_GROUP


class SimulatedLinear(nn.Module):
    """Weights rounded to a level's grid and stored back: right acceptance, no kernel, hence no
    cost.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, level: str) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = _ROUNDED[level](weight)
        self.bias = bias
        self.weight_bytes = self.weight.numel() * self.weight.element_size()

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


def _rounded_fp8(weight: Tensor) -> Tensor:
    top = torch.finfo(torch.float8_e4m3fn).max
    scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-12) / top
    return ((weight.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(weight.dtype)


# The levels that some device has no kernel for.
_ROUNDED = {"fp8": _rounded_fp8}


def fits_level(weight: Tensor, level: str) -> bool:
    """Whether a level's grid divides this matrix; int4 needs whole groups (and 16 outputs for its
    kernel's blocks).
    """
    return level != "int4" or (weight.shape[1] % INT4_GROUP == 0 and weight.shape[0] % 16 == 0)


def make_linear(
    weight: Tensor, bias: Tensor | None, level: str, *, simulate: bool, own: bool = False
) -> nn.Module:
    """The layer that computes `x @ weight.T + bias` at `level`.

    Args:
        weight: [out, in] on its final device.
        bias: [out] or None.
        level: none, int8, int4 or fp8.
        simulate: round the weights instead of using a kernel.
        own: the weight is no piece of a mapped file.
    """
    if level == "none" or not fits_level(weight, level):
        return unquantized_linear(weight, bias, own=own)
    if simulate:
        return SimulatedLinear(weight, bias, level)
    if weight.device.type == "cuda":
        return torchao_linear(weight, bias, level)
    weight_only = streamed.kernels_for(weight) or not multiplies_integers()
    int8 = Int8WeightOnlyLinear if weight_only else Int8Linear
    return {"int8": int8, "int4": Int4Linear}[level](weight, bias)


def torchao_linear(weight: Tensor, bias: Tensor | None, level: str) -> nn.Module:
    """A layer whose weights torchao quantized, for the kernels it has on CUDA."""
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        Int4WeightOnlyConfig,
        Int8WeightOnlyConfig,
        PerRow,
        quantize_,
    )

    config = {
        "fp8": lambda: Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()),
        "int8": Int8WeightOnlyConfig,
        # The layout whose kernel PyTorch carries; the others want a library of their own.
        "int4": lambda: Int4WeightOnlyConfig(
            group_size=INT4_GROUP, int4_packing_format="tile_packed_to_4d"
        ),
    }[level]()
    layer = plain_linear(weight, bias)
    quantize_(layer, config)
    return layer
