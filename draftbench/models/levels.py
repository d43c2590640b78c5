"""What each quantization level means, what it costs on a GPU, and what serving engines call it.

Its bytes are in `memory.LEVELS`, its layers and kernels in `decoder.quantized_linear`.
"""

from __future__ import annotations

import msgspec

from draftbench.memory import INT4_GROUP

_EVERY_LAYER = "every linear layer, the output head included"


class Level(msgspec.Struct, frozen=True):
    """One quantization level."""

    meaning: str  # what it does to the weights
    on_gpu: str  # what a product over one token reads on a GPU, with the source
    # The Llama runner is used if the cosine of its logits with transformers' is at least this. A
    # layer of another shape gives about 0, the noise of bfloat16 in a deep model .98, int4 .95.
    least_cosine: float
    layers: str = _EVERY_LAYER  # the layers that it covers
    made_by: dict[str, str] = {}  # engines that quantize while they load, and their names for it
    checkpoint: str = ""  # the form of checkpoint that all other engines need
    gguf: str = "BF16"  # the nearest type of a GGUF file
    llama_quantize: str = ""  # llama-quantize's arguments, where it takes more than the type


LEVEL_FACTS = {
    "none": Level("weights as loaded", "2 bytes a weight in one launch", 0.9),
    "fp8": Level(
        "e4m3 weights and activations, one scale per row",
        "1 byte a weight, read at 30 to 80% of an H200's bandwidth, after a launch that rounds the "
        "tokens (Triton; scripts/bench_kernels.py)",
        0.8,
        made_by={"vllm": "fp8_per_channel", "sglang": "fp8"},
        checkpoint="fp8",
        gguf="Q8_0",
    ),
    "int8": Level(
        "8-bit weights, one scale per output",
        "1 byte a weight, read at 46 to 81% of an H200's bandwidth, after a launch that rounds the "
        "tokens (Triton; scripts/bench_kernels.py)",
        0.9,
        checkpoint="8-bit",
        gguf="Q8_0",
    ),
    "int4": Level(
        f"4-bit weights, scale and offset for every {INT4_GROUP}",
        "0.625 bytes a weight in one launch, read again for every 16 tokens, at about half of the "
        "memory's bandwidth (PyTorch, int4mm.cu; gpt-fast's README)",
        0.8,
        layers=f"{_EVERY_LAYER}, where inputs divide by {INT4_GROUP} and outputs by 16",
        checkpoint="4-bit",
        # A scale and an offset for 32 weights too; Q4_K_M is 6-bit in parts.
        gguf="Q4_1",
        llama_quantize="--pure --output-tensor-type q4_1 IN OUT Q4_1",
    ),
}


def level_facts(level: str) -> Level:
    """A level's row; for weights that are stored quantized (`gptq-int4`), the row of `none`."""
    return LEVEL_FACTS.get(level, LEVEL_FACTS["none"])


def made_by(engine: str, level: str) -> str | None:
    """An engine's name for a level that it can make while loading; None if it cannot."""
    return level_facts(level).made_by.get(engine)
