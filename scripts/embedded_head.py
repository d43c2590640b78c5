"""The embedded EAGLE-3 head: its layer, its loss over depths, its checkpoint.

Row t of depth m reads token t + 1 + m and what depth m - 1 left there, at depth 0 `fc` of the
target's states at t; it drafts token t + 2 + m. It sees the keys of depth 0 up to its own row, and
its own of later depths, so that it is trained to draft as it drafts in decoding.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from embedded_family import PROMPT_TOKENS
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm, apply_rotary_pos_emb

READS = (2, 4, 5)  # the target's layers whose inputs it reads
DEPTHS, DISCOUNT = 5, 0.8  # depths that it is trained for, and what each counts of the one before
DRAFTED = 1024  # tokens that it can draft
ROWS = 8  # windows of an optimizer step


class Head(nn.Module):
    """Begins as the target's last layer, which reads the state before it and no embedding; its
    parameters and buffers are the tensors of a checkpoint in the format of speculators.
    """

    def __init__(self, target: LlamaForCausalLM, kept: Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        config, embedding = target.config, target.get_input_embeddings().weight
        hidden = config.hidden_size
        layer = copy.deepcopy(target.model.layers[-1])
        layer.hidden_norm = layer.input_layernorm
        layer.input_layernorm = LlamaRMSNorm(hidden, config.rms_norm_eps)
        attention = layer.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            setattr(attention, name, _widened(getattr(attention, name).weight, hidden))
        self.fc = _widened(torch.eye(hidden), (len(READS) - 1) * hidden)
        self.layers = nn.ModuleList([layer])
        self.norm = copy.deepcopy(target.model.norm)
        self.lm_head = nn.Linear(hidden, len(kept), bias=False)
        self.lm_head.weight = nn.Parameter(embedding[kept].clone())
        self.register_buffer("d2t", kept - torch.arange(len(kept)))
        self.register_buffer("t2d", torch.isin(torch.arange(len(embedding)), kept))
        self.register_buffer("embedding", embedding.clone(), persistent=False)
        self.rotary = copy.deepcopy(target.model.rotary_emb)
        self.requires_grad_(True)

    def forward(self, ids: Tensor, states: Tensor) -> Iterator[Tensor]:
        """The logits of every row at each depth, from ids [batch, rows + 1] and the target's states
        at all but the last.
        """
        (layer,), rows = self.layers, ids.shape[1] - 1
        attention, places = layer.self_attn, torch.arange(rows)
        future = torch.full((rows, rows), float("-inf")).triu(1)
        left, keys, values = self.fc(states), list[Tensor](), list[Tensor]()
        for depth in range(DEPTHS):
            read = functional.pad(ids[:, 1 + depth :], (0, depth))
            embedded = layer.input_layernorm(functional.embedding(read, self.embedding))
            both = torch.cat([embedded, layer.hidden_norm(left)], -1)
            query, key, value = (
                getattr(attention, f"{each}_proj")(both)
                .unflatten(-1, (-1, attention.head_dim))
                .transpose(1, 2)
                for each in "qkv"
            )
            turning = self.rotary(both, (places + depth)[None])
            query, key = apply_rotary_pos_emb(query * attention.scaling, key, *turning)
            groups = attention.num_key_value_groups
            keys.append(key.repeat_interleave(groups, 1))
            values.append(value.repeat_interleave(groups, 1))
            own = [(query * later).sum(-1, keepdim=True) for later in keys[1:]]
            scores = torch.cat([query @ keys[0].transpose(-1, -2) + future, *own], -1)
            shares = scores.float().softmax(-1).to(query.dtype).split([rows, *[1] * depth], -1)
            mixed = shares[0] @ values[0]
            for share, later in zip(shares[1:], values[1:], strict=True):
                mixed = mixed + share * later
            left = left + attention.o_proj(mixed.transpose(1, 2).flatten(2))
            left = left + layer.mlp(layer.post_attention_layernorm(left))
            yield self.lm_head(self.norm(left))


def _widened(weight: Tensor, inputs: int) -> nn.Linear:
    """A layer that hardly reads its new first `inputs`."""
    new = 0.02 * torch.randn(len(weight), inputs)
    linear = nn.Linear(inputs + weight.shape[1], len(weight), bias=False)
    linear.weight = nn.Parameter(torch.cat([new, weight.detach()], 1))
    return linear


def new_head(work: Path, target: LlamaForCausalLM) -> Head:
    """An untrained head that drafts the tokens which the target writes most often."""
    written = np.load(work / "written.npy")[:, PROMPT_TOKENS:]
    often = np.bincount(written.ravel()).argsort()[::-1]
    return Head(target, torch.from_numpy(np.sort(often[:DRAFTED])))


def read_by_head(target: LlamaForCausalLM, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The target's states that a head reads, and its logits."""
    answer = target.model(input_ids=ids, use_cache=False, output_hidden_states=True)
    states = torch.cat([answer.hidden_states[layer] for layer in READS], -1)
    return states, target.lm_head(answer.last_hidden_state)


def loss_over_depths(head: Head, target: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """KL(target || head) over the tokens that the head drafts, at every row of every depth (the
    training-time test of Li et al. 2025).
    """
    kept = head.t2d.nonzero().flatten()
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            states, logits = read_by_head(target, ids)
        log_p = logits[..., kept].float().log_softmax(-1)
        total = torch.zeros(())
        for depth, guesses in enumerate(head(ids, states[:, :-1])):
            log_q = guesses[:, : guesses.shape[1] - depth].float().log_softmax(-1)
            of_target = log_p[:, 1 + depth :]
            apart = (of_target.exp() * (of_target - log_q)).sum(-1).mean()
            total = total + DISCOUNT**depth * apart
    return total


def save_head(head: Head, out: Path) -> Path:
    """Write it in the format of speculators, in bfloat16; the file of its weights."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in head.state_dict().items()
    }
    save_file(tensors, path := out / "model.safetensors", metadata={"format": "pt"})
    layer = {
        name: getattr(head.rotary.config, name)
        for name in (
            *("model_type", "vocab_size", "hidden_size", "intermediate_size", "head_dim"),
            *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
            *("rms_norm_eps", "rope_parameters", "hidden_act", "attention_bias", "mlp_bias"),
        )
    }
    method = {"proposal_type": "greedy", "speculative_tokens": DEPTHS}
    config = {
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
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return path
