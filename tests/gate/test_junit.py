"""JUnit as viewers read it: a case per check, and the shape that both schemas in use ask for."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest

from draftbench.errors import IncomparableError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.comparison import compare
from draftbench.gate.junit import refused_junit, to_junit
from draftbench.gate.limits import parse_limit
from draftbench.gate.result import GateResult

HOSTILE = "a|b <img src=x>`@all` \x1b[31m\n::error::%0A]]>&"
WHEN = "2026-01-31T12:00:00Z"


@pytest.fixture
def failed(baseline: Callable[..., Baseline], counts: Callable[..., RequestCounts]) -> GateResult:
    """-8 % in the hostile segment, nothing in the other; over both a wide -4 %, inconclusive."""
    noise = np.tile([-1.0, -0.5, 0.0, 0.5, 1.0], 6)

    def arm(scale: float, **changes: object) -> Baseline:
        rows = [
            counts(f"{n}{i:02}", 15 + scale * (0.2 * e - drop), segment=name, alpha_sum=None)
            for n, (name, drop) in enumerate({"chat": 0.0, HOSTILE: 2.0}.items())
            for i, e in enumerate(noise)
        ]
        return baseline(rows, **changes)

    new = arm(1.0, candidate=HOSTILE, tested={"draft": HOSTILE})
    return compare(arm(0.0), new, [parse_limit("mean_accepted_length:3%")])


def suite_of(document: str) -> ElementTree.Element:
    root = ElementTree.fromstring(document)
    (suite,) = root
    assert (root.tag, root.attrib, suite.tag) == ("testsuites", {}, "testsuite")
    return suite


def test_there_is_a_case_per_check_with_its_outcome(failed: GateResult) -> None:
    suite = suite_of(to_junit(failed, WHEN))
    counted = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counted == {"tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        "mean_accepted_length",
        "mean_accepted_length [a|b <img src=x>`@all` \ufffd[31m\n::error::%0A]]>&]",
        "mean_accepted_length [chat]",
    ]
    assert [[outcome.tag for outcome in case] for case in cases] == [["skipped"], ["failure"], []]
    assert "2.5 → 2.3" in (cases[1][0].get("message") or "")
    assert "would settle it" in (suite.findtext("system-out") or "")


def test_changes_are_properties(failed: GateResult) -> None:
    suite = suite_of(to_junit(failed, WHEN))
    properties = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
    assert properties["machine"] == "here → None"
    assert "<img src=x>" in (properties["draft"] or "")
    assert properties["speed"] == "not judged"


def test_a_refused_baseline_is_one_error() -> None:
    refused = IncomparableError("k was 3, is 4", hint="save a new baseline")
    suite = suite_of(refused_junit(refused, WHEN))
    counted = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counted == {"tests": "1", "failures": "0", "errors": "1", "skipped": "0"}
    error = suite.find("testcase/error")
    assert error is not None
    assert (error.get("message"), error.get("type")) == ("k was 3, is 4", "incomparable")


# What Ant's schema (windyroad/JUnit-Schema, JUnit.xsd) asks for; that of Jenkins' xUnit plug-in
# (junit-10.xsd) allows all of it.
REQUIRED = {
    "testsuites": set(),
    "testsuite": {
        *("name", "timestamp", "hostname", "tests", "failures", "errors", "time"),
        *("package", "id"),
    },
    "property": {"name", "value"},
    "testcase": {"name", "classname", "time"},
    "failure": {"type"},
    "error": {"type"},
}
OPTIONAL = {
    "testsuite": {"skipped"},
    "failure": {"message"},
    "error": {"message"},
    "skipped": {"message"},
}
CHILDREN = {
    "testsuites": "(testsuite )*",
    "testsuite": "properties (testcase )*system-out system-err ",
    "properties": "(property )*",
    "testcase": "((skipped|error|failure) )?",
}


@pytest.mark.parametrize("kind", ["verdict", "refusal"])
def test_the_document_has_the_shape_that_the_schemas_ask_for(failed: GateResult, kind: str) -> None:
    refused = IncomparableError(HOSTILE, hint=HOSTILE)
    document = to_junit(failed, WHEN) if kind == "verdict" else refused_junit(refused, WHEN)
    for element in ElementTree.fromstring(document).iter():
        names = set(element.attrib)
        assert REQUIRED.get(element.tag, set()) <= names, element.tag
        assert names <= REQUIRED.get(element.tag, set()) | OPTIONAL.get(element.tag, set())
        children = "".join(f"{child.tag} " for child in element)
        assert re.fullmatch(CHILDREN.get(element.tag, ""), children), element.tag
    suite = suite_of(document)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp") or "")
    assert all((case.get("time") or "").isdigit() for case in suite.findall("testcase"))
