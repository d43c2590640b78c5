"""A verdict → what CI systems read: JSON, Markdown, annotations, JUnit XML, and a history.

Whatever came from a file (names of models, segments) is escaped for its form. The JUnit document is
valid by both schemas in common use: Ant's (windyroad/JUnit-Schema, JUnit.xsd), which is the
stricter, and that of Jenkins' xUnit plug-in (junit-10.xsd).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import msgspec

from draftbench.errors import IncomparableError, RunFolderError
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import (
    RESULT_SCHEMA_VERSION,
    Check,
    FigureValue,
    GateResult,
    HistoryEntry,
)
from draftbench.run_folder.append_log import append_line
from draftbench.safe_files import markdown_escaped

_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f\u2028\u2029]+")
# XML 1.0 knows no other control characters than these three, and no half of a surrogate pair.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_JUNIT = {Verdict.FAIL: "failure", Verdict.INCONCLUSIVE: "skipped"}


class Annotation(NamedTuple):
    """A title and a message on one line; the level is one of GitHub's."""

    title: str
    message: str
    level: str


def to_json(result: GateResult) -> str:
    """The whole result, indented."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode() + "\n"


def describe(check: Check) -> str:
    """One check as a line of text."""
    segment = f" [{check.segment}]" if check.segment is not None else ""
    return _line(
        f"{check.metric}{segment}: {check.old.value:.4g} → {check.new.value:.4g}, "
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
            lines.append(f"| {_cell(change.fact)} | {_cell(change.old)} | {_cell(change.new)} |")
    return "\n".join(lines).rstrip() + "\n"


def refused_markdown(error: IncomparableError) -> str:
    """The same for a baseline that cannot be compared."""
    return (
        "### ⛔ draftbench gate: incomparable\n\n"
        f"{markdown_escaped(error.message)}\n\n{markdown_escaped(error.hint)}\n"
    )


def annotations_of(result: GateResult) -> list[Annotation]:
    """What deserves an annotation; a segment that is only too small to decide does not."""
    annotations = []
    for check in result.checks:
        if check.verdict is Verdict.FAIL:
            annotations.append(Annotation("acceptance regression", describe(check), "error"))
        elif check.segment is None and check.verdict is Verdict.INCONCLUSIVE:
            annotations.append(Annotation("inconclusive", describe(check), "warning"))
        elif check.segment is None and check.improved:
            annotations.append(Annotation("improved", describe(check), "notice"))
    return annotations + [
        Annotation("suspected fault", _line(fault), "error") for fault in result.faults
    ]


def refused_annotation(error: IncomparableError) -> Annotation:
    """The same for a baseline that cannot be compared."""
    return Annotation("incomparable", _line(f"{error.message}; {error.hint}"), "error")


def to_github(annotations: Sequence[Annotation]) -> list[str]:
    """Workflow commands, one a line, for the output of a GitHub job."""
    return [
        f"::{one.level} title=draftbench gate%3A {one.title}::{one.message.replace('%', '%25')}"
        for one in annotations
    ]


def to_junit(result: GateResult, when: str) -> str:
    """One test case per check: a failure where it fails, skipped where it is inconclusive; and a
    failure for each suspected fault.

    `when` is a UTC time like 2026-01-31T12:00:00Z.
    """
    suite = ElementTree.Element("testsuite")
    properties = ElementTree.SubElement(suite, "properties")
    facts = [(change.fact, f"{change.old} → {change.new}") for change in result.changes]
    facts.append(("speed", "judged" if result.timed else "not judged"))
    for name, value in facts:
        attributes = {"name": _xml(name) or "unnamed", "value": _xml(value)}
        ElementTree.SubElement(properties, "property", attributes)
    for check in result.checks:
        name = check.metric if check.segment is None else f"{check.metric} [{check.segment}]"
        case = _case(suite, name)
        if check.verdict in _JUNIT:
            message = _xml(describe(check))
            kind = {"type": "regression"} if check.verdict is Verdict.FAIL else {}
            outcome = ElementTree.SubElement(
                case, _JUNIT[check.verdict], {"message": message, **kind}
            )
            outcome.text = message
    for fault in result.faults:
        attributes = {"message": _xml(fault), "type": "suspected fault"}
        failure = ElementTree.SubElement(_case(suite, "suspected fault"), "failure", attributes)
        failure.text = _xml(fault)
    return _document(suite, result.new, when, "\n".join(result.notes))


def refused_junit(error: IncomparableError, when: str) -> str:
    """One test case with an error, for a baseline that cannot be compared."""
    suite = ElementTree.Element("testsuite")
    ElementTree.SubElement(suite, "properties")
    text = f"{error.message}\n{error.hint}"
    attributes = {"message": _xml(error.message), "type": "incomparable"}
    ElementTree.SubElement(_case(suite, "comparable"), "error", attributes).text = _xml(text)
    return _document(suite, "draftbench gate", when, text)


def append_to_history(path: Path, result: GateResult, when: str) -> None:
    """Append the verdict and its figures as a line of JSON; what the file holds is not read.

    Raises:
        RunFolderError: no plain file, or it cannot be written; it is then as it was before.
    """
    entry = HistoryEntry(
        schema_version=RESULT_SCHEMA_VERSION,
        created=when,
        candidate=result.new,
        question=result.question,
        verdict=result.verdict,
        figures={check.metric: check.new for check in result.pooled},
    )
    try:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise RunFolderError("it is not a plain file", hint="-")
        path.parent.mkdir(parents=True, exist_ok=True)
        _end_last_line(path)
        append_line(path, [entry])
    except (OSError, RunFolderError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        raise RunFolderError(
            f"cannot append to the history `{path}`: {reason}",
            hint="give another file with --history",
        ) from error


def _end_last_line(path: Path) -> None:
    """A last line without its newline would be taken for one that a kill cut short."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as stream:
            stream.seek(-1, 2)
            if stream.read(1) != b"\n":
                stream.write(b"\n")


def _table(checks: tuple[Check, ...], *, by_segment: bool) -> list[str]:
    heads = ["metric", "baseline", "this run", "change", "limit", "detects drops from", "verdict"]
    if by_segment:
        heads.insert(0, "segment")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for check in checks:
        detects = check.smallest_detectable_drop
        cells = [
            check.metric,
            _value(check.old),
            _value(check.new),
            _difference(check),
            check.amount(check.limit.value),
            "–" if detects is None else check.amount(detects),
            f"{_MARKS[check.verdict]} {check.verdict}{' (improved)' if check.improved else ''}",
        ]
        if by_segment:
            cells.insert(0, _cell(check.segment))
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _value(figure: FigureValue) -> str:
    if figure.low is None or figure.high is None:
        return f"{figure.value:.3f}"
    return f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"


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


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    attributes = {"name": _xml(name), "classname": "draftbench.gate", "time": "0"}
    return ElementTree.SubElement(suite, "testcase", attributes)


def _document(suite: ElementTree.Element, name: str, when: str, text: str) -> str:
    """The suite with its counts, under a root without attributes: the schemas agree on none."""
    outcomes = Counter(outcome.tag for outcome in suite.findall("testcase/*"))
    suite.attrib |= {
        "name": _xml(name) or "unnamed",
        "package": "draftbench",
        "id": "0",
        "hostname": "localhost",
        # Ant's schema wants no time zone; by convention it is UTC.
        "timestamp": when.removesuffix("Z"),
        "tests": str(len(suite.findall("testcase"))),
        "failures": str(outcomes["failure"]),
        "errors": str(outcomes["error"]),
        "skipped": str(outcomes["skipped"]),
        "time": "0",
    }
    ElementTree.SubElement(suite, "system-out").text = _xml(text)
    ElementTree.SubElement(suite, "system-err")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document.decode() + "\n"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
