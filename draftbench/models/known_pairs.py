"""The heads and drafts that people pair with a target, by the target's name.

The lists say what is in use, with sources, and do not judge what is fast. They contain only
names: sizes and vocabularies are read elsewhere, from the models' own files.
"""

from __future__ import annotations

import re
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from draftbench.models.check_result import OwnDraft, Works

# Endings of a model's name if its weights are stored in another way; a head fits these models too.
_STORED = (
    r"(?:[-_.](?:fp8|bf16|(?:nv|mx)?fp4|awq|gptq|mlx|int\d|w\d+a\d+|\dbit|i?q\d\w*|quantized|dynamic"
    r"|gguf))*"
)
# What some put before the family's name in the names of Meta's models.
_MAKER = "(?:meta-)?"


class KnownPairing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the table: `draft` is None if there is no pairing, with the reason in `note`.

    `billions` of parameters are None unless they were counted. `date` is the source's.
    """

    target: str
    name: str
    draft: str | None
    billions: float | None
    source: str
    date: date | None
    note: str | None


class KnownHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A head that was published for a target.

    `target` and `head` are hub ids, `method` is the head's kind, `k` the draft length that the
    source uses; `date` is the source's. `engine` is the one that runs it, where none of
    draftbench's does; `note` says what else to know.
    """

    target: str
    head: str
    method: str
    k: int | None
    source: str
    date: date | None
    engine: str | None = None
    note: str | None = None


class KnownOwnDraft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target that is known to carry a draft of its own.

    `target` is its hub id, `type` its model type, `method` the draft's kind, `k` the draft length
    that the source uses; `date` is the source's.
    """

    target: str
    type: str
    method: Literal["mtp", "dspark"]
    k: int
    source: str
    date: date | None


class SuggestedDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table, checked with the models themselves.

    `share` is the draft's size in parts of the target's active parameters (in a mixture, those that
    one token uses). `obstacles` say why the pair cannot work, `caveats` what to know if it can.
    `unchecked` says why neither was checked.
    """

    pairing: KnownPairing  # the row of the table
    parameters: int | None = None
    share: float | None = None
    same_tokens: float | None = None  # share of the target's tokens that mean the same to the draft
    obstacles: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    unchecked: str | None = None
    works: Works | None = None  # as `check` says without traffic; None: not checked


class Suggestion(msgspec.Struct, frozen=True):
    """The answer of `suggest`; without proposals if the target is not in the table."""

    target: str
    parameters: int | None
    proposals: tuple[SuggestedDraft, ...]  # one entry per pairing
    own_draft: OwnDraft | None = None  # what the target carries itself
    active_parameters: int | None = None  # that one token uses: of a mixture, a few experts'
    heads: tuple[KnownHead, ...] = ()  # published for this target
    own_draft_unknown: bool = False  # whether its configuration was not read, and its name is new
    local: bool = False  # whether it is a folder or file here, not a hub id


@cache
def known_pairings() -> tuple[date, tuple[KnownPairing, ...]]:
    """Every known pairing, and the day they were looked up."""
    known = _read("known_pairs.yaml")
    return known["checked"], msgspec.convert(known["pairings"], tuple[KnownPairing, ...])


@cache
def known_heads() -> tuple[date, tuple[KnownHead, ...]]:
    """Every known head, and the day they were looked up."""
    known = _read("known_heads.yaml")
    rows = [
        {**head, "source": each["source"], "date": each["date"]}
        for each in known["sources"]
        for head in each["heads"]
    ]
    return known["checked"], msgspec.convert(rows, tuple[KnownHead, ...])


@cache
def known_own_drafts() -> tuple[date, tuple[KnownOwnDraft, ...]]:
    """Every target that is known to carry a draft of its own, and the day they were looked up."""
    known = _read("known_own_drafts.yaml")
    rows = [
        {**target, "source": each["source"], "date": each["date"]}
        for each in known["sources"]
        for target in each["targets"]
    ]
    return known["checked"], msgspec.convert(rows, tuple[KnownOwnDraft, ...])


# Every list of known models: the day it was looked up, and its rows.
LISTS = {
    "models/known_pairs.yaml": known_pairings,
    "models/known_heads.yaml": known_heads,
    "models/known_own_drafts.yaml": known_own_drafts,
}


def _read(name: str) -> Any:
    import yaml

    return yaml.safe_load((files("draftbench.models") / name).read_text(encoding="utf-8"))


def heads_of(target: str) -> tuple[KnownHead, ...]:
    """The heads for a target's path or hub id, in whatever way its weights are stored."""
    _, known = known_heads()
    return tuple(
        head
        for head in known
        if re.fullmatch(_MAKER + re.escape(_short(head.target)) + _STORED, _short(target))
    )


def pairings_of(target: str) -> tuple[KnownPairing, ...]:
    """The rows for a target's path or hub id; none if it is unknown or is itself a draft."""
    if re.search(r"draft|-assistant", _short(target), re.IGNORECASE):
        return ()
    _, known = known_pairings()
    return tuple(row for row in known if re.search(row.name, _short(target)))


def _short(spec: str) -> str:
    return spec.rstrip("/").rpartition("/")[2].partition("@")[0].lower()
