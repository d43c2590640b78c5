"""Heads that a serving engine drafts with, and that are replayed here over its answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from draftbench.drafts.heads.config import WHERE_HEADS_ARE, check_fit, layers_of, misread_by, unfit
from draftbench.drafts.kind import Method
from draftbench.drafts.loading import LEAVE_OUT, Loading, Pairing
from draftbench.engines.every import ENGINES
from draftbench.errors import ModelError, PairError
from draftbench.models.check import ENGINE_TYPES
from draftbench.models.prequantized import stored_bytes
from draftbench.models.source import ModelSource
from draftbench.records import ModelFacts

Misfits = Callable[[ModelSource, ModelSource], tuple[Sequence[str], Sequence[str]]]


def check_head_for(
    head: ModelSource, pairing: Pairing, method: Method, misfits: Misfits
) -> tuple[str, ...] | None:
    """By its configuration and its tensors: the caveats of a head that can be measured here; None
    if only the engine can run it.

    Raises:
        PairError: it cannot draft for the target.
        ModelError: it cannot be read, or run here.
    """
    target, serving = pairing.target, pairing.serving
    if serving is None:
        caveats = check_fit(target, head, method)
        wrong, not_run = misfits(target, head)
        if wrong or not_run:
            raise unfit(target, head, wrong or not_run)
        return caveats
    name, caveats, refusal = f"{method}:{head.name}", (), None
    obstacle = serving.no_states
    try:
        if not (head.local or head.on_hub):
            raise ModelError("it is not on this machine", hint=WHERE_HEADS_ARE)
        caveats = check_fit(target, head, method)
        refusal = not_started(serving.engine, target, head, method)
        wrong, not_run = misfits(target, head)
        if wrong:
            raise unfit(target, head, wrong)
        obstacle = obstacle or next(iter(not_run), None)
    except PairError:
        raise
    except ModelError as error:  # the engine may run where it can be read
        obstacle = error.message
    if obstacle is None:
        return caveats
    if serving.running or refusal:
        why = f"{serving.engine} {refusal}, and " if refusal else ""
        raise ModelError(f"`{name}`: {why}it cannot be replayed: {obstacle}", hint=LEAVE_OUT)
    for caveat in (*caveats, f"it is not replayed, but counted by the engine: {obstacle}"):
        serving.note(f"note on {name}: {caveat}", always=True)
    return None


def not_started(engine: str, target: ModelSource, head: ModelSource, method: Method) -> str | None:
    """Why an engine is not started with a head: it reads other files, or reads this one otherwise
    than it was trained.
    """
    known = ENGINES.get(engine)
    if known is not None and known.converter and not head.spec.endswith(".gguf"):
        return f"takes a .gguf file, which {known.head_converter} makes"
    return misread_by(head.raw_config, method, layers_of(target)).get(engine)


def held(facts: ModelFacts, loading: Loading, dtype: str) -> ModelFacts:
    """The weights of its files in the engine's type, or as they were quantized here."""
    source, itemsize = loading.source, loading.build.dtype.itemsize
    if source.spec.endswith(".gguf"):
        weights, width = stored_bytes(source) or 0, 2  # float16
    else:
        floats = [weight for weight in source.tensors().values() if weight.is_floating_point()]
        width = (ENGINE_TYPES.get(dtype) or floats[0].dtype).itemsize
        weights = width * sum(weight.numel() for weight in floats)
    return msgspec.structs.replace(
        facts,
        weight_bytes=weights if loading.candidate.quant == "none" else facts.weight_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token * width // itemsize,
    )
