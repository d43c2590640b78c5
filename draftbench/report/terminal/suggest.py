"""The output of `draftbench suggest`."""

from __future__ import annotations

from draftbench.planner.known_pairs import SuggestedDraft, Suggestion
from draftbench.records import to_json
from draftbench.report.terminal.check import own_draft_section
from draftbench.report.terminal.text import SCREEN_COLUMNS, Section, parameters, render_sections

_IN_USE = "Known to be used, not known to be fast here: measure them with `draftbench sweep`."
_UNKNOWN = (
    "Known pairs go by the names of models on the hub; for a folder, give the id it came from. "
    "Otherwise look for a model of the target's family and generation, 10 to 30 times smaller; "
    "`draftbench check` says whether it can work."
)


def render(answer: Suggestion, style: str, width: int) -> str:
    """As table, json or markdown."""
    if style == "json":
        return to_json(answer)
    section = Section(f"No known draft for {answer.target}", notes=[_UNKNOWN])
    if answer.proposals:
        size = "" if answer.parameters is None else f", {parameters(answer.parameters)}"
        if answer.active_parameters != answer.parameters and answer.active_parameters:
            size += f", {parameters(answer.active_parameters)} active"
        head = ["draft", "size", "of the target", "same tokens", "vocabulary"]
        rows = [_row(proposal) for proposal in answer.proposals if proposal.pairing.draft]
        title = f"Drafts used with {answer.target}{size}"
        section = Section(title, head, rows, [*_notes(answer), *([_IN_USE] if rows else [])])
    sections = [*own_draft_section(answer.target, answer.own_draft), section]
    return render_sections(sections, style, min(width, SCREEN_COLUMNS))


def _notes(answer: Suggestion) -> list[str]:
    notes, unchecked = [], dict[str, list[str]]()
    for proposal in answer.proposals:
        pairing, name = proposal.pairing, proposal.pairing.draft or "no draft"
        date = "" if pairing.date is None else f", {pairing.date}"
        note = "" if pairing.note is None else f"{pairing.note}; "
        notes.append(f"{name}: {note}{pairing.source}{date}")
        notes += [f"{name}: {text}" for text in (*proposal.obstacles, *proposal.caveats)]
        if proposal.unchecked and pairing.draft:
            unchecked.setdefault(proposal.unchecked, []).append(pairing.draft)
    for reason, drafts in unchecked.items():
        notes.append(f"Size and vocabulary were not checked for {', '.join(drafts)}: {reason}")
    return notes


def _row(proposal: SuggestedDraft) -> list[str]:
    known = proposal.pairing.billions
    count = proposal.parameters or (None if known is None else round(known * 1e9))
    checked = "cannot work" if proposal.obstacles else "can work"
    return [
        proposal.pairing.draft or "",
        "unknown" if count is None else parameters(count),
        "–" if proposal.share is None else f"{proposal.share:.1%}",
        "–" if proposal.same_tokens is None else f"{proposal.same_tokens:.2%}",
        "not checked" if proposal.unchecked else checked,
    ]
