"""A verdict, or the error for a baseline that cannot be compared → what CI systems read:
annotations and JUnit XML; also a check in one line.

Whatever came from a file (names of models, segments) is made safe for each. The JUnit document
is valid by both schemas in common use: Ant's (windyroad/JUnit-Schema, JUnit.xsd), which is the
stricter, and that of Jenkins' xUnit plug-in (junit-10.xsd).
"""

from __future__ import annotations

from collections import Counter
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from draftbench.errors import IncomparableError
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import Check, GateResult
from draftbench.run_folder.served import not_answered
from draftbench.safe_files import without_controls

Outcome = GateResult | IncomparableError


def describe(check: Check) -> str:
    """A check with its figures, limit and verdict, in one line."""
    segment = f" [{check.segment}]" if check.segment is not None else ""
    return _line(
        f"{check.metric}{segment}: {number(check.old.value)} → {number(check.new.value)}, "
        f"{difference(check)}, limit {check.limit.amount(check.limit.value)}: {check.verdict}"
    )


def other_checks(result: GateResult) -> list[tuple[str, Verdict, str]]:
    """What is judged besides the metrics: name, verdict, and a line on it."""
    checks = []
    if (payoff := result.payoff) is not None:
        was, now = (
            f"{each.value:.2f}× ({each.low:.2f}–{each.high:.2f})" if each else "unknown"
            for each in (payoff.old, payoff.new)
        )
        where = ", timed elsewhere" if payoff.elsewhere else ""
        if whole := payoff.slower_with_prefills:
            now += f", with both prefills {whole.value:.2f}× ({whole.low:.2f}–{whole.high:.2f})"
        words = f"another draft: speed-up {was} in the baseline{where}, now {now}: {payoff.verdict}"
        checks.append(("speed-up of another draft", payoff.verdict, _line(words)))
    if (answers := result.answers) is not None:
        missing = not_answered(Counter(answers.reasons).elements(), answers.requests)
        before = f"{answers.baseline_unanswered} in the baseline"
        words = _line(f"{missing}; {before}: {answers.verdict}")
        checks.append(("answered requests", answers.verdict, words))
    if (texts := result.texts) is not None:
        plain = "the baseline's plain decoding" if texts.against_baseline else "plain decoding"
        same = texts.requests - texts.differ - texts.near_ties
        parts = [f"{same} of {texts.requests} answers match {plain}"]
        for count, why in (
            (texts.near_ties, "near tie"),
            (texts.unknown, "cause unknown"),
            (texts.differ - texts.unknown, "no near tie"),
        ):
            parts += [f"{count} differ{'s' * (count == 1)} ({why})"] if count else []
        if texts.differ:
            again = f"{texts.plain_differ} of {texts.plain_requests} differ"
            again = again if texts.plain_requests else "unknown"
            parts.append(f"plain decoding repeated: {again}")
        if texts.differ and texts.baseline_differ is not None:
            parts.append(f"in the baseline {texts.baseline_differ} differed")
        words = f"output check: {'; '.join(parts)}: {texts.verdict}"
        checks.append(("output check", texts.verdict, words))
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
