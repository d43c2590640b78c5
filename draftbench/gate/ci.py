"""A verdict → the forms that CI systems show: Markdown, annotations, JSON; JUnit is in `junit`.

Whatever came from a file (names of models, segments) is escaped for its form. Decides nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from draftbench.errors import IncomparableError
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import Check, GateResult, Level
from draftbench.safe_files import markdown_escaped

_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")


class Finding(NamedTuple):
    """Something to annotate: what it is called, in which words, its level in the two systems, and
    what identifies it from run to run.
    """

    title: str
    message: str
    github: str
    gitlab: str
    identity: str


def to_json(result: GateResult) -> str:
    """The whole result, indented."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"


def describe(check: Check) -> str:
    """One check as a line of text."""
    of = f" [{check.segment}]" if check.segment is not None else ""
    return _line(
        f"{check.metric}{of}: {check.old.value:.4g} → {check.new.value:.4g}, "
        f"{_difference(check)}, limit {check.amount(check.limit.value)}: {check.verdict}"
    )


def to_markdown(result: GateResult) -> str:
    """A summary for a pull request or a job page."""
    lines = [
        f"### {_MARKS[result.verdict]} draftbench gate: {result.verdict}",
        "",
        f"{_code(result.new)} against the baseline {_code(result.old)}, "
        f"{result.requests} paired requests, k = {result.k}, drafting {_code(result.mode)}",
        "",
        *_table(result.pooled, by_segment=False),
    ]
    if result.segments:
        lines += ["<details><summary>By segment</summary>", ""]
        lines += [*_table(result.segments, by_segment=True), "</details>", ""]
    if result.notes:
        lines += [*(f"- {markdown_escaped(note)}" for note in result.notes), ""]
    if result.changes:
        lines += ["| changed | baseline | this run |", "|---|---|---|"]
        for change in result.changes:
            lines.append(f"| {_cell(change.what)} | {_cell(change.old)} | {_cell(change.new)} |")
    return "\n".join(lines).rstrip() + "\n"


def refused_markdown(error: IncomparableError) -> str:
    """A baseline of another question, for the same places."""
    said = f"{markdown_escaped(error.message)}\n\n{markdown_escaped(error.hint)}\n"
    return f"### ⛔ draftbench gate: incomparable\n\n{said}"


def findings(result: GateResult) -> list[Finding]:
    """What deserves an annotation; a segment that is only too small to tell does not."""
    found = []
    for check in result.checks:
        identity = f"{check.metric} {check.segment}"
        if check.verdict is Verdict.FAIL:
            words = ("acceptance regression", describe(check), "error", "major")
        elif check.segment is None and check.verdict is Verdict.INCONCLUSIVE:
            words = ("inconclusive", describe(check), "warning", "minor")
        elif check.segment is None and check.improved:
            words = ("improved", describe(check), "notice", "info")
        else:
            continue
        found.append(Finding(*words, identity))
    found += [Finding("suspected fault", _line(f), "error", "major", f) for f in result.faults]
    return found


def refused_finding(error: IncomparableError) -> Finding:
    """A baseline of another question."""
    said = _line(f"{error.message}; {error.hint}")
    return Finding("incomparable", said, "error", "major", "incomparable")


def to_github(found: Sequence[Finding]) -> list[str]:
    """Workflow commands, one a line, for the output of a GitHub job."""
    return [
        f"::{one.github} title=draftbench gate%3A {one.title}::{one.message.replace('%', '%25')}"
        for one in found
    ]


def to_code_quality(found: Sequence[Finding], file: str) -> str:
    """GitLab's code quality report; `file` is what it shows a finding at, relative to the
    repository.
    """
    document = [
        {
            "description": one.message,
            "check_name": f"draftbench gate: {one.title}",
            "fingerprint": hashlib.sha256(f"draftbench gate {one.identity}".encode()).hexdigest(),
            "severity": one.gitlab,
            "location": {"path": file, "lines": {"begin": 1}},
        }
        for one in found
    ]
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _table(checks: tuple[Check, ...], *, by_segment: bool) -> list[str]:
    heads = ["metric", "baseline", "this run", "change", "limit", "detects from", "verdict"]
    if by_segment:
        heads.insert(0, "segment")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for check in checks:
        detects = check.smallest_detectable_drop
        cells = [
            check.metric,
            _level(check.old),
            _level(check.new),
            _difference(check),
            check.amount(check.limit.value),
            "–" if detects is None else check.amount(detects),
            f"{_MARKS[check.verdict]} {check.verdict}{' (improved)' if check.improved else ''}",
        ]
        if by_segment:
            cells.insert(0, _cell(check.segment))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _level(level: Level) -> str:
    if level.low is None or level.high is None:
        return f"{level.value:.3f}"
    return f"{level.value:.3f} [{level.low:.3f}, {level.high:.3f}]"


def _difference(check: Check) -> str:
    change = check.difference
    if change is None:
        return "change unknown"
    scale, unit = (100, " %") if check.limit.relative else (1, "")
    value, low, high = (scale * end for end in (change.value, change.low, change.high))
    digits = 2 if check.limit.relative else 4
    return f"{value:+.{digits}f}{unit} [{low:+.{digits}f}, {high:+.{digits}f}]"


def _line(text: str) -> str:
    return _CONTROL.sub(" ", text)


def _code(text: str | None) -> str:
    """A code span: in it neither HTML nor Markdown nor a mention of a user means anything."""
    if not text:
        return "–"
    return f"`{_line(text).replace('`', chr(39))}`"


def _cell(text: str | None) -> str:
    """A code span in a table."""
    return _code(text).replace("|", "\\|")
