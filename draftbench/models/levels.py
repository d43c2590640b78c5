"""The table of quantization levels: what each does, and by which kernels where.

Levels of checkpoints that are stored quantized are not in it: see `stored`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftbench.decoder import streamed
from draftbench.decoder.kernels import multiplies_integers
from draftbench.decoder.quantized import INT4_GROUP
from draftbench.models.facts import LevelRow


@dataclass(frozen=True)
class Level:
    """A quantization level: what it does, its kernel on each kind of device that has one, the bytes
    that a weight takes beside one scale per output (None: as loaded), and which layers it covers.
    """

    meaning: str
    kernels: Mapping[str, str]
    bytes_per_weight: float | None
    layers: str


EVERY_LAYER = "every linear layer, the output head included"
LEVELS = {
    "none": Level(
        "weights as loaded",
        {
            "cpu": "compiled for bfloat16 where it can be, else oneDNN"
            if streamed.is_faster_here()
            else "oneDNN, packed",
            "cuda": "cuBLAS",
        },
        None,
        EVERY_LAYER,
    ),
    "fp8": Level(
        "e4m3 weights and activations, one scale per row",
        {"cuda": "torchao, dynamic fp8"},
        1.0,
        EVERY_LAYER,
    ),
    "fp8-weight": Level(
        "e4m3 weights, one scale per row; activations as they are",
        {"cuda": "torchao, weight-only: pays with --compile"},
        1.0,
        EVERY_LAYER,
    ),
    "int8": Level(
        "8-bit weights, one scale per output",
        {
            "cpu": "compiled where it can be, weight-only"
            if streamed.is_faster_here()
            else "oneDNN, activations in 8 bits too, one scale per token"
            if multiplies_integers()
            else "PyTorch, weight-only",
            "cuda": "torchao, weight-only",
        },
        1.0,
        EVERY_LAYER,
    ),
    "int4": Level(
        f"4-bit weights, scale and offset for every {INT4_GROUP}",
        {"cpu": "PyTorch, weight-only", "cuda": "torchao, weight-only"},
        0.5 + 4 / INT4_GROUP,
        f"{EVERY_LAYER}, where inputs divide by {INT4_GROUP} and outputs by 16",
    ),
}


def level_table(device: str) -> tuple[LevelRow, ...]:
    """Every level on this device (`cpu`, `cuda`, `cuda:1`, `auto`), in the table's order."""
    kind = kind_of(device)
    return tuple(
        LevelRow(name, level.meaning, level.kernels.get(kind), level.bytes_per_weight, level.layers)
        for name, level in LEVELS.items()
    )


def kind_of(device: str) -> str:
    """Which kernels a device name means."""
    return "cpu" if device == "cpu" else "cuda"
