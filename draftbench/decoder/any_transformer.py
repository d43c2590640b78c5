"""Runs any transformers causal LM with an ordinary key-value cache by its own forward pass.

The cache is draftbench's: one slab for each layer, written in place and rewound by changing a
length. transformers' own caches concatenate on every step, cannot be rewound past a sliding window,
or have one length for all rows. For one row transformers makes the masks from the sizes that the
cache reports; for several rows of different lengths they are made here, one for each kind of layer.
A sliding window is stored in full and masked. Models with recurrent state are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from draftbench.decoder.linear import runner_name
from draftbench.decoder.quantized_linear import make_linear
from draftbench.decoder.runner import HiddenStates, on_device, only_row

# Families whose rows may have different lengths in one pass, since they use the masks they are
# given. A test with random models of each family shows that every row gets the same logits as
# alone. Other families derive more from a batch's sizes (GPT-Neo's local attention, Falcon's
# alibi): their rows run one by one.
SIDE_BY_SIDE = frozenset(
    """
    cohere cohere2 deepseek_v3 exaone4 gemma gemma2 gemma3_text glm4 gpt2 gpt_bigcode gpt_neox
    gpt_oss gptj granite llama mistral mixtral olmo olmo2 opt phi phi3 qwen2 qwen3 qwen3_moe smollm3
    stablelm starcoder2
    """.split()  # noqa: SIM905
)
ATTENTION_LAYERS = ("full_attention", "sliding_attention")


def rewind_obstacle(model: Any) -> str | None:
    """Why a model's cache cannot be rewound; None if it can."""
    config = model.config.get_text_config()
    kinds = {kind for kind in (getattr(config, "layer_types", None) or ()) if kind is not None}
    recurrent = sorted(kinds.difference(ATTENTION_LAYERS))
    if recurrent:
        return f"layers of kind {', '.join(recurrent)}, whose state cannot be rewound"
    if getattr(model, "_is_stateful", False):
        return f"the recurrent state of {config.model_type} cannot be rewound"
    return None


class SlabLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values [rows, heads, capacity, head]; memory is allocated once, when the
    first ones arrive and show their shape.
    """

    def __init__(self, cache: SlabTransformersCache, *, sliding: bool) -> None:
        super().__init__()
        self.owner = cache
        self.is_sliding, self.is_initialized = sliding, False

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new entries after the valid ones and return them all."""
        if not self.is_initialized:
            rows, capacity = len(self.owner.lengths), self.owner.capacity
            self.keys, self.values = (
                states.new_zeros(rows, states.shape[1], capacity, states.shape[3])
                for states in (key_states, value_states)
            )
            self.is_initialized = True
        place = self.owner.place
        if isinstance(place, _LeftPadded):
            # A model's layers may lie on several devices.
            row, slot, position = (
                index.to(self.keys.device) for index in (place.row, place.slot, place.position)
            )
            self.keys[row, :, position] = key_states[row, :, slot]
            self.values[row, :, position] = value_states[row, :, slot]
            return self.keys[:, :, : place.end], self.values[:, :, : place.end]
        start = self.owner.lengths[place]
        end = start + key_states.shape[-2]
        keys, values = self.keys[place : place + 1], self.values[place : place + 1]
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        return keys[:, :, :end], values[:, :, :end]

    def get_seq_length(self) -> int:
        """Valid entries of the row that is written: the offset of masks that transformers makes."""
        place = self.owner.place
        return 0 if isinstance(place, _LeftPadded) else self.owner.lengths[place]


class SlabTransformersCache(Cache):  # type: ignore[misc]
    """A transformers cache with a valid length for each row. `place` sets where the next pass's
    tokens go: to one row, or to several.
    """

    def __init__(self, layer_kinds: list[str], capacity: int, rows: int) -> None:
        self.capacity, self.lengths = capacity, [0] * rows
        self.place: int | _LeftPadded = 0
        super().__init__(
            layers=[SlabLayer(self, sliding=k == "sliding_attention") for k in layer_kinds]
        )

    def rewind(self, row: int, length: int) -> None:
        self.lengths[row] = length


class _LeftPadded:
    """The new tokens of several rows as one batch [rows, width]: `counts[r]` tokens at the end of
    row r, which follow the `lengths[r]` valid ones in its cache. Padding is token 0 at position 0
    and is not written to the cache.
    """

    def __init__(self, lengths: list[int], counts: Sequence[int], device: str) -> None:
        self.rows, self.width = len(counts), max(counts)
        places = [
            (row, self.width - count + at, length + at)
            for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
            for at in range(count)
        ]
        self.row, self.slot, self.position = on_device(places, device).unbind(1)
        self.end = max(length + count for length, count in zip(lengths, counts, strict=True))
        self.positions = self.padded(self.position)

    def padded(self, values: Tensor) -> Tensor:
        """Values [n] of the new tokens as [rows, width], 0 at the padding."""
        wide = values.new_zeros(self.rows, self.width)
        wide[self.row, self.slot] = values
        return wide

    def mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """An additive mask [rows, 1, width, end]: each token sees itself and at most `window`
        tokens before it.
        """
        seen = torch.arange(self.end, device=self.row.device)
        last = self.positions.unsqueeze(2)
        hidden = seen > last
        if window is not None:
            hidden |= seen <= last - window
        mask = torch.zeros(hidden.shape, dtype=dtype, device=self.row.device)
        return mask.masked_fill_(hidden, torch.finfo(dtype).min).unsqueeze(1)


class TransformersRunner:
    """Runs a transformers model with its linear layers replaced by faster or smaller ones.

    Args:
        model: a loaded causal LM for which `rewind_obstacle` is None.
        level: quantization level of its linear layers.
        layouts: `two_layouts` of `make_linear`.
    """

    def __init__(self, model: Any, level: str, **layouts: Any) -> None:
        self.model = model
        config = model.config.get_text_config()
        self.vocab_size = config.vocab_size
        self.context_length = config.max_position_embeddings
        self.dtype, self.device = model.dtype, str(model.device)
        self._window = getattr(config, "sliding_window", None)
        default = "sliding_attention" if self._window else "full_attention"
        kinds = getattr(config, "layer_types", None) or [default] * config.num_hidden_layers
        self._layer_kinds = list(kinds)
        self._side_by_side = config.model_type in SIDE_BY_SIDE
        # transformers 5.24 renamed it; models that bring code may use the older name.
        renamed = "cache" in inspect.signature(type(model).forward).parameters
        self._cache_name = "cache" if renamed else "past_key_values"
        if len({p.device for p in model.parameters()}) == 1:
            embedding = model.get_input_embeddings().weight
            replace_linears(model, level, embedding=embedding, **layouts)

    @property
    def name(self) -> str:
        alone = ", rows one by one" * (not self._side_by_side)
        return runner_name("transformers forward", self, alone)

    def modules(self) -> Iterator[nn.Module]:
        return self.model.modules()  # type: ignore[no-any-return]

    def tensors(self) -> Iterator[Tensor]:
        for module in self.model.modules():
            if not isinstance(module, nn.Linear):
                yield from module.parameters(recurse=False)

    @property
    def embedding(self) -> Tensor:
        return self.model.get_input_embeddings().weight  # type: ignore[no-any-return]

    def continued(self, states: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(states)  # type: ignore[no-any-return]

    def new_cache(
        self, capacity: int, rows: int = 1, widths: Collection[int] = (), reads: Sequence[int] = ()
    ) -> SlabTransformersCache:
        """An empty cache; its slabs are allocated when the first tokens show their shape."""
        return SlabTransformersCache(self._layer_kinds, capacity, rows)

    def forget_caches(self) -> None:
        """Nothing to do: a cache's memory is freed with the cache."""

    @torch.inference_mode()
    def forward(
        self,
        tokens: Tensor,
        cache: SlabTransformersCache,
        *,
        every: bool,
        counts: Sequence[int] | None = None,
        hidden: HiddenStates | None = None,
    ) -> Tensor:
        """See `Runner`; rows side by side are padded at their start to the widest."""
        counts = counts or [len(tokens)]
        keep = 0 if every else 1
        run = partial(self.model, use_cache=True, logits_to_keep=keep, **{self._cache_name: cache})
        if hidden is not None:
            run = partial(run, output_hidden_states=True)

        def taken(output: Any, where: Any) -> None:
            if hidden is not None:
                for layer in hidden.layers:
                    hidden.take(layer, output.hidden_states[layer][where])

        if self._side_by_side and only_row(counts) is None:
            place = cache.place = _LeftPadded(cache.lengths, counts, self.device)
            masks = {
                kind: place.mask(self._window if kind == "sliding_attention" else None, self.dtype)
                for kind in set(self._layer_kinds)
            }
            mask = masks if len(masks) > 1 else next(iter(masks.values()))
            ids, positions = place.padded(tokens), place.positions
            output = run(input_ids=ids, attention_mask=mask, position_ids=positions)
            taken(output, (place.row, place.slot))
            wanted: Any = place.row, place.slot
            if not every:  # on the device, where a list would be waited for
                busy = [row for row, count in enumerate(counts) if count]
                wanted = on_device(busy, self.device), -1
            logits = output.logits[wanted]
        else:
            parts = []
            for row, part in enumerate(tokens.split(list(counts))):
                if len(part):
                    cache.place = row
                    positions = torch.arange(len(part), device=part.device) + cache.lengths[row]
                    output = run(input_ids=part[None], position_ids=positions[None])
                    parts.append(output.logits[0])
                    taken(output, 0)
            logits = torch.cat(parts)
        cache.lengths = [have + new for have, new in zip(cache.lengths, counts, strict=True)]
        return logits


def replace_linears(model: nn.Module, level: str, *, embedding: Tensor, **layouts: Any) -> None:
    """Replace every linear layer by `make_linear`'s in place.

    A head that is tied to the embedding becomes a separate layer, which shares the embedding's
    memory if it holds its weights in rows.
    """
    for parent in list(model.modules()):
        layer: Any
        for name, layer in list(parent.named_children()):
            if (weight := matrix_of(layer)) is not None:
                given = weight.detach().contiguous()
                bias = None if layer.bias is None else layer.bias.detach()
                tied = weight is embedding
                linear = make_linear(given, bias, level, copied=tied, **layouts)
                setattr(parent, name, linear)


def matrix_of(layer: Any) -> Tensor | None:
    """The weights [out, in] of a linear layer; GPT-2's `Conv1D` stores them transposed."""
    if isinstance(layer, nn.Linear):
        return layer.weight
    return layer.weight.t() if type(layer).__name__ == "Conv1D" else None
