"""A suggestion → a table for people, Markdown and JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from draftbench.planner.known_pairs import KnownPairing, Proposal, Suggestion
from draftbench.report.terminal.text import Section

_IN_USE = (
    "The table says what is in use, not what is fast: measure with `draftbench sweep`, plain "
    "decoding included."
)
_UNKNOWN = (
    "Pairings go by the names of models on the hub: for a folder, give the id it came from. "
    "Else look for the target's own family and generation, 10 to 30 times smaller; "
    "`draftbench check` says whether a pair can work."
)


def render(answer: Suggestion, style: str, width: int) -> str:
    """The suggestion as table, json or markdown; `width` in columns matters to the table only."""
    if style == "json":
        return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
    section = _section(answer)
    return section.markdown() if style == "markdown" else section.text(width)


def _section(answer: Suggestion) -> Section:
    if not answer.proposals:
        return Section(f"No known pairing for {answer.target}", notes=[_UNKNOWN])
    size = "" if answer.parameters is None else f", {_billions(answer.parameters)}"
    title = f"What people pair with {answer.target}{size}"
    rows = [_row(proposal) for proposal in answer.proposals if proposal.pairing.draft]
    notes = [line for proposal in answer.proposals for line in _lines(proposal)]
    notes += _unchecked(answer.proposals)
    head = ["draft", "size", "of the target", "tokens it shares", "vocabulary"]
    return Section(title, head, rows, [*notes, _IN_USE])


def _row(proposal: Proposal) -> list[str]:
    known = proposal.pairing.billions
    count = proposal.parameters or (None if known is None else round(known * 1e9))
    checked = "cannot work" if proposal.obstacles else "can work"
    return [
        proposal.pairing.draft or "",
        "unknown" if count is None else _billions(count),
        "–" if proposal.share is None else f"{proposal.share:.1%}",
        "–" if proposal.same_tokens is None else f"{proposal.same_tokens:.2%}",
        "not checked" if proposal.unchecked else checked,
    ]


def _lines(proposal: Proposal) -> list[str]:
    """Where the row comes from, and what was found."""
    row = proposal.pairing
    name = row.draft or "no draft"
    note = "" if row.note is None else f"{row.note}; "
    lines = [f"{name}: {note}{_source(row)}"]
    return [*lines, *(f"{name}: {text}" for text in (*proposal.obstacles, *proposal.caveats))]


def _unchecked(proposals: Sequence[Proposal]) -> list[str]:
    """What was not looked at, each reason once."""
    names: dict[str, list[str]] = {}
    for proposal in proposals:
        if proposal.unchecked and proposal.pairing.draft:
            names.setdefault(proposal.unchecked, []).append(proposal.pairing.draft)
    return [
        f"Size and vocabulary not checked of {', '.join(drafts)}: {reason}"
        for reason, drafts in names.items()
    ]


def _source(row: KnownPairing) -> str:
    return row.source if row.date is None else f"{row.source}, {row.date}"


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.3g} B"
