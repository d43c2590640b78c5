"""How two models differ, as far as serving engines ask before one may draft for the other, and the
names by which the engines' rules refer to it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Standing = Literal["accepts", "with an option", "refuses"]
# A name of `findings`, what an engine does where that finding is not empty, and why; the finding
# fills {} in the reason.
PairRule = tuple[str, Standing, str]
# The reason of an engine that compares no tokens.
UNCHECKED = "differing tokens are rarely accepted ({})"


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


class EngineAnswer(msgspec.Struct, frozen=True):
    """Whether an engine takes a pair by that engine's rule, why, and the option that it needs."""

    engine: str  # its name, as vLLM
    standing: Standing  # whether it takes the pair
    reason: str
    option: str | None  # what to pass to it


def size_findings(target: int, draft: int, most_apart: int) -> dict[str, str]:
    """The `findings` from the sizes of two vocabularies, which may be `most_apart` rows apart."""
    apart, sizes = abs(target - draft), f"{target} and {draft}"
    return {
        "other_size": sizes if apart else "",
        "too_far_apart": f"{apart} ({sizes})" if apart > most_apart else "",
    }


def findings(pair: PairFacts) -> dict[str, str]:
    """Differences in a pair by the names that the rules use; empty where the two agree."""
    words = pair.vocabulary
    # The draft may know additional tokens.
    tokenizer = words.first_difference or words.first_missing or words.first_unreadable
    vocabulary = words.first_difference or words.first_missing or words.first_added
    return {
        "always": "always",
        "rows": str(words.target_rows),
        "other_word": named(words.first_difference),
        "other_tokenizer": named(tokenizer),
        "other_vocabulary": named(vocabulary),
        "recurrent": "recurrent state" if pair.target_recurrent else "",
    }


def named(difference: TokenDifference | None) -> str:
    """A sentence on a difference; empty if there is none."""
    if difference is None:
        return ""
    target, draft = (
        "no token" if text is None else repr(text) for text in (difference.target, difference.draft)
    )
    if target == draft:
        return f"id {difference.id} is {target}, for which the draft's output has no row"
    return f"id {difference.id} is {target} in the target, {draft} in the draft"
