"""What the config.json of a block drafter says.

Checkpoints come in two formats. In that of speculators the layers stand in
`transformer_layer_config` and layer ids count what enters a layer; in that of the authors (z-lab,
DeepSpec) the file is the layers' configuration plus a few fields, and ids count what leaves a
layer, one less. A key that is not known here may change what the layers compute, so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftbench.decoder.attention import Sees

# Families of configurations whose layers are those of Qwen3, as all engines build them.
_FAMILIES = ("qwen3", "llama")
# Keys that change nothing: bookkeeping of transformers, and training.
_IGNORED = {
    *("_name_or_path", "architectures", "auto_map", "dtype", "id2label", "label2id"),
    *("model_type", "torch_dtype", "transformers_version", "use_cache", "initializer_range"),
    *("attention_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"),
    *("pretraining_tp", "max_window_layers", "num_target_layers"),
    *("speculators_version", "speculators_config", "has_no_defaults_at_init", "_commit_hash"),
    *("output_attentions", "output_hidden_states", "return_dict", "chunk_size_feed_forward"),
    *("is_encoder_decoder", "problem_type", "num_anchors", "confidence_head_alpha"),
    *("loss_fn", "dflash_decay_gamma", "max_anchors", "mlp_bias", "target_model_type"),
}
# Keys that describe the layers.
_LAYER = {
    *("attention_bias", "head_dim", "hidden_act", "hidden_size", "intermediate_size"),
    *("layer_types", "max_position_embeddings", "num_attention_heads", "num_hidden_layers"),
    *("num_key_value_heads", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta"),
    *("sliding_window", "use_sliding_window", "vocab_size"),
}
# Keys that describe the drafting.
_DRAFTING = {
    *("aux_hidden_state_layer_ids", "target_layer_ids", "block_size", "mask_token_id"),
    *("draft_vocab_size", "target_hidden_size", "sample_from_anchor", "sliding_window_non_causal"),
    *("causal", "is_causal", "use_swa", "swa_window_size", "conv_kernel_size", "conv_group_size"),
    *("selector_rank", "selector_top_k", "input_embedding_scale", "output_multiplier"),
    *("final_logit_softcapping", "markov_rank", "markov_head_type", "enable_confidence_head"),
    *("confidence_head_with_markov", "use_aux_hidden_state"),
}
_PARTS = {"speculators_model_type", "transformer_layer_config", "dflash_config"}
# Keys with a value at which they change nothing.
_NEUTRAL = {"attention_sink_bias": False, "attention_value_scale": None, "is_neox_style": True}


@dataclass(frozen=True)
class Convolutions:
    """DFlash 2's convolutions before and after each half of a layer, within the block."""

    taps: int
    group: int  # channels that share a dynamic kernel


@dataclass(frozen=True)
class Selector:
    """DFlash 2's choice among the best candidates, each scored after the token before it."""

    rank: int
    candidates: int


@dataclass(frozen=True)
class Markov:
    """DSpark's bias on the logits by the token before; with how sure it is, if it tells."""

    rank: int
    kind: Literal["vanilla", "gated", "rnn"]
    confident: bool  # whether it has a head that tells how sure it is
    confident_of_both: bool  # whether that reads the token before too


@dataclass(frozen=True)
class BlockShape:
    """What a block drafter computes."""

    layer: Any  # the transformers configuration of its layers
    reads: tuple[int, ...]  # the target's layers whose inputs it reads
    drafted: int  # tokens that it can draft
    block: int  # tokens of a block as it was trained, the last known one among them
    mask: int  # the token that stands for a drafted one
    # Whether the last known token's place drafts the next, so that k tokens take k places; else
    # they take k + 1, and each place with a mask drafts the token that belongs there.
    anchored: bool
    sees: tuple[Sees, ...]  # by layer
    convolutions: Convolutions | None = None
    selector: Selector | None = None
    markov: Markov | None = None
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None

    @property
    def most(self) -> int:
        """The most tokens of a round."""
        return self.block if self.anchored else self.block - 1

    @property
    def tells(self) -> bool:
        """Whether it tells how sure it is of a token: of DSpark only its head for that is heard."""
        return self.markov is None or self.markov.confident

    @property
    def head_dim(self) -> int:
        return getattr(self.layer, "head_dim", None) or (
            self.layer.hidden_size // self.layer.num_attention_heads
        )

    @property
    def same_at_every_length(self) -> bool:
        """Whether a block's tokens do not depend on how many are drafted with them."""
        return all(sees.causal for sees in self.sees)

    def places(self, k: int) -> int:
        """The tokens of a pass that drafts k."""
        return k if self.anchored else k + 1


def of_speculators(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is in the format of speculators."""
    return "speculators_model_type" in raw


def settings_of(raw: Mapping[str, Any]) -> dict[str, Any]:
    """All that a config.json says, without its levels."""
    layer = dict(raw.get("transformer_layer_config") or {})
    rest = {name: value for name, value in raw.items() if name not in _PARTS}
    return {**layer, **rest, **(raw.get("dflash_config") or {})}


def unknown_keys(raw: Mapping[str, Any]) -> list[str]:
    """What of a config.json is not known here and may change what the drafter computes."""
    said = settings_of(raw)
    known = _IGNORED | _LAYER | _DRAFTING
    strange = [name for name in said if name not in known and said[name] != _NEUTRAL.get(name, {})]
    return sorted(strange)


def shape_of(raw: Mapping[str, Any]) -> BlockShape:
    """What a config.json says.

    Raises:
        ValueError: it says something that cannot be, or not enough.
    """
    from transformers import AutoConfig

    said, speculators = settings_of(raw), of_speculators(raw)
    family = (raw.get("transformer_layer_config") or raw).get("model_type", "qwen3")
    if family not in _FAMILIES:
        raise ValueError(
            f"its layers' family is not supported here: {family} ({', '.join(_FAMILIES)} are)"
        )
    missing = [name for name in ("block_size", "mask_token_id") if said.get(name) is None]
    ids = said.get("aux_hidden_state_layer_ids" if speculators else "target_layer_ids")
    if missing or not ids:
        name = "aux_hidden_state_layer_ids" if speculators else "target_layer_ids"
        raise ValueError(f"its config.json does not say {' and '.join([*missing] or [name])}")
    if not (said.get("rope_theta") or (said.get("rope_parameters") or {}).get("rope_theta")):
        raise ValueError(
            "its config.json does not say rope_theta, which vLLM takes for 1,000,000 and "
            "transformers for 10,000"
        )
    fields = {name: said[name] for name in _LAYER if said.get(name) is not None}
    layer = AutoConfig.for_model(family, **fields)
    dspark = "markov_rank" in said
    markov = None
    if said.get("markov_rank"):
        markov = Markov(
            said["markov_rank"],
            said.get("markov_head_type", "vanilla"),
            bool(said.get("enable_confidence_head", speculators)),
            bool(said.get("confidence_head_with_markov", speculators)),
        )
    second = "selector_rank" in said
    return BlockShape(
        layer,
        tuple(ids) if speculators else tuple(number + 1 for number in ids),
        said.get("draft_vocab_size") or layer.vocab_size,
        said["block_size"],
        said["mask_token_id"],
        bool(said.get("sample_from_anchor", dspark)),
        tuple(_sees(said, layer, speculators=speculators)),
        Convolutions(said["conv_kernel_size"], said["conv_group_size"]) if second else None,
        Selector(said["selector_rank"], said["selector_top_k"]) if second else None,
        markov,
        said.get("input_embedding_scale", 1.0),
        said.get("output_multiplier", 1.0),
        said.get("final_logit_softcapping") or None,
    )


def _sees(said: Mapping[str, Any], layer: Any, *, speculators: bool) -> Iterator[Sees]:
    """What each layer sees: a sliding layer nothing after itself, any other layer the whole block,
    unless the file says otherwise.
    """
    kinds = said.get("layer_types") or ["full_attention"] * layer.num_hidden_layers
    every = said.get("is_causal", said.get("causal"))
    # Of layers none of which slides by itself, `use_swa` makes all slide, and they see the block.
    all_slide = bool(said.get("use_swa")) and "sliding_attention" not in kinds
    for kind in kinds:
        sliding, causal = all_slide or kind == "sliding_attention", kind == "sliding_attention"
        if speculators and said.get("sliding_window_non_causal"):
            causal = False
        window = said.get("swa_window_size", layer.sliding_window) if sliding else None
        if sliding and window is None:  # a Qwen3 configuration forgets it
            raise ValueError(
                "its layers have sliding windows, and its config.json does not say how long, or "
                "does not say that use_sliding_window is true"
            )
        yield Sees(causal if every is None else bool(every), window)
