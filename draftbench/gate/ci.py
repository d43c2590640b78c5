"""A verdict → the forms that CI systems show: JUnit, Markdown, annotations, JSON.

Whatever came from a file (names of models, segments) is escaped for its form. Decides nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple
from xml.etree import ElementTree

import msgspec

from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import Check, GateResult, Level

_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔"}
# XML 1.0 knows no other control characters than these three, and no half of a surrogate pair.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")


class _Finding(NamedTuple):
    """How an annotation is called, and its level in the two systems."""

    title: str
    github: str
    gitlab: str


_FINDINGS = {
    "fail": _Finding("acceptance regression", "error", "major"),
    "inconclusive": _Finding("inconclusive", "warning", "minor"),
    "improved": _Finding("improved", "notice", "info"),
}


class AnnotationStyle(StrEnum):
    """Whose annotations."""

    GITHUB = "github"
    GITLAB = "gitlab"


def to_json(result: GateResult) -> str:
    """The whole result, indented."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"


def describe(check: Check) -> str:
    """One check as a line of text."""
    of = f" [{check.segment}]" if check.segment is not None else ""
    return _line(
        f"{check.metric}{of}: {check.old.value:.4g} → {check.new.value:.4g}, "
        f"{_difference(check)}, limit {_limit(check)}: {check.verdict}"
    )


def to_junit(result: GateResult) -> str:
    """JUnit XML: one test case per check; a failure where it fails, skipped where inconclusive."""
    verdicts = [check.verdict for check in result.checks]
    counts = {
        "tests": str(len(verdicts)),
        "failures": str(verdicts.count(Verdict.FAIL)),
        "errors": "0",
        "skipped": str(verdicts.count(Verdict.INCONCLUSIVE)),
    }
    root = ElementTree.Element("testsuites", {"name": "draftbench gate", **counts})
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": _xml(result.new), **counts, "time": "0"}
    )
    properties = ElementTree.SubElement(suite, "properties")
    for change in result.changes:
        value = f"{change.old} → {change.new}"
        ElementTree.SubElement(
            properties, "property", {"name": _xml(change.what), "value": _xml(value)}
        )
    for check in result.checks:
        name = check.metric if check.segment is None else f"{check.metric} [{check.segment}]"
        place = {"name": _xml(name), "classname": "draftbench.gate", "time": "0"}
        case = ElementTree.SubElement(suite, "testcase", place)
        message = {"message": _xml(describe(check))}
        if check.verdict is Verdict.FAIL:
            ElementTree.SubElement(case, "failure", {**message, "type": "regression"})
        elif check.verdict is Verdict.INCONCLUSIVE:
            ElementTree.SubElement(case, "skipped", message)
    ElementTree.SubElement(suite, "system-out").text = _xml("\n".join(result.notes))
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document.decode() + "\n"


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
        lines += [*(f"- {_code(note)}" for note in result.notes), ""]
    if result.changes:
        lines += ["| changed | baseline | this run |", "|---|---|---|"]
        for change in result.changes:
            lines.append(f"| {_code(change.what)} | {_code(change.old)} | {_code(change.new)} |")
    return "\n".join(lines).rstrip() + "\n"


def to_annotations(
    result: GateResult, style: AnnotationStyle, *, file: str = "draftbench-baseline.json"
) -> list[str]:
    """Lines for a GitHub job's output, or one GitLab code-quality document.

    `file` is what GitLab shows the finding at, relative to the repository.
    """
    if style is AnnotationStyle.GITLAB:
        findings = [_gitlab(check, _FINDINGS[kind], file) for check, kind in _findings(result)]
        return [json.dumps(findings, indent=2, ensure_ascii=False)]
    return [_github(check, _FINDINGS[kind]) for check, kind in _findings(result)]


def _findings(result: GateResult) -> Iterator[tuple[Check, str]]:
    """What deserves an annotation; a segment that is only too small to tell does not."""
    for check in result.checks:
        if check.verdict is Verdict.FAIL:
            yield check, "fail"
        elif check.segment is None and check.verdict is Verdict.INCONCLUSIVE:
            yield check, "inconclusive"
        elif check.segment is None and check.improved:
            yield check, "improved"


def _github(check: Check, finding: _Finding) -> str:
    message = describe(check).replace("%", "%25")
    return f"::{finding.github} title=draftbench gate%3A {finding.title}::{message}"


def _gitlab(check: Check, finding: _Finding, file: str) -> dict[str, object]:
    identity = f"draftbench gate {check.metric} {check.segment}"
    return {
        "description": describe(check),
        "check_name": f"draftbench gate: {finding.title}",
        "fingerprint": hashlib.sha256(identity.encode()).hexdigest()[:32],
        "severity": finding.gitlab,
        "location": {"path": file, "lines": {"begin": 1}},
    }


def _table(checks: tuple[Check, ...], *, by_segment: bool) -> list[str]:
    heads = ["metric", "baseline", "this run", "change", "limit", "detects from", "verdict"]
    if by_segment:
        heads.insert(0, "segment")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for check in checks:
        cells = [
            check.metric,
            _level(check.old),
            _level(check.new),
            _difference(check),
            _limit(check),
            _amount(check, check.smallest_detectable_drop),
            f"{_MARKS[check.verdict]} {check.verdict}{' (improved)' if check.improved else ''}",
        ]
        if by_segment:
            cells.insert(0, _code(check.segment))
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


def _limit(check: Check) -> str:
    return _amount(check, check.limit.value)


def _amount(check: Check, amount: float | None) -> str:
    if amount is None:
        return "–"
    return f"{100 * amount:.2g} %" if check.limit.relative else f"{amount:.2g}"


def _line(text: str) -> str:
    return _CONTROL.sub(" ", text)


def _code(text: str | None) -> str:
    """A code span: in it neither HTML nor Markdown nor a mention of a user means anything."""
    if not text:
        return "–"
    return f"`{_line(text).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
