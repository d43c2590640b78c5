"""The layers of a Llama-shaped transformers model → one kernel call per operation that matters:
query, key and value in one product, gate and up in another, keys and values written in place.

Weights are taken over layer by layer so that memory never holds them twice. Knows slabs and where
tokens go in them, not how long a row is or whose it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder.attention import Placement
from draftbench.decoder.kernels import Product, as_function
from draftbench.decoder.linear import make_linear
from draftbench.decoder.norm import RootMeanSquare, add_mirrored, mirror_signs, mirrored


@dataclass(frozen=True)
class Layer:
    """One decoder layer's weights; `q_norm` and `k_norm` only in Qwen 3."""

    input_norm: RootMeanSquare
    qkv: Product
    q_norm: RootMeanSquare | None
    k_norm: RootMeanSquare | None
    out: Product
    mlp_norm: RootMeanSquare
    gate_up: Product
    down: Product


class Body:
    """All layers, the embedding, the last norm and the output head.

    Args:
        model: a loaded transformers causal LM of this shape; unusable afterwards.
        level: quantization level of the linear layers, the output head included.
        simulate: round the weights to the level's grid instead of using its kernel.
    """

    def __init__(self, model: Any, level: str, *, simulate: bool) -> None:
        config, body, head = model.config, model.model, model.lm_head
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.group = self.heads // self.kv_heads
        self.embedding = body.embed_tokens.weight.detach()
        self.final_norm = _taken_norm(body.norm)
        positions = config.max_position_embeddings
        self._cos, self._sin = _rotary_tables(body.rotary_emb, self.embedding, positions)
        self._inner, self._signs = config.intermediate_size, mirror_signs(self.embedding)
        self.linears: list[nn.Module] = []

        def take(weight: Tensor, bias: Tensor | None, *, own: bool = False) -> Product:
            self.linears.append(make_linear(weight, bias, level, simulate=simulate, own=own))
            return as_function(self.linears[-1])

        self.layers = []
        for index in range(len(body.layers)):
            self.layers.append(_take_layer(body.layers[index], take))
            body.layers[index] = nn.Identity()
        tied = head.weight is body.embed_tokens.weight
        self._head = take(head.weight.detach(), head.bias, own=tied)

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        yield from (self.embedding, self.final_norm.weight)
        for layer in self.layers:
            norms = (layer.input_norm, layer.mlp_norm, layer.q_norm, layer.k_norm)
            yield from (norm.weight for norm in norms if norm is not None)

    def new_slabs(self, capacity: int, rows: int) -> list[Tensor]:
        """Zeros [rows, 2, key heads, capacity, head] for each layer."""
        shape = (rows, 2, self.kv_heads, capacity, self.head_dim)
        return [self.embedding.new_zeros(shape) for _ in self.layers]

    @property
    def packed(self) -> list[Tensor]:
        """What oneDNN packed of the weights."""
        return [tensor for layer in self.linears for tensor in getattr(layer, "packed", ())]

    def append(self, tokens: Tensor, slabs: Sequence[Tensor], placement: Placement) -> Tensor:
        """Read tokens [n] of any rows; the sum of all blocks [n, 2, hidden], mirrored."""
        both = mirrored(functional.embedding(tokens, self.embedding))
        rotary = placement.at(self._cos), placement.at(self._sin)
        for layer, slab in zip(self.layers, slabs, strict=True):
            query, new = self._project(layer, layer.input_norm.of_mirrored(both), rotary)
            out = layer.out(placement.attend(query, new, slab))
            add_mirrored(both, out, self._signs)
            inner = layer.gate_up(layer.mlp_norm.of_mirrored(both))
            gate, up = inner.view(-1, 2, self._inner).unbind(1)
            out = layer.down(functional.silu(gate).mul_(up))
            add_mirrored(both, out, self._signs)
        return both

    def logits(self, both: Tensor) -> Tensor:
        """What `append` gave [n, 2, hidden] → [n, vocab]."""
        return self._head(self.final_norm.of_mirrored(both))

    def _project(
        self, layer: Layer, normed: Tensor, rotary: tuple[Tensor, Tensor]
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


def _take_layer(layer: Any, take: Callable[..., Product]) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp

    def joined(*parts: nn.Linear) -> Product:
        weight = torch.cat([part.weight.detach() for part in parts])
        biases = [part.bias for part in parts]
        bias = torch.cat([b.detach() for b in biases]) if biases[0] is not None else None
        return take(weight, bias, own=True)

    return Layer(
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
