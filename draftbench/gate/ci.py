"""A verdict, or the error for a baseline that cannot be compared → what CI systems read:
annotations and JUnit XML.

Whatever came from a file (names of models, segments) is made safe for each. The JUnit document
is valid by both schemas in common use: Ant's (windyroad/JUnit-Schema, JUnit.xsd), which is the
stricter, and that of Jenkins' xUnit plug-in (junit-10.xsd).
"""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement, indent, tostring

from draftbench.errors import IncomparableError
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import GateResult
from draftbench.gate.words import describe, one_line, other_checks
from draftbench.safe_files import without_controls

Outcome = GateResult | IncomparableError


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
        f"::{level} title=draftbench gate%3A {title}::{one_line(message).replace('%', '%25')}"
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


def _xml(text: str) -> str:
    return without_controls(text, lines=True)
