"""Runs beside each other as text: what `compare` finds, and the verdict of the gate."""

from __future__ import annotations

from collections.abc import Callable

from draftbench.gate.ci import describe, describe_texts
from draftbench.gate.compare import CandidateChange, Comparison, Difference, FigureChange
from draftbench.gate.result import GateResult
from draftbench.gate.side_by_side import SideBySide
from draftbench.records import to_json
from draftbench.report.answer import DECISIONS
from draftbench.report.terminal.text import (
    Cell,
    Section,
    columns,
    paragraph,
    render_sections,
    shortened,
)
from draftbench.run_folder.manifest import setting

_LEGEND = (
    "A and B: all requests of each run. B − A: 95% interval over the requests in both, paired (c: "
    "over repeated timings, not paired), as in `gate`; where it contains 0, no difference is "
    "shown. – is unknown; two k's are each run's best. S was measured in one process: another "
    "start can differ by more."
)
# Columns of three cells beside each other that a terminal of 80 has room for.
_WIDE = 74


def render(comparison: Comparison, style: str, width: int) -> str:
    """The comparison as table, json or markdown; `width` wraps the table's sentences."""
    if style == "json":
        return to_json(comparison)
    a, b = comparison.requests_a, comparison.requests_b
    common = f"{_in_common(comparison.common_requests)}; A has {a}, B has {b}"
    notes = [] if comparison.candidates else ["no candidate is in both runs"]
    for side, only in (("A", comparison.only_a), ("B", comparison.only_b)):
        notes += [f"only in {side}: {', '.join(only)}"] if only else []
    changed = [
        Section("Caveats", notes=comparison.caveats),
        *map(_candidate, comparison.candidates),
        Section("How to read this", notes=[*notes, _LEGEND]),
        _differences("Differences in the settings", comparison.question, setting),
        _differences("Differences in the models", comparison.models),
        Section("Differences in the environment", notes=comparison.environment),
    ]
    sections = [section for section in changed if section.rows or section.notes]
    title = Section(f"A: {comparison.a}\nB: {comparison.b}\n{common}")
    return render_sections([title, *sections], style, width)


def _in_common(requests: int | None) -> str:
    if requests is not None:
        return f"{requests} common requests"
    return "common requests: unknown, the runs hashed theirs with different keys"


def _candidate(change: CandidateChange) -> Section:
    rows: list[list[Cell]] = []
    obstacles: dict[str, list[str]] = {}
    for row in change.figures:
        ks = "–" if row.k_a is None else ", ".join(map(str, dict.fromkeys((row.k_a, row.k_b))))
        # Both ends: an interval leans to one side, which half of its width would hide.
        ends = (
            "–"
            if row.difference is None
            else (f"{row.difference.low:+.3f} … {row.difference.high:+.3f}")
        )
        rows.append([row.figure.replace(" per ", "/"), ks, row.a, row.b, ends, _reading(row)])
        if row.obstacle:
            name = row.figure if row.k_a is None else f"{row.figure} at k = {ks}"
            obstacles.setdefault(row.obstacle, []).append(name)
    notes = [f"{'; '.join(names)}: {why}" for why, names in obstacles.items()]
    return Section(change.candidate, ["", "k", "A", "B", "B − A", "B is"], rows, notes)


def _reading(row: FigureChange) -> str:
    difference, ratio = row.difference, row.ratio
    if difference is None or ratio is None:
        if row.requests:
            return "too few requests"
        return "–" if row.a is None or row.b is None else "not comparable"
    if difference.low == difference.high == 0:
        return "the same"
    if row.k_a != row.k_b and not row.figure.startswith("S "):
        return "another k"
    if difference.low > 0 and ratio.low > 1:
        return "higher"
    return "lower" if difference.high < 0 and ratio.high < 1 else "no difference shown"


def _differences(
    title: str, differences: tuple[Difference, ...], name: Callable[[str], str] = str
) -> Section:
    rows = [[name(each.fact), each.a or "–", each.b or "–"] for each in differences]
    if any(len(fact) + len(a) + len(b) > _WIDE for fact, a, b in rows):
        return Section(title, notes=[f"{fact}: {a} → {b}" for fact, a, b in rows])
    return Section(title, ["", "A", "B"], rows)


def render_answers(found: SideBySide, style: str, width: int) -> str:
    """The answers of several runs as table, json or markdown."""
    if style == "json":
        return to_json(found)
    letters = {run: chr(ord("A") + at) for at, run in enumerate(found.runs)}
    answers, best = list[list[Cell]](), list[list[Cell]]()
    for each in found.answers:
        begin = [letters[each.run], each.runner, each.load]
        answers.append([*begin, DECISIONS[each.decision].lower(), str(each.requests)])
        figures = (each.speedup_deciding, each.alpha, each.mean_accepted_length)
        k = None if each.k is None else str(each.k)
        best.append([begin[0], begin[2], each.draft and shortened(each.draft, 30), k, *figures])
    differing = [
        [setting(each.fact), *(shortened(value or "–", 24) for value in each.values)]
        for each in found.question
    ]
    columns = [letters[run] for run in found.runs]
    common = _in_common(found.common_requests)
    legend = (
        "Deciding: the speed-up that `recommend` prints first, cross-validated. ± half a 95% "
        "interval of that run; τ accepted length."
    )
    sections = [
        Section("\n".join([*(f"{letter}: {run}" for run, letter in letters.items()), common])),
        Section("Caveats", notes=found.caveats),
        Section("Answers", ["", "runner", "load", "answer", "requests"], answers),
        Section("Best draft", ["", "load", "draft", "k", "deciding ×", "α", "τ"], best, [legend]),
        Section("Differences in the settings", ["", *columns], differing),
    ]
    sections = [sections[0], *(each for each in sections[1:] if each.rows or each.notes)]
    return render_sections(sections, style, width)


def verdict_text(result: GateResult, width: int) -> str:
    """The gate's verdict with each check and its limit, notes, and what changed."""
    failing = [check for check in result.segments if check.verdict == "fail"]
    blocks = [
        [
            f"{str(result.verdict).upper()}: {result.new} against the baseline {result.old}",
            f"{result.requests} paired requests, k = {result.k}, {result.mode} drafting",
        ],
        [paragraph(describe(check), width, "  ") for check in result.pooled],
    ]
    if result.texts is not None:
        blocks[-1].append(paragraph(describe_texts(result.texts), width, "  "))
    if result.segments:
        count = f"Segments: {len(result.segments)} checks, {len(failing)} fail"
        blocks.append([count, *(paragraph(describe(each), width, "  ") for each in failing)])
    blocks.append([paragraph(note, width) for note in result.notes])
    if result.changes:
        rows = [(each.fact, each.old, each.new) for each in result.changes]
        blocks.append([columns(("changed", "baseline", "this run"), rows)])
    return "\n\n".join("\n".join(block) for block in blocks if block)
