"""What each quantization level does to a linear layer, and the kernel that computes it on a device.

Which levels there are and what they take stands in `memory`; levels of checkpoints that are stored
quantized are in `stored`.
"""

from __future__ import annotations

from draftbench.decoder import streamed
from draftbench.decoder.kernels import multiplies_integers
from draftbench.memory import INT4_GROUP, LEVELS
from draftbench.models.facts import LevelRow

EVERY_LAYER = "every linear layer, the output head included"
MEANINGS = {
    "none": "weights as loaded",
    "fp8": "e4m3 weights and activations, one scale per row",
    "int8": "8-bit weights, one scale per output",
    "int4": f"4-bit weights, scale and offset for every {INT4_GROUP}",
}
LAYERS = {"int4": f"{EVERY_LAYER}, where inputs divide by {INT4_GROUP} and outputs by 16"}


def kernel_of(level: str, kind: str) -> str | None:
    """The kernel of a level on a kind of device (`cpu`, `cuda`), None where there is none."""
    if kind == "cuda":
        return {
            "none": "cuBLAS",
            "fp8": "torchao, dynamic fp8",
            "int8": "torchao, weight-only",
            "int4": "torchao, weight-only",
        }[level]
    if level == "none":
        compiled = streamed.is_faster_here()
        return (
            "compiled for bfloat16 where it can be, else oneDNN" if compiled else "oneDNN, packed"
        )
    if level == "int8":
        if streamed.is_faster_here():
            return "compiled where it can be, weight-only"
        if multiplies_integers():
            return "oneDNN, activations in 8 bits too, one scale per token"
        return "PyTorch, weight-only"
    return "PyTorch, weight-only" if level == "int4" else None


def level_table(device: str) -> tuple[LevelRow, ...]:
    """Every level on this device (`cpu`, `cuda`, `cuda:1`, `auto`), in the table's order."""
    return tuple(
        LevelRow(
            level=level,
            meaning=MEANINGS[level],
            kernel=kernel_of(level, kind_of(device)),
            bytes_per_weight=None if storage is None else storage.per_weight,
            layers=LAYERS.get(level, EVERY_LAYER),
        )
        for level, storage in LEVELS.items()
    )


def kind_of(device: str) -> str:
    """Which kernels a device name means."""
    return "cpu" if device == "cpu" else "cuda"
