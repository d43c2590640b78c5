"""A comparison of two runs as text for a terminal, as Markdown or as JSON."""

from __future__ import annotations

from draftbench.gate.compare import CandidateChange, Comparison, Difference, FigureChange
from draftbench.records import to_json
from draftbench.report.terminal.text import Section, figure

LEGEND = (
    "A and B cover all requests of their run. B − A covers those that both have: the 95 % interval "
    "of the difference, paired by request (c: over timing repeats, not paired), as `gate` computes "
    "it; where it contains 0, no difference is shown. – is unknown; two k's are the best of each "
    "run. Each speed-up S comes from one process; restarts can differ by more than this interval."
)
# Columns of three cells beside each other that a terminal of 80 has room for.
_WIDE = 74


def render(comparison: Comparison, style: str, width: int) -> str:
    """The comparison as table, json or markdown; `width` wraps the table's sentences."""
    if style == "json":
        return to_json(comparison)
    sections = _sections(comparison)
    if style == "markdown":
        return "\n\n".join(section.markdown() for section in sections)
    return "\n\n".join(section.text(width) for section in sections)


def _sections(comparison: Comparison) -> list[Section]:
    a, b = comparison.requests_a, comparison.requests_b
    common = f"{comparison.common_requests} common requests; A has {a}, B has {b}"
    sections = [Section(f"A: {comparison.a}\nB: {comparison.b}\n{common}")]
    if comparison.caveats:
        sections.append(Section("Caveats", notes=comparison.caveats))
    sections += [_candidate(change) for change in comparison.candidates]
    notes = [
        f"only in {side}: {', '.join(names)}"
        for side, names in (("A", comparison.only_a), ("B", comparison.only_b))
        if names
    ]
    if not comparison.candidates:
        notes.insert(0, "no candidate is in both runs")
    sections.append(Section("How to read this", notes=[*notes, LEGEND]))
    if comparison.question:
        sections.append(_differences("Differences in the question", comparison.question))
    if comparison.models:
        sections.append(_differences("Differences in the models", comparison.models))
    if comparison.environment:
        sections.append(Section("Differences in the environment", notes=comparison.environment))
    return sections


def _candidate(change: CandidateChange) -> Section:
    rows = [
        [
            row.figure.replace(" per ", "/"),
            _lengths(row),
            figure(row.a),
            figure(row.b),
            _ends(row),
            _reading(row),
        ]
        for row in change.figures
    ]
    obstacles: dict[str, list[str]] = {}
    for row in change.figures:
        if row.obstacle:
            name = f"{row.figure}{f' at k = {_lengths(row)}' if row.k_a else ''}"
            obstacles.setdefault(row.obstacle, []).append(name)
    notes = [f"{'; '.join(names)}: {why}" for why, names in obstacles.items()]
    return Section(change.candidate, ["", "k", "A", "B", "B − A", "B is"], rows, notes)


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


def _differences(title: str, differences: tuple[Difference, ...]) -> Section:
    rows = [[each.fact, each.a or "–", each.b or "–"] for each in differences]
    if any(len(fact) + len(a) + len(b) > _WIDE for fact, a, b in rows):
        return Section(title, notes=[f"{fact}: {a} → {b}" for fact, a, b in rows])
    return Section(title, ["", "A", "B"], rows)
