"""What CI systems read: counts, levels, and names that try to be markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest

from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.ci import AnnotationStyle, to_annotations, to_json, to_junit, to_markdown
from draftbench.gate.comparison import compare
from draftbench.gate.limits import parse_limit
from draftbench.gate.result import GateResult

HOSTILE = "a|b <img src=x>`@all` \x1b[31m\n::error::%0A]]>&"
DROPS = {"chat": 0.0, HOSTILE: 2.0}


@pytest.fixture
def failed(baseline: Callable[..., Baseline], counts: Callable[..., RequestCounts]) -> GateResult:
    """-8 % in the hostile segment, nothing in the other; over both a wide -4 %, inconclusive."""
    noise = np.tile([-1.0, -0.5, 0.0, 0.5, 1.0], 6)

    def arm(scale: float, **changes: object) -> Baseline:
        rows = [
            counts(f"{n}{i:02}", 15 + scale * (0.2 * e - drop), segment=name, alpha_sum=None)
            for n, (name, drop) in enumerate(DROPS.items())
            for i, e in enumerate(noise)
        ]
        return baseline(rows, **changes)

    new = arm(1.0, candidate=HOSTILE, tested={"draft": HOSTILE})
    return compare(arm(0.0), new, [parse_limit("mean_accepted_length:3%")])


@pytest.fixture
def undecided(
    baseline: Callable[..., Baseline], counts: Callable[..., RequestCounts]
) -> GateResult:
    noise = np.tile([-1.0, -0.5, 0.0, 0.5, 1.0], 8)
    old, new = (
        baseline([counts(f"r{i:02}", 15 + scale * e) for i, e in enumerate(noise)])
        for scale in (0.0, 6.0)
    )
    return compare(old, new)


def test_junit_has_a_case_per_check_with_its_outcome(failed: GateResult) -> None:
    root = ElementTree.fromstring(to_junit(failed))
    suite = root[0]
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    for element in (root, suite):
        counted = {name: element.get(name) for name in ("tests", "failures", "errors", "skipped")}
        assert counted == {"tests": "3", "failures": "1", "errors": "0", "skipped": "1"}
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        "mean_accepted_length",
        "mean_accepted_length [a|b <img src=x>`@all` \ufffd[31m\n::error::%0A]]>&]",
        "mean_accepted_length [chat]",
    ]
    assert [[outcome.tag for outcome in case] for case in cases] == [["skipped"], ["failure"], []]
    assert "2.5 → 2.3" in (cases[1][0].get("message") or "")


def test_junit_skips_what_is_inconclusive(undecided: GateResult) -> None:
    suite = ElementTree.fromstring(to_junit(undecided))[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "0", "3")
    assert len(suite.findall("testcase/skipped")) == 3
    assert "would settle it" in (suite.findtext("system-out") or "")


def test_junit_lists_changes_as_properties(failed: GateResult) -> None:
    suite = ElementTree.fromstring(to_junit(failed))[0]
    properties = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
    assert properties["machine"] == "here → None"
    assert "<img src=x>" in (properties["draft"] or "")


def test_markdown_shows_the_verdict_and_keeps_names_in_code_spans(failed: GateResult) -> None:
    text = to_markdown(failed)
    assert text.startswith("### ❌ draftbench gate: fail\n")
    assert "| mean_accepted_length | 2.500 [2.500, 2.500] | 2.400 [" in text
    quoted = "`a\\|b <img src=x>'@all'  [31m ::error::%0A]]>&`"
    assert f"| {quoted} | mean_accepted_length |" in text
    outside_code = re.sub(r"`[^`]*`", "", text)
    assert "<img" not in outside_code
    assert "@all" not in outside_code
    assert {line.count("|") for line in outside_code.splitlines()} == {0, 4, 8, 9}


def test_github_gets_an_error_for_a_failure_on_one_line(failed: GateResult) -> None:
    _, line = to_annotations(failed, AnnotationStyle.GITHUB)
    title = "::error title=draftbench gate%3A acceptance regression::"
    assert line.startswith(f"{title}mean_accepted_length [a|b <img")
    assert line.endswith("limit 3 %25: fail")
    assert not {"\n", "\x1b"} & set(line)
    assert "::error::%250A]]>&" in line


def test_github_warns_of_what_is_inconclusive(undecided: GateResult) -> None:
    lines = to_annotations(undecided, AnnotationStyle.GITHUB)
    assert [line.split("::")[1] for line in lines] == [
        "warning title=draftbench gate%3A inconclusive"
    ] * 3


def test_github_notices_an_improvement(
    baseline: Callable[..., Baseline], counts: Callable[..., RequestCounts]
) -> None:
    old, new = (
        baseline([counts(f"r{i:02}", accepted + i % 3) for i in range(40)])
        for accepted in (15.0, 18.0)
    )
    lines = to_annotations(compare(old, new), AnnotationStyle.GITHUB)
    assert lines[0].startswith("::notice title=draftbench gate%3A improved::mean_accepted_length")


def test_gitlab_gets_a_code_quality_report(failed: GateResult) -> None:
    (document,) = to_annotations(failed, AnnotationStyle.GITLAB, file="results/b.json")
    findings = json.loads(document)
    assert [finding["severity"] for finding in findings] == ["minor", "major"]
    assert len({finding["fingerprint"] for finding in findings}) == 2
    assert findings[0]["location"] == {"path": "results/b.json", "lines": {"begin": 1}}
    assert findings[1]["description"].startswith("mean_accepted_length [a|b")
    assert findings[1]["check_name"] == "draftbench gate: acceptance regression"


def test_a_passing_gate_annotates_nothing(
    baseline: Callable[..., Baseline], counts: Callable[..., RequestCounts]
) -> None:
    same = baseline([counts()])
    result = compare(same, same)
    assert to_annotations(result, AnnotationStyle.GITHUB) == []
    assert to_annotations(result, AnnotationStyle.GITLAB) == ["[]"]


def test_json_holds_the_whole_result(failed: GateResult) -> None:
    document = json.loads(to_json(failed))
    assert (document["verdict"], document["exit_code"], document["k"]) == ("fail", 1, 4)
    length = document["checks"][0]
    assert length["difference"]["value"] == pytest.approx(-0.04)
    assert length["old"] == {"value": 2.5, "low": 2.5, "high": 2.5}
    assert length["limit"] == {"metric": "mean_accepted_length", "value": 0.03, "relative": True}
    assert document["changes"][0] == {"what": "draft", "old": "small", "new": HOSTILE}
