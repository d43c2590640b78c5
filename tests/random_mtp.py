"""Targets with random weights that carry layers which draft for them."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM
from transformers.modeling_layers import MtpModel

LAYERS, CONTEXT = 3, 512
# What of a checkpoint transformers leaves to `MtpModel`: it names the layers of two real models.
LEFT_OUT = [rf"model\.layers\.{at}\..*" for at in range(LAYERS, LAYERS + 8)]


def target(layers: int, vocabulary: int, *, states_first: bool = False) -> tuple[Any, Any]:
    """A GLM-4-MoE with so many layers to draft with, and these. Either leans on the embedding of
    the newest token it has read, so that a part of what the layers draft is accepted. They read it
    before the state or, as Inkling's, behind it.
    """
    torch.manual_seed(0)
    sizes = {"vocab_size": vocabulary, "hidden_size": 64, "num_hidden_layers": LAYERS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    inner = {"intermediate_size": 128, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
    ends = {"eos_token_id": None, "pad_token_id": 0, "bos_token_id": None}
    config = Glm4MoeConfig(
        **(sizes | heads | inner | experts | ends),
        n_group=1,
        topk_group=1,
        max_position_embeddings=CONTEXT,
        num_nextn_predict_layers=layers,
        initializer_range=0.1,
    )
    config.mtp_hidden_states_first = states_first
    model = Glm4MoeForCausalLM(config).eval()
    drafting = MtpModel(model, layers).eval()
    model.model.embed_tokens.weight.data.mul_(6)
    for name, weight in drafting.layers.named_parameters():
        if weight.dim() > 1:  # transformers leaves the experts as memory was
            weight.data = 0.1 * torch.randn(weight.shape)
        if name.endswith("eh_proj.weight"):
            embedding = weight.data.chunk(2, dim=1)[int(states_first)]
            embedding += 2 * torch.eye(weight.shape[0])
    return model, drafting


def save(folder: Path, layers: int, vocabulary: int) -> Path:
    """Write a `target` as such models are published: the layers that draft are numbered behind the
    others.
    """
    model, drafting = target(layers, vocabulary)
    model.save_pretrained(folder)
    weights: dict[str, Tensor] = load_file(folder / "model.safetensors")
    for name, weight in drafting.layers.state_dict().items():
        at, _, rest = name.partition(".")
        layer = f"model.layers.{LAYERS + int(at)}."
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
