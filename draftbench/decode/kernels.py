"""A weight matrix → a layer that multiplies it on a CPU, packed for oneDNN or quantized.

Weights are packed once: a step then runs near the memory's read bandwidth, and a pass over several
tokens costs little more. int8 multiplies bytes where the CPU can, int4 uses the weight-only kernel
that PyTorch carries. Activations are never quantized per tensor: a token's result must not depend
on its neighbours, or replay would not predict the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.nn import functional

from draftbench.decode import streamed
from draftbench.decode.traced import scripted

Product = Callable[[Tensor], Tensor]
INT4_GROUP = 32
# The weight-only kernels take as long again for every row: beyond so many rows another way is
# faster.
INT8_KERNEL_ROWS, INT4_KERNEL_ROWS = 16, 2
# Under so many bytes oneDNN's call takes longer than it saves.
CACHED_BYTES = 1 << 20
# The largest code, and the code of zero where codes are unsigned.
INT8_TOP, UINT8_ZERO = 127, 128
# In place of the largest value of a row of zeros.
SMALLEST = 1e-8
# Up to so many rows a product is made at its own size.
OWN_SIZE_ROWS = 32


def at_a_common_size(rows: int) -> int:
    """Rows that a product over `rows` rows is made with: eight sizes to each doubling.

    oneDNN compiles kernels for every size and keeps them, mostly for good: passes over prompts and
    responses have thousands of sizes, and each took 0.7 MB of a small model's memory and longer
    than the rows of zeros do.
    """
    if rows <= OWN_SIZE_ROWS:
        return rows
    step = 1 << (rows.bit_length() - 4)
    return -(-rows // step) * step


def _padded(x: Tensor) -> Tensor:
    """x [rows, inputs] with zeros below, up to a common size."""
    missing = at_a_common_size(len(x)) - len(x)
    return functional.pad(x, (0, 0, 0, missing)) if missing else x


def as_function(layer: nn.Module) -> Product:
    """What computes `layer` on [n, in], without a module around it where that is possible.

    A step calls a hundred layers, and the weights of each empty the cache before the next: entering
    a module, of which the interpreter reads a dozen attributes, then takes as long as an operation.
    """
    return getattr(layer, "product", layer)


def has_onednn() -> bool:
    """Whether PyTorch was built with it."""
    return torch.backends.mkldnn.is_available()


@cache  # a trace cannot hold the question
def multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for it: without, a pass over n tokens takes n steps."""
    return has_onednn() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _wide() -> torch.dtype:
    """What passes of quantized weights over many tokens are multiplied in on this CPU."""
    return torch.bfloat16 if multiplies_bfloat16() else torch.float32


def multiplies_integers() -> bool:
    """Whether this CPU sums products of bytes without overflow (AVX-VNNI or AMX)."""
    found = torch.cpu.get_capabilities()
    return any(found.get(name) for name in ("avx512_vnni", "avx_vnni", "amx_int8"))


def unquantized_linear(weight: Tensor, bias: Tensor | None, *, own: bool = True) -> nn.Module:
    """The fastest for its type on this device: small float32 matrices stay in the cache of a CPU,
    where a plain layer is.

    Args:
        own: the weight is no piece of a mapped file, of which a layer would keep the whole in
            memory.
    """
    streams = weight.dtype == torch.bfloat16 and multiplies_bfloat16()
    if streams and (kernels := streamed.kernels_for(weight)):
        return StreamedLinear(weight if own else weight.clone(), bias, kernels)
    packable = weight.device.type == "cpu" and (
        (weight.dtype == torch.bfloat16 and multiplies_bfloat16())
        or (weight.dtype == torch.float32 and weight.nbytes >= CACHED_BYTES and has_onednn())
    )
    return PackedLinear(weight, bias) if packable else plain_linear(weight, bias)


def plain_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    return _holding(layer, weight, bias)


def _holding(layer: nn.Linear, weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """The layer, made without memory, with these."""
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


@cache
def _scripted() -> Any:
    return scripted(_SCRIPT)


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


class StreamedLinear(nn.Linear):
    """bfloat16 weights as they lie in memory, by the kernel compiled for this machine.

    Args:
        weight: [out, in], not copied.
    """

    streams = True

    def __init__(self, weight: Tensor, bias: Tensor | None, kernels: streamed.Kernels) -> None:
        outputs, inputs = weight.shape
        kernel = kernels.bfloat16
        super().__init__(inputs, outputs, bias=bias is not None, device="meta")
        held = weight.contiguous()
        _holding(self, held, bias)

        def product(x: Tensor) -> Tensor:
            if x.ndim == 2:
                return kernel(x, held, bias)
            return kernel(x.reshape(-1, inputs), held, bias).view(*x.shape[:-1], outputs)

        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class PackedLinear(nn.Module):
    """Weights in oneDNN's blocked layout; the original is not kept. `packed` are what a trace
    cannot hold and has to be given.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        outputs, inputs = self.out_features, self.in_features = weight.shape
        self.weight_bytes = weight.numel() * weight.element_size()
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), 1)
        self.packed = [packed]
        kernel = _scripted().packed_linear
        own_size = OWN_SIZE_ROWS * inputs

        def product(x: Tensor) -> Tensor:
            if x.numel() <= own_size:
                return kernel(x, packed, bias)  # type: ignore[no-any-return]
            rows = x.reshape(-1, inputs)
            out = kernel(_padded(rows), packed, bias)[: len(rows)]
            return out.view(*x.shape[:-1], outputs)  # type: ignore[no-any-return]

        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


class Int8Linear(nn.Module):
    """int8 weights with one scale per output channel times 8-bit activations with one scale per
    token: their products are summed as integers, exactly, at the speed of the memory.

    Activations are unsigned around `UINT8_ZERO`: CPUs with AVX-512 but without AMX have no kernel
    for a product of signed bytes, and oneDNN's reference takes hundreds of times as long.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        exact = weight.float()
        largest = exact.abs().amax(1, keepdim=True).clamp_(min=SMALLEST)
        codes = exact.mul(INT8_TOP / largest).round_().to(torch.int8)
        packed = torch.ops.onednn.qlinear_prepack(codes, None)
        self.packed = [packed]
        kernel = _scripted().int8_linear
        # Of weight and activation: a product of their codes stands for both largest values / 127².
        scale = largest[:, 0] / INT8_TOP**2
        zero_point = torch.zeros(self.out_features, dtype=torch.int32)
        # Conversion cuts digits off: with a half more it rounds.
        middle = torch.tensor(UINT8_ZERO + 0.5)
        self.weight_bytes = codes.numel() + 4 * scale.numel()
        own_size = OWN_SIZE_ROWS * self.in_features

        def product(x: Tensor) -> Tensor:
            rows = x if x.numel() <= own_size else _padded(x)
            largest = vector_norm(rows, torch.inf, 1, True, dtype=torch.float32)
            # A row of zeros has no code, and whatever it becomes is multiplied by 0.
            codes = torch.addcdiv(middle, rows, largest, value=INT8_TOP).to(torch.uint8)
            # The kernel takes one scale for all tokens; theirs are applied afterwards.
            sums = kernel(codes, packed, scale, zero_point)
            out = sums.mul_(largest).to(x.dtype)
            out = out if bias is None else out.add_(bias)
            return out if rows is x else out[: len(x)]

        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x.reshape(-1, self.in_features))
        return out.view(*x.shape[:-1], self.out_features)


class Int8WeightOnlyLinear(nn.Module):
    """int8 weights with one scale per output channel, activations in bfloat16. By the kernel
    compiled for this machine, or for a CPU that does not multiply integers: smaller than bfloat16,
    and faster where that is not multiplied either.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        exact = weight.float()
        self.scale = (exact.abs().amax(1).clamp(min=SMALLEST) / INT8_TOP).to(torch.bfloat16)
        # By the scale as it is kept: its rounding would else stretch or shrink a whole output.
        codes = (exact / self.scale.float()[:, None]).round_()
        self.weight = codes.clamp_(-INT8_TOP, INT8_TOP).to(torch.int8)
        kernels = streamed.kernels_for(weight)
        self.streams = kernels is not None
        weight, scale = self.weight, self.scale
        scales = scale.float() if self.streams else scale
        self.weight_bytes = weight.nbytes + scales.nbytes

        def product(x: Tensor) -> Tensor:
            flat = x.to(torch.bfloat16)
            if kernels is not None:
                out = kernels.int8(flat, weight, scales, None)
            elif flat.shape[0] <= INT8_KERNEL_ROWS:
                out = torch._weight_int8pack_mm(flat, weight, scale)
            else:  # integers up to 128 are exact in bfloat16, so this is the same product
                wide = functional.linear(_padded(flat).to(_wide()), weight.to(_wide()))
                out = wide[: len(flat)] * scale
            return out.to(x.dtype) if bias is None else out.to(x.dtype).add_(bias)

        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x.reshape(-1, self.in_features))
        return out.view(*x.shape[:-1], self.out_features)


class Int4Linear(nn.Module):
    """4-bit weights in groups of 32 inputs with scale and offset, activations in bfloat16.

    Beside them the same weights as wide as this CPU multiplies them, for passes over several tokens
    (prompts, replay, verification): the 4-bit kernel takes as long again for every row.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        groups = weight.float().reshape(self.out_features, -1, INT4_GROUP)
        low, high = groups.amin(2), groups.amax(2)
        scale = ((high - low) / 15).clamp(min=1e-8).to(torch.bfloat16)
        # The kernel computes (code - 8) · scale + offset.
        offset = (low + 8 * scale.float()).to(torch.bfloat16)
        shift = (groups - offset.float()[:, :, None]) / scale.float()[:, :, None]
        codes = (shift.round() + 8).clamp(0, 15)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
            codes.to(torch.int32).reshape(weight.shape), 1
        )
        scale_and_offset = torch.stack([scale, offset], dim=2).transpose(0, 1).contiguous()
        kernel = torch.ops.aten._weight_int4pack_mm_for_cpu.default
        exact = (codes - 8) * scale.float()[:, :, None] + offset.float()[:, :, None]
        wide_dtype = self.wide_dtype = _wide()
        twin = unquantized_linear(exact.reshape(weight.shape).to(wide_dtype), None)
        self.packed, self.streams = getattr(twin, "packed", []), hasattr(twin, "streams")
        wide = as_function(twin)
        self.weight_bytes = packed.numel() + 2 * scale_and_offset.numel()

        def product(x: Tensor) -> Tensor:
            if x.shape[0] <= INT4_KERNEL_ROWS:
                # The kernel refuses rows that do not follow each other in memory.
                narrow = x.to(torch.bfloat16).contiguous()
                out = kernel(narrow, packed, INT4_GROUP, scale_and_offset).to(x.dtype)
            else:
                out = wide(x.to(wide_dtype)).to(x.dtype)
            return out if bias is None else out.add_(bias)

        self.product = product

    def forward(self, x: Tensor) -> Tensor:
        out = self.product(x.reshape(-1, self.in_features))
        return out.view(*x.shape[:-1], self.out_features)
