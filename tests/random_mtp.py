"""Targets with random weights that carry layers which draft for them."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DeepseekV3ForCausalLM, Glm4MoeForCausalLM, MellumForCausalLM
from transformers.modeling_layers import MtpModel

LAYERS, CONTEXT = 3, 512
# A mixture of experts, not yet of how many layers and with which attention.
SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": CONTEXT,
    "eos_token_id": None,
    "pad_token_id": 0,
    "bos_token_id": None,
}
# What of a checkpoint transformers leaves to `MtpModel`: it names the layers of two real models.
LEFT_OUT = [rf"model\.layers\.{at}\..*" for at in range(LAYERS, LAYERS + 8)]


def target(layers: int, vocabulary: int, *, states_first: bool = False) -> tuple[Any, Any]:
    """A GLM-4-MoE with so many layers to draft with, and these. They read the embedding before the
    state or, as Inkling's, behind it.
    """
    return made(
        Glm4MoeForCausalLM,
        layers,
        vocabulary,
        num_hidden_layers=LAYERS,
        intermediate_size=128,
        num_key_value_heads=2,
        head_dim=16,
        first_k_dense_replace=1,
        initializer_range=0.1,
        mtp_hidden_states_first=states_first,
    )


def deepseek(vocabulary: int) -> tuple[Any, Any]:
    """As `target`, with the attention of DeepSeek-V3 and as many layers, by whose number
    transformers knows the one that drafts.
    """
    return made(
        DeepseekV3ForCausalLM,
        1,
        vocabulary,
        num_hidden_layers=61,
        intermediate_size=96,
        num_key_value_heads=4,
        q_lora_rank=32,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        first_k_dense_replace=61,
    )


def mellum(vocabulary: int) -> tuple[Any, Any]:
    """As `target`, with the layers of Mellum, which rotate by their kind."""
    return made(
        MellumForCausalLM,
        1,
        vocabulary,
        num_hidden_layers=LAYERS,
        intermediate_size=96,
        num_key_value_heads=2,
        head_dim=16,
        num_experts=4,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        sliding_window=16,
        mtp_layer_types=["full_attention"],
        initializer_range=0.1,
    )


def made(of: Any, layers: int, vocabulary: int, **fields: Any) -> tuple[Any, Any]:
    """A model with random weights, and so many layers that draft for it. All lean on the embedding
    of the newest token they have read, so that a part of what the layers draft is accepted.
    """
    torch.manual_seed(0)
    size = {"vocab_size": vocabulary, "num_nextn_predict_layers": layers}
    model = of(of.config_class(**SMALL, **size, **fields)).eval()
    drafting = MtpModel(model, layers).eval()
    model.model.embed_tokens.weight.data.mul_(6)
    for name, weight in drafting.layers.named_parameters():
        if weight.dim() > 1:  # transformers leaves the experts as memory was
            weight.data = 0.1 * torch.randn(weight.shape)
        if name.endswith("eh_proj.weight"):
            embedding = weight.data.chunk(2, dim=1)[int(fields.get("mtp_hidden_states_first", 0))]
            embedding += 2 * torch.eye(weight.shape[0])
    return model, drafting


def save(folder: Path, layers: int, vocabulary: int) -> Path:
    """Write a `target` as such models are published."""
    return write(folder, *target(layers, vocabulary))


def write(folder: Path, model: Any, drafting: Any) -> Path:
    """Write a checkpoint: the layers that draft are numbered behind the others."""
    model.save_pretrained(folder)
    weights: dict[str, Tensor] = load_file(folder / "model.safetensors")
    for name, weight in drafting.layers.state_dict().items():
        at, _, rest = name.partition(".")
        layer = f"model.layers.{model.config.num_hidden_layers + int(at)}."
        *inner, kind = rest.replace("mtp_block.", "").split(".experts.")
        for expert, matrix in enumerate(weight if inner else ()):
            parts = {kind: matrix}
            if kind == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True))
            for part, values in parts.items():
                name = f"{layer}mlp.experts.{expert}.{part}.weight"
                weights[name] = values.contiguous()
        if not inner:
            weights[layer + kind.replace("post_norm.", "shared_head.norm.")] = weight
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
