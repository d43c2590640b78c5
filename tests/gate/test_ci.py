"""What CI systems read: counts, levels, and names that try to be markup."""

import json
import os
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from draftbench.cli.gate import render
from draftbench.errors import IncomparableError, RunFolderError
from draftbench.gate.ci import append_to_history, describe, to_github, to_junit
from draftbench.gate.judge import judge
from draftbench.gate.limits import parse_limit
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import FigureValue

HOSTILE = "a|b <img src=x>`@all` \x1b[31m\n::error::%0A]]>&"
WHEN = "2026-01-31T12:00:00Z"
DROPS = {"chat": 0.0, HOSTILE: 2.0}


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
    return judge(arm(0.0), new, [parse_limit("mean_accepted_length:3%")])


@pytest.fixture
def undecided(run):
    noise = np.tile([-1.0, -0.5, 0.0, 0.5, 1.0], 8)
    return judge(run(), run(lambda at: 15 + 6 * noise[at]))


def rendered(outcome):
    """The Markdown of an outcome as GitHub shows it."""
    text = render(outcome, "markdown", 80)
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(text)


def test_markdown_shows_the_verdict_and_its_tables(failed):
    html = rendered(failed)
    assert html.startswith("<h3>❌ draftbench gate: fail</h3>")
    assert "<td>mean_accepted_length</td>\n<td>2.500 [2.500, 2.500]</td>\n<td>2.400 [" in html
    # Over all requests, by segment, and what changed: a head each, and a row for each check.
    rows = [table.count("<tr>") - 1 for table in html.split("<table>")[1:]]
    assert rows == [1, 2, len(failed.changes)]
    assert html.count("<li>") == 2 + len(failed.notes)


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
    assert not {"\x1b"} & set(text)


def test_on_a_narrow_terminal_every_part_of_a_table_names_its_metric(failed):
    lines = render(failed, "table", 60).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("By segment"))
    heads = [line.split()[:2] for line in lines[at:] if line.startswith("segment")]
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
    figures = {"old": FigureValue(old, None, None), "new": FigureValue(new, None, None)}
    assert describe(replace(check, metric="alpha", **figures)).startswith(line)


def test_markdown_of_a_hostile_name_is_only_text(failed):
    html = rendered(failed)
    assert "<img" not in html
    assert "&lt;img src=x&gt;" in html
    assert not re.search(r"@\w", html)
    assert "<a " not in html


def test_markdown_escapes_whatever_a_name_could_mean():
    refused = IncomparableError("a_b_ **x** [y](http://z) www.z.z #1 @all <b> &amp;", hint="-")
    html = rendered(refused)
    assert "a_b_ **x** [y](http:\u200b//z) www\u200b.z.z #\u200b1 @\u200ball" in html
    assert "&lt;b&gt; &amp;amp;" in html


def test_github_gets_an_error_for_a_failure_on_one_line(failed):
    _, line = to_github(failed)
    title = "::error title=draftbench gate%3A acceptance regression::"
    assert line.startswith(f"{title}mean_accepted_length [a|b <img")
    assert line.endswith("limit 3%25: fail")
    assert not {"\n", "\x1b"} & set(line)
    assert "::error::%250A]]>&" in line


def test_github_warns_of_what_is_inconclusive(undecided):
    lines = to_github(undecided)
    assert [line.split("::")[1] for line in lines] == [
        "warning title=draftbench gate%3A inconclusive"
    ] * 3


def test_github_notices_an_improvement_and_nothing_of_a_pass(run):
    rose = judge(run(lambda at: 15.0 + at % 3), run(lambda at: 18.0 + at % 3))
    improved = "::notice title=draftbench gate%3A improved::mean_accepted_length"
    assert to_github(rose)[0].startswith(improved)
    assert to_github(judge(run(), run())) == []


def test_a_refused_baseline_is_reported_where_the_verdict_would_be():
    refused = IncomparableError(f"k was 3, is 4 {HOSTILE}", hint="save a new baseline")
    assert to_github(refused)[0].startswith(
        "::error title=draftbench gate%3A incomparable::k was 3, is 4 a|b <img"
    )
    assert len(to_github(refused)[0].splitlines()) == 1
    html = rendered(refused)
    assert html.startswith("<h3>⛔ draftbench gate: incomparable</h3>\n<ul>\n<li>k was 3, is 4 a")
    assert "<img" not in html


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
    assert "2.500 → 2.300" in (cases[1][0].get("message") or "")
    assert "would settle it" in (suite.findtext("system-out") or "")

    properties = {p.get("name"): p.get("value") for p in suite.findall("properties/property")}
    assert "machine" not in properties  # unknown now
    assert "<img src=x>" in (properties["draft"] or "")
    assert properties["speed"] == "not judged"


def test_a_refused_baseline_is_one_error():
    refused = IncomparableError("k was 3, is 4", hint="save a new baseline")
    suite, counted = suite_of(to_junit(refused, WHEN))
    assert counted == [1, 0, 1, 0]
    error = suite.find("testcase/error")
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
def test_the_document_has_the_shape_that_the_schemas_ask_for(failed, kind):
    outcome = failed if kind == "verdict" else IncomparableError(HOSTILE, hint=HOSTILE)
    document = to_junit(outcome, WHEN)
    for element in ElementTree.fromstring(document).iter():
        names = set(element.attrib)
        assert REQUIRED.get(element.tag, set()) <= names, element.tag
        assert names <= REQUIRED.get(element.tag, set()) | OPTIONAL.get(element.tag, set())
        children = "".join(f"{child.tag} " for child in element)
        assert re.fullmatch(CHILDREN.get(element.tag, ""), children), element.tag
    suite, _ = suite_of(document)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", suite.get("timestamp") or "")
    assert all((case.get("time") or "").isdigit() for case in suite.findall("testcase"))


def test_the_history_gets_a_line_of_json_for_each_verdict(failed, undecided, tmp_path):
    path = tmp_path / "new" / "history.jsonl"
    for result in (failed, undecided):
        append_to_history(path, result, WHEN)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["verdict"] for line in lines] == ["fail", "inconclusive"]
    assert (lines[0]["created"], lines[0]["candidate"]) == (WHEN, HOSTILE)
    assert lines[0]["figures"]["mean_accepted_length"]["value"] == pytest.approx(2.4)
    assert len({line["question"] for line in lines}) == 2


@pytest.mark.parametrize("before", [b"", b"a text\n", b"a text without an end", b'{"schema_ver'])
def test_nothing_that_a_history_holds_is_lost(failed, tmp_path, before):
    path = tmp_path / "history.jsonl"
    path.write_bytes(before)
    append_to_history(path, failed, WHEN)
    after = path.read_bytes()
    assert after.startswith(before)
    assert json.loads(after.splitlines()[-1])["verdict"] == "fail"


def test_what_is_no_plain_file_is_no_history(failed, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "link", tmp_path / "pipe", tmp_path):
        with pytest.raises(RunFolderError, match="it is not a plain file"):
            append_to_history(path, failed, WHEN)
    assert not (tmp_path / "elsewhere").exists()


def test_requests_without_an_answer_are_shown_as_a_check_of_their_own(run):
    lost = {f"r{at:03}": "HTTP 500" if at < 38 else "timeout" for at in range(30, 40)}
    result = judge(run(), run(requests=30, unanswered=lost))
    words = (
        "10 of 40 requests were not answered: HTTP 500 (8), timeout (2); 0 in the baseline: fail"
    )
    assert f"::error title=draftbench gate%3A answered requests::{words}" in to_github(result)
    assert words in render(result, "table", 120)
    suite = ElementTree.fromstring(to_junit(result, WHEN).split("?>", 1)[1])[0]
    (case,) = [each for each in suite if each.get("name") == "answered requests"]
    assert case[0].tag == "failure"
