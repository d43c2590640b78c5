"""All arithmetic of bytes: weights by level, KV caches, what fits a device, sizes as text.

Imports neither torch nor transformers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

# Where Linux says what a container may use.
CGROUP = Path("/sys/fs/cgroup")

# Powers of ten, and of two with an i.
UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12} | {
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
# An int4 level keeps a scale and an offset for so many inputs of an output.
INT4_GROUP = 32
# Engines keep the target's logits in 32 bits for sampling.
LOGIT_BYTES = 4


@dataclass(frozen=True)
class Storage:
    """Bytes that a quantization level takes: of a weight, and of each output's scale."""

    per_weight: float
    per_output: int


# Every quantization level of draftbench; None: the weights stay as they were loaded. A level of a
# checkpoint that is stored quantized (`gguf-q4_k`) takes what its files take and is not listed.
LEVELS: dict[str, Storage | None] = {
    "none": None,
    "fp8": Storage(1.0, 4),
    "int8": Storage(1.0, 4),
    # Scale and offset in 16 bits each for every group.
    "int4": Storage(0.5 + 4 / INT4_GROUP, 0),
}


def matrix_bytes(level: str, outputs: int, inputs: int, itemsize: int) -> int:
    """Bytes of a linear layer's weights at a level; `itemsize` is a loaded weight's."""
    storage = LEVELS[level]
    if storage is None:
        return outputs * inputs * itemsize
    return int(outputs * inputs * storage.per_weight) + outputs * storage.per_output


def kv_bytes_per_token(config: Any, itemsize: int) -> int:
    """Bytes of keys and values per token over all layers, from a text configuration; 0 for a model
    without attention.
    """
    if not getattr(config, "num_attention_heads", None):
        return 0
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * head * itemsize)


@dataclass(frozen=True)
class Footprint:
    """One model: bytes of its weights, and of its KV cache per token."""

    weight_bytes: float
    cache_bytes_per_token: float


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A target with and without its draft on a device of `device_bytes`.

    `sequences` of `context` tokens each fit together with the draft, `sequences_alone` without it;
    `max_model_len` is the longest context that `concurrency` sequences may have. 0: does not fit,
    None: memory sets no limit (nothing is kept per token). `logits_bytes` are those of one
    sequence's verification pass.
    """

    device_bytes: float
    concurrency: int
    context: int
    target_weight_bytes: float
    draft_weight_bytes: float
    target_cache_bytes_per_token: float
    draft_cache_bytes_per_token: float
    logits_bytes: float
    sequences_alone: int | None
    sequences: int | None
    max_model_len_alone: int | None
    max_model_len: int | None

    @property
    def target_fits(self) -> bool:
        """Whether the target alone fits at this load."""
        return self.sequences_alone is None or self.sequences_alone >= self.concurrency

    @property
    def fits(self) -> bool:
        """Whether target and draft fit at this load."""
        return self.sequences is None or self.sequences >= self.concurrency

    @property
    def bytes_needed(self) -> float:
        """Bytes of target and draft at this load."""
        cache = self.target_cache_bytes_per_token + self.draft_cache_bytes_per_token
        per_sequence = self.context * cache + self.logits_bytes
        weights = self.target_weight_bytes + self.draft_weight_bytes
        return weights + self.concurrency * per_sequence


@dataclass(frozen=True)
class Serving:
    """The load on a device of `device_bytes`: sequences decoded together, tokens of each, the draft
    length, and the entries of the target's vocabulary.
    """

    device_bytes: float
    concurrency: int
    context: int
    k: int
    vocabulary: int


def plan_memory(
    target: Footprint, draft: Footprint, serving: Serving, longest_context: int | None
) -> MemoryPlan:
    """Divide what the weights leave among the sequences.

    Counts weights, both caches and the target's logits of a verification pass. Other activations
    and what an engine and its allocator need besides are unknown; the caller leaves room for them.
    A draft of a shorter context is counted with a cache as long as the target's.

    Args:
        longest_context: the target's context length, which no `max_model_len` exceeds; None where
            unknown.
    """
    one_token = LOGIT_BYTES * serving.vocabulary
    alone = _Room(
        serving.device_bytes - target.weight_bytes, target.cache_bytes_per_token, one_token
    )
    both = _Room(
        alone.free - draft.weight_bytes,
        target.cache_bytes_per_token + draft.cache_bytes_per_token,
        (serving.k + 1) * one_token,
    )
    return MemoryPlan(
        device_bytes=serving.device_bytes,
        concurrency=serving.concurrency,
        context=serving.context,
        target_weight_bytes=target.weight_bytes,
        draft_weight_bytes=draft.weight_bytes,
        target_cache_bytes_per_token=target.cache_bytes_per_token,
        draft_cache_bytes_per_token=draft.cache_bytes_per_token,
        logits_bytes=both.logits,
        sequences_alone=alone.sequences(serving.context),
        sequences=both.sequences(serving.context),
        max_model_len_alone=alone.longest(serving.concurrency, longest_context),
        max_model_len=both.longest(serving.concurrency, longest_context),
    )


@dataclass(frozen=True)
class _Room:
    """Bytes beside the weights, and what a sequence takes of them: per token, and for logits."""

    free: float
    per_token: float
    logits: float

    def sequences(self, context: int) -> int | None:
        if not self.per_token and self.free >= 0:
            return None
        each = context * self.per_token + self.logits
        return max(0, int(self.free // each))

    def longest(self, concurrency: int, most: int | None) -> int | None:
        if not self.per_token:
            return most if self.free >= concurrency * self.logits else 0
        tokens = max(0, int((self.free / concurrency - self.logits) // self.per_token))
        return tokens if most is None else min(tokens, most)


def memory_left() -> int:
    """Bytes of this machine's memory that are free for more, as far as this container may use
    them.
    """
    left = psutil.virtual_memory().available
    limit, used = (CGROUP / name for name in ("memory.max", "memory.current"))
    if limit.exists() and (most := limit.read_text().strip()).isdigit():
        left = min(left, int(most) - int(used.read_text()))
    return left


def parse_size(text: str) -> int:
    """`20GB`, `1.5 TiB` → bytes; upper and lower case mean the same.

    Raises:
        ValueError: no number above 0 with a unit.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]i?b)", text.strip(), re.IGNORECASE | re.ASCII)
    size = int(float(match[1]) * UNITS[match[2].lower()]) if match and len(text) < 100 else 0
    if size <= 0:
        raise ValueError(f"{text} is not a size: a number and a unit, for example 24GB or 16GiB")
    return size


def format_size(size: float) -> str:
    """Bytes in the largest power of ten (TB, GB, MB, kB) that they fill, with three digits."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if float(f"{size:.3g}") >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"
