"""All arithmetic with bytes: weights by level, KV caches, what fits on a device, sizes as text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Where Linux says how much memory a container may use.
CGROUP = Path("/sys/fs/cgroup")

# kb … tb are powers of ten, kib … tib powers of two.
UNITS = {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}
UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)}
# The int4 level keeps one scale and one offset for this many inputs of an output.
INT4_GROUP = 32
# Engines keep the target's logits in 32 bits for sampling.
LOGIT_BYTES = 4


@dataclass(frozen=True)
class Storage:
    """The bytes of a quantized matrix, and the blocks that it must divide into."""

    per_weight: float  # bytes of a weight
    per_output: int  # bytes of an output's scale
    inputs: int = 1  # inputs of a block
    outputs: int = 1  # outputs of a block


# Every quantization level of draftbench; None: the weights stay as they were loaded. Checkpoints
# that are stored quantized (`gguf-q4_k`) are as large as their files.
LEVELS: dict[str, Storage | None] = {
    "none": None,
    "fp8": Storage(1.0, 4),
    "int8": Storage(1.0, 4),
    # Scale and offset in 16 bits each for every group; the CPU's kernel takes 16 outputs at once.
    "int4": Storage(0.5 + 4 / INT4_GROUP, 0, inputs=INT4_GROUP, outputs=16),
}


def fits_level(level: str, outputs: int, inputs: int) -> bool:
    """Whether a matrix divides into a level's blocks; if not, it stays as it was loaded."""
    storage = LEVELS[level]
    return storage is None or not (inputs % storage.inputs or outputs % storage.outputs)


def matrix_bytes(level: str, outputs: int, inputs: int, itemsize: int) -> int:
    """Bytes of a linear layer's weights at a level; `itemsize` is a loaded weight's."""
    storage = LEVELS[level]
    if storage is None:
        return outputs * inputs * itemsize
    return int(outputs * inputs * storage.per_weight) + outputs * storage.per_output


def kv_bytes_per_token(config: Any, itemsize: int) -> int:
    """Bytes of keys and values per token over all layers, from a text configuration; 0 for a model
    without attention.
    """
    if not getattr(config, "num_attention_heads", None):
        return 0
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * head * itemsize)


@dataclass(frozen=True)
class Footprint:
    """One model: bytes of its weights, and of its KV cache per token."""

    weight_bytes: float
    cache_bytes_per_token: float


def bytes_to_serve(
    target: Footprint, draft: Footprint, *, concurrency: int, context: int, k: int, vocabulary: int
) -> float:
    """Bytes of both models while `concurrency` sequences of `context` tokens are decoded together.

    Counts the weights, both caches and the target's logits in a verification pass of k + 1 tokens.
    Other activations and the needs of an engine and its allocator are unknown. A draft with a
    shorter context is counted with a cache as long as the target's.
    """
    cache = context * (target.cache_bytes_per_token + draft.cache_bytes_per_token)
    logits = (k + 1) * LOGIT_BYTES * vocabulary
    return target.weight_bytes + draft.weight_bytes + concurrency * (cache + logits)


def training_bytes(
    parameters: int, layers: int, hidden: int, vocabulary: int, tokens: int, itemsize: int
) -> tuple[int, int]:
    """Bytes for training a model with AdamW: its states (weights, gradients and two moments in 32
    bits) and what a row of `tokens` keeps for the backward pass: 17 values of each layer's width
    (Korthikanti et al. 2022), and the logits, their softmax and its gradient in 32 bits.
    """
    of_layers, of_logits = 17 * layers * hidden * itemsize, 3 * LOGIT_BYTES * vocabulary
    return 16 * parameters, tokens * (of_layers + of_logits)


def memory_left() -> int:
    """Free bytes of this machine's memory, as far as this container may use them."""
    import psutil  # not needed by every command that knows sizes

    left = psutil.virtual_memory().available
    limit, used = (CGROUP / name for name in ("memory.max", "memory.current"))
    if limit.exists() and (most := limit.read_text().strip()).isdigit():
        left = min(left, int(most) - int(used.read_text()))
    return left


def parse_size(text: str) -> int:
    """`20GB`, `1.5 TiB` → bytes; upper and lower case mean the same.

    Raises:
        ValueError: it is not a number above 0 with a unit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]i?b)", text.strip(), re.IGNORECASE | re.ASCII)
    size = int(float(match[1]) * UNITS[match[2].lower()]) if match and len(text) < 100 else 0
    if size <= 0:
        raise ValueError(f"{text} is not a size")
    return size


def format_size(size: float) -> str:
    """Bytes in the largest power of ten (TB, GB, MB, kB) that they fill, with three digits."""
    rounded = float(f"{size:.3g}")
    unit = next((unit for unit in ("TB", "GB", "MB") if rounded >= UNITS[unit.lower()]), "kB")
    return f"{size / UNITS[unit.lower()]:.3g} {unit}"
