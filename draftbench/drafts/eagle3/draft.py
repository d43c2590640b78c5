"""An EAGLE-3 head: checked for a target and for an engine, and loaded."""

from __future__ import annotations

import msgspec
import torch

from draftbench.drafts.eagle3.weights import build_head, check_eagle
from draftbench.drafts.eagle3.weights import misfits as misfits
from draftbench.drafts.heads.config import WHERE_HEADS_ARE, check_fit, misread_by, unfit
from draftbench.drafts.heads.draft import HeadDraft
from draftbench.drafts.loading import LEAVE_OUT, Loading, Pairing, Serving
from draftbench.errors import ModelError, PairError
from draftbench.measure.replay import ServedTarget
from draftbench.models.check import ENGINE_TYPES
from draftbench.models.drafting import CONVERT_HEAD
from draftbench.models.engine_rules import ENGINE_RULES
from draftbench.models.prequantized import stored_bytes
from draftbench.models.source import ModelSource
from draftbench.records import ModelFacts


def check(source: ModelSource, pairing: Pairing) -> tuple[str, ...] | None:
    """By its configuration and its tensors."""
    if pairing.serving is None:
        return check_eagle(pairing.target, source)
    return _check_over_answers(source, pairing.target, pairing.serving)


def _check_over_answers(
    head: ModelSource, target: ModelSource, serving: Serving
) -> tuple[str, ...] | None:
    """The caveats of a head that is replayed here over an engine's answers; None if only the engine
    can run it.
    """
    name, caveats, refusal = f"eagle3:{head.name}", tuple[str, ...](), None
    obstacle = serving.no_states
    try:
        if not (head.local or head.on_hub):
            raise ModelError("it is not on this machine", hint=WHERE_HEADS_ARE)
        caveats, refusal = check_fit(target, head), _not_started(serving.engine, head)
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


def load(loading: Loading) -> tuple[HeadDraft, ModelFacts]:
    """Load it on the target."""
    target = loading.runner
    assert not isinstance(target, ServedTarget)
    layers = loading.target.config.get_text_config().num_hidden_layers
    named = loading.candidate.draft
    head, facts = build_head(loading.source, loading.build, named, target, layers, loading.engine)
    return HeadDraft(head, target), facts


def refused_by(engine: str, target: ModelSource, source: ModelSource) -> str | None:
    """Where the engine does not take it, or reads it otherwise than it was trained."""
    why = _not_started(engine, source)
    return why and f"it {why}"


def _not_started(engine: str, head: ModelSource) -> str | None:
    rules = ENGINE_RULES.get(engine)
    if rules is not None and rules.converts and not head.spec.endswith(".gguf"):
        return f"takes a .gguf file, which {CONVERT_HEAD} makes"
    return misread_by(head.raw_config, "eagle3").get(engine)


def held(facts: ModelFacts, loading: Loading, dtype: str) -> ModelFacts:
    """The weights of its files in the engine's type, or as they were quantized here."""
    source, itemsize = loading.source, loading.build.dtype.itemsize
    if source.spec.endswith(".gguf"):
        weights, width = stored_bytes(source) or 0, torch.float16.itemsize
    else:
        floats = [weight for weight in source.tensors().values() if weight.is_floating_point()]
        width = (ENGINE_TYPES.get(dtype) or floats[0].dtype).itemsize
        weights = width * sum(weight.numel() for weight in floats)
    return msgspec.structs.replace(
        facts,
        weight_bytes=weights if loading.candidate.quant == "none" else facts.weight_bytes,
        kv_bytes_per_token=facts.kv_bytes_per_token * width // itemsize,
    )
