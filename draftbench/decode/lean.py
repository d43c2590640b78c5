"""A Llama-shaped transformers model → a runner with one kernel call per operation that matters.

transformers spends about 0.17 ms of Python on a layer, which is most of a small draft's step. This
runner keeps the model's weights and its rotary tables and drops the rest: query, key and value in
one product, gate and up in another, keys and values written in place. It serves the families whose
layer is exactly this shape (`LEAN_FAMILIES`) and is compared with transformers' own logits before
it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decode.attention import PIECE, ManyRows, OneRow, Placement
from draftbench.decode.kernels import Product, as_function
from draftbench.decode.linear import make_linear
from draftbench.decode.norm import RootMeanSquare, add_mirrored, mirror_signs, mirrored
from draftbench.decode.runner import last_of_each, only_row

LEAN_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass
class SlabCache:
    """Keys and values side by side [rows, 2, key heads, capacity, head] per layer; the first
    `lengths[row]` entries are valid.
    """

    slabs: list[Tensor]
    lengths: list[int]

    def rewind(self, row: int, length: int) -> None:
        self.lengths[row] = length


@dataclass(frozen=True)
class LeanLayer:
    """One decoder layer's weights; `q_norm` and `k_norm` only in Qwen 3."""

    input_norm: RootMeanSquare
    qkv: Product
    q_norm: RootMeanSquare | None
    k_norm: RootMeanSquare | None
    out: Product
    mlp_norm: RootMeanSquare
    gate_up: Product
    down: Product


def lean_obstacle(model: Any) -> str | None:
    """Why this transformers model cannot run here, or None."""
    config = model.config
    if config.model_type not in LEAN_FAMILIES:
        return f"the family {config.model_type} has layers of another shape"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act}"
    layer_types = getattr(config, "layer_types", None) or []
    if any(kind != "full_attention" for kind in layer_types):
        return "sliding-window layers"
    if getattr(config, "sliding_window", None) and config.model_type == "mistral":
        return "a sliding window"
    if "dynamic" in str((getattr(config, "rope_parameters", None) or {}).get("rope_type")):
        return "rotary tables that depend on the sequence"
    if len({p.device for p in model.parameters()}) > 1:
        return "weights on several devices"
    return None


class LeanRunner:
    """Runs the weights of a Llama-shaped model, taken over layer by layer so that memory never
    holds them twice.

    Args:
        model: a loaded transformers causal LM without `lean_obstacle`; unusable afterwards.
        level: quantization level of the linear layers, the output head included.
        simulate: round the weights to the level's grid instead of using its kernel.
    """

    def __init__(self, model: Any, level: str, *, simulate: bool) -> None:
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.vocab_size, self.context_length = config.vocab_size, config.max_position_embeddings
        self._group = self.heads // self.kv_heads
        body = model.model
        self.embedding = body.embed_tokens.weight.detach()
        self.dtype, self.device = self.embedding.dtype, str(self.embedding.device)
        self.final_norm = _taken_norm(body.norm)
        self._cos, self._sin = _rotary_tables(body.rotary_emb, self.embedding, self.context_length)
        future = torch.full((PIECE, PIECE), float("-inf"), dtype=self.dtype)
        self._future = future.triu_(1).to(self.embedding.device)
        self._inner, self._signs = config.intermediate_size, mirror_signs(self.embedding)
        head = model.lm_head
        self._linears: list[nn.Module] = []

        def take(weight: Tensor, bias: Tensor | None) -> Product:
            self._linears.append(make_linear(weight, bias, level, simulate=simulate))
            return as_function(self._linears[-1])

        self.layers = []
        for index in range(len(body.layers)):
            self.layers.append(_take_layer(body.layers[index], take))
            body.layers[index] = nn.Identity()
        self._head = take(head.weight.detach(), head.bias)

    @property
    def name(self) -> str:
        return f"draftbench lean ({self.dtype}".replace("torch.", "") + f", {self.device})"

    def modules(self) -> Iterator[nn.Module]:
        """Every linear layer, for counting."""
        yield from self._linears

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        yield from (self.embedding, self.final_norm.weight)
        for layer in self.layers:
            norms = (layer.input_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
            yield from (norm.weight for norm in norms if norm is not None)

    def new_cache(self, capacity: int, rows: int = 1) -> SlabCache:
        """Zeroed slabs; the rotary tables limit positions to the model's context length."""
        shape = (rows, 2, self.kv_heads, capacity, self.head_dim)
        make = {"dtype": self.dtype, "device": self.embedding.device}
        return SlabCache([torch.zeros(shape, **make) for _ in self.layers], [0] * rows)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, cache: SlabCache, *, every: bool, counts: Sequence[int] | None = None
    ) -> Tensor:
        """Append tokens [n]; logits after every one or after each row's last. A long prompt is read
        in pieces.
        """
        counts = counts or [tokens.shape[0]]
        row = only_row(counts)
        if row is None:
            placement = ManyRows(cache.lengths, counts, self._group, self.embedding)
            both = self._append(tokens, cache, placement)
            cache.lengths = [have + new for have, new in zip(cache.lengths, counts, strict=True)]
            both = both if every else both[last_of_each(counts)]
        else:
            pieces = self._append_to(row, tokens, cache)
            both = torch.cat(pieces) if every else pieces[-1][-1:]
        return self._head(self.final_norm.of_mirrored(both))

    def _append_to(self, row: int, tokens: Tensor, cache: SlabCache) -> list[Tensor]:
        """Read tokens [n] of one row; the sum of all blocks for each piece."""
        found = []
        for piece in tokens.split(PIECE):
            have, new = cache.lengths[row], piece.shape[0]
            placement = OneRow(row, have, new, self._group, self._future)
            found.append(self._append(piece, cache, placement))
            cache.lengths[row] = have + new
        return found

    def _append(self, tokens: Tensor, cache: SlabCache, placement: Placement) -> Tensor:
        """Read tokens [n] of any rows; the sum of all blocks [n, 2, hidden], mirrored."""
        both = mirrored(functional.embedding(tokens, self.embedding))
        rotary = self._cos[placement.positions], self._sin[placement.positions]
        for layer, slab in zip(self.layers, cache.slabs, strict=True):
            query, new = self._project(layer, layer.input_norm.of_mirrored(both), rotary)
            out = layer.out(placement.attend(query, new, slab))
            add_mirrored(both, out, self._signs)
            inner = layer.gate_up(layer.mlp_norm.of_mirrored(both))
            gate, up = inner.view(-1, 2, self._inner).unbind(1)
            out = layer.down(functional.silu(gate).mul_(up))
            add_mirrored(both, out, self._signs)
        return both

    def _project(
        self, layer: LeanLayer, normed: Tensor, rotary: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Rotated queries [n, heads, head], and keys and values [n, 2 · key heads, head]."""
        queries, turned = self.heads, self.heads + self.kv_heads
        qkv = layer.qkv(normed).view(-1, turned + self.kv_heads, self.head_dim)
        turning = qkv.narrow(1, 0, turned)
        if layer.q_norm is not None and layer.k_norm is not None:
            turning[:, :queries] = layer.q_norm(turning[:, :queries])
            turning[:, queries:] = layer.k_norm(turning[:, queries:])
        swapped = turning.roll(self.head_dim // 2, -1)
        # In place: keys and values stay side by side, as the cache holds them.
        turning.mul_(rotary[0]).addcmul_(swapped, rotary[1])
        return qkv.narrow(1, 0, queries), qkv.narrow(1, queries, 2 * self.kv_heads)


def _rotary_tables(rotary: Any, like: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, 1, head] from the model's own module; sin carries the sign of the
    swapped half.
    """
    with torch.no_grad():
        cos, sin = rotary(like[:1], torch.arange(positions, device=like.device)[None])
    half = sin.shape[-1] // 2
    signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
    return cos[0].unsqueeze(1), signed.unsqueeze(1)


def _take_layer(layer: Any, take: Callable[[Tensor, Tensor | None], Product]) -> LeanLayer:
    attention, mlp = layer.self_attn, layer.mlp

    def joined(*parts: nn.Linear) -> Product:
        weight = torch.cat([part.weight.detach() for part in parts])
        biases = [part.bias for part in parts]
        bias = torch.cat([b.detach() for b in biases]) if biases[0] is not None else None
        return take(weight, bias)

    return LeanLayer(
        input_norm=_taken_norm(layer.input_layernorm),
        qkv=joined(attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=_taken_norm(attention.q_norm) if hasattr(attention, "q_norm") else None,
        k_norm=_taken_norm(attention.k_norm) if hasattr(attention, "k_norm") else None,
        out=joined(attention.o_proj),
        mlp_norm=_taken_norm(layer.post_attention_layernorm),
        gate_up=joined(mlp.gate_proj, mlp.up_proj),
        down=joined(mlp.down_proj),
    )


def _taken_norm(norm: Any) -> RootMeanSquare:
    """Of transformers' module, whatever its family calls it."""
    return RootMeanSquare(norm.weight.detach(), norm.variance_epsilon)
