"""Two models' configurations and tokenizers → whether one can draft for the other, before any
weights load.

Draft and target exchange token ids, so what decides is that every id means the same text in both;
the sizes of the vocabularies may differ by rows that only pad (no token there, or a token the other
lacks: it is then never proposed).
"""

from __future__ import annotations

from typing import Any

from draftbench.errors import PairError
from draftbench.models.source import ModelSource

# A draft that lacks more of the target's tokens than this has another tokenizer, not an older
# revision of the same one.
MOST_MISSING = 0.01


def check_pair(target: ModelSource, draft: ModelSource) -> tuple[str, ...]:
    """Caveats of a pair that works.

    Raises:
        PairError: the vocabularies differ in content; names the first differing id.
        ModelError: a configuration or tokenizer cannot be loaded.
    """
    ours, theirs = _texts(target.tokenizer), _texts(draft.tokenizer)
    _refuse_other_content(target, draft, ours, theirs)
    return (
        *_vocabulary_caveats(ours, theirs),
        *_special_token_caveats(target.tokenizer, draft.tokenizer),
        *_template_caveats(target.tokenizer, draft.tokenizer),
        *_context_caveats(target, draft),
    )


def _texts(tokenizer: Any) -> dict[int, str]:
    return {index: text for text, index in tokenizer.get_vocab().items()}


def _refuse_other_content(
    target: ModelSource, draft: ModelSource, ours: dict[int, str], theirs: dict[int, str]
) -> None:
    """Every id must mean the same in both, and the draft must be able to read what the target
    writes.
    """
    differing = sorted(i for i in ours.keys() & theirs.keys() if ours[i] != theirs[i])
    rows = draft.config.get_text_config().vocab_size
    unreadable = sorted(index for index in ours if index >= rows)
    if differing:
        first = differing[0]
        why = (
            f"the first differing token is id {first}: {ours[first]!r} in the target, "
            f"{theirs[first]!r} in the draft"
        )
    elif len(unreadable) > MOST_MISSING * len(ours):
        why = f"the draft has no row for ids from {unreadable[0]} ({ours[unreadable[0]]!r}) on"
    elif len(ours.keys() & theirs.keys()) < (1 - MOST_MISSING) * len(ours):
        missing = min(ours.keys() - theirs.keys())
        why = f"the draft has no token {missing} ({ours[missing]!r})"
    else:
        return
    same = len(ours.keys() & theirs.keys()) - len(differing)
    raise PairError(
        f"`{draft.name}` cannot draft for `{target.name}`: their vocabularies differ "
        f"({len(ours)} and {len(theirs)} tokens, {same} with the same id and text); {why}",
        hint="take a draft of the target's own family and generation, or `ngram` (no model)",
    )


def _vocabulary_caveats(ours: dict[int, str], theirs: dict[int, str]) -> list[str]:
    missing = len(ours.keys() - theirs.keys())
    if missing:
        return [f"the draft lacks {missing} of the target's tokens and never proposes them"]
    return []


def _special_token_caveats(ours: Any, theirs: Any) -> list[str]:
    names = ("bos_token", "eos_token")
    pairs = [(name, getattr(ours, name, None), getattr(theirs, name, None)) for name in names]
    return [
        f"{name} is {mine!r} in the target and {other!r} in the draft; the target's is used"
        for name, mine, other in pairs
        if mine != other
    ]


def _template_caveats(ours: Any, theirs: Any) -> list[str]:
    mine, other = getattr(ours, "chat_template", None), getattr(theirs, "chat_template", None)
    if mine and not other:
        return [
            "the draft has no chat template: it was probably not trained on this dialogue format"
        ]
    if mine and other and mine != other:
        return ["the chat templates differ; the target's is used for both"]
    return []


def _context_caveats(target: ModelSource, draft: ModelSource) -> list[str]:
    ours = target.config.get_text_config().max_position_embeddings
    theirs = draft.config.get_text_config().max_position_embeddings
    if theirs < ours:
        return [f"the draft's context ends at {theirs} tokens (target: {ours}); no draft beyond"]
    return []
