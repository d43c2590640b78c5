"""Reads a block drafter from a .gguf file as if it were in its authors' format.

llama.cpp's convert_hf_to_gguf.py writes such files (architecture `dflash`, whatever the variant),
with the target's ids of drafted tokens instead of a checkpoint's offsets to them, and with the
target's tokenizer, which names the mask.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftbench.safe_files import UnreadableError

ARCHITECTURE = "dflash"
# Tensors by their names in a .gguf file, without `.weight` and the layer, and in a checkpoint.
NAMES = {
    "fc": "fc",
    "enc.output_norm": "hidden_norm",
    "token_embd": "embed_tokens",
    "output": "lm_head",
    "output_norm": "norm",
    "markov_w1": "markov_head.markov_w1",
    "markov_w2": "markov_head.markov_w2",
    "conf_proj": "confidence_head.proj",
    "selector_predecessor": "candidate_selector.predecessor_codebook",
    "selector_successor": "candidate_selector.successor_codebook",
    "selector_hidden": "candidate_selector.hidden_projection",
}
NAMES_IN_LAYERS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_conv_base": "attention_conv.base_kernel",
    "attn_conv_proj": "attention_conv.kernel_projection",
    "ffn_conv_base": "mlp_conv.base_kernel",
    "ffn_conv_proj": "mlp_conv.kernel_projection",
}
# What has no `.weight` at its end in a checkpoint.
_BARE = ("_codebook", "base_kernel")
_LAYER = re.compile(r"blk\.(\d+)\.")


def config_of(reader: Any) -> dict[str, Any]:
    """What the drafter's config.json would contain.

    Raises:
        UnreadableError: something that it must say is missing.
    """

    def said(name: str, *default: Any) -> Any:
        whole = name if name.startswith("tokenizer.") else f"{ARCHITECTURE}.{name}"
        field = reader.fields.get(whole)
        if field is None and not default:
            raise UnreadableError(f"it does not say `{whole}`")
        return field.contents() if field else default[0]

    if said("rope.scaling.type", "none") != "none":
        raise UnreadableError("scaled rope is not supported in .gguf files")
    sizes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    hidden, heads = said("embedding_length"), said("attention.head_count")
    layers, words = said("block_count"), len(reader.fields["tokenizer.ggml.tokens"].data)
    layer_ids, config = said("target_layers"), dict[str, Any](architectures=["DFlashDraftModel"])
    drafted = sizes["d2t"][-1] if "d2t" in sizes else words
    if "markov_w1.weight" in sizes:
        with_confidence = "conf_proj.weight" in sizes
        config = {
            "architectures": ["Qwen3DSparkModel"],
            "markov_rank": sizes["markov_w1.weight"][0],
            "markov_head_type": "vanilla",
            "enable_confidence_head": with_confidence,
            "confidence_head_with_markov": with_confidence,
            "sample_from_anchor": said("sample_from_anchor", True),
        }
    if "selector_hidden.weight" in sizes:
        names = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
        config |= {name: said(name) for name in names}
    window = said("attention.sliding_window", 0)
    of_layers: dict[str, Any] = {}
    if window:
        pattern = said("attention.sliding_window_pattern")
        kinds = ("full_attention", "sliding_attention")
        of_layers = {
            "sliding_window": window,
            "use_sliding_window": True,
            "layer_types": [kinds[bool(slides)] for slides in pattern[:layers]],
        }
    return {
        **config,
        "model_type": "qwen3",
        # Its places see what follows, whatever the layer, unless the file says otherwise.
        "causal": said("attention.causal", False),
        "draft_vocab_size": drafted,
        "block_size": said("block_size", 16),
        "mask_token_id": said("tokenizer.ggml.mask_token_id"),
        "target_layer_ids": [number - 1 for number in layer_ids],
        "target_hidden_size": sizes["fc.weight"][0] // len(layer_ids),
        "output_multiplier": said("logit_scale", 1.0),
        "final_logit_softcapping": said("final_logit_softcapping", None),
        "vocab_size": words,
        "hidden_size": hidden,
        "intermediate_size": said("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": said("attention.head_count_kv", heads),
        "head_dim": said("attention.key_length", hidden // heads),
        "max_position_embeddings": said("context_length"),
        "rms_norm_eps": said("attention.layer_norm_rms_epsilon"),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": said("rope.freq_base", 10_000.0),
        },
        **of_layers,
    }


def tensors_of(reader: Any) -> dict[str, Tensor]:
    """Its tensors by their names in a checkpoint, quantized ones unpacked."""
    from gguf.quants import dequantize

    found = {}
    for tensor in reader.tensors:
        if tensor.name == "d2t":
            ids = tensor.data.astype(np.int64)
            found["d2t"] = torch.from_numpy(ids - np.arange(len(ids)))
            continue
        found[_in_checkpoint(tensor.name)] = torch.from_numpy(
            dequantize(tensor.data, tensor.tensor_type).copy()
        )
    return found


def _in_checkpoint(name: str) -> str:
    """The name of a tensor in a checkpoint."""
    layer = _LAYER.match(name)
    stem, ending = name[layer.end() if layer else 0 :], ""
    for kind in (".weight", ".bias"):
        if stem.endswith(kind):
            stem, ending = stem.removesuffix(kind), kind
    there = (NAMES_IN_LAYERS if layer else NAMES).get(stem, stem)
    prefix = f"layers.{layer[1]}." if layer else ""
    return f"{prefix}{there}{'' if there.endswith(_BARE) else ending}"
