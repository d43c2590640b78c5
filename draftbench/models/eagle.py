"""Loads EAGLE-3 heads for the built-in decoder, after everything that could misfit was checked.

Checkpoints come in two formats: that of speculators, whose config.json has the layer in
`transformer_layer_config`, and that of the head's authors (SafeAILab), which is the layer's
configuration with a few fields more and calls the layer `midlayer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from draftbench.decoder.eagle import EagleHead, EagleShape
from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import Runner
from draftbench.models.heads import check_fit, layer_ids, layer_of, silent_flags, unfit
from draftbench.models.quantize import (
    Build,
    check_level,
    check_level_goes_with,
    facts_of_head,
)
from draftbench.models.source import ModelSource
from draftbench.records import ModelFacts

# Families whose layer is the one below.
_FAMILIES = ("llama", "qwen3")
# The flags of a checkpoint, each false where it is silent.
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def check_eagle(target: ModelSource, head: ModelSource) -> tuple[str, ...]:
    """Whether a head can draft for a target in the built-in decoder; its caveats. A small head's
    weights are read for this.

    Raises:
        ModelError: it cannot be read.
        PairError: it cannot draft.
    """
    caveats = check_fit(target, head)
    if obstacles := tuple(misfits(target, head)):
        raise unfit(target, head, obstacles)
    return caveats


def misfits(target: ModelSource, head: ModelSource) -> Iterator[str]:
    """What of a head's layer and tensors does not fit the target or the built-in decoder."""
    raw, text = head.raw_config, target.config.get_text_config()
    own, layers = layer_of(raw), text.num_hidden_layers
    kind, rope = own.get("model_type"), own.get("rope_parameters") or own.get("rope_scaling") or {}
    if kind not in _FAMILIES:
        yield f"its layer is of the family {kind}, and {' and '.join(_FAMILIES)} are run here"
        return
    if own.get("num_hidden_layers", 1) != 1:
        yield f"it has {own['num_hidden_layers']} layers, and heads of one layer are run here"
        return
    if own.get("hidden_act", "silu") != "silu":
        yield f"activation {own['hidden_act']}"
    rope_type = str(rope.get("rope_type") or rope.get("type"))
    if any(word in rope_type for word in ("dynamic", "longrope")):
        yield "its rotary tables depend on the sequence"
    shape = shape_of(raw, layers)
    if min(shape.reads) < 0 or max(shape.reads) >= layers:
        yield f"it reads what enters the layers {list(shape.reads)}, and the target has {layers}"
        return
    tensors = _by_name(head)
    wanted, optional = _sizes(shape, text.hidden_size, text.vocab_size)
    for name in sorted(wanted.keys() - tensors.keys()):
        yield f"it has no tensor {name}"
    for name, size in (wanted | optional).items():
        if name in tensors and (stored := tuple(tensors[name].shape)) != size:
            yield f"{name} is {list(stored)}, not {list(size)}"
    unknown = tensors.keys() - wanted.keys() - optional.keys()
    if unknown:
        yield f"it has a tensor that such a head does not have, {min(unknown)}"
    yield from _wrong_ids(tensors, shape.drafted, text.vocab_size)
    if "embed_tokens.weight" not in tensors and shape.layer.hidden_size != text.hidden_size:
        yield (
            f"it has no embedding of its own, and the target's is {text.hidden_size} wide, not "
            f"{shape.layer.hidden_size}"
        )


def shape_of(raw: Mapping[str, Any], layers: int, engine: str | None = None) -> EagleShape:
    """What a head's config.json says, for a target with `layers`; where it is silent, as an engine
    reads it (None: the built-in decoder).
    """
    from transformers import AutoConfig

    own = layer_of(raw)
    fields = {name: value for name, value in own.items() if name != "model_type"}
    layer = AutoConfig.for_model(own["model_type"], **fields)
    reads = layer_ids(raw) or [2, layers // 2, layers - 3]
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
        draft: the name that the run gives this head.
        layers: how many the target has.
        engine: that drafts with it; None: the built-in decoder.

    Raises:
        ModelError: it cannot be loaded or quantized.
    """
    has_kernel = check_level(build.level, build.device, simulate=build.simulate)
    check_level_goes_with(source, None, build)
    tensors, shape = _by_name(source), shape_of(source.raw_config, layers, engine)
    linear = partial(make_linear, level=build.level, two_layouts=build.two_layouts)
    head = EagleHead(
        shape,
        tensors,
        target.embedding,
        rotary_of(shape),
        linear,
        build.dtype,
        target.device,
        target.context_length,
    )
    parameters = sum(t.numel() for t in tensors.values() if t.is_floating_point())
    return head, facts_of_head(
        head,
        source,
        build,
        draft,
        target,
        parameters=parameters,
        layer=shape.layer,
        vocab_size=shape.drafted,
        has_kernel=has_kernel,
    )


def rotary_of(shape: EagleShape) -> nn.Module:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    module: nn.Module = LlamaRotaryEmbedding(shape.layer)
    return module


def named(tensor: str) -> str:
    """The name of a tensor in the speculators format."""
    return tensor.replace("midlayer.", "layers.0.")


def _by_name(source: ModelSource) -> dict[str, Tensor]:
    return {named(name): tensor for name, tensor in source.tensors().items()}


def _sizes(
    shape: EagleShape, states: int, vocabulary: int
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """The sizes of the tensors that a head must have, and of those that it may have."""
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


def _wrong_ids(tensors: Mapping[str, Tensor], drafted: int, vocabulary: int) -> Iterator[str]:
    """What is wrong with the target's ids of the tokens that a head drafts."""
    if (offsets := tensors.get("d2t")) is None or offsets.shape != (drafted,):
        return
    ids = torch.arange(drafted) + offsets
    if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
        yield f"its d2t leads to token {int(ids.max())}, and the target has {vocabulary}"
    elif "t2d" in tensors and ids.tolist() != tensors["t2d"].nonzero().flatten().tolist():
        yield "its d2t and t2d name different tokens, or the same in another order"
