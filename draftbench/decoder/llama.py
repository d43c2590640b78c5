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
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from draftbench.decoder.attention import PIECE, Rotary, in_pieces, placed
from draftbench.decoder.cuda_graphs import (
    Evenly,
    Kind,
    Recorder,
    RecordsPasses,
    SlabCache,
    Wanted,
    reason_of,
)
from draftbench.decoder.device import has_triton
from draftbench.decoder.linear import runner_name
from draftbench.decoder.llama_model import LlamaModel, RootMeanSquare
from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import HiddenStates, at_ends, last_of_each, whole

# Families whose layers have exactly the shape below.
LLAMA_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Number of keys, tokens [rows · width], starts [rows], slabs, what takes layers' inputs down →
# logits after each token.
Append = Callable[[int, Tensor, Tensor, Tensor, HiddenStates | None], Tensor]


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
    """A model's passes by kernels of draftbench."""
    from draftbench.decoder.fused import FusedPasses

    return FusedPasses(model)


def _taking_down(
    append: Append, reads: tuple[int, ...], at: Evenly, tokens: Tensor
) -> tuple[Tensor, ...]:
    """A pass's logits and, if it `reads` layers, their inputs side by side."""
    hidden = HiddenStates(reads) if reads else None
    logits = append(at.reach, tokens, at.starts, at.slabs, hidden)
    return (logits, hidden.joined()) if hidden else (logits,)


class LlamaRunner(RecordsPasses):
    """Runs the weights of a Llama-shaped model.

    Args:
        model: a loaded transformers causal LM for which `llama_obstacle` is None; it is used up.
        level: quantization level of the linear layers, the output head included.
        device: where to move the weights, layer by layer; by default they stay.
        longest: tokens per row for which recorded caches have room from the start.
        layouts: `two_layouts` of `make_linear`.
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
        self.longest = min(longest, self.context_length)
        self._append: Append = self._model.continue_evenly  # as passes are recorded

    @property
    def name(self) -> str:
        return runner_name("draftbench", self, self.how)

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
        # Recordings rotate as this one does.
        other._lender, other._append = None, other._model.continue_evenly
        return other

    def record_with(self, make_recorder: Callable[[], Recorder]) -> str | None:
        """Tries draftbench's kernels first, if there is Triton."""
        slow = "" if self.device == "cpu" else "Triton is not installed"
        if has_triton(self.device):
            try:
                self._append = _fused(self._model)
                slow = self.try_recording(make_recorder)
            # Triton may be installed and not work, and raises an exception of any class then.
            except Exception as error:
                slow = reason_of(error)
            if not slow:
                self.how = ", fused kernels"
                return None
            self._append = self._model.continue_evenly
        if unrecorded := super().record_with(make_recorder):
            return unrecorded
        return f"its passes take more launches than they could: {slow}" if slow else None

    def new_slabs(self, capacity: int, rows: int) -> Tensor:
        return self._model.new_slabs(capacity, rows)

    def tried_first(self) -> Wanted:
        return [(self._kind(()), (1, 2))]

    def _kind(self, reads: tuple[int, ...]) -> Kind:
        tokens = torch.empty(0, dtype=torch.long, device=self.device)
        appends = (self._append, self._model.continue_evenly)
        return Kind(reads, (tokens,), *(partial(_taking_down, each, reads) for each in appends))

    def new_cache(
        self, capacity: int, rows: int = 1, widths: Collection[int] = (), reads: Sequence[int] = ()
    ) -> SlabCache:
        """Zeroed slabs; the rotary tables limit positions to the model's context length.

        Raises:
            ModelError: see `cache_of`.
        """
        wanted = [(self._kind(tuple(reads)), widths)]
        # A step that no head reads, which is timed too, takes nothing down.
        if reads and 1 in widths:
            wanted.append((self._kind(()), (1,)))
        return self.cache_of(capacity, rows, wanted)

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
        model, graphs = self._model, cache.graphs
        if graphs and graphs.serves(reads, counts):
            slots, (logits, *states) = graphs.launch(reads, (tokens,), counts, lengths)
            if hidden is not None:
                hidden.add(graphs.some(states[0], slots))
            wanted = slots if every else [slots[last] for last in last_of_each(counts)]
            return graphs.some(logits, wanted)
        pieces, passes = list[Tensor](), in_pieces(lengths, counts)
        sizes = [sum(some) for _, some in passes]
        parts = tokens.split(sizes) if len(sizes) > 1 else [tokens]
        for piece, (at, some) in zip(parts, passes, strict=True):
            place = placed(cache.slabs, at, some, model.rotary, model.group, self._future)
            pieces.append(model.append(piece, place, hidden))
        return model.logits(whole(pieces) if every else at_ends(pieces[-1], some))
