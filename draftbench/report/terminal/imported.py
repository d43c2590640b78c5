"""The output of `draftbench import`."""

from __future__ import annotations

from draftbench.acceptance.definitions import FIGURES
from draftbench.acceptance.intervals import Estimate
from draftbench.engines.imported import Imported, Value
from draftbench.records import to_json
from draftbench.report.terminal.text import Section, counted, render_sections, sentence


def render(record: Imported, style: str, width: int) -> str:
    """The figures as table, json or markdown."""
    if style == "json":
        return to_json(record)
    rows = [[each.name, _value(each), each.called or "–"] for each in record.figures]
    counts = counted(record.rounds, "round")
    if record.requests is not None:
        counts = f"{counted(record.requests, 'request')}, {counts}"
    names = {figure.formula: figure.name for figure in FIGURES}
    # A figure by position has one definition for all of them.
    formulas = dict.fromkeys(each.formula for each in record.figures)
    notes = [sentence(f"{names[each]}: {each}") for each in formulas]
    if record.smaller_k:
        lengths = ", ".join(f"{length:.2f} at k = {k}" for k, length in record.smaller_k.items())
        notes.append(f"Mean accepted length to expect at a smaller k: {lengths}.")
    if record.without:
        notes.append(f"{counted(record.without, 'row')} without counts of speculation: left out.")
    notes += map(sentence, record.notes)
    head = ["figure", "value", "called there"]
    return render_sections([Section(f"{record.form}: {counts}", head, rows, notes)], style, width)


def _value(each: Value) -> Estimate | str:
    if each.low is None or each.high is None:
        return f"{each.value:.3f}"
    return Estimate(each.value, each.low, each.high)
