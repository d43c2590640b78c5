"""Configurations and tokenizers of a target and its drafts → whether each pair can work, and what
it takes, before any weights load.

Sizes are counted on a model without storage, so every architecture that transformers can build has
them. Knows neither how good a draft is nor how fast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftbench.decoder.any_transformer import rewind_obstacle
from draftbench.decoder.quantized_linear import fits_level
from draftbench.errors import ModelError
from draftbench.memory import LEVELS, Footprint, cache_tokens, kv_bytes_per_token, matrix_bytes
from draftbench.models.check_result import ModelSheet, PairSheet, Preflight, Room
from draftbench.models.compatibility import caveats_of, context_of, pair_facts, refusal_of
from draftbench.models.engine_rules import engine_answers
from draftbench.models.prequantized import format_of, missing_packages, stored_bytes, stored_level
from draftbench.models.quantize import level_table
from draftbench.models.source import ModelSource

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


def preflight(
    target: ModelSource,
    drafts: Sequence[ModelSource],
    memory_bytes: int,
    traffic: Mapping[int, float] | None = None,
    dtype: torch.dtype | None = None,
) -> Preflight:
    """Look at every pair.

    Args:
        memory_bytes: what target and draft share.
        traffic: how often each of the target's tokens stands in the traffic.
        dtype: what both are to run in (default: each in its checkpoint's).

    Raises:
        ModelError: a configuration or tokenizer cannot be loaded, or is no language model's.
    """
    skeleton = _skeleton(target)
    sheet, own = _sheet(target, skeleton, dtype), _obstacles(target, skeleton)
    pairs = tuple(
        _pair((target, sheet, own), draft, memory_bytes, traffic, dtype) for draft in drafts
    )
    total = None if traffic is None else round(sum(traffic.values()))
    levels = level_table("cuda" if torch.cuda.is_available() else "cpu")
    return Preflight(sheet, memory_bytes, total, pairs, levels)


def memory_here() -> int:
    """Bytes of the accelerator, or of this machine's memory as far as this container may use it."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1])
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _CONTAINER_LIMIT.read_text().strip() if _CONTAINER_LIMIT.exists() else "max"
    return min(physical, int(limit)) if limit.isdigit() else physical


def _pair(
    served: tuple[ModelSource, ModelSheet, tuple[str, ...]],
    draft: ModelSource,
    memory_bytes: int,
    traffic: Mapping[int, float] | None,
    dtype: torch.dtype | None,
) -> PairSheet:
    """A draft beside `served`: the target, its sheet, and its own obstacles."""
    target, sheet, own = served
    skeleton = _skeleton(draft)
    drafted = _sheet(draft, skeleton, dtype)
    facts = pair_facts(target, draft, traffic)
    rooms = _rooms(sheet, drafted, memory_bytes)
    stored = stored_level(draft)
    if stored and rooms:
        rooms = (replace(rooms[0], level=stored),)
    refusal = refusal_of(facts)
    obstacles = [*([refusal] if refusal else []), *own, *_obstacles(draft, skeleton)]
    least = min(sheet.weight_bytes.values()) + min(drafted.weight_bytes.values())
    if least > memory_bytes:
        obstacles.append("the weights of both do not fit the memory at any quantization")
    caveats = [*caveats_of(facts), *_stored_caveats(target), *_stored_caveats(draft)]
    if sheet.family != drafted.family:
        caveats.append(f"another family: {drafted.family} for {sheet.family}")
    if drafted.parameters >= sheet.parameters:
        caveats.append(
            "the draft is not smaller than the target: drafting costs more than it saves"
        )
    return PairSheet(
        draft=drafted,
        facts=facts,
        obstacles=tuple(obstacles),
        caveats=tuple(caveats),
        rooms=rooms,
        engines=engine_answers(facts),
    )


def _skeleton(source: ModelSource) -> Any:
    """The model without storage."""
    from transformers import AutoModelForCausalLM

    config, trust = source.config, source.trust.remote_code
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
    # A configuration is written by anyone, and code that builds from it raises what it likes.
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise ModelError(
            f"`{source.name}` ({config.model_type}) cannot be built as a language model: {first}",
            hint="target and draft must be causal language models that transformers knows",
        ) from error


def _obstacles(source: ModelSource, skeleton: Any) -> tuple[str, ...]:
    """Why draftbench cannot measure this model."""
    found = []
    obstacle = rewind_obstacle(skeleton)
    if obstacle:
        found.append(f"`{source.name}` cannot speculate: {obstacle}")
    level = stored_level(source)
    lacking = missing_packages(level) if level else []
    if lacking:
        found.append(f"`{source.name}` is stored as {level}: pip install {' '.join(lacking)}")
    return tuple(found)


def _stored_caveats(source: ModelSource) -> list[str]:
    """What is left unknown of a checkpoint that is stored quantized."""
    level = stored_level(source)
    if level is None:
        return []
    known = format_of(level)
    own = "measured as it is" if known and known.computes else "unpacked here, its cost unknown"
    return [f"{source.name} is stored as {level}: {own}"]


def _sheet(source: ModelSource, skeleton: Any, wanted: torch.dtype | None) -> ModelSheet:
    config = source.config.get_text_config()
    dtype = wanted or getattr(config, "dtype", None) or torch.float32
    return ModelSheet(
        name=source.name,
        family=config.model_type,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        dtype=str(dtype).removeprefix("torch."),
        parameters=skeleton.num_parameters(),
        weight_bytes=_sizes(source, skeleton, dtype.itemsize),
        kv_bytes_per_token=kv_bytes_per_token(config, dtype.itemsize),
        context=context_of(source),
    )


def _sizes(source: ModelSource, skeleton: nn.Module, itemsize: int) -> dict[str, int]:
    """Bytes by level; those of its files at all of them where a checkpoint is stored quantized."""
    stored = stored_bytes(source) if stored_level(source) else None
    return {
        level: _bytes_at(skeleton, level, itemsize) if stored is None else stored
        for level in LEVELS
    }


def _bytes_at(skeleton: nn.Module, level: str, itemsize: int) -> int:
    """`nn.Module.parameters` names a shared tensor once; the embedding of a tied head stays."""
    total = itemsize * sum(p.numel() for p in skeleton.parameters())
    if level == "none":
        return total
    embedding: Any = skeleton.get_input_embeddings()  # type: ignore[operator]
    for layer in skeleton.modules():
        if isinstance(layer, nn.Linear) and fits_level(layer.weight, level):
            shared = layer.weight is embedding.weight
            total += matrix_bytes(level, layer.out_features, layer.in_features, itemsize)
            total -= 0 if shared else itemsize * layer.weight.numel()
    return total


def _rooms(target: ModelSheet, draft: ModelSheet, memory_bytes: int) -> tuple[Room, ...]:
    """One per level of the draft; none where neither model keeps anything per token."""
    if not target.kv_bytes_per_token + draft.kv_bytes_per_token:
        return ()
    rooms = []
    served = Footprint(target.weight_bytes["none"], target.kv_bytes_per_token)
    for level, size in draft.weight_bytes.items():
        drafting = Footprint(size, draft.kv_bytes_per_token)
        tokens = cache_tokens(memory_bytes, [served, drafting])
        rooms.append(Room(level, target.weight_bytes["none"] + size, tokens))
    return tuple(rooms)
