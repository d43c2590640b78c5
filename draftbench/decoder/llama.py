"""Runs Llama-shaped models faster than transformers does.

transformers spends about 0.17 ms in Python on each layer, which is most of a small draft's step.
This runner takes a model's weights and rotary tables, layer by layer so that they are never in
memory twice, and makes fewer kernel calls: query, key and value are one product, gate and up
another, keys and values are written in place. Its logits are compared with transformers' before it
is used (`models.quantize`). On a GPU, passes over a few tokens are recorded as CUDA graphs, with
draftbench's own kernels if there is Triton.
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
from draftbench.decoder.cuda_graphs import (
    Append,
    CudaGraphs,
    Lender,
    RecordedPasses,
    Recorder,
    RecordingError,
)
from draftbench.decoder.device import has_triton
from draftbench.decoder.linear import Product, as_function, fits_16_bits, layouts_of
from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import HiddenStates, last_of_each, on_device, only_row
from draftbench.errors import ModelError

# Families whose layers have exactly the shape below.
LLAMA_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# How many characters of a library's error are shown.
MOST_CHARACTERS = 200


def llama_obstacle(model: Any) -> str | None:
    """Why a transformers model cannot run here; None if it can."""
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


def _fused(model: LlamaModel) -> Append:
    """A model's passes by kernels of draftbench. Triton may be installed and not work."""
    from draftbench.decoder.fused import FusedPasses

    return FusedPasses(model)


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:MOST_CHARACTERS]


@dataclass
class SlabCache:
    """Keys and values side by side [layers, 2, rows, key heads, capacity, head]; the first
    `lengths[row]` entries are valid. Short passes may run as `graphs`.
    """

    slabs: Tensor
    lengths: list[int]
    graphs: RecordedPasses | None = None

    def rewind(self, row: int, length: int) -> None:
        self.lengths[row] = length


class LlamaRunner:
    """Runs the weights of a Llama-shaped model.

    Args:
        model: a loaded transformers causal LM for which `llama_obstacle` is None; it is used up.
        level: quantization level of the linear layers, the output head included.
        device: where to move the weights, layer by layer; by default they stay.
        longest: tokens per row for which recorded caches have room from the start.
        layouts: `two_layouts` and `least` of `make_linear`.
    """

    def __init__(
        self, model: Any, level: str, *, device: str | None = None, longest: int = 0, **layouts: Any
    ) -> None:
        config = model.config
        self.vocab_size, self.context_length = config.vocab_size, config.max_position_embeddings
        linear = partial(make_linear, level=level, **layouts)
        self._model = LlamaModel(model, linear, torch.device(device or model.device))
        like = self._model.like
        self.dtype, self.device = like.dtype, str(like.device)
        self._future = like.new_full((PIECE, PIECE), float("-inf")).triu_(1)
        self._longest, self._kernels = min(longest, self.context_length), ""
        self._lender: Lender | None = None

    @property
    def name(self) -> str:
        how = layouts_of(self.modules()) + self._kernels
        return f"draftbench ({self.dtype}, {self.device}{how})".replace("torch.", "")

    def modules(self) -> Iterator[nn.Module]:
        """Every linear layer."""
        yield from self._model.linears

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        return self._model.tensors()

    @property
    def embedding(self) -> Tensor:
        return self._model.embedding

    def record_short_passes(self) -> str | None:
        """From now on, run passes of the widths that a cache is made for as CUDA graphs. If this
        device cannot record them, returns a sentence that says why.
        """
        stream = torch.cuda.Stream(self.device)
        return self.record_with(lambda: CudaGraphs(stream))

    def record_with(self, make_recorder: Callable[[], Recorder]) -> str | None:
        """`record_short_passes` with any recorder."""
        slow = "" if self.device == "cpu" else "Triton is not installed"
        if has_triton(self.device):
            slow = self._record_with(make_recorder, partial(_fused, self._model))
            if not slow:
                self._kernels = ", fused kernels"
                return None
        if unrecorded := self._record_with(make_recorder, lambda: self._model.continue_evenly):
            self._kernels = ", call by call"
            return f"launches its steps call by call, not as CUDA graphs: {unrecorded}"
        return f"its passes take more launches than they could: {slow}" if slow else None

    def _record_with(
        self, make_recorder: Callable[[], Recorder], make_append: Callable[[], Append]
    ) -> str:
        """Try to record on short caches; returns why that fails, empty if it works."""
        model = self._model
        try:
            append = make_append()
            lender = partial(Lender, model.new_slabs, append, model.continue_evenly, make_recorder)
            for rows in (1, 2):
                lender().lend(1, rows, (1, 2))
            self._lender = lender(self._longest)
            return ""
        except RecordingError as error:
            return str(error)
        # A library that cannot record raises an exception of any class.
        except Exception as error:
            return _reason(error)

    def forget_caches(self) -> None:
        """Free the slabs that are not lent out, and their recordings."""
        if self._lender is not None:
            self._lender.idle.clear()

    def new_cache(
        self,
        capacity: int,
        rows: int = 1,
        widths: Collection[int] = (),
        reads: Sequence[int] = (),
    ) -> SlabCache:
        """Zeroed slabs; the rotary tables limit positions to the model's context length.

        Raises:
            ModelError: passes of these widths cannot be recorded, though others could. Launched
                call by call their times would not be comparable.
        """
        if widths and self._lender is not None:
            try:
                passes = self._lender.lend(capacity, rows, widths, tuple(reads))
                cache = SlabCache(passes.slabs, [0] * rows, passes)
                self._lender.take_back(passes, after=cache)
                return cache
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

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        cache: SlabCache,
        *,
        every: bool,
        counts: Sequence[int] | None = None,
        hidden: HiddenStates | None = None,
    ) -> Tensor:
        """Append tokens [n]; logits after every one or after each row's last. A long prompt is read
        in pieces.
        """
        counts, lengths = counts or [len(tokens)], cache.lengths
        cache.lengths = [have + new for have, new in zip(lengths, counts, strict=True)]
        reads = hidden.layers if hidden else ()
        widths = cache.graphs.widths.get(reads) if cache.graphs else None
        if cache.graphs and widths and max(counts) <= widths[-1]:
            return cache.graphs.append(tokens, counts, lengths, every=every, hidden=hidden)
        model, row = self._model, only_row(counts)
        if row is not None:
            pieces, start, slabs = list[Tensor](), lengths[row], cache.slabs[:, :, row]
            for piece in tokens.split(PIECE):
                place = OneRow(slabs, start, len(piece), model.rotary, model.group, self._future)
                pieces.append(model.append(piece, place, hidden))
                start += len(piece)
            return model.logits(torch.cat(pieces) if every else pieces[-1][-1:])
        if min(counts) == max(counts):
            starts = on_device(lengths, self.device)
            x = model.append_evenly(max(cache.lengths), tokens, starts, cache.slabs, hidden)
        else:
            rows = ManyRows(cache.slabs, lengths, counts, model.rotary, model.group)
            x = model.append(tokens, rows, hidden)
        if not every and max(counts) > 1:
            x = x[on_device(last_of_each(counts), self.device)]
        return model.logits(x)


class RootMeanSquare:
    """The weight and eps of x / √(mean of x² + eps) · weight (Zhang and Sennrich 2019, eq. 4),
    which the streams below compute.
    """

    def __init__(self, norm: Any, device: torch.device) -> None:
        self.weight, self.eps = norm.weight.detach().to(device), norm.variance_epsilon
        self.shape = self.weight.shape
        self.twice = torch.cat([self.weight, self.weight])


def swiglu(gate_up: Tensor) -> Tensor:
    """[n, 2 · inner], gates and then ups, → silu(gate) · up [n, inner] (Shazeer 2020, eq. 6)."""
    gate, up = gate_up.split(gate_up.shape[1] // 2, 1)
    return functional.silu(gate).mul_(up)


class PlainStream:
    """The residual stream [n, hidden] on a GPU, which has a single kernel for the norm."""

    def __init__(self, embedded: Tensor) -> None:
        self._sum = embedded

    @property
    def sum(self) -> Tensor:
        return self._sum

    def normed(self, norm: RootMeanSquare) -> Tensor:
        return functional.rms_norm(self._sum, norm.shape, norm.weight, norm.eps)

    def add_normed(self, out: Tensor, norm: RootMeanSquare) -> Tensor:
        """Add to the sum, and norm it."""
        self._sum.add_(out)
        return self.normed(norm)

    def norm_heads(self, heads: Tensor, norm: RootMeanSquare) -> None:
        """Norm each of [n, heads, head] in place."""
        heads.copy_(functional.rms_norm(heads, norm.shape, norm.weight, norm.eps))


class MirroredStream:
    """The residual stream on a CPU, kept as (x, -x).

    On a CPU the norm takes a dozen kernels, which were a tenth of a small model's step, but layer
    norm takes one. For (x, -x) the result is the same: the mean is 0 and the variance is the mean
    of x².
    """

    def __init__(self, embedded: Tensor, signs: Tensor) -> None:
        self._signs = signs
        self._pairs = torch.stack([embedded, -embedded], dim=1)
        self._flat = self._pairs.view(len(embedded), -1)

    @property
    def sum(self) -> Tensor:
        return self._pairs.select(1, 0)

    def normed(self, norm: RootMeanSquare) -> Tensor:
        return _half_of_layer_norm(self._flat, norm)

    def add_normed(self, out: Tensor, norm: RootMeanSquare) -> Tensor:
        """Add to the sum, and norm it."""
        self._pairs.addcmul_(out.unsqueeze(1), self._signs)
        return self.normed(norm)

    def norm_heads(self, heads: Tensor, norm: RootMeanSquare) -> None:
        """Norm each of [n, heads, head] in place."""
        heads.copy_(_half_of_layer_norm(torch.cat([heads, -heads], dim=2), norm))


# An embedded token → its residual stream.
Stream = Callable[[Tensor], MirroredStream | PlainStream]


def _half_of_layer_norm(mirrored: Tensor, norm: RootMeanSquare) -> Tensor:
    """(x, -x) as [..., 2 · d] → [..., d]."""
    normed = torch.layer_norm(mirrored, norm.twice.shape, norm.twice, None, norm.eps)
    return normed.narrow(-1, 0, norm.shape[0])


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
        norm = layers[0].input_layernorm.weight.detach()
        rotary = rotary_tables(model.model.rotary_emb, norm, config.max_position_embeddings)
        self.like, self.rotary = norm.to(device), Rotary(*(table.to(device) for table in rotary))
        self._stream: Stream = PlainStream
        if device.type == "cpu":
            self._stream = partial(MirroredStream, signs=self.like.new_tensor([[1.0], [-1.0]]))
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

        def norm_of(owner: Any, name: str) -> RootMeanSquare | None:
            return RootMeanSquare(getattr(owner, name), device) if hasattr(owner, name) else None

        norms = [RootMeanSquare(layer.input_layernorm, device) for layer in layers]
        norms.append(RootMeanSquare(model.model.norm, device))
        self.layers = []
        for index, layer in enumerate(layers):
            attention, mlp = layer.self_attn, layer.mlp
            self.layers.append(
                Layer(
                    input_norm=norms[index],
                    qkv=joined(attention.q_proj, attention.k_proj, attention.v_proj),
                    q_norm=norm_of(attention, "q_norm"),
                    k_norm=norm_of(attention, "k_norm"),
                    out=joined(attention.o_proj),
                    mlp_norm=RootMeanSquare(layer.post_attention_layernorm, device),
                    gate_up=joined(mlp.gate_proj, mlp.up_proj),
                    down=joined(mlp.down_proj),
                    next_norm=norms[index + 1],
                )
            )
            layers[index] = nn.Identity()
        tied = head.weight is embedding.weight
        table = embedding.weight.detach().to(device)
        weight = table if tied else head.weight.detach()
        self.logits = take(weight, head.bias, copied=tied)
        output = self.linears[-1]
        rows = isinstance(output, nn.Linear) or getattr(output, "address", None) is not None
        shared = tied and rows
        self.embedding = table if shared or not fits_16_bits(table) else table.half()

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
        heads = self.heads + 2 * self.kv_heads
        embedded = functional.embedding(tokens, self.embedding).to(self.like.dtype)
        stream = self._stream(embedded)
        x = stream.normed(self.layers[0].input_norm)
        for index, layer in enumerate(self.layers):
            if hidden is not None:
                hidden.take(index, stream.sum)
            qkv = layer.qkv(x).view(-1, heads, self.head_dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                stream.norm_heads(qkv.narrow(1, 0, self.heads), layer.q_norm)
                stream.norm_heads(qkv.narrow(1, self.heads, self.kv_heads), layer.k_norm)
            x = stream.add_normed(layer.out(placement.attend(index, qkv)), layer.mlp_norm)
            x = stream.add_normed(layer.down(swiglu(layer.gate_up(x))), layer.next_norm)
        return x


def rotary_tables(module: Any, like: Tensor, positions: int) -> Rotary:
    """The tables of a model's rotary module."""
    with torch.no_grad():
        cos, sin = module(like[:1], torch.arange(positions, device=like.device)[None])
    half = sin.shape[-1] // 2
    signed = torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=-1)
    return Rotary(cos[0].unsqueeze(1), signed.unsqueeze(1))
