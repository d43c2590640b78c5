"""The weights of a Llama-shaped model, and its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder import cpu_kernels
from draftbench.decoder.attention import EvenRows, Placement, Rotary
from draftbench.decoder.cpu_attention import FewTokens
from draftbench.decoder.cpu_kernels import is_few
from draftbench.decoder.cpu_layers import CompiledLayers
from draftbench.decoder.linear import Product, as_function, between_products, narrow_type
from draftbench.decoder.runner import HiddenStates


class RootMeanSquare:
    """x / √(mean of x² + eps) · weight over the last dimension (Zhang and Sennrich 2019, eq. 4)."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps, self.shape = weight, eps, weight.shape
        self.wide = weight.float()

    def __call__(self, x: Tensor) -> Tensor:
        if is_few(x):
            return cpu_kernels.norm(x, self.wide, self.eps)
        weight = self.weight if x.dtype == self.weight.dtype else self.wide
        return functional.rms_norm(x, self.shape, weight, self.eps)


def swiglu(gate_up: Tensor) -> Tensor:
    """[n, 2 · inner], gates and then ups, → silu(gate) · up [n, inner] (Shazeer 2020, eq. 6)."""
    if is_few(gate_up):
        return cpu_kernels.swiglu(gate_up)
    gate, up = gate_up.chunk(2, 1)
    return functional.silu(gate).mul_(up)


class Stream:
    """The residual stream [n, hidden] and what lies between two products of it."""

    def __init__(self, sums: Tensor) -> None:
        self.sums = sums

    def add_normed(self, more: Tensor, norm: RootMeanSquare) -> Tensor:
        """Add to the stream, and norm it."""
        return norm(self.sums.add_(more))

    def gated(self, gate_up: Tensor) -> Tensor:
        return swiglu(gate_up)


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
    next_norm: RootMeanSquare


class LlamaModel:
    """The embedding, all layers, the last norm and the output head. Only the runner knows how long
    rows are; the model is given a `Placement`.
    """

    def __init__(
        self, model: Any, make_linear: Callable[..., nn.Module], device: torch.device
    ) -> None:
        config, layers, head = model.config, model.model.layers, model.lm_head
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.group = self.heads // self.kv_heads
        embedding = model.model.embed_tokens
        like = layers[0].input_layernorm.weight.detach()
        rotary = rotary_tables(model.model.rotary_emb, like, config.max_position_embeddings)
        self.like, self.rotary = like.to(device), Rotary(*(table.to(device) for table in rotary))
        self.between = between_products(self.like.dtype, device)
        self.linears: list[nn.Module] = []

        def take(weight: Tensor, bias: Tensor | None, *, copied: bool = False) -> Product:
            bias = None if bias is None else bias.to(device)
            self.linears.append(make_linear(weight.to(device), bias, copied=copied))
            return as_function(self.linears[-1])

        def joined(*parts: nn.Linear) -> Product:
            weight = torch.cat([part.weight.detach() for part in parts])
            biases = [part.bias for part in parts]
            bias = torch.cat([b.detach() for b in biases]) if biases[0] is not None else None
            return take(weight, bias, copied=True)

        def norm(module: Any) -> RootMeanSquare:
            return RootMeanSquare(module.weight.detach().to(device), module.variance_epsilon)

        def norm_of(owner: Any, name: str) -> RootMeanSquare | None:
            return norm(getattr(owner, name)) if hasattr(owner, name) else None

        norms = [norm(layer.input_layernorm) for layer in layers]
        norms.append(norm(model.model.norm))
        taken = []
        for index, layer in enumerate(layers):
            attention, mlp = layer.self_attn, layer.mlp
            taken.append(
                Layer(
                    input_norm=norms[index],
                    qkv=joined(attention.q_proj, attention.k_proj, attention.v_proj),
                    q_norm=norm_of(attention, "q_norm"),
                    k_norm=norm_of(attention, "k_norm"),
                    out=joined(attention.o_proj),
                    mlp_norm=norm(layer.post_attention_layernorm),
                    gate_up=joined(mlp.gate_proj, mlp.up_proj),
                    down=joined(mlp.down_proj),
                    next_norm=norms[index + 1],
                )
            )
            layers[index] = nn.Identity()
        self.layers = taken
        tied = head.weight is embedding.weight
        table = embedding.weight.detach().to(device)
        weight = table if tied else head.weight.detach()
        scores, dtype = take(weight, head.bias, copied=tied), like.dtype
        # Engines round logits to the model's type, by which near ties come out.
        self.logits: Product = lambda x: scores(x).to(dtype)
        output = self.linears[-1]
        rows = isinstance(output, nn.Linear) or getattr(output, "address", None) is not None
        narrow = None if tied and rows else narrow_type(table)
        self.embedding = table if narrow is None else table.to(narrow)

    @property
    def layers(self) -> Sequence[Layer]:
        """All of them; others may take their place."""
        return self._layers

    @layers.setter
    def layers(self, layers: Sequence[Layer]) -> None:
        self._layers, self._compiled = layers, CompiledLayers.of(layers)

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        yield from (self.embedding, self.layers[0].input_norm.weight)
        for layer in self.layers:
            norms = (layer.mlp_norm, layer.q_norm, layer.k_norm, layer.next_norm)
            yield from (norm.weight for norm in norms if norm is not None)

    def new_slabs(self, capacity: int, rows: int) -> Tensor:
        """Zeros [layers, 2, rows, key heads, capacity, head]."""
        return self.like.new_zeros(
            len(self.layers), 2, rows, self.kv_heads, capacity, self.head_dim
        )

    def append_evenly(
        self,
        reach: int,
        tokens: Tensor,
        starts: Tensor,
        slabs: Tensor,
        hidden: HiddenStates | None = None,
    ) -> Tensor:
        """Append tokens [rows · width], `width` after the `starts` [rows] valid ones of each row,
        with operations that are the same for all starts.
        """
        width = len(tokens) // len(starts)
        placement = EvenRows(slabs, starts, width, reach, self.rotary, self.group)
        return self.append(tokens, placement, hidden)

    def continue_evenly(
        self,
        reach: int,
        tokens: Tensor,
        starts: Tensor,
        slabs: Tensor,
        hidden: HiddenStates | None = None,
    ) -> Tensor:
        """`append_evenly` with the output head: logits after every token."""
        return self.logits(self.append_evenly(reach, tokens, starts, slabs, hidden))

    def append(
        self, tokens: Tensor, placement: Placement, hidden: HiddenStates | None = None
    ) -> Tensor:
        """Append tokens [n] of any rows; hidden states [n, hidden] for the output head."""
        sums = functional.embedding(tokens, self.embedding).to(self.between)
        x, begun = self.layers[0].input_norm(sums), 0
        through = self._through(sums, placement)
        ends = sorted({*(hidden.layers if hidden else ()), len(self.layers)})
        if ends[0] < 0 or ends[-1] > len(self.layers):
            raise IndexError(f"layers {ends} of a model that has {len(self.layers)}")
        for end in ends:
            x, begun = through(begun, end, x), end
            if hidden is not None:
                hidden.take(end, sums)
        return x

    def _through(self, sums: Tensor, placement: Placement) -> Callable[[int, int, Tensor], Tensor]:
        """Takes the residual stream `sums` through the layers from one up to another: what the
        first reads → what the other one will.
        """
        few, compiled = is_few(sums), self._compiled
        if few and compiled and len(sums) <= compiled.most and isinstance(placement, FewTokens):
            return partial(compiled, placement, sums)
        stream = cpu_kernels.SmallStream(sums) if few else Stream(sums)
        heads = self.heads + 2 * self.kv_heads

        def layer_by_layer(first: int, last: int, x: Tensor) -> Tensor:
            for index, layer in enumerate(self.layers[first:last], first):
                qkv = layer.qkv(x).view(-1, heads, self.head_dim)
                if layer.q_norm is not None and layer.k_norm is not None:
                    queries = qkv.narrow(1, 0, self.heads)
                    keys = qkv.narrow(1, self.heads, self.kv_heads)
                    queries.copy_(layer.q_norm(queries))
                    keys.copy_(layer.k_norm(keys))
                x = stream.add_normed(layer.out(placement.attend(index, qkv)), layer.mlp_norm)
                x = stream.add_normed(layer.down(stream.gated(layer.gate_up(x))), layer.next_norm)
            return x

        return layer_by_layer


def rotary_tables(module: Any, like: Tensor, positions: int) -> Rotary:
    """The tables of a model's rotary module."""
    with torch.no_grad():
        cos, sin = module(like[:1], torch.arange(positions, device=like.device)[None])
    half, kept = sin.shape[-1] // 2, between_products(like.dtype, like.device)
    signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
    return Rotary(*(table.to(kept).contiguous().unsqueeze(1) for table in (cos[0], signed)))
