"""An EAGLE-3 head in training: its layer over several depths, its loss, its checkpoint.

Row t of depth m reads token t + 1 + m and the output of depth m - 1 at that row; depth 0 reads what
`fc` makes of the target's states at t. The row drafts token t + 2 + m. It attends to the keys of
depth 0 up to its own row, and to its own keys of later depths, so the head is trained to draft the
way it drafts in decoding (the training-time test of Li et al. 2025).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from draftbench.drafts.eagle3.draft import check_eagle, shape_of, speculators_name
from draftbench.drafts.eagle3.head import EagleShape
from draftbench.drafts.heads.tensors import rotary_of
from draftbench.errors import UsageError
from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.source import ModelSource
from draftbench.training.trainable import IGNORED, SMALLER, Batch, TrainingSize, side_by_side

# How many depths are trained; each counts this share of the one before, as it is reached less
# often.
DEPTHS, DISCOUNT = 5, 0.8
_LAYER = "layers.0."


def check(draft: ModelSource, target: ModelSource, lora: int | None) -> None:
    """A head that fits the target, and is trained as a whole."""
    check_eagle(target, draft)
    if lora is not None:
        raise UsageError(
            "--lora trains adapters of a draft model; a head is one layer, trained as a whole",
            hint="leave --lora out",
        )


def size_of(
    draft: ModelSource, target: ModelSource, lora: int | None, *, samples: bool
) -> TrainingSize:
    """Every depth is another pass through its only layer. The target is loaded by transformers, and
    as the decoder runs it.
    """
    parameters = sum(tensor.numel() for tensor in draft.tensors().values())
    shape = shape_of(draft.raw_config, target.config.get_text_config().num_hidden_layers)
    work = DEPTHS, shape.layer.hidden_size, DEPTHS * shape.drafted
    return TrainingSize(parameters, parameters, work, 2, SMALLER)


def begin(draft: ModelSource, target: Any | None, device: str, lora: int | None) -> HeadInTraining:
    """On the loaded target, whose states it reads."""
    return HeadInTraining(draft, target)


class TrainableHead(nn.Module):
    """The layer of a head, made from the tensors of its checkpoint by their names in the
    speculators format. The embedding is the target's, or the head's own, and is not trained.
    """

    embedding: Tensor
    kept: Tensor  # the target's ids that it drafts

    def __init__(
        self, shape: EagleShape, tensors: Mapping[str, Tensor], embedding: Tensor, rotary: nn.Module
    ) -> None:
        super().__init__()
        self.shape, self.rotary = shape, rotary
        self.register_buffer("embedding", embedding.float(), persistent=False)
        offsets = tensors.get("d2t", torch.zeros(shape.drafted, dtype=torch.long))
        kept = torch.arange(shape.drafted) + offsets
        self.register_buffer("kept", kept, persistent=False)
        # The trained weights by their names in the checkpoint, whose dots PyTorch refuses.
        self.weights = {
            name: nn.Parameter(tensor.float().clone())
            for name, tensor in tensors.items()
            if tensor.is_floating_point() and name != "embed_tokens.weight"
        }
        self.held = nn.ParameterList(self.weights.values())

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(
            x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        )

    def _norm(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[f"{name}.weight"]
        return functional.rms_norm(x.float(), weight.shape, weight, self.shape.layer.rms_norm_eps)

    def _turned(self, name: str, both: Tensor, turning: Sequence[Tensor] = ()) -> Tensor:
        """Queries, keys or values [batch, heads, rows, head_dim]."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        attention = f"{_LAYER}self_attn."
        heads = self._linear(f"{attention}{name}_proj", both)
        heads = heads.unflatten(-1, (-1, self.shape.head_dim))
        if f"{attention}{name}_norm.weight" in self.weights:
            heads = self._norm(f"{attention}{name}_norm", heads)
        heads = heads.transpose(1, 2)
        if turning:
            heads, _ = apply_rotary_pos_emb(heads, heads, *turning)
        groups = self.shape.layer.num_attention_heads // heads.shape[1]
        return heads.repeat_interleave(groups, 1)

    def forward(self, ids: Tensor, states: Tensor) -> Iterator[Tensor]:
        """The logits of every row at each depth [batch, rows, drafted].

        Args:
            ids: [batch, rows + 1].
            states: the target's states at all tokens but the last [batch, rows, layers · hidden].
        """
        rows = ids.shape[1] - 1
        places = torch.arange(rows, device=ids.device)
        future = torch.full((rows, rows), float("-inf"), device=ids.device).triu(1)
        if self.shape.norm_before_fc:
            states = self._norm("input_norm", states)
        if self.shape.fc_norm:
            parts = enumerate(states.chunk(len(self.shape.reads), dim=-1))
            states = torch.cat([self._norm(f"fc_norm.{i}", part) for i, part in parts], dim=-1)
        left, keys, values = self._linear("fc", states), list[Tensor](), list[Tensor]()
        for depth in range(DEPTHS):
            read = functional.pad(ids[:, 1 + depth :], (0, depth))
            normed = self._norm(f"{_LAYER}hidden_norm", left)
            embedded = functional.embedding(read, self.embedding)
            embedded = self._norm(f"{_LAYER}input_layernorm", embedded)
            both = torch.cat([embedded, normed], -1)
            turning = self.rotary(both, (places + depth)[None])
            query = self._turned("q", both, turning) * self.shape.head_dim**-0.5
            keys.append(self._turned("k", both, turning))
            values.append(self._turned("v", both))
            own = [(query * later).sum(-1, keepdim=True) for later in keys[1:]]
            scores = torch.cat([query @ keys[0].transpose(-1, -2) + future, *own], -1)
            shares = scores.float().softmax(-1).to(query.dtype).split([rows, *[1] * depth], -1)
            mixed = shares[0] @ values[0]
            for share, later in zip(shares[1:], values[1:], strict=True):
                mixed = mixed + share * later
            left = normed if self.shape.norm_before_residual else left
            mixed = mixed.transpose(1, 2).flatten(2)
            left = left + self._linear(f"{_LAYER}self_attn.o_proj", mixed)
            normed = self._norm(f"{_LAYER}post_attention_layernorm", left)
            gate, up = (self._linear(f"{_LAYER}mlp.{name}_proj", normed) for name in ("gate", "up"))
            left = left + self._linear(f"{_LAYER}mlp.down_proj", functional.silu(gate) * up)
            last = self._norm("norm", left)
            left = last if self.shape.norm_output else left
            yield self._linear("lm_head", last)


def read_by_head(target: Any, reads: Sequence[int], batch: Batch) -> tuple[Tensor, Tensor]:
    """The target's states that a head reads, and its logits, at every token."""
    answer = target(
        input_ids=batch["ids"],
        attention_mask=batch["attended"],
        use_cache=False,
        output_hidden_states=True,
    )
    return torch.cat([answer.hidden_states[layer] for layer in reads], -1), answer.logits


def loss_over_depths(head: TrainableHead, target: Any, batch: Batch) -> Tensor:
    """Cross entropy between the head's and the target's distribution over the tokens that the head
    drafts, summed over depths, at every learned token.
    """
    with torch.no_grad():
        states, logits = read_by_head(target, head.shape.reads, batch)
        heat = batch["temperature"][:, None, None]
        # Even at temperature 0 the whole distribution says more than its best token.
        wanted = (logits[..., head.kept].float() / torch.where(heat > 0, heat, 1.0)).softmax(-1)
    learned = batch["learned"] != IGNORED
    total = torch.zeros((), device=logits.device)
    for depth, guesses in enumerate(head(batch["ids"], states[:, :-1])):
        chosen = learned[:, 2 + depth :]
        drafted = guesses[:, : chosen.shape[1]][chosen].float()
        apart = functional.cross_entropy(drafted, wanted[:, 1 + depth : -1][chosen])
        total = total + DISCOUNT**depth * apart
    return total


class HeadInTraining:
    """A head in training; it reads the states of the loaded `target`."""

    def __init__(self, source: ModelSource, target: Any) -> None:
        layers = target.config.get_text_config().num_hidden_layers
        self.source, self.target = source, target
        self.stored, self.shape = source.tensors(), shape_of(source.raw_config, layers)
        tensors = {speculators_name(name): tensor for name, tensor in self.stored.items()}
        own = tensors.get("embed_tokens.weight")
        embedding = target.get_input_embeddings().weight if own is None else own
        self.module = TrainableHead(self.shape, tensors, embedding, rotary_of(self.shape.layer))
        self.module.to(target.device)
        self.width = self.shape.layer.hidden_size

    def batch(self, responses: Sequence[ScoredResponse]) -> Batch:
        """Prompts and responses side by side, padded at the end."""
        return side_by_side(responses, self.target.config.get_text_config().max_position_embeddings)

    def loss(self, batch: Batch) -> Tensor:
        """Nats for each learned token, over all depths."""
        return loss_over_depths(self.module, self.target, batch)

    def save(self, folder: Path) -> None:
        """Write a checkpoint with the original's configuration, names and dtypes."""
        folder.mkdir(parents=True, exist_ok=True)
        trained = self.module.weights
        tensors = {
            name: trained.get(speculators_name(name), tensor)
            .detach()
            .to("cpu", tensor.dtype)
            .contiguous()
            for name, tensor in self.stored.items()
        }
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        config = {k: v for k, v in self.source.raw_config.items() if not k.startswith("_")}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
