"""The kinds of draft, and which of them an entry of `--drafts` is."""

from __future__ import annotations

import re

from draftbench.drafts import block, eagle3, engine_only, lookup, model, mtp, stack, suffix
from draftbench.drafts.kind import DraftKind, Method
from draftbench.errors import UsageError
from draftbench.hub import short_name
from draftbench.records import SELF, STACK, Candidate, draft_of_stack

DRAFT_KINDS: dict[Method, DraftKind] = {
    kind.method: kind
    for kind in (
        model.KIND,
        lookup.KIND,
        eagle3.KIND,
        mtp.KIND,
        stack.KIND,
        suffix.KIND,
        suffix.ALONE,
        block.DFLASH,
        block.DSPARK,
        engine_only.RAW,
    )
}
_BY_PREFIX = {kind.written: kind for kind in DRAFT_KINDS.values()}
# Those that draft from the text alone, whose word is all there is to know of one.
FROM_TEXT = tuple(kind.written for kind in DRAFT_KINDS.values() if kind.from_text)


def kind_of(draft: str) -> DraftKind:
    """The kind of an entry of `--drafts`, or of a run's candidate by its name."""
    if draft_of_stack(draft) is not None:
        return stack.KIND
    word, colon, _ = draft.partition(":")  # `mtp:int8` has a level
    return _BY_PREFIX.get(word + colon) or _BY_PREFIX.get(word, model.KIND)


def parts_of(candidate: Candidate) -> tuple[Candidate, ...]:
    """The candidates that this one is put together from, the one with its weights last; none if it
    is whole.
    """
    names = kind_of(candidate.draft).parts(candidate.draft)
    quants = ["none"] * (len(names) - 1) + [candidate.quant]
    return tuple(Candidate(draft=name, quant=q) for name, q in zip(names, quants, strict=False))


def remembers(candidate: Candidate) -> bool:
    """Whether it drafts from earlier responses too, so that it matters what came before."""
    return kind_of(candidate.draft).remembers


def with_weights(draft: str) -> str:
    """What of an entry of `--drafts` has the weights: its last part, or all of it."""
    return (draft, *kind_of(draft).parts(draft))[-1]


def parsed(draft: str) -> tuple[Method, str]:
    """The method of an entry of `--drafts` and its model or file, empty where it has none: `ngram`,
    `mtp`, `suffix`, `suffix-alone`, `eagle3:MODEL`, `dflash:MODEL`, `dspark:MODEL`,
    `spec:FILE.json`, or a draft model. For a stack, `ngram+DRAFT`, it returns its draft's.

    Raises:
        UsageError: a model is missing or one too many, or what follows `ngram+` cannot be stacked.
    """
    if (inner := draft_of_stack(draft)) is not None:
        if inner in ("", SELF) or not kind_of(inner).stackable:
            raise UsageError(
                f"`{draft}`: prompt lookup goes before a draft model, an EAGLE-3 head or the "
                "target's own layers; it was not tried before any other kind of draft",
                hint=f"write {STACK}MODEL, {STACK}eagle3:MODEL or {STACK}mtp",
            )
        return parsed(inner)
    word, colon, rest = draft.partition(":")
    kind = kind_of(draft)
    if colon and word in _BY_PREFIX:
        raise UsageError(f"`{word}` takes no model", hint=f"write {word}, or ./{draft} for a path")
    if colon and not rest and kind.written.endswith(":") and kind is not engine_only.RAW:
        raise UsageError(f"`{draft}` names no model", hint=f"write {word}:MODEL")
    return kind.method, draft if kind is model.KIND else rest


def kind_drafting(draft: str) -> DraftKind:
    """The kind of an entry of `--drafts`; of a stack, of the draft behind prompt lookup.

    Raises:
        UsageError: as `parsed` does.
    """
    return DRAFT_KINDS[parsed(draft)[0]]


def methods_called(name: str) -> tuple[Method, ...]:
    """The kinds of draft that a server's name for its method may mean; none if it names several."""
    found = (method for method, of in DRAFT_KINDS.items() if re.search(of.called, name.lower()))
    return () if "," in name else tuple(found)


def looks_up(name: str) -> bool:
    """Whether a server's name for its method, or for its methods, has prompt lookup in it."""
    return re.search(lookup.KIND.called, name) is not None


def draft_name(draft: str) -> str:
    """A run's name for an entry of `--drafts`: its method, then the short name of its model.

    Raises:
        UsageError: as `parsed` does.
    """
    method, model = parsed(draft)
    if inner := draft_of_stack(draft):
        return STACK + draft_name(inner)
    return DRAFT_KINDS[method].written + short_name(model) if model else draft
