"""A verdict → JUnit XML, as Jenkins, GitLab and most viewers of test reports read it.

Valid by both schemas in common use: Ant's (windyroad/JUnit-Schema, JUnit.xsd), which is the
stricter, and the one of Jenkins' xUnit plug-in (junit-10.xsd). Decides nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree

from draftbench.errors import IncomparableError
from draftbench.gate.ci import describe
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import GateResult

# XML 1.0 knows no other control characters than these three, and no half of a surrogate pair.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_OUTCOMES = {
    Verdict.FAIL: ("failure", {"type": "regression"}),
    Verdict.INCONCLUSIVE: ("skipped", {}),
}


def to_junit(result: GateResult, when: str) -> str:
    """One test case per check; a failure where it fails, skipped where it is inconclusive; and a
    failed one for each suspected fault.

    `when` is a UTC time like 2026-01-31T12:00:00Z.
    """
    suite = ElementTree.Element("testsuite")
    properties = ElementTree.SubElement(suite, "properties")
    facts = [(change.what, f"{change.old} → {change.new}") for change in result.changes]
    facts.append(("speed", "judged" if result.timed else "not judged"))
    for name, value in facts:
        named = {"name": _xml(name) or "unnamed", "value": _xml(value)}
        ElementTree.SubElement(properties, "property", named)
    for check in result.checks:
        name = check.metric if check.segment is None else f"{check.metric} [{check.segment}]"
        case = _case(suite, name)
        if check.verdict in _OUTCOMES:
            tag, kind = _OUTCOMES[check.verdict]
            said = _xml(describe(check))
            ElementTree.SubElement(case, tag, {"message": said, **kind}).text = said
    for fault in result.faults:
        told = {"message": _xml(fault), "type": "suspected fault"}
        ElementTree.SubElement(_case(suite, "suspected fault"), "failure", told).text = _xml(fault)
    return _document(suite, result.new, when, "\n".join(result.notes))


def refused_junit(error: IncomparableError, when: str) -> str:
    """A baseline of another question: one test case with an error."""
    suite = ElementTree.Element("testsuite")
    ElementTree.SubElement(suite, "properties")
    said = f"{error.message}\n{error.hint}"
    case = _case(suite, "comparable")
    told = {"message": _xml(error.message), "type": "incomparable"}
    ElementTree.SubElement(case, "error", told).text = _xml(said)
    return _document(suite, "draftbench gate", when, said)


def _case(suite: ElementTree.Element, name: str) -> ElementTree.Element:
    place = {"name": _xml(name), "classname": "draftbench.gate", "time": "0"}
    return ElementTree.SubElement(suite, "testcase", place)


def _document(suite: ElementTree.Element, name: str, when: str, said: str) -> str:
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
    ElementTree.SubElement(suite, "system-out").text = _xml(said)
    ElementTree.SubElement(suite, "system-err")
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    document: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return document.decode() + "\n"


def _xml(text: str) -> str:
    return _NOT_XML.sub("\ufffd", text)
