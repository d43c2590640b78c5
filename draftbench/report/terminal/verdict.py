"""A verdict of the gate as text for a terminal: the verdict, each check with its limit, notes, and
what changed.
"""

from __future__ import annotations

from draftbench.gate.ci import describe
from draftbench.gate.result import GateResult
from draftbench.report.terminal.text import columns, paragraph


def text(result: GateResult, width: int) -> str:
    """The verdict in words and lines."""
    head = f"{str(result.verdict).upper()}: {result.new} against the baseline {result.old}"
    facts = f"{result.requests} paired requests, k = {result.k}, {result.mode} drafting"
    blocks = [f"{head}\n{facts}"]
    blocks.append("\n".join(paragraph(describe(check), width, "  ") for check in result.pooled))
    failing = [check for check in result.segments if check.verdict == "fail"]
    if result.segments:
        count = f"Segments: {len(result.segments)} checks, {len(failing)} fail"
        blocks.append("\n".join([count, *(paragraph(describe(c), width, "  ") for c in failing)]))
    if result.notes:
        blocks.append("\n".join(paragraph(note, width, "") for note in result.notes))
    if result.changes:
        rows = [(c.fact, c.old or "unknown", c.new or "unknown") for c in result.changes]
        blocks.append(columns(("changed", "baseline", "this run"), rows))
    return "\n\n".join(blocks)
