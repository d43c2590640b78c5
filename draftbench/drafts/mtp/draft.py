"""A target's own drafting layers: checked, and loaded if transformers runs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.decoder.runner import Runner
from draftbench.drafts.heads.draft import HeadDraft
from draftbench.drafts.kind import Method
from draftbench.drafts.loading import Loading, Pairing
from draftbench.drafts.mtp.head import MtpHead
from draftbench.drafts.mtp.own_draft import DSPARK_HINT, no_mtp, own_draft_of
from draftbench.errors import ModelError, PairError
from draftbench.measure.replay import ServedTarget
from draftbench.models.prequantized import stored_level
from draftbench.models.quantize import Build, check_build, model_facts
from draftbench.models.source import ModelSource
from draftbench.records import ModelFacts


def misfits(target: ModelSource, source: ModelSource) -> tuple[Sequence[str], Sequence[str]]:
    """They are the target's own, so that they fit it."""
    return (), list(mtp_obstacles(target))


def load(loading: Loading) -> tuple[HeadDraft, ModelFacts]:
    """Load them beside the target's other layers."""
    target = loading.runner
    assert not isinstance(target, ServedTarget)
    head, facts = build_mtp(loading.source, loading.build, loading.candidate.draft, target)
    return HeadDraft(head, target), facts


def check(source: ModelSource, pairing: Pairing, _: Method) -> tuple[str, ...]:
    """By the target's configuration and the names in its files."""
    for why in mtp_obstacles(source):
        own = own_draft_of(source.raw_config)
        hint = "leave `mtp` out"
        if own is not None and own.method != "mtp":
            hint = DSPARK_HINT
        elif own is not None:
            servers = [name for name in own.options if name != "transformers"]
            hint = f"measure them on an engine that has them: {', '.join(servers)}"
        raise PairError(f"the built-in decoder cannot draft by `mtp`: {why}", hint=hint)
    layers = source.config.get_text_config().num_mtp_layers
    return (f"it drafts at most {layers} tokens a round, one by each layer",) if layers > 1 else ()


def mtp_obstacles(target: ModelSource) -> Iterator[str]:
    """Why the built-in decoder cannot draft with a target's own layers."""
    from transformers.modeling_layers import MtpModel

    own = own_draft_of(target.raw_config)
    if own is None or own.method != "mtp":
        yield no_mtp(target.name, own)
        return
    if level := stored_level(target):
        yield f"it is stored as {level}, and transformers would load these layers without scales"
        return
    unknown = f"transformers does not run those of {target.config.model_type}"
    try:
        layers = getattr(target.config.get_text_config(), "num_mtp_layers", None)
        if not layers:
            raise ValueError(unknown)
        kinds = set(getattr(target.config.get_mtp_config(), "layer_types", None) or ())
        names = MtpModel.get_mtp_weights_regex(target.skeleton)
    except (TypeError, ValueError):  # it has no such layers, or none in a checkpoint of this size
        yield unknown
        return
    if kinds - {"full_attention"}:
        yield f"its layers are of kind {', '.join(sorted(kinds))}"
    stored = target.stored_tensors()
    known = {name.split(".layers.")[-1].split(".")[0] for name in filter(names.search, stored)}
    if None not in stored.values() and len(known) < layers:
        yield f"by the names in its files transformers knows {len(known)} of {layers} such layers"
    elif None not in stored.values() and (name := target.trained_apart()):
        yield f"its {name} is not the target's, and transformers would leave it out"


def build_mtp(
    source: ModelSource, build: Build, draft: str, target: Runner
) -> tuple[MtpHead, ModelFacts]:
    """Load, quantize, and count.

    Args:
        source: the target's.
        draft: the layers' name in the run.

    Raises:
        ModelError: they cannot be loaded or quantized.
    """
    if not isinstance(target, TransformersRunner):
        raise ModelError(
            "the target does not run through transformers' forward pass",
            hint="leave `mtp` out, or measure it on an engine",
        )
    has_kernel = check_build(source, build)
    model: Any = source.load_mtp(target.model)
    parameters = sum(weight.numel() for weight in model.layers.parameters())
    states = source.config.get_text_config().num_hidden_layers
    layouts = {"two_layouts": build.two_layouts}
    head = MtpHead(model, states, build.level, target.context_length, **layouts)
    return head, model_facts(
        head,
        source,
        build,
        draft,
        parameters=parameters,
        layer=model.config,
        vocab_size=target.vocab_size,
        has_kernel=has_kernel,
    )
