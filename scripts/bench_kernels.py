"""Times the kernels of recorded passes on a GPU: each product against a read of its weights at the
memory's speed and against PyTorch's product, attention, which here also rotates and stores, against
PyTorch's FlashAttention. Matrices are those of models with 8, 1.5 and 0.3 billion weights.

    python scripts/bench_kernels.py [FILE]

It prints a line for each, and appends its figures to FILE as JSON. Of 16-bit weights it also prints
what other sizes of a program's work would give.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from draftbench.decoder.device import has_triton
from draftbench.decoder.quantized_linear import EightBitLinear, kernel_of

# Outputs and inputs of each, and the tokens that it is multiplied with.
MATRICES = {
    "8B qkv": (6144, 4096),
    "8B out": (4096, 4096),
    "8B gate, up": (28672, 4096),
    "8B down": (4096, 14336),
    "8B head": (128256, 4096),
    "1.5B qkv": (3072, 2048),
    "1.5B gate, up": (16384, 2048),
    "1.5B down": (2048, 8192),
    "0.3B gate, up": (8192, 1024),
    "0.3B down": (1024, 4096),
}
TOKENS = (1, 16)
# Other values of constants of `kernels.py`: half the rows a program, fewer pieces on their way.
OTHERS = (("GROUP", 16), ("STAGES", 3))
# Rows and keys of attention with 32 heads of 128 over 8 key heads.
HEADS, KEY_HEADS, HEAD = 32, 8, 128
ATTENTION = [(rows, keys) for keys in (1024, 8192, 32768) for rows in (1, 8, 32)]
# Copies of a matrix take more than a GPU's caches, so that each is read from its memory.
COPIES = 300_000_000
REPLAYS = 5


def seconds(works: list[Callable[[], object]]) -> float:
    """Of one of some pieces of work, which are launched as one CUDA graph; the median."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for work in works[:2]:
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for work in works:
            work()
    for _ in range(1 + REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000 / len(works))
    return median(times[1:])  # the first launch uploads the graph


def copies_of(size: int) -> int:
    return max(2, min(40, COPIES // size))


def normal(*size: int) -> Tensor:
    return torch.randn(*size, device="cuda", dtype=torch.bfloat16)


def products(
    level: str, outputs: int, inputs: int, n: int, *, gated: bool
) -> tuple[int, float, float | None]:
    """Bytes of the matrix, and seconds of a product here, gated or not, and by PyTorch."""
    from draftbench.decoder import kernels
    from draftbench.decoder.linear import Matrix

    x, theirs = normal(n, inputs), None
    if level == "none":
        weights = [normal(outputs, inputs) for _ in range(copies_of(2 * outputs * inputs))]
        matrices = [Matrix(weight, None, None) for weight in weights]
        theirs = seconds([lambda w=w: functional.linear(x, w) for w in weights])
    else:
        dtype = torch.int8 if level == "int8" else torch.float8_e4m3fn
        layers = [
            EightBitLinear(normal(outputs, inputs), None, dtype)
            for _ in range(copies_of(outputs * inputs))
        ]
        matrices = [layer.matrix for layer in layers]
    # As in a pass, tokens come in the matrix's type.
    given = [kernels.given(x, None, 0.0, None, matrix) for matrix in matrices]
    product = kernels.gated_product if gated else kernels.product
    ours = seconds([lambda g=g: product(*g, torch.bfloat16) for g in given])
    return matrices[0].weight.nbytes, ours, theirs


def attention(rows: int, keys: int) -> tuple[int, float, float]:
    """Bytes of keys and values, and seconds of one token a row here and by FlashAttention."""
    from draftbench.decoder import kernels

    size = 4 * rows * KEY_HEADS * keys * HEAD
    slabs = [normal(2, rows, KEY_HEADS, keys, HEAD) for _ in range(copies_of(size))]
    qkv = normal(rows, (HEADS + 2 * KEY_HEADS) * HEAD)
    starts, cos, sin = torch.full((rows,), keys - 1, device="cuda"), *normal(2, keys, 1, HEAD)
    given = (qkv, None, None, 0.0, starts, cos, sin)
    # It takes the heads that share a key as tokens, which all see every key.
    grouped = qkv[:, : HEADS * HEAD].reshape(rows, KEY_HEADS, -1, HEAD)
    flash = torch.ops.aten._scaled_dot_product_flash_attention.default
    ours = seconds([lambda s=s: kernels.attention(*given, s, keys, qkv.dtype) for s in slabs])
    return size, ours, seconds([lambda s=s: flash(grouped, *s.unbind()) for s in slabs])


@torch.inference_mode()
def main(file: Path | None) -> None:
    if not (torch.cuda.is_available() and has_triton("cuda")):
        sys.exit("error: this needs an NVIDIA GPU and Triton, which PyTorch's builds for CUDA have")
    block = torch.ones(1 << 30, device="cuda")
    speed = block.nbytes / seconds([block.sum] * 4)
    del block
    print(f"{torch.cuda.get_device_name()}: a plain read, {speed / 1e12:.2f} TB/s")

    def say(what: str, size: int, ours: float, theirs: float | None, peer: str) -> None:
        beside = "" if theirs is None else f"; {peer} {theirs * 1e6:.1f} µs"
        print(f"{what}: {ours * 1e6:.1f} µs, {size / ours / speed:.0%} of a read's speed{beside}")
        told = {"what": what, "bytes": size, "seconds": ours, peer: theirs, "read": speed}
        if file is not None:
            with file.open("a") as lines:
                lines.write(json.dumps(told) + "\n")

    from draftbench.decoder import kernels

    for level in ("none", "int8", "fp8"):
        if level != "none" and kernel_of(level, "cuda") is None:
            print(f"{level}: this GPU has no kernel")
            continue
        for name, shape in MATRICES.items():
            gated = "gate" in name
            for n in TOKENS:
                timed = products(level, *shape, n, gated=gated)
                say(f"{level} {name}, tokens {n}", *timed, "PyTorch")
            for constant, value in OTHERS if level == "none" else ():
                with patch.object(kernels, constant, value):
                    _, ours, _ = products(level, *shape, 1, gated=gated)
                print(f"    1 token with {constant} = {value}: {ours * 1e6:.1f} µs")
    for rows, keys in ATTENTION:
        say(f"attention of {rows} to {keys} keys", *attention(rows, keys), "FlashAttention")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
