"""Times one matrix in each layout of its weights, for 1 to 64 rows, from memory and from the cache.
`draftbench.decoder.linear` and `quantized_linear` choose layouts by these times.

    python scripts/bench_layouts.py                       # float32, the shapes of three models
    python scripts/bench_layouts.py --dtype bfloat16 --shapes 8960x1536,1536x8960
    python scripts/bench_layouts.py --level int8

The last column tells how slow one row is: over 1, a pass over several tokens is faster than a plain
step. `ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16` shows a CPU with AMX without it.

On a CPU with AVX-512 `ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2
FBGEMM_ENABLE_INSTRUCTIONS=AVX2 NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma,+f16c` shows
what one without would take.
"""

import argparse
import time

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional

from draftbench.decoder.cpu_products import PanelProduct
from draftbench.decoder.device import set_threads
from draftbench.decoder.linear import (
    INT8_ONEDNN,
    INT8_WEIGHT_ONLY,
    SEVERAL,
    has_fbgemm,
    multiplies_bfloat16,
)
from draftbench.decoder.quantized_linear import (
    INT8_PRODUCTS,
    Int4Linear,
    Int8Linear,
    Int8WeightOnlyLinear,
)
from draftbench.memory import LEVELS
from draftbench.sweep.estimates import speed_of

# Qwen2.5-1.5B's, SmolLM2-135M's and the embedded target's.
SHAPES = (
    "8960x1536,1536x8960,2048x1536,49152x576,3072x576,576x1536,960x576,1408x256,256x704,512x256"
)
ROWS = (1, 2, 3, 4, 5, 8, 16, 64)
REPEATS = 9
# More than any cache of the processors that this was written on.
COLD_BYTES = 300_000_000


def layouts(weight: torch.Tensor, level: str) -> dict[str, object]:
    """The products to time by name, each with its copy of the weights."""
    if level == "int8":
        ways = [way for way in INT8_PRODUCTS if way == INT8_ONEDNN or has_fbgemm()]
        products = {way: Int8Linear(weight, None, way).product for way in ways}
        return products | {INT8_WEIGHT_ONLY: Int8WeightOnlyLinear(weight, None).product}
    if level == "int4":
        layer = Int4Linear(weight, None)
        return {"int4 codes": layer.by_codes, "wide copy": layer.by_copy}
    multiply = torch.ops.mkldnn._linear_pointwise.default
    packed = torch.ops.mkldnn._reorder_linear_weight

    def by_onednn(held):
        return lambda x: multiply(x.to(weight.dtype), held, None, "none", [], "")

    plain = weight.clone()
    products = {"PyTorch": lambda x: functional.linear(x.to(weight.dtype), plain)}
    if weight.dtype == torch.float32:
        products["rows"] = by_onednn(weight.clone())
    products["packed"] = by_onednn(packed(weight, SEVERAL))
    products["16 bits in panels"] = PanelProduct(weight.bfloat16(), None)
    return products


def bytes_of(name: str, dtype: torch.dtype, level: str) -> float:
    """Bytes of a weight in a layout."""
    if level != "none" and name != "wide copy":
        return LEVELS[level].per_weight
    return 2 if name in ("16 bits in panels", "wide copy") else dtype.itemsize


@torch.inference_mode()
def measure(
    outputs: int, inputs: int, dtype: torch.dtype, level: str, copies: int
) -> dict[str, list[float]]:
    """The least seconds of each layout for each number of rows, the layouts taking turns."""
    weight = torch.randn(outputs, inputs).to(dtype)
    sets = [layouts(weight, level) for _ in range(copies)]
    best = {(name, rows): float("inf") for name in sets[0] for rows in ROWS}
    for _ in range(REPEATS):
        for rows in ROWS:
            x = torch.randn(rows, inputs)
            for name in sets[0]:
                start = time.perf_counter()
                for products in sets:
                    products[name](x)
                seconds = (time.perf_counter() - start) / copies
                best[name, rows] = min(best[name, rows], seconds)
    return {name: [best[name, rows] for rows in ROWS] for name in sets[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--level", choices=("none", "int8", "int4"), default="none")
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    threads, console = set_threads(options.threads), Console(width=130)
    read = speed_of("cpu", torch.float32).reading / 1e9
    console.print(f"A plain read: {read:.1f} GB/s with {threads} threads.")
    dtype = getattr(torch, options.dtype)
    if dtype == torch.bfloat16 and not multiplies_bfloat16():
        console.print("This CPU does not multiply bfloat16: it runs float32 by default.")
    for shape in options.shapes.split(","):
        outputs, inputs = map(int, shape.split("x"))
        size = outputs * inputs * dtype.itemsize
        for place, copies in (("memory", max(1, COLD_BYTES // size)), ("cache", 1)):
            table = Table(
                "µs", *(f"{rows} rows" for rows in ROWS), "GB/s at 1", "1 over the least of more",
                title=f"{shape}, {size / 1e6:.1f} MB from {place}, {threads} threads",
            )  # fmt: skip
            for name, seconds in measure(outputs, inputs, dtype, options.level, copies).items():
                read = outputs * inputs * bytes_of(name, dtype, options.level)
                slow = f"{seconds[0] / min(seconds[1:]):.2f}"
                micros = (f"{1e6 * each:.0f}" for each in seconds)
                table.add_row(name, *micros, f"{read / seconds[0] / 1e9:.1f}", slow)
            console.print(table)


if __name__ == "__main__":
    main()
