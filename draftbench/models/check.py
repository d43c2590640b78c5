"""Checks whether drafts can work with a target, and how much memory they need, before weights load.

Reads configurations, tokenizers and the files of heads, which are small. Sizes are counted on a
model without storage, so they are known for every architecture that transformers can build.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import psutil
import torch

from draftbench.decoder.any_transformer import matrix_of, rewind_obstacle
from draftbench.decoder.device import device_of
from draftbench.decoder.linear import IN_16_BITS, IN_ROWS, TWICE, has_fbgemm, layout_on_cpu
from draftbench.decoder.llama import llama_obstacle
from draftbench.decoder.mixture import mixture_of
from draftbench.engines.every import ENGINES
from draftbench.errors import ModelError
from draftbench.memory import (
    CGROUP,
    LEVELS,
    fits_level,
    format_size,
    kv_bytes_per_token,
    matrix_bytes,
    memory_left,
)
from draftbench.models.check_result import (
    CheckResult,
    HeadSheet,
    ModelSheet,
    OwnDraft,
    PairSheet,
    Room,
)
from draftbench.models.compatibility import (
    caveats_of,
    context_length_of,
    covers,
    pair_facts,
    refusal_of,
    writing_obstacle,
)
from draftbench.models.drafting import parsed
from draftbench.models.eagle import misfits
from draftbench.models.heads import check_head
from draftbench.models.mtp import mtp_obstacles
from draftbench.models.own_draft import own_draft_of
from draftbench.models.prequantized import (
    format_of,
    missing_packages,
    stored_bytes,
    stored_expert_bytes,
    stored_level,
)
from draftbench.models.quantize import Build, level_table
from draftbench.models.source import ModelSource

# Tokens of a verification pass whose experts are counted: k + 1 at k = 1, 3 and 7.
_VERIFIED = (2, 4, 8)
# Types by the engines' names for them.
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
    heads: Sequence[str] = (),
    *,
    chats: bool = True,
) -> CheckResult:
    """Check every draft with the target. If a folder lacks weights or a tokenizer, these are not
    checked, and a caveat says so.

    Args:
        memory_bytes: the memory that target and draft share.
        traffic: how often each of the target's tokens occurs in the traffic.
        dtype: the type that both run in (default: each in its checkpoint's).
        heads: what drafts from the target's own states, as in `--drafts`.
        chats: whether the traffic has chats, which a template renders.

    Raises:
        ModelError: a configuration or tokenizer cannot be loaded, or is no language model's, or a
            configuration asks for fewer layers than the files hold.
    """
    ours, our_obstacles, our_caveats = _examined(target, dtype)
    if target.multimodal:
        our_caveats.append(
            f"{target.name} reads images too, so that only serving engines run it: measure it with "
            "`draftbench sweep --engine`, with text"
        )
    if ours.mixture:
        times = ", ".join(f"{ours.most_read(tokens):.2g}×" for tokens in _VERIFIED)
        our_caveats.append(
            f"{ours.name}: verification reads more experts than a decode step: at most {times} the "
            "bytes for 2, 4, 8 tokens (independent routing)"
        )
    pairs = []
    for source in drafts:
        theirs, obstacles, caveats = _examined(source, dtype)
        damaged = False
        try:
            source.check_values()
        except ModelError as error:
            damaged = True
            obstacles.append(error.message)
        lacking = [each.name for each in (target, source) if "tokenizer" in each.lacks]
        facts = None if lacking else pair_facts(target, source, traffic)
        refusal = facts and refusal_of(facts)
        obstacles = [*([refusal] if refusal else []), *our_obstacles, *obstacles]
        if source.multimodal:
            obstacles.append(f"`{source.name}` reads images too: a draft must be a text model")
        if min(ours.weight_bytes.values()) + min(theirs.weight_bytes.values()) > memory_bytes:
            obstacles.append("the weights of both do not fit the memory at any quantization")
        mixed = bool(ours.mixture or theirs.mixture)
        read = _of_reading(ours.read_at("none"), theirs.read_at("none"), always=mixed)
        unknown = (
            f"{' and '.join(lacking)} {'has' if len(lacking) == 1 else 'have'} no tokenizer here, "
            "so that it is unknown which tokens the two share and which engines take them: add "
            "tokenizer.json"
        )
        shared = caveats_of(facts, chats=chats) if facts else [unknown]
        caveats = [*read, *shared, *our_caveats, *caveats]
        if ours.family != theirs.family:
            caveats.append(f"another family: {theirs.family} for {ours.family}")
        # Memory at each level of the draft, or at the one that it is stored in; models without a
        # cache have no room to speak of.
        stored, rooms = stored_level(source), []
        per_token = ours.kv_bytes_per_token + theirs.kv_bytes_per_token
        for level in (LEVELS if stored is None else [stored]) if per_token else ():
            weights = ours.weight_bytes["none"] + theirs.bytes_at(level)
            left = memory_bytes - weights
            rooms.append(Room(level, weights, left // per_token if left >= 0 else None))
        silent = facts is None or any(map(writing_obstacle, (target, source)))
        pairs.append(
            PairSheet(
                draft=theirs,
                facts=facts,
                obstacles=tuple(obstacles),
                caveats=tuple(caveats),
                rooms=tuple(rooms),
                engines=()
                if facts is None or silent or damaged
                else tuple(engine.answer(facts) for engine in ENGINES.values()),
                works="no" if obstacles else "yes" if facts and covers(facts) else "maybe",
            )
        )
    own_draft = own_draft_of(target.raw_config)
    runs_here = not (our_obstacles or target.multimodal)
    sheets = tuple(_head_sheet(target, own_draft, each, runs_here=runs_here) for each in heads)
    total = None if traffic is None else round(sum(traffic.values()))
    levels = level_table(device_of(None))
    return CheckResult(ours, memory_bytes, total, tuple(pairs), levels, own_draft, sheets)


def _head_sheet(
    target: ModelSource, own_draft: OwnDraft | None, head: str, *, runs_here: bool
) -> HeadSheet:
    """What `check_head` says by configurations, and what the files say of a head that is here.

    Args:
        runs_here: whether the built-in decoder runs the target.
    """
    sheet = check_head(target, own_draft, head)
    source = ModelSource(parsed(head)[1] or target.spec, target.trust)
    if sheet.obstacles or sheet.method not in ("eagle3", "mtp") or not source.local:
        return sheet
    if sheet.method == "eagle3":
        wrong, not_run = misfits(target, source)
    else:
        wrong, not_run = [], list(mtp_obstacles(target))
    if wrong:
        return msgspec.structs.replace(sheet, obstacles=tuple(wrong), engines=())
    said = [f"the built-in decoder refuses it: {why}" for why in not_run]
    if runs_here and not said:
        said = ["the built-in decoder drafts with it, without an engine"]
    return msgspec.structs.replace(sheet, caveats=(*sheet.caveats, *said))


def engine_sheet(source: ModelSource, dtype: str) -> ModelSheet:
    """One model's sizes in a serving engine: a .gguf file as it is, with its cache in 16 bits; any
    other model in `dtype`, or in the checkpoint's type if `dtype` names none.

    Raises:
        ModelError: its configuration cannot be loaded, or is no language model's.
    """
    file = stored_bytes(source) if source.spec.endswith(".gguf") else None
    wanted = torch.float16 if file else _ENGINE_TYPES.get(dtype)
    sheet, _, _ = _examined(source, wanted, unpacked=True)
    held = dict.fromkeys(LEVELS, file) if file else sheet.weight_bytes
    return msgspec.structs.replace(sheet, weight_bytes=held)


def held_head(source: ModelSource, dtype: str) -> tuple[int, int]:
    """Bytes of a head's weights in a serving engine, and of one number in its cache."""
    if source.spec.endswith(".gguf"):
        return stored_bytes(source) or 0, torch.float16.itemsize
    weights = [weight for weight in source.tensors().values() if weight.is_floating_point()]
    width = (_ENGINE_TYPES.get(dtype) or weights[0].dtype).itemsize
    return width * sum(weight.numel() for weight in weights), width


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


def _examined(
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
    if other := writing_obstacle(source):
        obstacles.append(other)
    elif "weights" in source.lacks:
        caveats.append(f"{source.name} has no weights here: they were not looked into")
    elif not source.multimodal:
        source.check_weights()
    if stateful := rewind_obstacle(skeleton):
        obstacles.append(f"`{source.name}` cannot speculate: {stateful}")
    if stored is not None:
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
    narrow = dtype == torch.float32 and loaded.itemsize < dtype.itemsize and not stored
    in_16_bits = on_cpu and has_fbgemm() and narrow
    weight_bytes, read = _held(skeleton, dtype, on_cpu=on_cpu, in_16_bits=in_16_bits)
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


def reads_as_much(
    target: ModelSource, draft: ModelSource, build: Build, levels: Iterable[str]
) -> list[str]:
    """What `check` says about a draft that reads as much per step as the target, even at the
    smallest level that a sweep would use.

    Raises:
        ModelError: one of the two cannot be counted here.
    """
    ours, theirs = (_examined(source, build.dtype)[0] for source in (target, draft))
    return _of_reading(ours.read_at(build.level), min(map(theirs.read_at, levels)))


def _of_reading(ours: int, theirs: int, *, always: bool = False) -> list[str]:
    """A caveat about the bytes that a step reads; time follows bytes only roughly, so it does not
    decide.
    """
    words = f"the draft reads {format_size(theirs)} a step, the target {format_size(ours)}"
    if theirs >= ours:
        return [f"{words}: a draft step will hardly take less time, and then nothing is gained"]
    return [words] if always else []


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
