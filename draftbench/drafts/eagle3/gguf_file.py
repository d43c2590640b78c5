"""Reads an EAGLE-3 head from a .gguf file as if it were in the speculators format.

llama.cpp's convert_hf_to_gguf.py writes such files (architecture `eagle3`), with the rows of q and
k in another order, with the target's ids of drafted tokens instead of a checkpoint's offsets to
them, and with the target's tokenizer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftbench.safe_files import UnreadableError

ARCHITECTURE = "eagle3"
# Tensors by their names in a .gguf file, without `.weight`, and in a checkpoint.
NAMES = {
    "fc": "fc",
    "enc.output_norm": "input_norm",
    "token_embd": "embed_tokens",
    "output": "lm_head",
    "output_norm": "norm",
    "blk.0.attn_norm": "layers.0.input_layernorm",
    "blk.0.attn_norm_2": "layers.0.hidden_norm",
    "blk.0.ffn_norm": "layers.0.post_attention_layernorm",
    "blk.0.attn_q": "layers.0.self_attn.q_proj",
    "blk.0.attn_k": "layers.0.self_attn.k_proj",
    "blk.0.attn_v": "layers.0.self_attn.v_proj",
    "blk.0.attn_output": "layers.0.self_attn.o_proj",
    "blk.0.ffn_gate": "layers.0.mlp.gate_proj",
    "blk.0.ffn_up": "layers.0.mlp.up_proj",
    "blk.0.ffn_down": "layers.0.mlp.down_proj",
}


def config_of(reader: Any) -> dict[str, Any]:
    """What the head's config.json would contain.

    Raises:
        UnreadableError: something that it must say is missing.
    """

    def said(name: str, *default: Any) -> Any:
        field = reader.fields.get(f"{ARCHITECTURE}.{name}")
        if field is None and not default:
            raise UnreadableError(f"it does not say `{ARCHITECTURE}.{name}`")
        return field.contents() if field else default[0]

    if said("rope.scaling.type", "none") != "none":
        raise UnreadableError("scaled rope is not supported in .gguf files")
    sizes = {tensor.name: tensor.shape.tolist() for tensor in reader.tensors}
    hidden, heads = said("embedding_length"), said("attention.head_count")
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": ARCHITECTURE,
        "draft_vocab_size": sizes["output.weight"][-1],
        "target_hidden_size": said("target_hidden_size", hidden),
        "norm_before_residual": said("norm_before_residual", False),
        "norm_before_fc": said("norm_before_fc", False),
        "eagle_aux_hidden_state_layer_ids": said("target_layers"),
        "transformer_layer_config": {
            "model_type": "llama",
            "vocab_size": len(reader.fields["tokenizer.ggml.tokens"].data),
            "hidden_size": hidden,
            "intermediate_size": said("feed_forward_length"),
            "num_hidden_layers": said("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": said("attention.head_count_kv", heads),
            "head_dim": said("attention.key_length", hidden // heads),
            "max_position_embeddings": said("context_length"),
            "rms_norm_eps": said("attention.layer_norm_rms_epsilon"),
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": said("rope.freq_base", 10_000.0),
            },
        },
    }


def tensors_of(reader: Any) -> dict[str, Tensor]:
    """Its tensors by their names in a checkpoint, quantized ones unpacked."""
    from gguf.quants import dequantize

    layer = config_of(reader)["transformer_layer_config"]
    turned = {"q_proj": layer["num_attention_heads"], "k_proj": layer["num_key_value_heads"]}
    found = {}
    for tensor in reader.tensors:
        stem, dot, kind = tensor.name.partition(".weight")
        if tensor.name == "d2t":
            ids = tensor.data.astype(np.int64)
            found["d2t"] = torch.from_numpy(ids - np.arange(len(ids)))
            continue
        name = NAMES.get(stem, stem)
        weight = dequantize(tensor.data, tensor.tensor_type)
        if heads := turned.get(name.rpartition(".")[2]):
            weight = halves_of(weight, heads)
        found[f"{name}{dot}{kind}"] = torch.from_numpy(weight.copy())
    return found


def halves_of(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of q or k in transformers' order, which rotates the two halves of a head, from
    llama.cpp's order, which rotates neighbouring pairs.
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)
