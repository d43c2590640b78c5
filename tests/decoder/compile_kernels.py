"""Compiles what passes of an 8B model would launch on Ada, Hopper and Blackwell GPUs, without one.

Triton refuses at its first call a kernel that keeps more in shared memory than a GPU has.
"""

from functools import partialmethod
from types import SimpleNamespace
from unittest.mock import patch

import torch
import triton
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from draftbench.decoder import kernels
from draftbench.decoder.attention import Rotary
from draftbench.decoder.fused import FusedPasses
from draftbench.decoder.linear import Matrix
from draftbench.decoder.llama_model import Layer

# Bytes of shared memory that a program may have, by compute capability (NVIDIA, CUDA C++
# Programming Guide).
SHARED = {89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
HIDDEN, INNER, HEADS, KV_HEADS, HEAD, WORDS = 4096, 14336, 32, 8, 128, 128256
# Types of the model and of its weights; on the oldest also those that newer models do not have.
TYPES = [(torch.bfloat16, held) for held in (torch.bfloat16, torch.int8, torch.float8_e4m3fn)]
OLDER = [(dtype, dtype) for dtype in (torch.float16, torch.float32)]


def on_card(*size, dtype):
    return torch.empty(*size, dtype=dtype, device="cuda")


def model(dtype, held, normed):
    """An 8B model of one layer whose tensors have no values; its heads may be normed."""

    def linear(outputs, inputs):
        scale = on_card(outputs, dtype=torch.float32) if held.itemsize == 1 else None
        linears.append(
            SimpleNamespace(matrix=Matrix(on_card(outputs, inputs, dtype=held), scale, None))
        )
        return lambda x: x.new_empty(len(x), outputs)

    def norm(width):
        return SimpleNamespace(
            weight=on_card(width, dtype=dtype), eps=1e-5, shape=torch.Size([width])
        )

    linears = []
    layer = Layer(
        input_norm=norm(HIDDEN),
        qkv=linear((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN),
        q_norm=norm(HEAD) if normed else None,
        k_norm=norm(HEAD) if normed else None,
        out=linear(HIDDEN, HEADS * HEAD),
        mlp_norm=norm(HIDDEN),
        gate_up=linear(2 * INNER, HIDDEN),
        down=linear(HIDDEN, INNER),
        next_norm=norm(HIDDEN),
    )
    return SimpleNamespace(
        layers=[layer],
        logits=linear(WORDS, HIDDEN),
        linears=linears,
        like=on_card(1, dtype=dtype),
        embedding=on_card(WORDS, HIDDEN, dtype=dtype),
        rotary=Rotary(*(on_card(8192, 1, HEAD, dtype=dtype) for _ in range(2))),
    )


def compiled(capability, kernel, args, options):
    """As `JITFunction.run` would compile it for these arguments."""
    bound = dict(zip(kernel.arg_names, args, strict=False))
    bound |= {name: options.pop(name) for name in kernel.arg_names if name in options}
    types, values, divides = {}, {}, {}
    for at, (parameter, value) in enumerate(zip(kernel.params, bound.values(), strict=True)):
        one = isinstance(value, int) and value == 1
        if parameter.is_constexpr or value is None or one:
            types[parameter.name], values[(at,)] = "constexpr", value
            continue
        types[parameter.name] = mangle_type(value)
        if isinstance(value, torch.Tensor) or (isinstance(value, int) and value % 16 == 0):
            divides[(at,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, types, values, divides)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def check(kernel, capability, *args, grid, warmup, **options):
    shared = compiled(capability, kernel, args, options).metadata.shared
    assert shared <= SHARED[capability], (kernel, capability, args, shared)


def main():
    real = {name: op._init_fn for name, op in vars(kernels).items() if isinstance(op, CustomOpDef)}
    for capability, shared in SHARED.items():
        card = SimpleNamespace(shared_memory_per_block_optin=shared)
        run = patch.object(JITFunction, "run", partialmethod(check, capability))
        torch.cuda.get_device_properties = lambda device, card=card: card
        with FakeTensorMode(), patch.multiple(kernels, **real), run:
            for dtype, held in TYPES + OLDER * (capability == min(SHARED)):
                passes = FusedPasses(model(dtype, held, normed=dtype == torch.bfloat16))
                for rows, width, reach in ((1, 1, 256), (1, 5, 4096), (16, 4, 4096)):
                    slabs = on_card(1, 2, rows, KV_HEADS, 4096, HEAD, dtype=dtype)
                    tokens = torch.empty(rows * width, dtype=torch.long, device="cuda")
                    starts = torch.empty(rows, dtype=torch.long, device="cuda")
                    passes(reach, tokens, starts, slabs)


if __name__ == "__main__":
    main()
