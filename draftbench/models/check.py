"""Checks whether pairs of target and drafts can work, and their sizes, before any weights load.

Reads configurations and tokenizers only. Sizes are counted on a model without storage, so every
architecture that transformers can build has them. How good or fast a draft is, is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psutil
import torch
from torch import nn

from draftbench.decoder.any_transformer import rewind_obstacle
from draftbench.decoder.device import device_of
from draftbench.decoder.linear import PACKED_FROM, ROWS_FROM, has_fbgemm, multiplies_bfloat16
from draftbench.decoder.llama import llama_obstacle
from draftbench.decoder.quantized_linear import fits_level
from draftbench.errors import ModelError
from draftbench.memory import CGROUP, LEVELS, kv_bytes_per_token, matrix_bytes
from draftbench.models.check_result import CheckResult, ModelSheet, PairSheet, Room
from draftbench.models.compatibility import (
    caveats_of,
    context_of,
    pair_facts,
    refusal_of,
    writing_obstacle,
)
from draftbench.models.engine_rules import engine_answers
from draftbench.models.own_draft import own_draft_of
from draftbench.models.prequantized import format_of, missing_packages, stored_bytes, stored_level
from draftbench.models.quantize import level_table
from draftbench.models.source import ModelSource

# As engines call them.
_ENGINE_TYPES = {
    "half": torch.float16,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float": torch.float32,
    "float32": torch.float32,
}


def check_models(
    target: ModelSource,
    drafts: Sequence[ModelSource],
    memory_bytes: int,
    traffic: Mapping[int, float] | None = None,
    dtype: torch.dtype | None = None,
) -> CheckResult:
    """Check every pair.

    Args:
        memory_bytes: shared by target and draft.
        traffic: how often each of the target's tokens occurs in the traffic.
        dtype: the type that both run in (default: each in its checkpoint's).

    Raises:
        ModelError: a configuration or tokenizer cannot be loaded, or is no language model's.
    """
    ours, our_obstacles, our_caveats = _examined(target, dtype)
    pairs = []
    for source in drafts:
        theirs, obstacles, caveats = _examined(source, dtype)
        facts = pair_facts(target, source, traffic)
        refusal = refusal_of(facts)
        obstacles = [*([refusal] if refusal else []), *our_obstacles, *obstacles]
        if min(ours.weight_bytes.values()) + min(theirs.weight_bytes.values()) > memory_bytes:
            obstacles.append("the weights of both do not fit the memory at any quantization")
        caveats = [*caveats_of(facts), *our_caveats, *caveats]
        if ours.family != theirs.family:
            caveats.append(f"another family: {theirs.family} for {ours.family}")
        if theirs.parameters >= ours.parameters:
            caveats.append(
                "the draft is not smaller than the target: drafting costs more than it saves"
            )
        stored = stored_level(target), stored_level(source)
        pairs.append(
            PairSheet(
                draft=theirs,
                facts=facts,
                obstacles=tuple(obstacles),
                caveats=tuple(caveats),
                rooms=_rooms(ours, theirs, stored, memory_bytes),
                engines=()
                if any(map(writing_obstacle, (target, source)))
                else engine_answers(facts),
            )
        )
    total = None if traffic is None else round(sum(traffic.values()))
    levels = level_table(device_of(None))
    own = own_draft_of(target.raw_config)
    return CheckResult(ours, memory_bytes, total, tuple(pairs), levels, own)


def engine_sheet(source: ModelSource, dtype: str) -> ModelSheet:
    """One model's sizes as a serving engine holds it: a .gguf file as it is, its cache in 16 bits;
    else all in the type that `dtype` names, or the checkpoint's where it names none.

    Raises:
        ModelError: its configuration cannot be loaded, or is no language model's.
    """
    file = stored_bytes(source) if source.spec.endswith(".gguf") else None
    wanted = torch.float16 if file else _ENGINE_TYPES.get(dtype)
    sheet, _, _ = _examined(source, wanted, unpacked=True)
    return replace(sheet, weight_bytes=dict.fromkeys(LEVELS, file)) if file else sheet


def memory_here() -> int:
    """Bytes of the accelerator, or of this machine's memory as far as this container may use it."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1])
    physical, limit = psutil.virtual_memory().total, CGROUP / "memory.max"
    most = limit.read_text().strip() if limit.exists() else "max"
    return min(physical, int(most)) if most.isdigit() else physical


def _examined(
    source: ModelSource, wanted: torch.dtype | None, *, unpacked: bool = False
) -> tuple[ModelSheet, list[str], list[str]]:
    """One model's sheet, why draftbench cannot measure it, and its caveats; `unpacked` where a CPU
    too holds all weights in the type that is wanted.
    """
    from transformers import AutoModelForCausalLM

    config = source.config
    try:
        with torch.device("meta"):
            skeleton: Any = AutoModelForCausalLM.from_config(
                config, trust_remote_code=source.trust.remote_code
            )
    # Anyone may have written the configuration, and code that builds from it raises anything.
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise ModelError(
            f"`{source.name}` ({config.model_type}) cannot be built as a language model: {first}",
            hint="target and draft must be causal language models that transformers knows",
        ) from error
    obstacles, caveats, stored = [], [], stored_level(source)
    if other := writing_obstacle(source):
        obstacles.append(other)
    if stateful := rewind_obstacle(skeleton):
        obstacles.append(f"`{source.name}` cannot speculate: {stateful}")
    if stored is not None:
        kept = format_of(stored)
        how = "measured as it is" if kept and kept.computes else "unpacked here, its cost unknown"
        caveats.append(f"{source.name} is stored as {stored}: {how}")
        if missing := missing_packages(stored):
            obstacles.append(
                f"`{source.name}` is stored as {stored}: pip install {' '.join(missing)}"
            )
    text = config.get_text_config()
    loaded: torch.dtype = getattr(text, "dtype", None) or torch.float32
    dtype = wanted or loaded
    files = stored_bytes(source) if stored else None
    wide = dtype.itemsize == torch.float32.itemsize
    # The decoder multiplies large matrices of 16 bits in float32 as they are on a CPU.
    on_cpu = not (unpacked or torch.cuda.is_available())
    packs = on_cpu and has_fbgemm() and wide and loaded.itemsize < dtype.itemsize
    sheet = ModelSheet(
        name=source.name,
        family=text.model_type,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        dtype=str(dtype).removeprefix("torch."),
        parameters=skeleton.num_parameters(),
        weight_bytes={
            level: _bytes_at(skeleton, level, dtype.itemsize, packs) if files is None else files
            for level in LEVELS
        },
        second_layout_bytes=_second_layouts(skeleton, stored, in_32_bits=wide and not packs),
        kv_bytes_per_token=kv_bytes_per_token(text, dtype.itemsize),
        context=context_of(source),
    )
    return sheet, obstacles, caveats


def _second_layouts(skeleton: Any, stored: str | None, *, in_32_bits: bool) -> dict[str, int]:
    """Bytes that a CPU holds twice, by level: of large matrices whose weights need 32 bits, and of
    4-bit ones a copy for passes over several tokens. A checkpoint that is stored quantized has the
    first kind where it is unpacked.
    """
    kept = format_of(stored) if stored else None
    if torch.cuda.is_available() or (kept and kept.computes):
        return dict.fromkeys(LEVELS, 0)
    wide, none, int4 = torch.float32.itemsize, 0, 0
    needs_32_bits = stored is not None or in_32_bits
    copy = 2 if multiplies_bfloat16() or has_fbgemm() else wide
    for outputs, inputs, _ in _multiplied(skeleton):
        rows = wide * outputs * inputs
        twice = rows if needs_32_bits and rows >= ROWS_FROM else 0
        fits = fits_level(torch.empty(outputs, inputs, device="meta"), "int4")
        none, int4 = none + twice, int4 + (copy * outputs * inputs if fits else twice)
    if stored is not None:
        return dict.fromkeys(LEVELS, none)
    return dict.fromkeys(LEVELS, 0) | {"none": none, "int4": int4}


def _multiplied(skeleton: Any) -> list[tuple[int, int, bool]]:
    """(outputs, inputs, whether it is the embedding too) of the matrices as draftbench multiplies
    them: those of a Llama-shaped model that read the same are joined.
    """
    joined = {} if llama_obstacle(skeleton) else {"k_proj": "q_proj", "v_proj": "q_proj"}
    joined |= {"up_proj": "gate_proj"} if joined else {}
    embedding = skeleton.get_input_embeddings()
    found: dict[str, tuple[int, int, bool]] = {}
    for name, layer in skeleton.named_modules():
        if isinstance(layer, nn.Linear):
            parent, _, own = name.rpartition(".")
            into = f"{parent}.{joined.get(own, own)}"
            before = found.get(into, (0, 0, False))[0]
            shared = layer.weight is embedding.weight
            found[into] = (before + layer.out_features, layer.in_features, shared)
    return list(found.values())


def _bytes_at(skeleton: Any, level: str, itemsize: int, packs: bool) -> int:
    """Bytes of all weights at a level; with `packs`, large matrices that the level leaves alone
    take 16 bits, and so does the embedding where the Llama runner looks it up. A tied head in
    another form than the embedding is a matrix of its own.
    """
    halves = packs and not llama_obstacle(skeleton)
    total = itemsize * sum(p.numel() for p in skeleton.parameters())
    for outputs, inputs, shared in _multiplied(skeleton):
        weights = outputs * inputs
        matrix = torch.empty(outputs, inputs, device="meta")
        if level != "none" and fits_level(matrix, level):
            held = matrix_bytes(level, outputs, inputs, itemsize)
        elif packs and torch.float32.itemsize * weights >= PACKED_FROM:
            held = 2 * weights
        else:
            halves = halves and not shared
            continue
        total += held - (0 if shared else itemsize * weights)
    return total - 2 * skeleton.get_input_embeddings().weight.numel() if halves else total


def _rooms(
    target: ModelSheet,
    draft: ModelSheet,
    stored: tuple[str | None, str | None],
    memory_bytes: int,
) -> tuple[Room, ...]:
    """One per level of the draft, its own alone where it is stored quantized; none where neither
    model keeps anything per token.
    """
    per_token = target.kv_bytes_per_token + draft.kv_bytes_per_token
    if not per_token:
        return ()
    ours, rooms = target.weight_bytes["none"], []
    for level in LEVELS if stored[1] is None else [stored[1]]:
        theirs = draft.bytes_at(level)
        left = memory_bytes - ours - theirs
        twice = target.second_layout_at("none") + draft.second_layout_at(level)
        room = Room(
            level=level,
            weight_bytes=ours + theirs,
            second_layout_bytes=twice,
            tokens=left // per_token if left >= 0 else None,
        )
        rooms.append(room)
    return tuple(rooms)
