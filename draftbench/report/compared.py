"""A comparison of two runs → sections for a terminal, Markdown for a page, JSON for programs."""

from __future__ import annotations

import msgspec

from draftbench.report.changes import FigureChange
from draftbench.report.comparing import CandidateChange, Changed, Comparison
from draftbench.report.terminal.text import Section, figure

LEGEND = (
    "A and B are each over all requests of their run. B − A is over those that both have: the 95 % "
    "interval of the difference, paired by request (c: over timing repeats, not paired), as `gate` "
    "takes it: where it holds 0, no difference is shown. – is unknown; two k's are each run's own "
    "best. S of one process each knows nothing of how another start would have come out."
)
# Columns of three cells beside each other that a terminal of 80 has room for.
_WIDE = 74


def render(comparison: Comparison, style: str, width: int) -> str:
    """The comparison as table, json or markdown; `width` wraps the table's sentences."""
    if style == "json":
        return msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode()
    sections = _sections(comparison)
    if style == "markdown":
        return "\n\n".join(section.markdown() for section in sections)
    return "\n\n".join(section.text(width) for section in sections)


def _sections(found: Comparison) -> list[Section]:
    common = f"{found.common_requests} of {found.requests_a} and {found.requests_b} requests common"
    sections = [Section(f"A: {found.a}\nB: {found.b}\n{common}")]
    if found.doubts:
        sections.append(Section("Not comparable, or not what it seems", notes=found.doubts))
    sections += [_candidate(change) for change in found.candidates]
    alone = [
        f"only in {side}: {', '.join(names)}"
        for side, names in (("A", found.only_a), ("B", found.only_b))
        if names
    ]
    if not found.candidates:
        alone.insert(0, "no candidate is in both runs")
    sections.append(Section("Reading this", notes=[*alone, LEGEND]))
    for title, changes in (("Question", found.question), ("Models", found.models)):
        if changes:
            sections.append(_changes(f"{title}: what changed", changes))
    if found.environment:
        sections.append(Section("Environment: what changed", notes=found.environment))
    return sections


def _candidate(change: CandidateChange) -> Section:
    rows = [
        [_short(row.figure), _lengths(row), figure(row.a), figure(row.b), _ends(row), _reading(row)]
        for row in change.figures
    ]
    obstacles: dict[str, list[str]] = {}
    for row in change.figures:
        if row.obstacle:
            name = f"{row.figure}{f' at k = {_lengths(row)}' if row.k_a else ''}"
            obstacles.setdefault(row.obstacle, []).append(name)
    notes = [f"{'; '.join(names)}: {why}" for why, names in obstacles.items()]
    return Section(change.candidate, ["", "k", "A", "B", "B − A", "B is"], rows, notes)


def _short(name: str) -> str:
    return name.replace(" per ", "/")


def _lengths(row: FigureChange) -> str:
    if row.k_a is None:
        return "–"
    return f"{row.k_a}" if row.k_a == row.k_b else f"{row.k_a}, {row.k_b}"


def _reading(row: FigureChange) -> str:
    difference, ratio = row.difference, row.ratio
    if difference is None or ratio is None:
        if row.a is None or row.b is None:
            return "–"
        return "too few requests" if row.requests else "not comparable"
    if difference.low == difference.high == 0:
        return "the same"
    if row.k_a != row.k_b and not row.figure.startswith("S "):
        return "another k"
    if difference.low > 0 and ratio.low > 1:
        return "higher"
    return "lower" if difference.high < 0 and ratio.high < 1 else "no difference shown"


def _ends(row: FigureChange) -> str:
    """Both ends: an interval leans to one side, which half of its width would hide."""
    change = row.difference
    return "–" if change is None else f"{change.low:+.3f} … {change.high:+.3f}"


def _changes(title: str, changes: tuple[Changed, ...]) -> Section:
    rows = [[change.what, change.a or "–", change.b or "–"] for change in changes]
    if any(len(what) + len(a) + len(b) > _WIDE for what, a, b in rows):
        return Section(title, notes=[f"{what}: {a} → {b}" for what, a, b in rows])
    return Section(title, ["", "A", "B"], rows)
