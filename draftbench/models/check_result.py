"""The records that `check` returns: facts about models and pairs before any weights load."""

from __future__ import annotations

from typing import Literal

import msgspec

from draftbench.records import Mixture

Standing = Literal["accepts", "with an option", "refuses"]
Works = Literal["yes", "maybe", "no"]


class TokenDifference(msgspec.Struct, frozen=True):
    """An id that two tokenizers read differently."""

    id: int  # token id
    target: str | None  # its token in the target; None: it has none
    draft: str | None  # its token in the draft; None: it has none


class Overlap(msgspec.Struct, frozen=True):
    """Shares of the target's tokens that the draft has."""

    same_id: float  # share under the same id
    same_text: float  # share under any id, whatever stands for the space: what it can propose


class Vocabulary(msgspec.Struct, frozen=True):
    """Two vocabularies compared. Rows are the configurations', tokens the tokenizers'."""

    target_rows: int  # vocabulary size in the configuration
    draft_rows: int  # vocabulary size in the configuration
    target_tokens: int  # tokens of the tokenizer
    draft_tokens: int  # tokens of the tokenizer
    same: int  # ids with the same text in both
    shared: int  # tokens of the target that the draft has under any id
    first_missing: TokenDifference | None  # first id that the draft has no token for
    first_unreadable: TokenDifference | None  # first id that the draft has no row for
    first_added: TokenDifference | None  # first id that only the draft has a token for
    first_difference: TokenDifference | None  # first id with two different tokens
    first_regular_difference: TokenDifference | None  # by llama.cpp's rule: from id 5 on
    all_tokens: Overlap  # over the whole vocabulary
    traffic: Overlap | None  # each token weighed by its frequency there


class TokenizerFacts(msgspec.Struct, frozen=True):
    """A tokenizer's settings, apart from its vocabulary."""

    kind: str  # its model, for example BPE
    special: dict[str, str]  # tokens by their roles (bos_token …)
    ids: dict[str, int]  # their ids
    adds_bos: bool  # puts the begin token before plain text
    adds_eos: bool  # puts the end token behind plain text
    has_template: bool  # whether there is a chat template


class PairFacts(msgspec.Struct, frozen=True):
    """A target and a draft compared, from configurations and tokenizers alone."""

    target: str
    draft: str
    vocabulary: Vocabulary  # the two vocabularies
    target_tokenizer: TokenizerFacts  # how the target reads text
    draft_tokenizer: TokenizerFacts  # how the draft reads text
    template_difference: tuple[str, ...]  # lines of a unified diff; empty if one has no template
    target_context: int | None  # tokens; None is no limit
    draft_context: int | None  # tokens; None is no limit
    target_recurrent: bool = False  # whether the target keeps a state that cannot be rewound


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


class EngineAnswer(msgspec.Struct, frozen=True):
    """Whether an engine takes a pair by that engine's rule, why, and the option that it needs."""

    engine: str  # vLLM, SGLang, llama.cpp, TensorRT-LLM or transformers
    standing: Standing  # whether it takes the pair
    reason: str
    option: str | None  # what to pass to it


class OwnDraft(msgspec.Struct, frozen=True):
    """The layers with which a target drafts for itself (multi-token prediction)."""

    field: str | None  # of config.json, which counts them; None: it does not, or was not read
    layers: int | None  # how many; None: not counted
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
    method: str  # eagle3, dflash or mtp
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
