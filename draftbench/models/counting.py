"""A built runner → what its weights are and take, counted by their real types."""

from __future__ import annotations

from torch import Tensor, nn

from draftbench.decoder.kernels import PackedLinear
from draftbench.decoder.linear import SimulatedLinear
from draftbench.decoder.quantized import Int4Linear, Int8Linear, Int8WeightOnlyLinear
from draftbench.decoder.runner import Runner
from draftbench.models.stored import StoredLinear, tensor_bytes

_OURS = PackedLinear | Int8Linear | Int8WeightOnlyLinear | Int4Linear | SimulatedLinear
Linear = nn.Linear | _OURS | StoredLinear
_ROUNDED = (Int8Linear, Int8WeightOnlyLinear, Int4Linear, SimulatedLinear, StoredLinear)


def linears(runner: Runner) -> list[Linear]:
    """Every linear layer; the wide twin inside an int4 layer is not another."""
    return [module for module in runner.modules() if isinstance(module, Linear)]


def quantized_share(runner: Runner) -> float:
    """Share of multiplied weights that are of a quantized type, or were rounded to one.

    Experts that a model keeps stacked in one tensor of three dimensions are weights too, and no
    layer of theirs is replaced.
    """
    total = sum(tensor.numel() for tensor in runner.tensors() if tensor.ndim > 2)
    quantized = 0
    for layer in linears(runner):
        size = layer.in_features * layer.out_features
        total += size
        if isinstance(layer, _ROUNDED) or not _is_plain(layer):
            quantized += size
    return quantized / total if total else 0.0


def weight_bytes(runner: Runner) -> int:
    """Bytes of all that is kept, by its real type; what is shared (a tied head) counts once."""
    shared = {tensor.data_ptr(): tensor.nbytes for tensor in runner.tensors()}
    own = 0
    for layer in linears(runner):
        if isinstance(layer, nn.Linear) and _is_plain(layer):
            shared[layer.weight.data_ptr()] = layer.weight.nbytes
        else:
            own += layer_bytes(layer)
    return sum(shared.values()) + own


def layer_bytes(layer: Linear) -> int:
    """Bytes of one layer's weights, which is what a step reads of it."""
    return tensor_bytes(layer.weight) if isinstance(layer, nn.Linear) else layer.weight_bytes


def _is_plain(layer: Linear) -> bool:
    """Not one of torchao's tensor classes."""
    return not isinstance(layer, nn.Linear) or type(layer.weight.data) is Tensor
