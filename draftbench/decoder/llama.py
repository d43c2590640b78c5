"""Runs Llama-shaped models faster than transformers does.

transformers spends about 0.17 ms of Python on a layer, which is most of a small draft's step. This
runner takes over a model's weights and rotary tables, layer by layer so that memory never holds
them twice, and makes one kernel call for each operation that matters: query, key and value in one
product, gate and up in another, keys and values written in place. Its logits are compared with
transformers' before it is used (`models.quantize`). On a GPU passes of a few tokens are recorded as
CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from draftbench.decoder.attention import PIECE, EvenRows, ManyRows, OneRow, Placement, Rotary
from draftbench.decoder.cuda_graphs import CudaGraphs, Lender, RecordedPasses, Recorder
from draftbench.decoder.device import attention_words
from draftbench.decoder.linear import Product, as_function, fits_16_bits, layouts_of
from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import last_of_each, on_device, only_row
from draftbench.errors import ModelError

# Families whose layer is exactly of the shape below.
LLAMA_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Graphs are tried with so many tokens of two rows: the second pass of a width shows whether they
# read anew what differs between two passes. bfloat16's noise in a deep model is .98.
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


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:MOST_CHARACTERS]


@dataclass
class SlabCache:
    """Keys and values side by side [layers, rows, 2, key heads, capacity, head]; the first
    `lengths[row]` entries are valid. Short passes may run as `graphs`.
    """

    slabs: Tensor
    lengths: list[int]
    graphs: RecordedPasses | None = None

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
        two_layouts: a CPU may hold unquantized weights twice, for one token and for several.
    """

    def __init__(self, model: Any, level: str, *, simulate: bool, two_layouts: bool = True) -> None:
        config = model.config
        self.vocab_size, self.context_length = config.vocab_size, config.max_position_embeddings
        linear = partial(make_linear, level=level, simulate=simulate, two_layouts=two_layouts)
        self._model = LlamaModel(model, linear)
        like = self._model.like
        self.dtype, self.device = like.dtype, str(like.device)
        self._future = like.new_full((PIECE, PIECE), float("-inf")).triu_(1)
        self._lender: Lender | None = None
        self._unrecorded = False

    @property
    def name(self) -> str:
        how = layouts_of(self.modules()) + attention_words(self.device)
        how += ", call by call" * self._unrecorded
        return f"draftbench ({self.dtype}, {self.device}{how})".replace("torch.", "")

    def modules(self) -> Iterator[nn.Module]:
        """Every linear layer."""
        yield from self._model.linears

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        return self._model.tensors()

    def record_short_passes(self) -> str | None:
        """From now on, run passes of the widths that a cache is made for as CUDA graphs; a sentence
        that says why where they cannot.
        """
        stream = torch.cuda.Stream(self.device)
        return self.record_with(lambda: CudaGraphs(stream))

    def record_with(self, make_recorder: Callable[[], Recorder]) -> str | None:
        """The same with passes that such a recorder records."""
        self._lender = Lender(self._model.new_slabs, self._model.append_evenly, make_recorder)
        try:
            cosine = self._least_cosine_of_short_passes()
            obstacle = f"its passes differ then (cosine {cosine:.3f})"
            obstacle = "" if cosine >= LEAST_COSINE else obstacle
        # A library that cannot record raises an exception of any class.
        except Exception as error:
            obstacle = _reason(error)
        if not obstacle:
            return None
        self._lender, self._unrecorded = None, True
        return f"launches its steps call by call, not as CUDA graphs: {obstacle}"

    def _least_cosine_of_short_passes(self) -> float:
        """Similarity of their logits over two rows to those of the same passes call by call."""
        results, capacity = [], sum(map(max, TRIED))
        self._recorded_cache(capacity, 1, (1, 2))
        short = self._recorded_cache(capacity, 2, (1, 2))
        for cache in (short, self.new_cache(capacity, 2)):
            tokens = torch.arange(1, 1 + sum(map(sum, TRIED)), device=self.device)
            parts = tokens.remainder_(self.vocab_size).split([sum(counts) for counts in TRIED])
            passes = zip(parts, TRIED, strict=True)
            logits = [self.forward(t, cache, every=True, counts=counts) for t, counts in passes]
            results.append(torch.cat(logits).float())
        return float(functional.cosine_similarity(results[0], results[1], dim=-1).min())

    def new_cache(self, capacity: int, rows: int = 1, widths: Collection[int] = ()) -> SlabCache:
        """Zeroed slabs; the rotary tables limit positions to the model's context length.

        Raises:
            ModelError: passes of these widths cannot be recorded, though those that were tried
                could. Call by call their times would be another kind, under the same name.
        """
        if widths and self._lender is not None:
            try:
                return self._recorded_cache(capacity, rows, widths)
            except torch.OutOfMemoryError:
                raise
            # A library that cannot record raises an exception of any class.
            except Exception as error:
                raise ModelError(
                    f"passes over {rows} rows of {capacity} tokens cannot be recorded as CUDA "
                    f"graphs ({_reason(error)})",
                    hint="fewer rows or shorter responses may work; please report it",
                ) from error
        return SlabCache(self._model.new_slabs(capacity, rows), [0] * rows)

    def _recorded_cache(self, capacity: int, rows: int, widths: Collection[int]) -> SlabCache:
        assert self._lender is not None
        graphs = self._lender.lend(capacity, rows, widths)
        cache = SlabCache(graphs.slabs, [0] * rows, graphs)
        self._lender.take_back(graphs, after=cache)
        return cache

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
            x = self._append_side_by_side(tokens, cache, counts)
            if not every and max(counts) > 1:
                x = x[on_device(last_of_each(counts), self.device)]
        else:
            pieces = self._append_to(row, tokens, cache)
            x = torch.cat(pieces) if every else pieces[-1][-1:]
        return self._model.logits(x)

    def _append_side_by_side(
        self, tokens: Tensor, cache: SlabCache, counts: Sequence[int]
    ) -> Tensor:
        """Read tokens [n] of several rows; what the output head reads."""
        lengths, width, graphs = cache.lengths, max(counts), cache.graphs_for(counts)
        cache.lengths = [have + new for have, new in zip(lengths, counts, strict=True)]
        if graphs is not None:
            return graphs.append(tokens, counts, lengths)
        if min(counts) == width:
            starts = on_device(lengths, self.device)
            return self._model.append_evenly(max(cache.lengths), tokens, starts, cache.slabs)
        model = self._model
        placement = ManyRows(cache.slabs, lengths, counts, model.rotary, model.group)
        return model.append(tokens, placement)

    def _append_to(self, row: int, tokens: Tensor, cache: SlabCache) -> list[Tensor]:
        """Read tokens [n] of one row; what the output head reads, for each piece."""
        pieces, model, slabs = [], self._model, cache.slabs[:, row]
        for piece in tokens.split(PIECE):
            have, new = cache.lengths[row], piece.shape[0]
            placement = OneRow(slabs, have, new, model.rotary, model.group, self._future)
            pieces.append(model.append(piece, placement))
            cache.lengths[row] = have + new
        return pieces


class RootMeanSquare:
    """x / √(mean of x² + eps) · weight, over the last dimension (Zhang and Sennrich 2019, eq. 4).

    A CPU has a dozen kernels for it and one for the layer norm, which gives the same for (x, -x):
    its mean is 0 and its variance the mean of x². Between layers that each empty the cache, a norm
    of a dozen kernels took a tenth of a small model's step. Hence the residual stream is kept
    mirrored, as (x, -x). On a GPU that costs little more.
    """

    def __init__(self, norm: Any) -> None:
        self.weight, self.eps = norm.weight.detach(), norm.variance_epsilon
        self._twice, self._size = torch.cat([self.weight, self.weight]), len(self.weight)

    def __call__(self, mirrored: Tensor) -> Tensor:
        """(x, -x) as [..., 2 · d] → [..., d]."""
        normed = torch.layer_norm(mirrored, self._twice.shape, self._twice, None, self.eps)
        return normed.narrow(-1, 0, self._size)


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
    """The embedding, all layers, the last norm and the output head. Knows slabs and where tokens go
    in them, not how long a row is.
    """

    def __init__(self, model: Any, make_linear: Callable[..., nn.Module]) -> None:
        config, layers, head = model.config, model.model.layers, model.lm_head
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.group = self.heads // self.kv_heads
        embedding = model.model.embed_tokens
        self.like = layers[0].input_layernorm.weight.detach()
        self.rotary = _rotary(model.model.rotary_emb, self.like, config.max_position_embeddings)
        self._inner = config.intermediate_size
        self._signs = self.like.new_tensor([[1.0], [-1.0]])
        self.linears: list[nn.Module] = []

        def take(weight: Tensor, bias: Tensor | None, *, copied: bool = False) -> Product:
            self.linears.append(make_linear(weight, bias, copied=copied))
            return as_function(self.linears[-1])

        norms = [RootMeanSquare(layer.input_layernorm) for layer in layers]
        norms.append(RootMeanSquare(model.model.norm))
        self.layers = []
        for index in range(len(layers)):
            self.layers.append(_take_layer(layers[index], norms[index : index + 2], take))
            layers[index] = nn.Identity()
        tied = head.weight is embedding.weight
        self.logits = take(head.weight.detach(), head.bias, copied=tied)
        table = embedding.weight.detach()
        shared = tied and getattr(self.linears[-1], "address", table.data_ptr()) is not None
        self.embedding = table if shared or not fits_16_bits(table) else table.half()

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        yield from (self.embedding, self.layers[0].input_norm.weight)
        for layer in self.layers:
            norms = (layer.mlp_norm, layer.q_norm, layer.k_norm, layer.next_norm)
            yield from (norm.weight for norm in norms if norm is not None)

    def new_slabs(self, capacity: int, rows: int) -> Tensor:
        """Zeros [layers, rows, 2, key heads, capacity, head]."""
        return self.like.new_zeros(
            len(self.layers), rows, 2, self.kv_heads, capacity, self.head_dim
        )

    def append_evenly(self, reach: int, tokens: Tensor, starts: Tensor, slabs: Tensor) -> Tensor:
        """Read tokens [rows · width], as many of each row, behind `starts` [rows] valid ones; the
        same operations whatever the starts are.
        """
        width = len(tokens) // len(starts)
        placement = EvenRows(slabs, starts, width, reach, self.rotary, self.group)
        return self.append(tokens, placement)

    def append(self, tokens: Tensor, placement: Placement) -> Tensor:
        """Read tokens [n] of any rows; what the output head reads [n, hidden]."""
        signs, heads, inner = self._signs, self.heads + 2 * self.kv_heads, self._inner
        embedded = functional.embedding(tokens, self.embedding).to(self.like.dtype)
        stream = torch.stack([embedded, -embedded], dim=1)
        flat = stream.view(len(tokens), -1)
        x = self.layers[0].input_norm(flat)
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(x).view(-1, heads, self.head_dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                _norm_heads(qkv.narrow(1, 0, self.heads), layer.q_norm)
                _norm_heads(qkv.narrow(1, self.heads, self.kv_heads), layer.k_norm)
            out = layer.out(placement.attend(index, qkv))
            stream.addcmul_(out.unsqueeze(1), signs)
            gate, up = layer.gate_up(layer.mlp_norm(flat)).split(inner, 1)
            out = layer.down(functional.silu(gate).mul_(up))
            stream.addcmul_(out.unsqueeze(1), signs)
            x = layer.next_norm(flat)
        return x


def _norm_heads(heads: Tensor, norm: RootMeanSquare) -> None:
    """Norm each of [n, heads, head] in place."""
    mirrored = torch.cat([heads, -heads], dim=2)
    heads.copy_(norm(mirrored))


def _rotary(module: Any, like: Tensor, positions: int) -> Rotary:
    """The tables of a model's rotary module."""
    with torch.no_grad():
        cos, sin = module(like[:1], torch.arange(positions, device=like.device)[None])
    half = sin.shape[-1] // 2
    signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
    return Rotary(cos[0].unsqueeze(1), signed.unsqueeze(1))


def _take_layer(layer: Any, norms: Sequence[RootMeanSquare], take: Callable[..., Product]) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp

    def joined(*parts: nn.Linear) -> Product:
        weight = torch.cat([part.weight.detach() for part in parts])
        biases = [part.bias for part in parts]
        bias = torch.cat([b.detach() for b in biases]) if biases[0] is not None else None
        return take(weight, bias, copied=True)

    return Layer(
        input_norm=norms[0],
        qkv=joined(attention.q_proj, attention.k_proj, attention.v_proj),
        q_norm=RootMeanSquare(attention.q_norm) if hasattr(attention, "q_norm") else None,
        k_norm=RootMeanSquare(attention.k_norm) if hasattr(attention, "k_norm") else None,
        out=joined(attention.o_proj),
        mlp_norm=RootMeanSquare(layer.post_attention_layernorm),
        gate_up=joined(mlp.gate_proj, mlp.up_proj),
        down=joined(mlp.down_proj),
        next_norm=norms[1],
    )
