"""Runs Llama-shaped models faster than transformers does.

transformers spends about 0.17 ms of Python on a layer, which is most of a small draft's step. This
runner takes over a model's weights and rotary tables, layer by layer so that memory never holds
them twice, and makes one kernel call for each operation that matters: query, key and value in one
product, gate and up in another, keys and values written in place. Its logits are compared with
transformers' before it is used (`models.quantize`). Passes of a few tokens run without Python
between their layers: as traces on a CPU, as CUDA graphs on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder.attention import PIECE, EvenRows, ManyRows, OneRow, Placement
from draftbench.decoder.cuda_graphs import CudaGraphs, Lender, RecordedPasses, Recorder
from draftbench.decoder.linear import Product, as_function, streams
from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import last_of_each, on_device, only_row
from draftbench.decoder.traces import Traceable, trace

# Families whose layer is exactly of the shape below.
LLAMA_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Traces and graphs are tried with so many tokens of two rows: the second pass of a width shows
# whether they read anew what differs between two passes. bfloat16's noise in a deep model is .98.
TRIED = ((2, 1), (1, 1), (2, 2), (1, 1), (1, 2), (2, 2), (0, 2), (1, 0), (0, 1), (2, 0))
LEAST_COSINE = 0.9
# Of a library's reason for what it cannot do.
MOST_CHARACTERS = 200


def llama_obstacle(model: Any) -> str | None:
    """Why this transformers model cannot run here, or None."""
    config = model.config
    if config.model_type not in LLAMA_FAMILIES:
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


@dataclass
class SlabCache:
    """Keys and values side by side [rows, 2, key heads, capacity, head] per layer; the first
    `lengths[row]` entries are valid. Passes of `widths` tokens a row run as traces, or as `graphs`.
    """

    slabs: list[Tensor]
    lengths: list[int]
    widths: Collection[int] = ()
    graphs: RecordedPasses | None = None
    _of_rows: dict[int, list[Tensor]] = field(default_factory=dict)

    def of(self, row: int) -> list[Tensor]:
        """One row's slabs [2, key heads, capacity, head]."""
        if row not in self._of_rows:
            self._of_rows[row] = [slab[row] for slab in self.slabs]
        return self._of_rows[row]

    def rewind(self, row: int, length: int) -> None:
        self.lengths[row] = length

    def graphs_for(self, counts: Sequence[int]) -> RecordedPasses | None:
        """The graphs, where they take so many tokens of each row."""
        graphs = self.graphs
        return graphs if graphs is not None and max(counts) <= graphs.widest else None


class LlamaRunner:
    """Runs the weights of a Llama-shaped model.

    Args:
        model: a loaded transformers causal LM without `llama_obstacle`; unusable afterwards.
        level: quantization level of the linear layers, the output head included.
        simulate: round the weights to the level's grid instead of using its kernel.
    """

    def __init__(self, model: Any, level: str, *, simulate: bool) -> None:
        config = model.config
        self.vocab_size, self.context_length = config.vocab_size, config.max_position_embeddings
        self._model = LlamaModel(model, level, simulate=simulate)
        self._like = self._model.embedding
        self.dtype, self.device = self._like.dtype, str(self._like.device)
        future = torch.full((PIECE, PIECE), float("-inf"), dtype=self.dtype)
        self._future = future.triu_(1).to(self._like.device)
        self._traces: dict[tuple[int, int], Traceable] | None = None
        self._lender: Lender | None = None

    @property
    def name(self) -> str:
        how = ", streamed" * streams(self.modules())
        how += ", call by call" * (self._traces is None and self._lender is None)
        return f"draftbench lean ({self.dtype}, {self.device}{how})".replace("torch.", "")

    def modules(self) -> Iterator[nn.Module]:
        """Every linear layer."""
        yield from self._model.linears

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        return self._model.tensors()

    def speed_up_short_passes(self) -> str | None:
        """From now on, run passes of the widths that a cache is made for as traces, or as CUDA
        graphs on a GPU; a sentence that says why where they cannot.
        """
        if self.device.startswith("cuda"):
            stream = torch.cuda.Stream(self.device)
            return self.record_with(lambda: CudaGraphs(stream))
        self._traces = {}
        obstacle = self._obstacle_to_short_passes()
        return obstacle and f"runs its steps call by call, not as traces: {obstacle}"

    def record_with(self, make_recorder: Callable[[], Recorder]) -> str | None:
        """The same with passes that such a recorder records."""
        append = partial(_append_rows, self._model, self.context_length - 1)
        self._lender = Lender(self._model.new_slabs, append, make_recorder)
        obstacle = self._obstacle_to_short_passes()
        return obstacle and f"launches its steps call by call, not as CUDA graphs: {obstacle}"

    def _obstacle_to_short_passes(self) -> str | None:
        try:
            cosine = self._least_cosine_of_short_passes()
            obstacle = f"its passes differ then (cosine {cosine:.3f})"
            obstacle = "" if cosine >= LEAST_COSINE else obstacle
        # A library that cannot trace or record raises an exception of any class.
        except Exception as error:
            lines = f"{type(error).__name__}: {error}".splitlines()
            # TorchScript's reason is the last of several.
            obstacle = ([line for line in lines if "Error: " in line] or lines[:1])[-1]
            obstacle = obstacle[:MOST_CHARACTERS]
        if obstacle:
            self._traces = self._lender = None
        return obstacle or None

    def _least_cosine_of_short_passes(self) -> float:
        """Similarity of their logits over two rows to those of the same passes call by call."""
        results, capacity = [], sum(map(max, TRIED))
        self._cache_of_short_passes(capacity, 1, (1, 2))
        short = self._cache_of_short_passes(capacity, 2, (1, 2))
        for cache in (short, self.new_cache(capacity, 2)):
            tokens = torch.arange(1, 1 + sum(map(sum, TRIED)), device=self.device)
            parts = tokens.remainder_(self.vocab_size).split([sum(counts) for counts in TRIED])
            passes = zip(parts, TRIED, strict=True)
            logits = [self.forward(t, cache, every=True, counts=counts) for t, counts in passes]
            results.append(torch.cat(logits).float())
        return float(functional.cosine_similarity(results[0], results[1], dim=-1).min())

    def new_cache(self, capacity: int, rows: int = 1, widths: Collection[int] = ()) -> SlabCache:
        """Zeroed slabs; the rotary tables limit positions to the model's context length."""
        if widths:
            try:
                return self._cache_of_short_passes(capacity, rows, widths)
            except RuntimeError:  # these cannot, though those that were tried could
                pass
        return SlabCache(self._model.new_slabs(capacity, rows), [0] * rows)

    def _cache_of_short_passes(
        self, capacity: int, rows: int, widths: Collection[int]
    ) -> SlabCache:
        if self._lender is not None:
            graphs = self._lender.lend(capacity, rows, widths)
            cache = SlabCache(graphs.slabs, [0] * rows, widths, graphs)
            self._lender.take_back(graphs, after=cache)
            return cache
        if self._traces is not None:
            longest = min(PIECE, self.context_length - 1)
            for width in widths:
                if width <= longest and (rows, width) not in self._traces:
                    self._traces[rows, width] = self._traced(rows, width)
        return SlabCache(self._model.new_slabs(capacity, rows), [0] * rows, widths)

    @torch.inference_mode()
    def _traced(self, rows: int, width: int) -> Traceable:
        """A trace of the pass over `width` tokens behind one in each row, which ran once: its first
        run plans it.
        """
        slabs = self._model.new_slabs(width + 1, rows)
        tokens = torch.zeros(rows * width, dtype=torch.long)
        work, starts = self._append_rows(None), torch.ones(rows, dtype=torch.long)
        if rows == 1:
            slabs = [slab[0] for slab in slabs]
            work, starts = self._append_row(width), starts[0]
        traced = trace(work, [tokens, starts, *slabs], self._model.packed)
        traced(tokens, starts, *slabs)
        return traced

    def _append_row(self, width: int) -> Traceable:
        """(tokens, start, one row's slabs ...) → the residual stream."""
        return partial(_append_row, self._model, self._future, width)

    def _append_rows(self, reach: int | None) -> Traceable:
        """(tokens, starts, slabs ...) → the residual stream, for as many tokens in each row."""
        return partial(_append_rows, self._model, self.context_length - 1, reach)

    @torch.inference_mode()
    def forward(
        self, tokens: Tensor, cache: SlabCache, *, every: bool, counts: Sequence[int] | None = None
    ) -> Tensor:
        """Append tokens [n]; logits after every one or after each row's last. A long prompt is read
        in pieces.
        """
        counts = counts or [tokens.shape[0]]
        row = only_row(counts)
        if row is None or cache.graphs_for(counts):
            stream = self._append_side_by_side(tokens, cache, counts)
            if not every and max(counts) > 1:
                stream = stream[on_device(last_of_each(counts), self.device)]
        else:
            pieces = self._append_to(row, tokens, cache)
            stream = torch.cat(pieces) if every else pieces[-1][-1:]
        return self._model.logits(stream)

    def _append_side_by_side(
        self, tokens: Tensor, cache: SlabCache, counts: Sequence[int]
    ) -> Tensor:
        """Read tokens [n] of several rows; the residual stream."""
        lengths, width, graphs = cache.lengths, max(counts), cache.graphs_for(counts)
        cache.lengths = [have + new for have, new in zip(lengths, counts, strict=True)]
        if graphs is not None:
            return graphs.append(tokens, counts, lengths)
        if min(counts) < width:
            placement = ManyRows(lengths, counts, self._model.group, self._like)
            return self._model.append(tokens, cache.slabs, placement)
        run = self._trace_for(cache, len(counts), width) or self._append_rows(max(cache.lengths))
        return run(tokens, on_device(lengths, self.device), *cache.slabs)

    def _append_to(self, row: int, tokens: Tensor, cache: SlabCache) -> list[Tensor]:
        """Read tokens [n] of one row; the residual stream of each piece."""
        pieces, slabs = [], cache.of(row)
        for piece in tokens.split(PIECE):
            have, new = cache.lengths[row], piece.shape[0]
            run = self._trace_for(cache, 1, new) or self._append_row(new)
            pieces.append(run(piece, torch.tensor(have), *slabs))
            cache.lengths[row] = have + new
        return pieces

    def _trace_for(self, cache: SlabCache, rows: int, width: int) -> Traceable | None:
        """The trace of a pass that the cache was made for."""
        return self._traces.get((rows, width)) if self._traces and width in cache.widths else None


def _append_row(
    model: LlamaModel, future: Tensor, width: int, tokens: Tensor, start: Tensor, *slabs: Tensor
) -> Tensor:
    """Read tokens [width] of the row whose slabs these are, behind its `start` [] valid ones."""
    return model.append(tokens, slabs, OneRow(start, width, model.group, future))


def _append_rows(
    model: LlamaModel, last: int, reach: int | None, tokens: Tensor, starts: Tensor, *slabs: Tensor
) -> Tensor:
    """Read tokens [rows · width], as many of each row, behind `starts` [rows] valid ones."""
    width = len(tokens) // len(starts)
    placement = EvenRows(starts, width, reach, model.group, model.embedding, last)
    return model.append(tokens, slabs, placement)


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


class LlamaModel:
    """The embedding, all layers, the last norm and the output head. Knows slabs and where tokens go
    in them, not how long a row is.
    """

    def __init__(self, model: Any, level: str, *, simulate: bool) -> None:
        config, layers, head = model.config, model.model.layers, model.lm_head
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.group = self.heads // self.kv_heads
        embedding = model.model.embed_tokens
        self.embedding = embedding.weight.detach()
        self.final_norm = _norm_of(model.model.norm)
        positions = config.max_position_embeddings
        self._cos, self._sin = _rotary_tables(model.model.rotary_emb, self.embedding, positions)
        self._inner, self._signs = config.intermediate_size, mirror_signs(self.embedding)
        self.linears: list[nn.Module] = []

        def take(weight: Tensor, bias: Tensor | None, *, copied: bool = False) -> Product:
            self.linears.append(make_linear(weight, bias, level, simulate=simulate, copied=copied))
            return as_function(self.linears[-1])

        self.layers = []
        for index in range(len(layers)):
            self.layers.append(_take_layer(layers[index], take))
            layers[index] = nn.Identity()
        tied = head.weight is embedding.weight
        self._head = take(head.weight.detach(), head.bias, copied=tied)

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
        """Weights as oneDNN packed them."""
        return [tensor for layer in self.linears for tensor in getattr(layer, "packed", ())]

    def append(self, tokens: Tensor, slabs: Sequence[Tensor], placement: Placement) -> Tensor:
        """Read tokens [n] of any rows; the residual stream after all layers, mirrored
        [n, 2, hidden].
        """
        stream = mirrored(functional.embedding(tokens, self.embedding))
        rotary = placement.at(self._cos), placement.at(self._sin)
        for layer, slab in zip(self.layers, slabs, strict=True):
            query, new = self._project(layer, layer.input_norm.of_mirrored(stream), rotary)
            out = layer.out(placement.attend(query, new, slab))
            add_mirrored(stream, out, self._signs)
            inner = layer.gate_up(layer.mlp_norm.of_mirrored(stream))
            gate, up = inner.view(-1, 2, self._inner).unbind(1)
            out = layer.down(functional.silu(gate).mul_(up))
            add_mirrored(stream, out, self._signs)
        return stream

    def logits(self, stream: Tensor) -> Tensor:
        """The residual stream [n, 2, hidden] → [n, vocab]."""
        return self._head(self.final_norm.of_mirrored(stream))

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
    """cos and sin [positions, 1, head] from the model's rotary module; sin carries the sign of the
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
        return take(weight, bias, copied=True)

    return Layer(
        input_norm=_norm_of(layer.input_layernorm),
        qkv=joined(attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=_norm_of(attention.q_norm) if hasattr(attention, "q_norm") else None,
        k_norm=_norm_of(attention.k_norm) if hasattr(attention, "k_norm") else None,
        out=joined(attention.o_proj),
        mlp_norm=_norm_of(layer.post_attention_layernorm),
        gate_up=joined(mlp.gate_proj, mlp.up_proj),
        down=joined(mlp.down_proj),
    )


class RootMeanSquare:
    """x / √(mean of x² + eps) · weight, over the last dimension (Zhang and Sennrich 2019, eq. 4).

    A CPU has a dozen kernels for it and one for the layer norm, which gives the same for (x, -x):
    its mean is 0 and its variance the mean of x². Between layers that each empty the cache, a norm
    of a dozen kernels took a tenth of a small model's step. Hence the residual stream is kept
    mirrored, as (x, -x). On a GPU that costs little more.

    Args:
        weight: [d] on its final device.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        self.weight, self.eps, self.size = weight, eps, len(weight)
        self._twice, self._shape = torch.cat([weight, weight]), (2 * len(weight),)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., d] → [..., d]."""
        return self.of_mirrored(mirrored(x))

    def of_mirrored(self, both: Tensor) -> Tensor:
        """(x, -x) as [..., 2, d] → [..., d]."""
        normed = torch.layer_norm(both.flatten(-2), self._shape, self._twice, None, self.eps)
        return normed.narrow(-1, 0, self.size)


def _norm_of(norm: Any) -> RootMeanSquare:
    return RootMeanSquare(norm.weight.detach(), norm.variance_epsilon)


def mirrored(x: Tensor) -> Tensor:
    """[..., d] → (x, -x) as [..., 2, d]."""
    return torch.stack([x, -x], dim=-2)


def mirror_signs(like: Tensor) -> Tensor:
    """The factors of `add_mirrored` [2, 1]."""
    return torch.tensor([[1.0], [-1.0]], dtype=like.dtype, device=like.device)


def add_mirrored(both: Tensor, x: Tensor, signs: Tensor) -> None:
    """Add [..., d] to a mirrored sum [..., 2, d] in place."""
    both.addcmul_(x.unsqueeze(-2), signs)
