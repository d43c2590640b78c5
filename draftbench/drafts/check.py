"""Checks whether drafts can work with a target, and how much memory they need, before weights load.

Reads configurations, tokenizers and the files of heads, which are small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import torch

from draftbench.decoder.device import device_of
from draftbench.drafts.built_in import HEADS
from draftbench.drafts.heads.config import check_head
from draftbench.drafts.kinds import parsed
from draftbench.drafts.mtp.own_draft import own_draft_of, sheet_of
from draftbench.engines.every import ENGINES
from draftbench.errors import ModelError
from draftbench.memory import LEVELS, format_size
from draftbench.models.check import examined
from draftbench.models.check_result import CheckResult, HeadSheet, OwnDraft, PairSheet, Room
from draftbench.models.compatibility import (
    caveats_of,
    covers,
    pair_facts,
    refusal_of,
    writing_obstacle,
)
from draftbench.models.prequantized import stored_level
from draftbench.models.quantize import Build, level_table
from draftbench.models.source import ModelSource

# Tokens of a verification pass whose experts are counted: k + 1 at k = 1, 3 and 7.
_VERIFIED = (2, 4, 8)


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
    ours, our_obstacles, our_caveats = examined(target, dtype)
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
        theirs, obstacles, caveats = examined(source, dtype)
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
    own_draft = own_draft_of(target.raw_config, target.spec)
    runs_here = not (our_obstacles or target.multimodal)
    sheets = tuple(_head_sheet(target, own_draft, each, runs_here=runs_here) for each in heads)
    total = None if traffic is None else round(sum(traffic.values()))
    levels = level_table(device_of(None))
    return CheckResult(ours, memory_bytes, total, tuple(pairs), levels, own_draft, sheets)


def _head_sheet(
    target: ModelSource, own_draft: OwnDraft | None, head: str, *, runs_here: bool
) -> HeadSheet:
    """What configurations say of a head, and the files of one that is here.

    Args:
        runs_here: whether the built-in decoder runs the target.
    """
    method, model = parsed(head)
    sheet = check_head(target, head) if model else sheet_of(target.name, own_draft)
    source = ModelSource(model or target.spec, target.trust)
    if sheet.obstacles or method not in HEADS or not source.local:
        return sheet
    wrong, not_run = HEADS[method].misfits(target, source)
    if wrong:
        return msgspec.structs.replace(sheet, obstacles=tuple(wrong), engines=())
    said = [f"the built-in decoder refuses it: {why}" for why in not_run]
    if runs_here and not said:
        said = ["the built-in decoder drafts with it, without an engine"]
    return msgspec.structs.replace(sheet, caveats=(*sheet.caveats, *said))


def reads_as_much(
    target: ModelSource, draft: ModelSource, build: Build, levels: Iterable[str]
) -> list[str]:
    """What `check` says about a draft that reads as much per step as the target, even at the
    smallest level that a sweep would use.

    Raises:
        ModelError: one of the two cannot be counted here.
    """
    ours, theirs = (examined(source, build.dtype)[0] for source in (target, draft))
    return _of_reading(ours.read_at(build.level), min(map(theirs.read_at, levels)))


def _of_reading(ours: int, theirs: int, *, always: bool = False) -> list[str]:
    """A caveat about the bytes that a step reads; time follows bytes only roughly, so it does not
    decide.
    """
    words = f"the draft reads {format_size(theirs)} a step, the target {format_size(ours)}"
    if theirs >= ours:
        return [f"{words}: a draft step will hardly take less time, and then nothing is gained"]
    return [words] if always else []
