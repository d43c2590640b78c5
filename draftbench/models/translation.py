"""Finds which of a target's tokens a draft also has, and makes a draft use the target's ids.

Tokens are the same if their strings are, whichever mark stands for the space before a word, as in
vLLM's `use_heterogeneous_vocab` (v1/spec_decode/vocab_mapping.py in 0.32).
"""

from __future__ import annotations

from draftbench.decoder.runner import Runner
from draftbench.decoder.translated import TranslatedRunner
from draftbench.models.source import ModelSource

# How byte-level and sentence-piece vocabularies write a space.
_SPACES = ("Ġ", "▁")


def rows_of(source: ModelSource) -> int:
    """The vocabulary size that a model's configuration states."""
    rows: int = source.config.get_text_config().vocab_size
    return rows


def shared_tokens(target: ModelSource, draft: ModelSource) -> dict[int, int]:
    """Target id → draft id for the tokens that both have; the first of ids with the same string."""
    ours, theirs = map(_by_string, (target, draft))
    return {ours[string]: theirs[string] for string in ours.keys() & theirs.keys()}


def keeps_ids(target: ModelSource, draft: ModelSource) -> bool:
    """Whether every token of the target has the same id in the draft, and a row there."""
    ours, theirs = (source.tokenizer.get_vocab() for source in (target, draft))
    return ours.items() <= theirs.items() and max(ours.values()) < rows_of(draft)


def needs_translation(target: ModelSource, draft: ModelSource) -> bool:
    """Whether the draft's ids or rows, some of which may be padding, differ from the target's."""
    return rows_of(target) != rows_of(draft) or not keeps_ids(target, draft)


def translated(runner: Runner, target: ModelSource, draft: ModelSource) -> Runner:
    """A draft's runner made to read and continue the target's ids; unchanged if it already does."""
    if not needs_translation(target, draft):
        return runner
    ends = draft.tokenizer.unk_token_id, draft.tokenizer.eos_token_id
    unknown = next((i for i in ends if i is not None and i < runner.vocab_size), 0)
    return TranslatedRunner(runner, rows_of(target), shared_tokens(target, draft), unknown)


def _by_string(source: ModelSource) -> dict[str, int]:
    """A vocabulary's ids by their strings, in which a leading space is a plain one, without ids
    that have no row.
    """
    probe = source.tokenizer.tokenize(" a")[:1]
    mark = probe[0][:-1] if probe and probe[0][1:] and probe[0].endswith("a") else ""
    spaces = (mark,) if mark.strip() else _SPACES
    ids, rows = {}, rows_of(source)
    words = sorted(source.tokenizer.get_vocab().items(), key=lambda word: word[1], reverse=True)
    for word, i in words:
        if i < rows:
            space = next((mark for mark in spaces if word.startswith(mark)), "")
            ids[f" {word.removeprefix(space)}" if space else word] = i
    return ids
