"""A verdict, or the error for a baseline that cannot be compared → what CI systems read:
annotations, JUnit XML and a history; also a check in one line.

Whatever came from a file (names of models, segments) is made safe for each. The JUnit document
is valid by both schemas in common use: Ant's (windyroad/JUnit-Schema, JUnit.xsd), which is the
stricter, and that of Jenkins' xUnit plug-in (junit-10.xsd).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from draftbench.errors import IncomparableError, RunFolderError
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import (
    RESULT_SCHEMA_VERSION,
    AnswerCheck,
    Check,
    GateResult,
    HistoryEntry,
    TextCheck,
)
from draftbench.run_folder.append_log import append_line
from draftbench.run_folder.served import not_answered
from draftbench.safe_files import without_controls

Outcome = GateResult | IncomparableError


def describe(check: Check) -> str:
    """A check with its figures, limit and verdict, in one line."""
    segment = f" [{check.segment}]" if check.segment is not None else ""
    return _line(
        f"{check.metric}{segment}: {number(check.old.value)} → {number(check.new.value)}, "
        f"{difference(check)}, limit {check.amount(check.limit.value)}: {check.verdict}"
    )


def describe_texts(texts: TextCheck) -> str:
    """A line: how many texts speculation left unchanged, how the others differ, and the verdict."""
    plain = "the baseline's plain decoding" if texts.against_baseline else "plain decoding"
    same = texts.requests - texts.differ - texts.near_ties
    causes = {
        "near tie": texts.near_ties,
        "cause unknown": texts.unknown,
        "no near tie": texts.differ - texts.unknown,
    }
    words = [f"{same} of {texts.requests} answers match {plain}"]
    words += [
        f"{count} differ{'s' * (count == 1)} ({why})" for why, count in causes.items() if count
    ]
    if texts.differ:
        again = f"{texts.plain_differ} of {texts.plain_requests} differ"
        words.append(f"plain decoding repeated: {again if texts.plain_requests else 'unknown'}")
    if texts.differ and texts.baseline_differ is not None:
        words.append(f"in the baseline {texts.baseline_differ} differed")
    return f"output check: {'; '.join(words)}: {texts.verdict}"


def describe_answers(answers: AnswerCheck) -> str:
    """A line on how many requests were not answered, and the verdict."""
    missing = not_answered(Counter(answers.reasons).elements(), answers.requests)
    return _line(f"{missing}; {answers.baseline_unanswered} in the baseline: {answers.verdict}")


def other_checks(result: GateResult) -> list[tuple[str, Verdict, str]]:
    """What a serving engine is judged by besides the metrics: name, verdict, and a line on it."""
    checks = []
    if (answers := result.answers) is not None:
        checks.append(("answered requests", answers.verdict, describe_answers(answers)))
    if (texts := result.texts) is not None:
        checks.append(("output check", texts.verdict, describe_texts(texts)))
    return checks


def to_github(outcome: Outcome) -> list[str]:
    """Annotations as GitHub's workflow commands, one a line, for the output of a job; none for a
    segment that is too small to decide.
    """
    annotations: list[tuple[str, str, str]] = []  # level, title, message
    if isinstance(outcome, IncomparableError):
        annotations.append(("error", "incomparable", f"{outcome.message}; {outcome.hint}"))
    else:
        for check in outcome.checks:
            if check.verdict is Verdict.FAIL:
                annotations.append(("error", "acceptance regression", describe(check)))
            elif check.segment is None and check.verdict is Verdict.INCONCLUSIVE:
                annotations.append(("warning", "inconclusive", describe(check)))
            elif check.improved:
                annotations.append(("notice", "improved", describe(check)))
        for name, verdict, words in other_checks(outcome):
            if verdict is Verdict.FAIL:
                annotations.append(("error", name, words))
            elif verdict is Verdict.INCONCLUSIVE:
                annotations.append(("warning", "inconclusive", words))
        annotations += [("error", "suspected fault", fault) for fault in outcome.faults]
    return [
        f"::{level} title=draftbench gate%3A {title}::{_line(message).replace('%', '%25')}"
        for level, title, message in annotations
    ]


def to_junit(outcome: Outcome, when: str) -> str:
    """One test case per check: a failure if it fails, skipped if it is inconclusive; plus a failure
    for each suspected fault, or an error for a baseline that cannot be compared.

    `when` is a UTC time like 2026-01-31T12:00:00Z.
    """
    # Name of the test case, its outcome if it did not pass, type and text of that outcome.
    cases: list[tuple[str, str | None, str | None, str]] = []
    facts: list[tuple[str, str]] = []
    if isinstance(outcome, IncomparableError):
        name, text = "draftbench gate", f"{outcome.message}\n{outcome.hint}"
        cases.append(("comparable", "error", "incomparable", text))
    else:
        name, text = outcome.new, "\n".join(outcome.notes)
        facts = [(change.fact, f"{change.old} → {change.new}") for change in outcome.changes]
        facts.append(("speed", "judged" if outcome.timed else "not judged"))
        named = [
            (c.metric if c.segment is None else f"{c.metric} [{c.segment}]", c.verdict, describe(c))
            for c in outcome.checks
        ]
        named += other_checks(outcome)
        for case, verdict, words in named:
            if verdict is Verdict.FAIL:
                cases.append((case, "failure", "regression", words))
            elif verdict is Verdict.INCONCLUSIVE:
                cases.append((case, "skipped", None, words))
            else:
                cases.append((case, None, None, ""))
        fault = "suspected fault"
        cases += [(fault, "failure", fault, message) for message in outcome.faults]
    outcomes = [tag for _, tag, _, _ in cases]
    # The schemas agree on no attribute of the root.
    root = Element("testsuites")
    suite = SubElement(root, "testsuite", {
        "name": _xml(name) or "unnamed",
        "package": "draftbench",
        "id": "0",
        "hostname": "localhost",
        # Ant's schema wants no time zone; by convention it is UTC.
        "timestamp": when.removesuffix("Z"),
        "tests": str(len(cases)),
        "failures": str(outcomes.count("failure")),
        "errors": str(outcomes.count("error")),
        "skipped": str(outcomes.count("skipped")),
        "time": "0",
    })  # fmt: skip
    properties = SubElement(suite, "properties")
    for fact, value in facts:
        SubElement(properties, "property", {"name": _xml(fact) or "unnamed", "value": _xml(value)})
    for case, tag, kind, message in cases:
        attributes = {"name": _xml(case), "classname": "draftbench.gate", "time": "0"}
        element = SubElement(suite, "testcase", attributes)
        if tag is not None:
            attributes = {"message": _xml(message.partition("\n")[0])}
            attributes |= {"type": kind} if kind else {}
            SubElement(element, tag, attributes).text = _xml(message)
    SubElement(suite, "system-out").text = _xml(text)
    SubElement(suite, "system-err")
    indent(root)
    document: bytes = tostring(root, encoding="utf-8", xml_declaration=True)
    return document.decode() + "\n"


def append_to_history(path: Path, result: GateResult, when: str) -> None:
    """Append the verdict and its figures to a file as a line of JSON.

    Raises:
        RunFolderError: it is not a plain file, or cannot be written; it is then left as it was.
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
            raise OSError("it is not a plain file")
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without its newline the last line would count as cut short, and be overwritten.
        if path.exists() and path.stat().st_size:
            with path.open("rb+") as stream:
                stream.seek(-1, 2)
                if stream.read(1) != b"\n":
                    stream.write(b"\n")
        append_line(path, [entry])
    except (OSError, RunFolderError) as error:
        why = error.message if isinstance(error, RunFolderError) else error.strerror or str(error)
        raise RunFolderError(
            f"cannot append to the history `{path}`: {why}",
            hint="give another file with --history",
        ) from error


def number(value: float) -> str:
    """Three decimals, or three digits below 0.1: a cost ratio may be 0.002."""
    return f"{value:.3f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def difference(check: Check) -> str:
    """The change and its interval, in the unit of the limit."""
    change = check.difference
    if change is None:
        return "change unknown"
    scale, unit, digits = (100, "%", 2) if check.limit.relative else (1, "", 4)
    value, low, high = (
        f"{scale * end:+.{digits}f}" for end in (change.value, change.low, change.high)
    )
    return f"{value}{unit} [{low}, {high}]"


def _line(text: str) -> str:
    return without_controls(" ".join(text.split()))


def _xml(text: str) -> str:
    return without_controls(text, lines=True)
