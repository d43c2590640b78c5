"""The verdict of the gate, or why a baseline cannot be compared, for a terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from draftbench.errors import IncomparableError
from draftbench.gate.ci import Outcome, difference, number, other_checks
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.notes import SAME_RUN
from draftbench.gate.result import Check, FigureValue, GateResult
from draftbench.records import to_json
from draftbench.report.terminal.text import Section, counted, render_sections

_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔"}


def render(outcome: Outcome, style: str, width: int) -> str:
    """A verdict as table, json or markdown (every check with every figure), a refusal as table or
    markdown.
    """
    if isinstance(outcome, IncomparableError):
        refused = Section("⛔ draftbench gate: incomparable", notes=[outcome.message, outcome.hint])
        return render_sections([refused], style, width)
    if style == "json":
        return to_json(outcome)
    return render_sections(_sections(outcome, everything=style == "markdown"), style, width)


def _sections(result: GateResult, *, everything: bool) -> Iterator[Section]:
    names = f"{result.new} against the baseline {result.old}"
    asked = f"{counted(result.requests, 'paired request')}, k = {result.k}, {result.mode} drafting"
    above = [note for note in result.notes if note == SAME_RUN]  # no check below shows it
    if everything:
        title = f"{_MARKS[result.verdict]} draftbench gate: {result.verdict}"
        yield Section(title, notes=[names, asked, *above])
    else:
        yield Section(f"{result.verdict.upper()}: {names}", notes=[asked, *above])
    others = [words for _, _, words in other_checks(result)]
    yield checked("All requests", result.pooled, others, everything=everything)
    if result.segments:
        failing = [check for check in result.segments if check.verdict is Verdict.FAIL]
        open_ones = sum(check.verdict is Verdict.INCONCLUSIVE for check in result.segments)
        counts = f"{len(result.segments)} checks, {len(failing)} fail, {open_ones} inconclusive"
        title = f"By segment: {counts}"
        shown = result.segments if everything else failing
        yield replace(checked(title, shown, everything=everything), folded=not failing)
    if below := [note for note in result.notes if note not in above]:
        yield Section("Notes", notes=below)
    if result.changes:
        rows = [(change.fact, change.old, change.new) for change in result.changes]
        yield Section("Changes", ["changed", "baseline", "this run"], rows)


def checked(
    title: str, checks: Sequence[Check], notes: Sequence[str] = (), *, everything: bool = False
) -> Section:
    """Checks with their limits and verdicts; with everything also each run's interval and the
    smallest drop that would be seen.
    """
    rows = []
    for check in checks:
        seen, improved = check.smallest_detectable_drop, " (improved)" if check.improved else ""
        row = {
            "segment": check.segment,
            "metric": check.metric,
            "before": _value(check.old, ends=everything),
            "now": _value(check.new, ends=everything),
            "change": difference(check),
            "limit": check.amount(check.limit.value),
            "detects drops from": None if seen is None else check.amount(seen),
            "verdict": f"{check.verdict}{improved}",
        }
        if check.segment is None:
            del row["segment"]
        if everything:
            row["verdict"] = f"{_MARKS[check.verdict]} {row['verdict']}"
        else:
            del row["detects drops from"]
        rows.append(row)
    head = list(rows[0]) if rows else []
    table = [list(row.values()) for row in rows]
    return Section(title, head, table, notes, names=2 if "segment" in head else 1)


def _value(figure: FigureValue, *, ends: bool) -> str:
    if not ends or figure.low is None or figure.high is None:
        return number(figure.value)
    return f"{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]"
