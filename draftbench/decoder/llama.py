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
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from draftbench.decoder.attention import PIECE, ManyRows, OneRow, Rotary
from draftbench.decoder.cuda_graphs import (
    Append,
    CudaGraphs,
    Lender,
    RecordedPasses,
    Recorder,
    RecordingError,
)
from draftbench.decoder.device import has_triton
from draftbench.decoder.linear import runner_name
from draftbench.decoder.llama_model import LlamaModel, RootMeanSquare
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
        return runner_name("draftbench", self, self._kernels)

    def modules(self) -> Iterator[nn.Module]:
        """Every linear layer."""
        yield from self._model.linears

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        return self._model.tensors()

    @property
    def embedding(self) -> Tensor:
        return self._model.embedding

    def continued(self, states: Tensor) -> Tensor:
        return self._model.logits(states)

    @property
    def last_norm(self) -> RootMeanSquare:
        """The norm behind the last layer."""
        return self._model.layers[-1].next_norm

    @property
    def rotary(self) -> Rotary:
        """By which it rotates."""
        return self._model.rotary

    def with_rotary(self, rotary: Rotary) -> LlamaRunner:
        """The same weights with another rotary."""
        other = copy(self)
        other._model = copy(self._model)
        other._model.rotary = rotary
        return other

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
        self, capacity: int, rows: int = 1, widths: Collection[int] = (), reads: Sequence[int] = ()
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
