"""An EAGLE-3 head: checked for a target and for an engine, with everything that might not fit, and
loaded.

Checkpoints come in two formats: the speculators format, whose config.json has the layer in
`transformer_layer_config`, and the format of EAGLE's authors (SafeAILab), which is the layer's
configuration plus a few fields and calls the layer `midlayer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from torch import Tensor

from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import Runner
from draftbench.drafts.eagle3.head import EagleHead, EagleShape
from draftbench.drafts.heads.config import (
    layer_ids,
    layer_of,
    read_otherwise,
    silent_flags,
    usual_layers,
)
from draftbench.drafts.heads.draft import HeadDraft
from draftbench.drafts.heads.served import check_head_for, not_started
from draftbench.drafts.heads.served import held as held
from draftbench.drafts.heads.tensors import (
    ROTARY,
    first_of,
    layer_not_run,
    misfitting,
    reads_outside,
    rotary_of,
    unusable,
)
from draftbench.drafts.kind import Method
from draftbench.drafts.loading import Loading, Pairing
from draftbench.measure.replay import ServedTarget
from draftbench.models.quantize import Build, check_build, model_facts
from draftbench.models.source import ModelSource
from draftbench.records import ModelFacts

# Families whose layers have the shape below.
_FAMILIES = ("llama", "qwen3")
# A checkpoint's flags, each false if it is not given.
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def check(source: ModelSource, pairing: Pairing, method: Method) -> tuple[str, ...] | None:
    """By its configuration and its tensors. Over an engine's answers it is replayed here, unless
    only the engine can run it.
    """
    return check_head_for(source, pairing, method, misfits)


def load(loading: Loading) -> tuple[HeadDraft, ModelFacts]:
    """Load it on the target."""
    target = loading.runner
    assert not isinstance(target, ServedTarget)
    layers = loading.target.config.get_text_config().num_hidden_layers
    named = loading.candidate.draft
    head, facts = build_head(loading.source, loading.build, named, target, layers, loading.engine)
    return HeadDraft(head, target), facts


def refused_by(engine: str, target: ModelSource, source: ModelSource, method: Method) -> str | None:
    """Where the engine does not take it, or reads it otherwise than it was trained."""
    why = not_started(engine, target, source, method)
    return why and f"it {why}"


def check_eagle(target: ModelSource, head: ModelSource) -> tuple[str, ...]:
    """Check that a head can draft for a target in the built-in decoder; returns caveats. A small
    head's weights are read for this.

    Raises:
        ModelError: it cannot be read.
        PairError: it cannot draft.
    """
    return check_head_for(head, Pairing(target, {}, chats=False), "eagle3", misfits) or ()


def misfits(target: ModelSource, head: ModelSource) -> tuple[list[str], list[str]]:
    """Why a head's tensors do not fit the target, whatever drafts with it; and what of it the
    built-in decoder does not run.

    Raises:
        ModelError: it cannot be read.
    """
    raw, text = head.raw_config, target.config.get_text_config()
    own, layers = layer_of(raw), text.num_hidden_layers
    said = {**raw, **(raw.get("eagle_config") or {})}
    if said.get("use_aux_hidden_state") is False:
        return [], ["it reads only the target's last state (use_aux_hidden_state is false)"]
    if not layer_ids(raw) and (count := said.get("num_aux_hidden_states") or 3) != 3:
        return [], [
            f"it reads the states of {count} layers, and its config.json does not say which"
        ]
    kind = own.get("model_type")
    if kind not in _FAMILIES:
        return [], [
            f"its layer's family is not supported here: {kind} ({', '.join(_FAMILIES)} are)"
        ]
    try:
        shape = shape_of(raw, layers)
        if shape.layer.rope_parameters["rope_type"] in ROTARY:
            rotary_of(shape.layer)
    # Anyone may have written the configuration, and code that builds from it raises anything.
    except Exception as error:
        reason = str(error).strip().rpartition("\n")[2].rpartition("Error: ")[2]
        reason = reason or type(error).__name__
        return [f"its layer cannot be built from its config.json: {reason}"], []

    tensors = _by_name(head)
    wanted, optional = _sizes(shape, text.hidden_size, text.vocab_size)
    known = {**wanted, **optional}
    vocabulary = text.vocab_size
    wrong = misfitting(tensors, known, drafted=shape.drafted, vocabulary=vocabulary)
    if "embed_tokens.weight" not in tensors and shape.layer.hidden_size != text.hidden_size:
        wrong.append(
            f"it has no embedding of its own, and the target's is {text.hidden_size} wide, not "
            f"{shape.layer.hidden_size}"
        )

    if (count := own.get("num_hidden_layers", 1)) != 1:
        return wrong, [f"heads of {count} layers are not supported here, only those of one"]
    not_run = layer_not_run(shape.layer)
    if "sliding_attention" in (getattr(shape.layer, "layer_types", None) or ()):
        not_run.append("sliding-window attention is not supported here")
    not_run += reads_outside(shape.reads, layers)
    missing = sorted(wanted.keys() - tensors.keys() - {"d2t"})
    # What some engines take from the target if a head lacks it; its layer nobody has.
    if lost := [name for name in missing if name.startswith(("fc.", "layers."))]:
        wrong.append(f"it has no tensor {first_of(lost)}")
    elif missing:
        not_run.append(f"it has no tensor {first_of(missing)}")
    return wrong, not_run + unusable(tensors, known)


def shape_of(raw: Mapping[str, Any], layers: int, engine: str | None = None) -> EagleShape:
    """What a head's config.json says, for a target with `layers`; what it does not say is filled in
    as the engine does (None: the built-in decoder).
    """
    from transformers import AutoConfig

    own = layer_of(raw)
    fields = {name: value for name, value in own.items() if name != "model_type"}
    layer = AutoConfig.for_model(own["model_type"], **fields)
    reads = layer_ids(raw) or usual_layers(layers)
    said = {**silent_flags(raw, engine), **raw}
    flags = {name: bool(said.get(name)) for name in _FLAGS}
    return EagleShape(layer, tuple(reads), raw.get("draft_vocab_size") or layer.vocab_size, **flags)


def build_head(
    source: ModelSource,
    build: Build,
    draft: str,
    target: Runner,
    layers: int,
    engine: str | None = None,
) -> tuple[EagleHead, ModelFacts]:
    """Load, quantize, and count.

    Args:
        draft: the head's name in the run.
        layers: how many the target has.
        engine: the engine that drafts with it; None: the built-in decoder.

    Raises:
        ModelError: it cannot be loaded or quantized.
    """
    has_kernel = check_build(source, build)
    tensors, shape = _by_name(source), shape_of(source.raw_config, layers, engine)
    linear = partial(make_linear, level=build.level, two_layouts=build.two_layouts)
    head = EagleHead(
        shape,
        tensors,
        target.embedding,
        rotary_of(shape.layer),
        linear,
        build.dtype,
        target.device,
        target.context_length,
        build.longest,
    )
    slow = head.record_short_passes()
    parameters = sum(t.numel() for t in tensors.values() if t.is_floating_point())
    facts = model_facts(
        head,
        source,
        build,
        draft,
        parameters=parameters,
        layer=shape.layer,
        vocab_size=shape.drafted,
        has_kernel=has_kernel,
        slow=slow,
    )
    misread = read_otherwise(source.raw_config, "eagle3", engine, layers)
    return head, msgspec.structs.replace(facts, misread=misread)


def speculators_name(tensor: str) -> str:
    """The name of a tensor in the speculators format."""
    return tensor.replace("midlayer.", "layers.0.")


def _by_name(source: ModelSource) -> dict[str, Tensor]:
    return {speculators_name(name): tensor for name, tensor in source.tensors().items()}


def _sizes(
    shape: EagleShape, states: int, vocabulary: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """The sizes of the tensors that a head must have and of those that it may have."""
    layer, parts = shape.layer, len(shape.reads)
    hidden, inner, drafted = layer.hidden_size, layer.intermediate_size, shape.drafted
    queries, keys = (
        n * shape.head_dim for n in (layer.num_attention_heads, layer.num_key_value_heads)
    )
    of_layer = {
        "self_attn.q_proj.weight": (queries, 2 * hidden),
        "self_attn.k_proj.weight": (keys, 2 * hidden),
        "self_attn.v_proj.weight": (keys, 2 * hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "input_layernorm.weight": (hidden,),
        "hidden_norm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    biases = {"q": queries, "k": keys, "v": keys, "o": hidden}
    wanted: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, parts * states),
        "norm.weight": (hidden,),
        "lm_head.weight": (drafted, hidden),
        **{f"layers.0.{name}": size for name, size in of_layer.items()},
    }
    optional: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (vocabulary, hidden),
        "t2d": (vocabulary,),
        "fc.bias": (hidden,),
        **{f"layers.0.self_attn.{name}_proj.bias": (n,) for name, n in biases.items()},
    }
    (optional if drafted == vocabulary else wanted)["d2t"] = (drafted,)
    if layer.model_type == "qwen3":
        for name in ("q_norm", "k_norm"):
            wanted[f"layers.0.self_attn.{name}.weight"] = (shape.head_dim,)
    if shape.norm_before_fc:
        wanted["input_norm.weight"] = (parts * states,)
    if shape.fc_norm:
        wanted |= {f"fc_norm.{part}.weight": (states,) for part in range(parts)}
    return wanted, optional
