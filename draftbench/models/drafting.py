"""The kinds of draft: what an entry of `--drafts` says, and how it drafts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from draftbench.errors import UsageError
from draftbench.hub import short_name
from draftbench.records import (
    NGRAMS,
    SELF,
    STACK,
    DraftingMode,
    NGramSizes,
    draft_of_stack,
)
from draftbench.safe_files import UnreadableError, read_limited

Method = Literal["draft-model", "ngram", "eagle3", "mtp", "suffix", "dflash", "raw"]


class DraftKind(NamedTuple):
    """What is known of a kind of draft."""

    written: str  # its prefix in `--drafts`, as `eagle3:`; empty: the entry is the model itself
    called: str = "(?!)"  # a pattern of what servers call it; this one: nothing
    replayed: bool = False  # whether it can be replayed over the answers of an engine
    built_in: bool = False  # whether the built-in decoder drafts with it, besides prompt lookup
    stackable: bool = False  # whether it may draft where prompt lookup finds nothing
    trainable: bool = False  # whether `train` can fit its weights
    unchecked: str = ""  # why there is nothing to check; empty where there is


DRAFT_KINDS: dict[Method, DraftKind] = {
    "draft-model": DraftKind(
        "",
        "^draft(.model|.simple)?$|standalone",
        replayed=True,
        built_in=True,
        stackable=True,
        trainable=True,
    ),
    "ngram": DraftKind("ngram", "ngram", replayed=True, unchecked="it works with every target"),
    # SGLang calls a layer of the target EAGLE too.
    "eagle3": DraftKind(
        "eagle3:", "eagle", replayed=True, built_in=True, stackable=True, trainable=True
    ),
    "mtp": DraftKind("mtp", "mtp|nextn|eagle(?!3)", built_in=True, stackable=True),
    "suffix": DraftKind(
        "suffix",
        "suffix",
        unchecked="vLLM drafts this way for every target, and only a sweep on it measures that",
    ),
    "dflash": DraftKind("dflash:", "dflash"),
    "raw": DraftKind(
        "spec:",
        unchecked="only the engine knows whether it can draft this way, and only a sweep on it "
        "measures that",
    ),
}
_MOST_RAW_BYTES = 64 << 10
_RAW_HINT = (
    "spec:FILE.json holds vLLM's speculative configuration, or flags of llama.cpp or SGLang with "
    'their values; "{k}" stands for the draft length'
)


@dataclass(frozen=True)
class Speculation:
    """How a server drafts, and how many tokens per round."""

    method: Method
    model: str | None  # the draft's weights; None where it has none
    k: int
    lookup: NGramSizes = NGRAMS
    raw: dict[str, Any] | None = None  # the content of `spec:FILE.json`
    quant: str = "none"  # of a draft model, made while the engine loads it
    mode: DraftingMode = DraftingMode.GREEDY  # of a draft model
    # Whether a draft model has another vocabulary, so that the engine has to translate tokens.
    translated: bool = False
    stacked: bool = False  # whether it drafts only where prompt lookup finds nothing


def parsed(draft: str) -> tuple[Method, str]:
    """The method of an entry of `--drafts` and its model or file, empty where it has none: `ngram`,
    `mtp`, `suffix`, `eagle3:MODEL`, `dflash:MODEL`, `spec:FILE.json`, or a draft model. For a
    stack, `ngram+DRAFT`, it returns its draft's.

    Raises:
        UsageError: a model is missing or one too many, or what follows `ngram+` cannot be stacked.
    """
    if (fallback := draft_of_stack(draft)) is not None:
        own: tuple[Method, str] = ("raw", "")
        if fallback not in ("", SELF):
            own = parsed(fallback)
        if not DRAFT_KINDS[own[0]].stackable or draft_of_stack(fallback) is not None:
            raise UsageError(
                f"`{draft}`: prompt lookup goes before a draft model, an EAGLE-3 head or the "
                "target's own layers; it was not tried before any other kind of draft",
                hint=f"write {STACK}MODEL, {STACK}eagle3:MODEL or {STACK}mtp",
            )
        return own
    kind, colon, rest = draft.partition(":")
    written = {of.written: method for method, of in DRAFT_KINDS.items()}
    method = written.get(kind + colon, "draft-model")
    if colon and not rest and method not in ("draft-model", "raw"):
        raise UsageError(f"`{draft}` names no model", hint=f"write {kind}:MODEL")
    if colon and kind in written:
        raise UsageError(f"`{kind}` takes no model", hint=f"write {kind}, or ./{draft} for a path")
    return method, draft if method == "draft-model" else rest


def methods_called(name: str) -> tuple[Method, ...]:
    """The kinds of draft that a server's name for its method may mean; none if it names several."""
    found = (method for method, of in DRAFT_KINDS.items() if re.search(of.called, name.lower()))
    return () if "," in name else tuple(found)


def draft_name(draft: str) -> str:
    """A run's name for an entry of `--drafts`: its method, then the short name of its model."""
    if fallback := draft_of_stack(draft):
        return STACK + draft_name(fallback)
    method, model = parsed(draft)
    return DRAFT_KINDS[method].written + short_name(model) if model else draft


def speculation_of(
    draft: str,
    k: int,
    *,
    lookup: NGramSizes = NGRAMS,
    quant: str = "none",
    mode: DraftingMode = DraftingMode.GREEDY,
    held: str | None = None,
) -> Speculation:
    """How an entry of `--drafts` drafts; `held` is the content of its `spec:FILE.json` when it was
    read.

    Raises:
        UsageError: the model is missing, or the file is not a JSON object.
    """
    method, rest = parsed(draft)
    if method == "raw":
        try:
            text = read_limited(Path(rest), _MOST_RAW_BYTES) if held is None else held
            raw = msgspec.json.decode(text, type=dict[str, Any])
        except UnreadableError as error:
            raise UsageError(f"cannot read `{rest}`: {error}", hint=_RAW_HINT) from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise UsageError(f"`{rest}` is no JSON object", hint=_RAW_HINT) from error
        return Speculation("raw", None, k, raw=raw)
    stacked = draft_of_stack(draft) is not None
    if method == "draft-model":
        return Speculation(method, rest, k, lookup, quant=quant, mode=mode, stacked=stacked)
    return Speculation(method, rest or None, k, lookup, stacked=stacked)
