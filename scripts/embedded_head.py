"""The embedded EAGLE-3 head: where it begins, what it learns, its checkpoint. Its layer and its
loss are those of `draftbench train`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from embedded_family import PROMPT_TOKENS
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaForCausalLM

from draftbench.drafts.eagle3 import training
from draftbench.drafts.eagle3.draft import shape_of
from draftbench.drafts.eagle3.training import DEPTHS, TrainableHead
from draftbench.drafts.heads.tensors import rotary_of

READS = (2, 4, 5)  # the target's layers whose inputs it reads
DRAFTED = 1024  # tokens that it can draft
ROWS = 8  # windows of an optimizer step


def new_head(work: Path, target: LlamaForCausalLM) -> TrainableHead:
    """An untrained head that drafts the tokens which the target writes most often. It begins as the
    target's last layer, which reads the state before it and hardly anything else.
    """
    torch.manual_seed(0)
    written = np.load(work / "written.npy")[:, PROMPT_TOKENS:]
    often = np.bincount(written.ravel()).argsort()[::-1]
    kept = torch.from_numpy(np.sort(often[:DRAFTED]))
    hidden, embedding = target.config.hidden_size, target.get_input_embeddings().weight
    layer = {
        f"layers.0.{name}": _widened(weight, hidden) if _reads_both(name) else weight
        for name, weight in target.model.layers[-1].state_dict().items()
    }
    before = layer["layers.0.input_layernorm.weight"]
    tensors = {
        **layer,
        "layers.0.hidden_norm.weight": before,
        "layers.0.input_layernorm.weight": torch.ones_like(before),
        "fc.weight": _widened(torch.eye(hidden), (len(READS) - 1) * hidden),
        "norm.weight": target.model.norm.weight,
        "lm_head.weight": embedding[kept],
        "d2t": kept - torch.arange(len(kept)),
    }
    return _head(config_of(target), tensors, target)


def _reads_both(name: str) -> bool:
    """Whether a matrix of the layer reads the embedding beside the state."""
    return any(f"{each}_proj" in name for each in "qkv")


def _widened(weight: Tensor, inputs: int) -> Tensor:
    """A matrix that hardly reads its new first `inputs`."""
    new = 0.02 * torch.randn(len(weight), inputs)
    return torch.cat([new, weight.detach()], 1)


def load_head(folder: Path, target: LlamaForCausalLM) -> TrainableHead:
    """A head that was saved."""
    config = json.loads((folder / "config.json").read_text())
    return _head(config, load_file(folder / "model.safetensors"), target)


def _head(
    config: dict[str, Any], tensors: dict[str, Tensor], target: LlamaForCausalLM
) -> TrainableHead:
    shape = shape_of(config, target.config.num_hidden_layers)
    embedding = target.get_input_embeddings().weight.detach()
    return TrainableHead(shape, tensors, embedding, rotary_of(shape.layer))


def batch_of(ids: Tensor) -> dict[str, Tensor]:
    """Windows of which every token is learned."""
    every = torch.ones_like(ids)
    return {"ids": ids, "attended": every, "learned": ids, "temperature": torch.zeros(len(ids))}


def loss_over_depths(head: TrainableHead, target: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Its loss on windows of text."""
    with torch.autocast("cpu", torch.bfloat16):
        return training.loss_over_depths(head, target, batch_of(ids))


def save_head(head: TrainableHead, target: LlamaForCausalLM, out: Path) -> Path:
    """Write it in the format of speculators, in bfloat16; the file of its weights."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().bfloat16() for name, weight in head.weights.items()}
    tensors["d2t"] = head.kept - torch.arange(len(head.kept))
    tensors["t2d"] = torch.isin(torch.arange(target.config.vocab_size), head.kept)
    save_file(tensors, path := out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config_of(target), indent=2) + "\n")
    return path


def config_of(target: LlamaForCausalLM) -> dict[str, Any]:
    """Its config.json."""
    layer = {
        name: getattr(target.config, name)
        for name in (
            *("model_type", "vocab_size", "hidden_size", "intermediate_size", "head_dim"),
            *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
            *("rms_norm_eps", "rope_parameters", "hidden_act", "attention_bias", "mlp_bias"),
        )
    }
    method = {"proposal_type": "greedy", "speculative_tokens": DEPTHS}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFTED,
        "target_hidden_size": layer["hidden_size"],
        **dict.fromkeys(
            ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"), False
        ),
        "eagle_aux_hidden_state_layer_ids": list(READS),
        "transformer_layer_config": {
            **layer,
            "num_hidden_layers": 1,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": 0,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {
                "name_or_path": "draftbench/embedded/target",
                "architectures": ["LlamaForCausalLM"],
            },
        },
    }
