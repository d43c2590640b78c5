"""The records that `check` returns: facts about models and pairs before any weights load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Standing = Literal["accepts", "with an option", "refuses"]


@dataclass(frozen=True)
class TokenDifference:
    """An id that two tokenizers read differently: the token of `target` and of `draft`, None where
    it has none.
    """

    id: int  # token id
    target: str | None
    draft: str | None


@dataclass(frozen=True)
class Overlap:
    """Shares of the target's tokens that the draft has: under the same id, and under any id (words
    compared as text, whatever stands for the space).
    """

    same_id: float  # share under the same id
    same_text: float  # share under any id


@dataclass(frozen=True)
class Vocabulary:
    """Two vocabularies compared. Rows are the configurations', tokens the tokenizers'.

    `same` counts ids with the same text in both, `missing` ids that the draft has no token for,
    `unreadable` ids that it has no row for; the first of each is named. `first_difference` is the
    first id with two different tokens. `first_regular_difference` is llama.cpp's: among rows that
    both have, from id 5 on, empty ones too. `traffic` weighs each token by its frequency there.
    """

    target_rows: int  # vocabulary size in the configuration
    draft_rows: int  # vocabulary size in the configuration
    target_tokens: int  # tokens of the tokenizer
    draft_tokens: int  # tokens of the tokenizer
    same: int
    missing: int
    unreadable: int
    first_missing: TokenDifference | None  # first id that the draft has no token for
    first_unreadable: TokenDifference | None  # first id that the draft has no row for
    first_difference: TokenDifference | None
    first_regular_difference: TokenDifference | None
    all_tokens: Overlap  # over the whole vocabulary
    traffic: Overlap | None


@dataclass(frozen=True)
class TokenizerFacts:
    """A tokenizer's settings besides its vocabulary. `special` maps roles (bos_token …) to tokens,
    `ids` the same roles to ids; `adds_bos` and `adds_eos` say what it adds to plain text.
    """

    kind: str
    special: dict[str, str]
    ids: dict[str, int]
    adds_bos: bool
    adds_eos: bool
    has_template: bool  # whether there is a chat template


@dataclass(frozen=True)
class PairFacts:
    """A target and a draft compared, from configurations and tokenizers alone.

    `template_difference` holds the lines of a unified diff, empty where one side has no template.
    A context of None is unlimited.
    """

    target: str
    draft: str
    vocabulary: Vocabulary  # the two vocabularies
    target_tokenizer: TokenizerFacts  # how the target reads text
    draft_tokenizer: TokenizerFacts  # how the draft reads text
    template_difference: tuple[str, ...]
    target_context: int | None  # tokens; None is no limit
    draft_context: int | None  # tokens; None is no limit


@dataclass(frozen=True)
class ModelSheet:
    """One model, counted from its configuration.

    `weight_bytes` are by quantization level, as an engine stores them: the linear layers at that
    level with their scales, all else as in the checkpoint. A tied output head counts once
    unquantized, and as a separate layer at a level. A checkpoint that is stored quantized takes
    the same at all of them, and at its own level, which is not listed.
    """

    name: str
    family: str  # model type of its configuration
    layers: int  # transformer layers
    width: int  # hidden size
    dtype: str
    parameters: int
    weight_bytes: dict[str, int]
    kv_bytes_per_token: int
    context: int | None  # tokens in the cache

    def bytes_at(self, level: str) -> int:
        """Bytes of the weights at a level, which may be that of a checkpoint stored quantized."""
        return self.weight_bytes.get(level, self.weight_bytes["none"])


@dataclass(frozen=True)
class Room:
    """A draft at a level beside the target as loaded: bytes of both, and the `tokens` of cache for
    both that fit besides; None where the weights alone do not fit. `second_layout_bytes` is what a
    sweep on a CPU takes besides, at most, for unquantized weights that it holds twice.
    """

    level: str  # quantization level of the draft
    weight_bytes: int  # weights of both
    second_layout_bytes: int
    tokens: int | None


@dataclass(frozen=True)
class EngineAnswer:
    """Whether an engine takes a pair by its own rule, why, and the option that it needs."""

    engine: str  # vLLM, SGLang, llama.cpp, TensorRT-LLM or transformers
    standing: Standing  # whether it takes the pair
    reason: str
    option: str | None  # what to pass to it


@dataclass(frozen=True)
class PairSheet:
    """One `draft` for the target. The pair cannot work where `obstacles` are named."""

    draft: ModelSheet
    facts: PairFacts  # the two beside each other
    obstacles: tuple[str, ...]
    caveats: tuple[str, ...]
    rooms: tuple[Room, ...]  # memory at each level
    engines: tuple[EngineAnswer, ...]  # each engine's answer


@dataclass(frozen=True)
class LevelRow:
    """A quantization level on one device. `kernel` None: none is fast there, so that acceptance can
    be simulated and the cost is unknown. `bytes_per_weight` None: as loaded.
    """

    level: str  # what `--quant` is given
    meaning: str  # what it does to the weights
    kernel: str | None  # what computes with it on this device; None: nothing, only simulated
    bytes_per_weight: float | None  # beside the scales; None: as loaded
    layers: str  # which layers it covers


@dataclass(frozen=True)
class CheckResult:
    """The answer of `check`. `memory_bytes` is the device's or the given size, `levels` are the
    quantization levels on it.
    """

    target: ModelSheet
    memory_bytes: int
    traffic_tokens: int | None  # tokens of the traffic that the vocabulary was weighed by
    pairs: tuple[PairSheet, ...]  # one entry per pair
    levels: tuple[LevelRow, ...] = ()
