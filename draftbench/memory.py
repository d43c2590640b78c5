"""All arithmetic with bytes: quantization levels, KV caches, what fits on a device, sizes as
text.
"""

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


_EVERY_LAYER = "every linear layer, the output head included"


@dataclass(frozen=True, kw_only=True)
class Level:
    """A quantization level: what a matrix takes, what it means, and what engines call it. The layer
    and the kernels are in `decoder.quantized_linear`.
    """

    meaning: str  # what it does to the weights
    on_gpu: str  # what a product over one token reads on a GPU, with the source
    # The Llama runner is used if the cosine of its logits with transformers' is at least this. A
    # layer of another shape gives about 0, the noise of bfloat16 in a deep model .98, int4 .95.
    least_cosine: float
    per_weight: float | None = None  # bytes of a weight; None: they stay as they were loaded
    per_output: int = 0  # bytes of an output's scale
    inputs: int = 1  # of a block, into which a matrix must divide
    outputs: int = 1  # of a block
    layers: str = _EVERY_LAYER  # the layers that it covers
    checkpoint: str = ""  # the form of checkpoint that all other engines need
    gguf: str = "BF16"  # the nearest type of a GGUF file
    llama_quantize: str = ""  # llama-quantize's arguments, where it takes more than the type


# Every quantization level of draftbench. Checkpoints that are stored quantized (`gguf-q4_k`) are as
# large as their files.
LEVELS = {
    "none": Level(
        meaning="weights as loaded", on_gpu="2 bytes a weight in one launch", least_cosine=0.9
    ),
    "fp8": Level(
        meaning="e4m3 weights and activations, one scale per row",
        on_gpu="1 byte a weight, read at 30 to 80% of an H200's bandwidth if a launch before it "
        "rounds the token; now the product does, which was not timed (Triton; "
        "scripts/bench_kernels.py)",
        least_cosine=0.8,
        per_weight=1.0,
        per_output=4,
        checkpoint="fp8",
        gguf="Q8_0",
    ),
    "int8": Level(
        meaning="8-bit weights, one scale per output",
        on_gpu="1 byte a weight, read at 46 to 81% of an H200's bandwidth if a launch before it "
        "rounds the token; now the product does, which was not timed (Triton; "
        "scripts/bench_kernels.py)",
        least_cosine=0.9,
        per_weight=1.0,
        per_output=4,
        checkpoint="8-bit",
        gguf="Q8_0",
    ),
    "int4": Level(
        meaning=f"4-bit weights, scale and offset for every {INT4_GROUP}",
        on_gpu="0.625 bytes a weight in one launch, read again for every 16 tokens, at about half "
        "of the memory's bandwidth (PyTorch, int4mm.cu; gpt-fast's README)",
        least_cosine=0.8,
        # Scale and offset in 16 bits each for every group; the CPU's kernel takes 16 outputs.
        per_weight=0.5 + 4 / INT4_GROUP,
        inputs=INT4_GROUP,
        outputs=16,
        layers=f"{_EVERY_LAYER}, where inputs divide by {INT4_GROUP} and outputs by 16",
        checkpoint="4-bit",
        # A scale and an offset for 32 weights too; Q4_K_M is 6-bit in parts.
        gguf="Q4_1",
        llama_quantize="--pure --output-tensor-type q4_1 IN OUT Q4_1",
    ),
}


def level_of(quant: str) -> Level:
    """A level by its name; of weights that are stored quantized (`gptq-int4`), `none`."""
    return LEVELS.get(quant, LEVELS["none"])


def fits_level(level: str, outputs: int, inputs: int) -> bool:
    """Whether a matrix divides into a level's blocks; if not, it stays as it was loaded."""
    return not (inputs % LEVELS[level].inputs or outputs % LEVELS[level].outputs)


def matrix_bytes(level: str, outputs: int, inputs: int, itemsize: int) -> int:
    """Bytes of a linear layer's weights at a level; `itemsize` is a loaded weight's."""
    each = LEVELS[level].per_weight
    return int(outputs * inputs * (itemsize if each is None else each)) + (
        outputs * LEVELS[level].per_output
    )


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
    parameters: int,
    trained: int,
    layers: int,
    hidden: int,
    vocabulary: int,
    tokens: int,
    itemsize: int,
) -> tuple[int, int]:
    """Bytes for training a model with AdamW: its states (the weights, and gradients and two moments
    of those that are trained, in 32 bits) and what a row of `tokens` keeps for the backward pass:
    17 values of each layer's width (Korthikanti et al. 2022), and the logits, their softmax and its
    gradient in 32 bits.
    """
    of_layers, of_logits = 17 * layers * hidden * itemsize, 3 * LOGIT_BYTES * vocabulary
    return 4 * parameters + 12 * trained, tokens * (of_layers + of_logits)


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
