"""Checks whether pairs of target and drafts can work, and their sizes, before any weights load.

Reads configurations and tokenizers only. Sizes are counted on a model without storage, so every
architecture that transformers can build has them. How good or fast a draft is, is not known here.
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
from draftbench.models.check_result import CheckResult, ModelSheet, PairSheet, Room
from draftbench.models.compatibility import caveats_of, context_of, pair_facts, refusal_of
from draftbench.models.engine_rules import engine_answers
from draftbench.models.prequantized import format_of, missing_packages, stored_bytes, stored_level
from draftbench.models.quantize import level_table
from draftbench.models.source import ModelSource

_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


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
    skeleton = _skeleton(target)
    sheet, obstacles = _sheet(target, skeleton, dtype), _obstacles(target, skeleton)
    pairs = []
    for draft in drafts:
        skeleton = _skeleton(draft)
        drafted = _sheet(draft, skeleton, dtype)
        facts = pair_facts(target, draft, traffic)
        refusal = refusal_of(facts)
        reasons = [*([refusal] if refusal else []), *obstacles, *_obstacles(draft, skeleton)]
        if min(sheet.weight_bytes.values()) + min(drafted.weight_bytes.values()) > memory_bytes:
            reasons.append("the weights of both do not fit the memory at any quantization")
        caveats = [*caveats_of(facts), *_stored_caveats(target), *_stored_caveats(draft)]
        rooms = _rooms(sheet, drafted, memory_bytes)
        stored = stored_level(draft)
        if stored and rooms:
            rooms = (replace(rooms[0], level=stored),)
        pairs.append(
            PairSheet(
                draft=drafted,
                facts=facts,
                obstacles=tuple(reasons),
                caveats=(*caveats, *_size_caveats(sheet, drafted)),
                rooms=rooms,
                engines=engine_answers(facts),
            )
        )
    total = None if traffic is None else round(sum(traffic.values()))
    levels = level_table("cuda" if torch.cuda.is_available() else "cpu")
    return CheckResult(sheet, memory_bytes, total, tuple(pairs), levels)


def memory_here() -> int:
    """Bytes of the accelerator, or of this machine's memory as far as this container may use it."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[1])
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _CONTAINER_LIMIT.read_text().strip() if _CONTAINER_LIMIT.exists() else "max"
    return min(physical, int(limit)) if limit.isdigit() else physical


def _skeleton(source: ModelSource) -> Any:
    """The model without storage."""
    from transformers import AutoModelForCausalLM

    config, trust = source.config, source.trust.remote_code
    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust)
    # Anyone may have written the configuration, and code that builds from it raises anything.
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise ModelError(
            f"`{source.name}` ({config.model_type}) cannot be built as a language model: {first}",
            hint="target and draft must be causal language models that transformers knows",
        ) from error


def _obstacles(source: ModelSource, skeleton: Any) -> tuple[str, ...]:
    """Why draftbench cannot measure this model."""
    obstacles = []
    stateful = rewind_obstacle(skeleton)
    if stateful:
        obstacles.append(f"`{source.name}` cannot speculate: {stateful}")
    level = stored_level(source)
    missing = missing_packages(level) if level else []
    if missing:
        obstacles.append(f"`{source.name}` is stored as {level}: pip install {' '.join(missing)}")
    return tuple(obstacles)


def _stored_caveats(source: ModelSource) -> list[str]:
    level = stored_level(source)
    if level is None:
        return []
    stored_format = format_of(level)
    computes = stored_format is not None and stored_format.computes
    how = "measured as it is" if computes else "unpacked here, its cost unknown"
    return [f"{source.name} is stored as {level}: {how}"]


def _size_caveats(target: ModelSheet, draft: ModelSheet) -> list[str]:
    caveats = []
    if target.family != draft.family:
        caveats.append(f"another family: {draft.family} for {target.family}")
    if draft.parameters >= target.parameters:
        caveats.append(
            "the draft is not smaller than the target: drafting costs more than it saves"
        )
    return caveats


def _sheet(source: ModelSource, skeleton: Any, wanted: torch.dtype | None) -> ModelSheet:
    config = source.config.get_text_config()
    dtype = wanted or getattr(config, "dtype", None) or torch.float32
    stored = stored_bytes(source) if stored_level(source) else None
    return ModelSheet(
        name=source.name,
        family=config.model_type,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        dtype=str(dtype).removeprefix("torch."),
        parameters=skeleton.num_parameters(),
        weight_bytes={
            level: _bytes_at(skeleton, level, dtype.itemsize) if stored is None else stored
            for level in LEVELS
        },
        kv_bytes_per_token=kv_bytes_per_token(config, dtype.itemsize),
        context=context_of(source),
    )


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
