"""Two config.json files and a card → what c, v(n) and memory could be at best.

A pass takes the longer of two times: its bytes (weights once, the cache of every sequence) over the
card's bandwidth, and its operations (two per weight and token, and attention's) over its peak
(Williams et al. 2009). Launches, sampling and what the caches of a chip save are left out, which
flatters small models most: a real c is higher. Llama-like dense shapes only; a model of several
experts or with compressed attention is refused.

Blocks are at 16, 8 or 4 bits, as weights alone are quantized: they are computed with in 16 bits.
Embeddings, head and cache stay at 16.

How far practice lies above it, for Llama 3.1 70B at 16 bits: c is 1.8 % with the 1B draft where
serving engineers report about 5 %, and 10.9 % with the 8B draft where they report 12 to 15 %
(`PRACTICE`). The card cancels out of both as long as bandwidth decides. Nothing here is fitted to
close that gap.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from draftbench.errors import ModelError, UsageError
from draftbench.memory import Footprint, MemoryPlan, Serving, plan_memory
from draftbench.planner.cards import Card
from draftbench.safe_files import UnreadableError, read_limited

# By name: at 4 bits, groups of 128 weights share a 16-bit scale and a 16-bit offset.
BITS = {16: 16.0, 8: 8.0, 4: 4.25}
_UNKNOWN_SHAPES = ("num_local_experts", "num_experts", "n_routed_experts", "kv_lora_rank")
# Of the card's memory: what vLLM 0.32 takes for weights, activations and cache unless told
# otherwise (`gpu_memory_utilization`).
MEMORY_SHARE = 0.92
_ALIKE = 1.25

MOST_BYTES = 4 << 20


@dataclass(frozen=True)
class Shape:
    """Sizes of a dense decoder with gated feed-forward layers."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    context: int | None = None

    @property
    def block_parameters(self) -> int:
        """Weights of all layers, biases left out."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        feed_forward = 3 * self.hidden * self.intermediate
        return self.layers * (attention + feed_forward + 2 * self.hidden) + self.hidden

    @property
    def head_parameters(self) -> int:
        """Weights of the output head, as many as the embedding's."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights; a tied head counts once."""
        return self.block_parameters + (1 if self.tied else 2) * self.head_parameters

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token at 16 bits."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_dim

    def weight_bytes(self, bits: int) -> float:
        """Bytes of all weights."""
        embeddings = self.parameters - self.block_parameters
        return self.block_parameters * BITS[bits] / 8 + 2 * embeddings


@dataclass(frozen=True)
class Load:
    """Sequences that are decoded together, the tokens that each has behind it, and the share of the
    card's memory that serves them.
    """

    batch: int = 1
    context: int = 2048
    memory_share: float = MEMORY_SHARE


@dataclass(frozen=True)
class Practice:
    """The c that serving engineers report of a pair at equal precision, `low` to `high`."""

    pair: str
    share: float
    low: float
    high: float


# Draft's share of the target's weights → c, at 16 bits and one sequence; rules of thumb, to be
# held against an estimate and never put in its place.
PRACTICE = (
    Practice("Llama 70B with a 1B draft", 1.236 / 70.55, 0.05, 0.05),
    Practice("Llama 70B with an 8B draft", 8.03 / 70.55, 0.12, 0.15),
)


class Pairing(msgspec.Struct, frozen=True):
    """Target and draft at one precision each, on one card.

    Bytes are of weights, both caches and logits at the load; times are seconds of a step of one
    token. `verify_ratio` is v(k+1) by k. Times and ratios are estimates, null where the card's
    numbers are unknown; they hold whether the pair fits or not.
    """

    target_bits: int
    draft_bits: int
    memory_bytes: float
    target_fits: bool
    fits: bool
    target_step_seconds: float | None
    draft_step_seconds: float | None
    draft_cost_ratio: float | None
    verify_ratio: dict[int, float | None]
    memory: MemoryPlan


class Roofline(msgspec.Struct, frozen=True):
    """Every pair of precisions on a card, and what practice reports of such a pair at 16 bits."""

    card: Card
    load: Load
    practice: Practice | None
    found: list[Pairing]


def roofline(target: Shape, draft: Shape, card: Card, load: Load, ks: tuple[int, ...]) -> Roofline:
    """What two shapes could do on a card."""
    found = pairings(target, draft, card, load, ks)
    return Roofline(card, load, practice(target, draft), found)


def pairings(
    target: Shape, draft: Shape, card: Card, load: Load, ks: tuple[int, ...]
) -> list[Pairing]:
    """Every precision of the target with every precision of the draft, the widest first."""
    return [
        _pairing((target, wide), (draft, narrow), card, load, ks)
        for wide in BITS
        for narrow in BITS
    ]


def practice(target: Shape, draft: Shape) -> Practice | None:
    """What is reported of a pair of about these sizes; None where nothing is."""
    share = draft.parameters / target.parameters
    return next((p for p in PRACTICE if 1 / _ALIKE < share / p.share < _ALIKE), None)


def step_seconds(shape: Shape, bits: int, card: Card, load: Load, tokens: int = 1) -> float | None:
    """The least time of a pass over `tokens` tokens of every sequence, None where unknown."""
    if card.bandwidth is None or card.operations is None:
        return None
    read = shape.block_parameters * BITS[bits] / 8 + 2 * shape.head_parameters
    read += load.batch * load.context * shape.cache_bytes_per_token
    weights = 2 * (shape.block_parameters + shape.head_parameters)
    attention = 4 * shape.layers * shape.heads * shape.head_dim * load.context
    operations = load.batch * tokens * (weights + attention)
    return max(read / card.bandwidth, operations / card.operations)


def read_shape(path: Path) -> Shape:
    """The shape in a config.json, or in the one of a model's folder.

    Raises:
        UsageError: no such file, or not JSON.
        ModelError: a size is missing, or the shape is not one that is estimated here.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(read_limited(file, MOST_BYTES))
    except UnreadableError as error:
        raise UsageError(
            f"cannot read `{file}`: {error}",
            hint="give a model's config.json, or the folder that holds it",
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"`{file}` is not JSON: {error}", hint="give a config.json") from error
    if not isinstance(config, dict):
        raise UsageError(f"`{file}` holds no object", hint="give a model's config.json")
    for key in _UNKNOWN_SHAPES:
        if config.get(key) is not None:
            raise ModelError(
                f"`{file}` has `{key}`: not a dense shape, so this estimate does not know it",
                hint="measure the pair with `draftbench sweep`",
            )
    heads, hidden = _size(config, "num_attention_heads", file), _size(config, "hidden_size", file)
    return Shape(
        layers=_size(config, "num_hidden_layers", file),
        hidden=hidden,
        heads=heads,
        kv_heads=_size(config, "num_key_value_heads", file, heads),
        head_dim=_size(config, "head_dim", file, hidden // heads),
        intermediate=_size(config, "intermediate_size", file),
        vocab=_size(config, "vocab_size", file),
        tied=_tied(config, file),
        context=_context(config, file),
    )


def _pairing(
    target: tuple[Shape, int],
    draft: tuple[Shape, int],
    card: Card,
    load: Load,
    ks: tuple[int, ...],
) -> Pairing:
    own, other = (step_seconds(*model, card, load) for model in (target, draft))
    sizes = [
        Footprint(shape.weight_bytes(bits), shape.cache_bytes_per_token)
        for shape, bits in (target, draft)
    ]
    serving = Serving(
        card.memory * load.memory_share, load.batch, load.context, max(ks), target[0].vocab
    )
    memory = plan_memory(sizes[0], sizes[1], serving, target[0].context)
    return Pairing(
        target_bits=target[1],
        draft_bits=draft[1],
        memory_bytes=memory.bytes_needed,
        target_fits=memory.target_fits,
        fits=memory.fits,
        target_step_seconds=own,
        draft_step_seconds=other,
        draft_cost_ratio=_ratio(other, own),
        verify_ratio={k: _ratio(step_seconds(*target, card, load, k + 1), own) for k in ks},
        memory=memory,
    )


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def _size(config: dict[str, Any], key: str, file: Path, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if value is None:
        raise ModelError(
            f"`{file}` has no `{key}`",
            hint="only Llama-like dense models are estimated; measure others with a sweep",
        )
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(
            f"`{key}` in `{file}` is not a whole number from 1", hint="is it a model's config.json?"
        )
    return value


def _context(config: dict[str, Any], file: Path) -> int | None:
    key = "max_position_embeddings"
    return None if config.get(key) is None else _size(config, key, file)


def _tied(config: dict[str, Any], file: Path) -> bool:
    tied = config.get("tie_word_embeddings")
    if not isinstance(tied, bool):
        raise ModelError(
            f"`{file}` has no `tie_word_embeddings`",
            hint="add it: true where the output head is the embedding, false where it is not",
        )
    return tied
