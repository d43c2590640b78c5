"""Any transformers causal LM with an ordinary key-value cache → a runner, through the model's own
forward pass.

The cache is ours: one slab per layer, written in place and rewound by forgetting, since the
library's own caches concatenate on every step or cannot be rewound past a sliding window. Masks are
the library's, built from the sizes that our cache reports; a sliding window is kept whole here and
masked there. Recurrent and hybrid caches are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from draftbench.decode.linear import make_linear

ATTENTION_LAYERS = ("full_attention", "sliding_attention")


def general_obstacle(model: Any) -> str | None:
    """Why this model has no cache that can be rewound, or None."""
    config = model.config.get_text_config()
    kinds = {kind for kind in (getattr(config, "layer_types", None) or ()) if kind is not None}
    foreign = sorted(kinds.difference(ATTENTION_LAYERS))
    if foreign:
        return f"layers of kind {', '.join(foreign)}, whose state cannot be rewound"
    if getattr(model, "_is_stateful", False):
        return f"the recurrent state of {config.model_type} cannot be rewound"
    return None


class SlabLayer(DynamicLayer):  # type: ignore[misc]
    """One layer's keys and values in memory allocated once, shaped like the first ones it sees."""

    def __init__(self, cache: SlabTransformersCache, *, sliding: bool) -> None:
        super().__init__()
        self.owner = cache
        self.is_sliding = sliding

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate [1, heads, capacity, head] for keys and for values."""
        self.keys, self.values = (
            states.new_zeros(1, states.shape[1], self.owner.capacity, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write the new entries behind the valid ones and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.owner.length
        end = start + key_states.shape[-2]
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        """Valid entries; the masks' offset."""
        return self.owner.length


class SlabTransformersCache(Cache):  # type: ignore[misc]
    """A transformers cache whose valid length is one number."""

    def __init__(self, layer_kinds: list[str], capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        super().__init__(
            layers=[SlabLayer(self, sliding=k == "sliding_attention") for k in layer_kinds]
        )

    def rewind(self, length: int) -> None:
        """Forget everything after `length` tokens."""
        self.length = length


class GeneralRunner:
    """Runs a transformers model as it is, with its linear layers replaced by faster or smaller
    ones.

    Args:
        model: a loaded causal LM without `general_obstacle`.
        level: quantization level of its linear layers.
        simulate: round the weights instead of using the level's kernel.
    """

    def __init__(self, model: Any, level: str, *, simulate: bool) -> None:
        self.model = model
        config = model.config.get_text_config()
        self.vocab_size = config.vocab_size
        self.context_length = config.max_position_embeddings
        self.dtype, self.device = model.dtype, str(model.device)
        self._layer_kinds = _layer_kinds(config)
        if len({p.device for p in model.parameters()}) == 1:
            replace_linears(model, level, simulate=simulate)

    @property
    def name(self) -> str:
        return f"transformers forward ({self.dtype}, {self.device})".replace("torch.", "")

    def modules(self) -> Iterator[nn.Module]:
        """Every layer, for counting."""
        return self.model.modules()  # type: ignore[no-any-return]

    def tensors(self) -> Iterator[Tensor]:
        """Weights that are not in a linear layer."""
        for module in self.model.modules():
            if not isinstance(module, nn.Linear):
                yield from module.parameters(recurse=False)

    def new_cache(self, capacity: int) -> SlabTransformersCache:
        """Slabs are allocated when the first tokens show their shape."""
        return SlabTransformersCache(self._layer_kinds, capacity)

    @torch.inference_mode()
    def forward(self, tokens: Tensor, cache: SlabTransformersCache, keep: int) -> Tensor:
        """Append tokens [n]; logits [keep, vocab_size]."""
        start, n = cache.length, tokens.shape[0]
        positions = torch.arange(start, start + n, device=tokens.device)[None]
        logits = self.model(
            input_ids=tokens[None],
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        ).logits
        cache.length = start + n
        return logits[0]  # type: ignore[no-any-return]


def _layer_kinds(config: Any) -> list[str]:
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return list(kinds)
    window = getattr(config, "sliding_window", None)
    return ["sliding_attention" if window else "full_attention"] * config.num_hidden_layers


def replace_linears(model: nn.Module, level: str, *, simulate: bool) -> None:
    """Swap every `nn.Linear` (and GPT-2's transposed `Conv1D`) for `make_linear`'s layer, in place.

    A head that is tied to the embedding becomes a layer of its own; the embedding stays.
    """
    for parent in list(model.modules()):
        for child_name, child in list(parent.named_children()):
            plain, transposed = isinstance(child, nn.Linear), type(child).__name__ == "Conv1D"
            if not plain and not transposed:
                continue
            layer: Any = child
            weight = layer.weight.detach().t().contiguous() if transposed else layer.weight.detach()
            bias = None if layer.bias is None else layer.bias.detach()
            setattr(parent, child_name, make_linear(weight, bias, level, simulate=simulate))
