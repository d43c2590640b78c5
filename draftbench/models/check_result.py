"""The records that `check` returns: facts about models and pairs before any weights load."""

from __future__ import annotations

from datetime import date
from typing import Literal

import msgspec

from draftbench.engines.pair_rules import EngineAnswer, PairFacts
from draftbench.records import Mixture

Works = Literal["yes", "maybe", "no"]


class ModelSheet(msgspec.Struct, frozen=True):
    """One model, counted from its configuration.

    `weight_bytes` are by quantization level: the linear layers at that level with their scales, all
    else as in the checkpoint. A tied output head counts once where it shares the embedding's
    memory, and twice where it is quantized or a CPU packs it. A checkpoint that is stored quantized
    takes the same at all levels; the level that it is stored at is not listed. `read_bytes` are
    those of them that a pass over one token reads: a few experts of a mixture, no table that tokens
    are looked up in, nothing that only images go through.
    """

    name: str
    family: str  # model type of its configuration
    layers: int  # transformer layers
    width: int  # hidden size
    dtype: str
    parameters: int
    active_parameters: int  # that one token uses: of a mixture, a few experts'
    weight_bytes: dict[str, int]
    read_bytes: dict[str, int]
    kv_bytes_per_token: int
    context: int | None  # tokens; None is no limit
    mixture: Mixture | None = None  # its routed experts; None: it has none
    expert_bytes: int = 0  # of all routed experts

    def bytes_at(self, level: str) -> int:
        """Bytes of the weights at a level, which may be that of a checkpoint stored quantized."""
        return self.weight_bytes.get(level, self.weight_bytes["none"])

    def read_at(self, level: str) -> int:
        """Bytes that a pass over one token reads at a level, which may be that of such a checkpoint
        too.
        """
        return self.read_bytes.get(level, self.read_bytes["none"])

    def most_read(self, tokens: int) -> float:
        """At most how many times the bytes of a one-token pass a pass over `tokens` reads."""
        if self.mixture is None:
            return 1.0
        more = self.mixture.most_read(tokens) - self.mixture.per_token
        return 1 + more / self.mixture.experts * self.expert_bytes / self.read_bytes["none"]


class Room(msgspec.Struct, frozen=True):
    """Memory of the target as it is stored and of the draft at one level."""

    level: str  # quantization level of the draft
    weight_bytes: int  # weights of both
    tokens: int | None  # of cache for both that fit besides; None: the weights alone do not fit


class OwnDraft(msgspec.Struct, frozen=True):
    """What a target carries to draft for itself: layers for multi-token prediction (mtp), or the
    stages of a DSpark drafter (dspark).
    """

    method: Literal["mtp", "dspark"]  # its kind
    field: str | None  # of config.json, which tells; null: none does, or it was not read
    layers: int | None  # how many; null: not counted
    k: int  # draft length in the options
    source: str | None  # of k, and of what is known by the name alone; null: as most recipes do
    date: date | None  # the source's
    why: str  # what tells that it carries them
    options: dict[str, str]  # what to pass to each engine that uses them, or may
    unused: tuple[str, ...]  # engines that do not use them in this model


class PairSheet(msgspec.Struct, frozen=True):
    """One draft for the target."""

    draft: ModelSheet  # the draft
    facts: PairFacts | None  # the two compared; null: a tokenizer is not here
    obstacles: tuple[str, ...]  # why the pair cannot work; empty: it can
    caveats: tuple[str, ...]
    rooms: tuple[Room, ...]  # memory at each level
    engines: tuple[EngineAnswer, ...]  # each engine's answer; empty: unknown, or one writes no text
    works: Works  # maybe: only traffic, or a tokenizer that is not here, can tell


class HeadSheet(msgspec.Struct, frozen=True):
    """A head that drafts from the target's own states, or the layers that the target carries."""

    name: str  # as `--drafts` names it
    method: str  # eagle3, dflash, mtp, or what the target carries instead
    obstacles: tuple[str, ...]  # why it cannot draft for the target; empty: it can
    caveats: tuple[str, ...]
    engines: tuple[EngineAnswer, ...]  # each engine's answer; empty: it cannot draft


class LevelRow(msgspec.Struct, frozen=True):
    """A quantization level on one device."""

    level: str  # what `--quant` is given
    meaning: str  # what it does to the weights
    kernel: str | None  # what computes with it here; None: nothing fast, so its cost is unknown
    bytes_per_weight: float | None  # without scales; None: as loaded
    layers: str  # which layers it covers
    moves: str | None = None  # what a product over one token does on a GPU, with its source


class CheckResult(msgspec.Struct, frozen=True):
    """The answer of `check`."""

    target: ModelSheet
    memory_bytes: int  # the device's, or the given size
    traffic_tokens: int | None  # tokens of the traffic that the vocabulary was weighed by
    pairs: tuple[PairSheet, ...]  # one entry per pair
    levels: tuple[LevelRow, ...] = ()  # the quantization levels on this device
    own_draft: OwnDraft | None = None  # what the target carries itself
    heads: tuple[HeadSheet, ...] = ()  # one entry per head that was named
