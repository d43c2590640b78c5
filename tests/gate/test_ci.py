"""What CI systems read: counts, levels, and names that try to be markup."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from draftbench.cli.gate import render
from draftbench.errors import IncomparableError
from draftbench.gate.ci import to_github, to_junit
from draftbench.gate.judge import judge
from draftbench.gate.metrics import parse_limit
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import FigureValue
from draftbench.gate.words import describe

HOSTILE = "a|b <img src=x>`@all` \x1b[31m\n::error::%0A]]>&"
WHEN = "2026-01-31T12:00:00Z"
DROPS = {"chat": 0.0, HOSTILE: 2.0}
REFUSED = IncomparableError(f"k was 3, is 4 {HOSTILE}", hint="save a new baseline")


@pytest.fixture
def failed(baseline, counts):
    """-8% in the hostile segment, nothing in the other; over both a wide -4%, inconclusive."""
    noise = np.tile([-1.0, -0.5, 0.0, 0.5, 1.0], 6)

    def arm(scale, **changes):
        rows = [
            counts(f"{n}{i:02}", 15 + scale * (0.2 * e - drop), segment=name, alpha_sum=None)
            for n, (name, drop) in enumerate(DROPS.items())
            for i, e in enumerate(noise)
        ]
        return baseline(rows, **changes)

    new = arm(1.0, candidate=HOSTILE, tested={"draft": HOSTILE})
    return judge(arm(0.0, candidate=HOSTILE), new, [parse_limit("mean_accepted_length:3%")])


def rendered(outcome):
    """The Markdown of an outcome as GitHub shows it."""
    text = render(outcome, "markdown", 80)
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def test_markdown_shows_the_verdict_and_its_tables_and_a_hostile_name_as_text(failed):
    html = rendered(failed)
    assert html.startswith("<h3>❌ draftbench gate: fail</h3>")
    assert "<td>mean_accepted_length</td>\n<td>2.500 [2.500, 2.500]</td>\n<td>2.400 [" in html
    # Over all requests, by segment, and what changed: a head each, and a row for each check.
    rows = [table.count("<tr>") - 1 for table in html.split("<table>")[1:]]
    assert rows == [1, 2, len(failed.changes)]
    assert html.count("<li>") == 2 + len(failed.notes)
    assert "&lt;img src=x&gt;" in html
    assert not re.search(r"@\w|<img|<a ", html)


def test_segments_of_which_none_fails_are_folded(failed):
    passed = tuple(
        replace(check, verdict=Verdict.PASS) if check.segment else check for check in failed.checks
    )
    for result, folded in ((failed, False), (replace(failed, checks=passed), True)):
        assert ("<details><summary>2 rows</summary>" in rendered(result)) is folded


def test_a_terminal_shows_the_checks_over_all_requests_and_the_segments_that_fail(failed):
    text = render(failed, "table", 120)
    assert text.startswith("FAIL: a|b <img")
    assert "mean_accepted_length   2.500  2.400  -4.00% [" in text
    assert "By segment: 2 checks, 1 fail, 0 inconclusive" in text
    assert "chat " not in text
    assert "\x1b" not in text
    # On a narrow one every part of a table names its metric.
    lines = render(failed, "table", 60).partition("By segment")[2].splitlines()
    heads = [line.split()[:2] for line in lines if line.startswith("segment")]
    assert heads == [["segment", "metric"]] * len(heads)
    assert len(heads) > 1


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (2.0785, 0.632, "alpha: 2.079 → 0.632"),
        (0.5, 0.1, "alpha: 0.500 → 0.100"),
        (0.0021349, 0.0, "alpha: 0.00213 → 0.000"),
    ],
)
def test_figures_have_three_decimals_and_small_ones_three_digits(run, old, new, line):
    (check, *_) = judge(run(), run()).checks
    figures = {"old": FigureValue(value=old), "new": FigureValue(value=new)}
    assert describe(replace(check, metric="alpha", **figures)).startswith(line)


def test_github_gets_a_line_for_each_failure_doubt_and_improvement_and_none_for_a_pass(failed, run):
    title = "title=draftbench gate%3A"
    _, line = to_github(failed)
    assert line.startswith(f"::error {title} acceptance regression::mean_accepted_length [a|b <img")
    assert line.endswith("limit 3%25: fail")
    assert not {"\n", "\x1b"} & set(line)
    assert "::error::%250A]]>&" in line
    noise = np.tile([-1.0, -0.5, 0.0, 0.5, 1.0], 8)
    doubted = to_github(judge(run(), run(lambda at: 15 + 6 * noise[at])))
    assert [line.split("::")[1] for line in doubted] == [f"warning {title} inconclusive"] * 3
    rose = judge(run(lambda at: 15.0 + at % 3), run(lambda at: 18.0 + at % 3))
    assert to_github(rose)[0].startswith(f"::notice {title} improved::mean_accepted_length")
    assert to_github(judge(run(), run())) == []


def test_a_refused_baseline_is_reported_where_the_verdict_would_be():
    (line,) = to_github(REFUSED)
    assert line.startswith("::error title=draftbench gate%3A incomparable::k was 3, is 4 a|b <img")
    assert len(line.splitlines()) == 1
    html = rendered(REFUSED)
    assert html.startswith("<h3>⛔ draftbench gate: incomparable</h3>\n<ul>\n<li>k was 3, is 4 a")
    assert "<img" not in html
    suite, counted = suite_of(to_junit(REFUSED, WHEN))
    assert counted == [1, 0, 1, 0]
    error = suite.find("testcase/error")
    assert error.get("message").startswith("k was 3, is 4")
    assert error.get("type") == "incomparable"


def suite_of(document):
    """The suite, and how many of its tests there are, failed, ended in an error, were skipped."""
    root = ElementTree.fromstring(document)
    (suite,) = root
    assert (root.tag, root.attrib, suite.tag) == ("testsuites", {}, "testsuite")
    return suite, [int(suite.get(n)) for n in ("tests", "failures", "errors", "skipped")]


def test_there_is_a_case_per_check_with_its_outcome_and_changes_are_properties(failed):
    suite, counted = suite_of(to_junit(failed, WHEN))
    assert counted == [3, 1, 0, 1]
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [
        "mean_accepted_length",
        "mean_accepted_length [a|b <img src=x>`@all` \ufffd[31m\n::error::%0A]]>&]",
        "mean_accepted_length [chat]",
    ]
    assert [[outcome.tag for outcome in case] for case in cases] == [["skipped"], ["failure"], []]
    assert "2.500 → 2.300" in cases[1][0].get("message")
    assert "would settle it" in suite.findtext("system-out")
    properties = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
    assert "machine" not in properties  # unknown now
    assert "<img src=x>" in properties["draft"]
    assert properties["speed"] == "not judged"


# Of each element the attributes that Ant's schema (windyroad/JUnit-Schema, JUnit.xsd) asks for, the
# others that are written, and the children; that of Jenkins' xUnit plug-in (junit-10.xsd) allows
# all of it.
SHAPES = {
    "testsuites": ("", "", "(testsuite )*"),
    "testsuite": (
        "name timestamp hostname tests failures errors time package id",
        "skipped",
        "properties (testcase )*system-out system-err ",
    ),
    "properties": ("", "", "(property )*"),
    "property": ("name value", "", ""),
    "testcase": ("name classname time", "", "((skipped|error|failure) )?"),
    "failure": ("type", "message", ""),
    "error": ("type", "message", ""),
    "skipped": ("", "message", ""),
    "system-out": ("", "", ""),
    "system-err": ("", "", ""),
}


@pytest.mark.parametrize("kind", ["verdict", "refusal"])
def test_the_document_has_the_shape_that_the_schemas_ask_for(failed, kind):
    document = to_junit(failed if kind == "verdict" else REFUSED, WHEN)
    for element in ElementTree.fromstring(document).iter():
        needed, allowed, inside = SHAPES[element.tag]
        assert {*needed.split()} <= {*element.attrib} <= {*needed.split(), *allowed.split()}
        assert re.fullmatch(inside, "".join(f"{child.tag} " for child in element)), element.tag
    suite, _ = suite_of(document)
    assert suite.get("timestamp") == "2026-01-31T12:00:00"
    assert all(case.get("time").isdigit() for case in suite.findall("testcase"))


def test_requests_without_an_answer_are_shown_as_a_check_of_their_own(run):
    lost = {f"r{at:03}": "HTTP 500" if at < 38 else "timeout" for at in range(30, 40)}
    result = judge(run(), run(requests=30, unanswered=lost))
    words = (
        "10 of 40 requests were not answered: HTTP 500 (8), timeout (2); 0 in the baseline: fail"
    )
    assert f"::error title=draftbench gate%3A answered requests::{words}" in to_github(result)
    assert words in render(result, "table", 120)
    suite, _ = suite_of(to_junit(result, WHEN))
    (case,) = [each for each in suite if each.get("name") == "answered requests"]
    assert case[0].tag == "failure"
