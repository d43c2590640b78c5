"""One model before its weights load: its sizes, and what keeps draftbench from measuring it.

Sizes are counted on a model without storage, so they are known for every architecture that
transformers can build.
"""

from __future__ import annotations

from typing import Any

import msgspec
import psutil
import torch

from draftbench.decoder.any_transformer import matrix_of, rewind_obstacle
from draftbench.decoder.linear import IN_16_BITS, IN_ROWS, TWICE, layout_on_cpu
from draftbench.decoder.llama import llama_obstacle
from draftbench.decoder.mixture import mixture_of
from draftbench.memory import (
    CGROUP,
    LEVELS,
    fits_level,
    kv_bytes_per_token,
    matrix_bytes,
    memory_left,
)
from draftbench.models.check_result import ModelSheet
from draftbench.models.compatibility import context_length_of, writing_obstacle
from draftbench.models.prequantized import (
    format_of,
    missing_packages,
    stored_bytes,
    stored_expert_bytes,
    stored_level,
)
from draftbench.models.source import ModelSource

# Types by the engines' names for them.
ENGINE_TYPES = {
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "float32": torch.float32,
}


def engine_sheet(source: ModelSource, dtype: str) -> ModelSheet:
    """One model's sizes in a serving engine: a .gguf file as it is, with its cache in 16 bits; any
    other model in `dtype`, or in the checkpoint's type if `dtype` names none.

    Raises:
        ModelError: its configuration cannot be loaded, or is no language model's.
    """
    file = stored_bytes(source) if source.spec.endswith(".gguf") else None
    wanted = torch.float16 if file else ENGINE_TYPES.get(dtype)
    sheet, _, _ = examined(source, wanted, unpacked=True)
    held = dict.fromkeys(LEVELS, file) if file else sheet.weight_bytes
    return msgspec.structs.replace(sheet, weight_bytes=held)


def memory_here() -> int:
    """Bytes of the accelerator's memory, or of this machine's that the container may use."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1])
    physical, limit = psutil.virtual_memory().total, CGROUP / "memory.max"
    most = limit.read_text().strip() if limit.exists() else "max"
    return min(physical, int(most)) if most.isdigit() else physical


def memory_free(device: str) -> int:
    """Bytes that are free on a device, or on all GPUs (`auto`)."""
    if device == "cpu":
        return memory_left()
    devices = range(torch.cuda.device_count()) if device == "auto" else [device]
    return sum(int(torch.cuda.mem_get_info(each)[0]) for each in devices)


def examined(
    source: ModelSource, wanted: torch.dtype | None, *, unpacked: bool = False
) -> tuple[ModelSheet, list[str], list[str]]:
    """One model's sheet, why draftbench cannot measure it, and its caveats.

    Args:
        unpacked: count all weights in one type, as in engines, on a CPU too.
    """
    config, skeleton = source.config, source.skeleton
    obstacles, caveats, stored = [], [], stored_level(source)
    stored_format = format_of(stored) if stored else None
    computes = stored_format is not None and stored_format.computes
    if other := writing_obstacle(source) or source.no_quantizer:
        obstacles.append(other)
    elif "weights" in source.lacks:
        caveats.append(f"{source.name} has no weights here: they were not looked into")
    elif not source.multimodal:
        source.check_weights()
    if stateful := rewind_obstacle(skeleton):
        obstacles.append(f"`{source.name}` cannot speculate: {stateful}")
    if stored is not None and source.no_quantizer is None:
        how = "measured as it is" if computes else "unpacked here, its cost unknown"
        caveats.append(f"{source.name} is stored as {stored}: {how}")
        if missing := missing_packages(stored):
            obstacles.append(
                f"`{source.name}` is stored as {stored}: pip install {' '.join(missing)}"
            )
    text = config.get_text_config()
    loaded: torch.dtype = getattr(text, "dtype", None) or torch.float32
    dtype = wanted or loaded
    on_cpu = not (unpacked or torch.cuda.is_available())
    # Unpacked weights of a checkpoint that is stored quantized need 32 bits.
    narrow = dtype.itemsize == 2 or (loaded.itemsize < dtype.itemsize and not stored)
    weight_bytes, read = _held(skeleton, dtype, on_cpu=on_cpu, in_16_bits=on_cpu and narrow)
    parameters, mixture = skeleton.num_parameters(), mixture_of(skeleton)
    active, experts = parameters, 0
    if mixture is not None:
        active -= round(mixture.idle * mixture.parameters)
        experts = mixture.parameters * dtype.itemsize
    if stored is not None:
        files = stored_bytes(source) or weight_bytes["none"]
        if mixture is not None:
            experts = stored_expert_bytes(source) or round(files * mixture.parameters / parameters)
        # What is no expert's is taken to be stored in as many bits for tables as for layers.
        shares = {level: read[level] / weight_bytes[level] for level in LEVELS}
        read = {level: round(shares[level] * (files - experts)) + experts for level in LEVELS}
        weight_bytes = dict.fromkeys(LEVELS, files)
    if mixture is not None:
        read = {level: count - round(mixture.idle * experts) for level, count in read.items()}
    sheet = ModelSheet(
        name=source.name,
        family=text.model_type,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        dtype=str(dtype).removeprefix("torch."),
        parameters=parameters,
        active_parameters=active,
        weight_bytes=weight_bytes,
        read_bytes=read,
        kv_bytes_per_token=kv_bytes_per_token(text, dtype.itemsize),
        context=context_length_of(source),
        mixture=mixture,
        expert_bytes=experts,
    )
    return sheet, obstacles, caveats


def _held(
    skeleton: Any, dtype: torch.dtype, *, on_cpu: bool, in_16_bits: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """By level, bytes of all weights, and of those that a token may read: all except tables and
    what only images pass through. The rules of layouts are those of the runners, applied to a model
    without storage; a test compares the result with what `quantize.counted` finds in loaded ones.

    A tied head shares the embedding's memory only if it is held in rows: packed or quantized it is
    a separate matrix. The Llama runner's embedding is `in_16_bits` too, unless the head shares it.
    """
    # (outputs, inputs, whether the embedding shares it) of every matrix that draftbench multiplies
    # by: in a Llama-shaped model, matrices with the same input are joined.
    llama = not llama_obstacle(skeleton)
    joined = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"} if llama else {}
    table = skeleton.get_input_embeddings().weight
    matrices: dict[str, tuple[int, int, bool]] = {}
    for name, layer in skeleton.named_modules():
        if (weight := matrix_of(layer)) is not None:
            parent, _, child = name.rpartition(".")
            into = f"{parent}.{joined.get(child, child)}"
            outputs = matrices[into][0] if into in matrices else 0
            matrices[into] = (outputs + weight.shape[0], weight.shape[1], layer.weight is table)
    text = {*skeleton.get_decoder().parameters(), skeleton.get_output_embeddings().weight}
    lookups = {m.weight for m in skeleton.modules() if isinstance(m, torch.nn.Embedding)}
    unread = ({*skeleton.parameters()} - text | lookups) - {table}
    idle = dtype.itemsize * sum(weight.numel() for weight in unread)
    loaded = dtype.itemsize * sum(p.numel() for p in skeleton.parameters())

    held, read = dict[str, int](), dict[str, int]()
    for level in LEVELS:
        total, shared = loaded, False
        for outputs, inputs, tied in matrices.values():
            weights = outputs * inputs
            layout = layout_on_cpu(weights, dtype, in_16_bits) if on_cpu else None
            size, rows = dtype.itemsize * weights, layout in (None, IN_ROWS, TWICE)
            if level != "none" and fits_level(level, outputs, inputs):
                size, rows = matrix_bytes(level, outputs, inputs, dtype.itemsize), False
            elif layout == IN_16_BITS:
                size = torch.float16.itemsize * weights
            total += size - (dtype.itemsize * weights if rows or not tied else 0)
            shared = shared or (rows and tied)
        width = torch.float16.itemsize if in_16_bits and not shared and llama else dtype.itemsize
        total -= (dtype.itemsize - width) * table.numel()
        held[level] = total
        read[level] = total - idle - width * table.numel() * (not shared)
    return held, read
