"""The embedded DFlash drafter: where it begins, what it learns, its checkpoint.

Blocks begin at some tokens of a window. Each place with a mask learns the target's distribution at
its own place, given the text; later places count less, as they are reached less often (Chen et al.
2026).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from draftbench.drafts.block.shape import BlockShape, shape_of
from draftbench.drafts.heads.tensors import rotary_of

READS = (2, 5, 7)  # the target's layers whose inputs it reads
LAYERS, BLOCK = 2, 8
ROWS, BLOCKS = 8, 24  # windows of an optimizer step, and blocks in each
DISCOUNT = 0.8


class TrainableBlock(nn.Module):
    """The drafter on its target, whose embedding and output head it uses."""

    embedding: Tensor

    def __init__(self, shape: BlockShape, tensors: dict[str, Tensor], embedding: Tensor) -> None:
        super().__init__()
        self.shape, self.rotary = shape, rotary_of(shape.layer)
        self.register_buffer("embedding", embedding, persistent=False)
        # By their names in the checkpoint, whose dots PyTorch refuses.
        self.weights = {name: nn.Parameter(tensor.clone()) for name, tensor in tensors.items()}
        self.held = nn.ParameterList(self.weights.values())

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self.weights[f"{name}.weight"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return functional.rms_norm(x.float(), weight.shape, weight, self.shape.layer.rms_norm_eps)

    def _turned(self, at: str, name: str, x: Tensor, turning: tuple[Tensor, Tensor]) -> Tensor:
        """Queries or keys [batch, heads, rows, head_dim]."""
        heads = self._linear(f"{at}{name}_proj", x).unflatten(-1, (-1, self.shape.head_dim))
        heads = self._norm(f"{at}{name}_norm", heads).transpose(1, 2)
        return apply_rotary_pos_emb(heads, heads, *turning)[0]

    def forward(self, ids: Tensor, states: Tensor, starts: Tensor) -> Tensor:
        """The logits of the places with masks of blocks [batch, blocks, BLOCK - 1, vocab].

        Args:
            ids: [batch, tokens].
            states: the target's at all of them [batch, tokens, layers · hidden].
            starts: the place of each block's first token [blocks].
        """
        batch, length = ids.shape
        inside = torch.arange(BLOCK)
        own = (starts[:, None] + inside).flatten()
        block = torch.arange(len(starts)).repeat_interleave(BLOCK)
        tokens = torch.full((batch, len(starts), BLOCK), self.shape.mask)
        tokens[:, :, 0] = ids[:, starts]
        x = functional.embedding(tokens.flatten(1), self.embedding)
        context = self._norm("hidden_norm", self._linear("fc", states))
        before = torch.arange(length) < starts[block][:, None]
        seen = torch.cat([before, block[:, None] == block], dim=1)
        turning = self.rotary(x, torch.cat([torch.arange(length), own])[None])
        of_own = tuple(table[:, length:] for table in turning)
        for at in (f"layers.{index}." for index in range(LAYERS)):
            attention = f"{at}self_attn."
            normed = self._norm(f"{at}input_layernorm", x)
            both = torch.cat([context, normed], dim=1)
            query = self._turned(attention, "q", normed, of_own)
            keys = self._turned(attention, "k", both, turning)
            values = self._linear(f"{attention}v_proj", both)
            values = values.unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
            keys, values = (each.to(query.dtype) for each in (keys, values))
            mixed = functional.scaled_dot_product_attention(
                query, keys, values, seen, enable_gqa=True
            )
            x = x + self._linear(f"{attention}o_proj", mixed.transpose(1, 2).flatten(2))
            normed = self._norm(f"{at}post_attention_layernorm", x)
            gate, up = (self._linear(f"{at}mlp.{name}_proj", normed) for name in ("gate", "up"))
            x = x + self._linear(f"{at}mlp.down_proj", functional.silu(gate) * up)
        last = self._norm("norm", x).unflatten(1, (-1, BLOCK))[:, :, 1:]
        return functional.linear(last, self.embedding)


def new_block(work: Path, target: LlamaForCausalLM) -> TrainableBlock:
    """An untrained drafter, whose layers begin as the target's last ones. Its mask is the token
    that the text uses least.
    """
    torch.manual_seed(0)
    vocabulary, hidden = target.config.vocab_size, target.config.hidden_size
    counts = np.bincount(np.load(work / f"train-{vocabulary}.npy"), minlength=vocabulary)
    shape = shape_of(config_of(target, int(counts.argmin())))
    tensors = {
        "fc.weight": torch.cat(
            [torch.zeros(hidden, (len(READS) - 1) * hidden), torch.eye(hidden)], 1
        ),
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": target.model.norm.weight.detach(),
    }
    for index, layer in enumerate(target.model.layers[-LAYERS:]):
        at = f"layers.{index}."
        tensors |= {at + name: weight.detach() for name, weight in layer.state_dict().items()}
        tensors |= {f"{at}self_attn.{n}_norm.weight": torch.ones(shape.head_dim) for n in "qk"}
    return TrainableBlock(shape, tensors, target.get_input_embeddings().weight.detach())


def loss_of_blocks(block: TrainableBlock, target: LlamaForCausalLM, ids: Tensor) -> Tensor:
    """Cross entropy between the drafter's and the target's distribution over the places with masks
    of blocks that begin anywhere in windows of text.
    """
    starts = torch.randperm(ids.shape[1] - BLOCK - 8)[:BLOCKS].sort().values + 8
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad():
            answer = target(input_ids=ids, use_cache=False, output_hidden_states=True)
            states = torch.cat([answer.hidden_states[layer] for layer in READS], -1)
        logits = block(ids, states, starts)
    places = starts[:, None] + torch.arange(BLOCK - 1)
    wanted = answer.logits[:, places].float().softmax(-1)
    apart = -(wanted * logits.float().log_softmax(-1)).sum(-1).mean((0, 1))
    weights = DISCOUNT ** torch.arange(BLOCK - 1)
    return (apart * weights).sum() / weights.sum()


def save_block(block: TrainableBlock, target: LlamaForCausalLM, out: Path) -> Path:
    """Write it in the format of speculators, in bfloat16; the file of its weights."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {name: weight.detach().bfloat16() for name, weight in block.weights.items()}
    save_file(tensors, path := out / "model.safetensors", metadata={"format": "pt"})
    config = config_of(target, block.shape.mask)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    return path


def config_of(target: LlamaForCausalLM, mask: int) -> dict[str, Any]:
    """Its config.json."""
    layer = {
        name: getattr(target.config, name)
        for name in (
            *("vocab_size", "hidden_size", "intermediate_size", "head_dim"),
            *("num_attention_heads", "num_key_value_heads", "max_position_embeddings"),
            *("rms_norm_eps", "rope_parameters", "hidden_act", "attention_bias"),
        )
    }
    method = {"proposal_type": "greedy", "speculative_tokens": BLOCK - 1}
    return {
        "architectures": ["DFlashSpeculator"],
        "speculators_model_type": "dflash",
        "draft_vocab_size": layer["vocab_size"],
        "target_hidden_size": layer["hidden_size"],
        "block_size": BLOCK,
        "mask_token_id": mask,
        "sample_from_anchor": False,
        "sliding_window_non_causal": True,
        "aux_hidden_state_layer_ids": list(READS),
        "transformer_layer_config": {
            "model_type": "qwen3",
            **layer,
            "num_hidden_layers": LAYERS,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": 0,
        },
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [method],
            "verifier": {
                "name_or_path": "draftbench/embedded/target",
                "architectures": ["LlamaForCausalLM"],
            },
        },
    }
