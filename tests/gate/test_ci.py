"""What CI systems read: counts, levels, and names that try to be markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np
import pytest
from markdown_it import MarkdownIt

from draftbench.errors import IncomparableError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.ci import (
    findings,
    refused_finding,
    refused_markdown,
    to_code_quality,
    to_github,
    to_json,
    to_markdown,
)
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


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)


def test_markdown_shows_the_verdict_and_its_tables(failed: GateResult) -> None:
    text = to_markdown(failed)
    assert text.startswith("### ❌ draftbench gate: fail\n")
    assert "| mean_accepted_length | 2.500 [2.500, 2.500] | 2.400 [" in text
    html = rendered(text)
    # Over all requests, by segment, and what changed: a head each, and a row for each check.
    rows = [table.count("<tr>") - 1 for table in html.split("<table>")[1:]]
    assert rows == [1, 2, len(failed.changes)]
    assert "<details><summary>By segment</summary>" in html
    assert html.count("<li>") == len(failed.notes)


def test_markdown_of_a_hostile_name_is_only_text(failed: GateResult) -> None:
    html = rendered(to_markdown(failed))
    assert "<img" not in html
    assert "&lt;img src=x&gt;" in html
    outside_code = re.sub(r"<code>.*?</code>", "", html)
    assert not re.search(r"@\w", outside_code)
    assert "<a " not in html


def test_markdown_escapes_whatever_a_name_could_mean() -> None:
    refused = IncomparableError("a_b_ **x** [y](http://z) www.z.z #1 @all <b> &amp;", hint="-")
    html = rendered(refused_markdown(refused))
    assert "a_b_ **x** [y](http:\u200b//z) www\u200b.z.z #\u200b1 @\u200ball" in html
    assert "&lt;b&gt; &amp;amp;" in html


def test_github_gets_an_error_for_a_failure_on_one_line(failed: GateResult) -> None:
    _, line = to_github(findings(failed))
    title = "::error title=draftbench gate%3A acceptance regression::"
    assert line.startswith(f"{title}mean_accepted_length [a|b <img")
    assert line.endswith("limit 3 %25: fail")
    assert not {"\n", "\x1b"} & set(line)
    assert "::error::%250A]]>&" in line


def test_github_warns_of_what_is_inconclusive(undecided: GateResult) -> None:
    lines = to_github(findings(undecided))
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
    lines = to_github(findings(compare(old, new)))
    assert lines[0].startswith("::notice title=draftbench gate%3A improved::mean_accepted_length")


def test_gitlab_gets_a_code_quality_report(failed: GateResult) -> None:
    found = json.loads(to_code_quality(findings(failed), "results/b.json"))
    assert [finding["severity"] for finding in found] == ["minor", "major"]
    assert len({finding["fingerprint"] for finding in found}) == 2
    assert found[0]["location"] == {"path": "results/b.json", "lines": {"begin": 1}}
    assert found[1]["description"].startswith("mean_accepted_length [a|b")
    assert found[1]["check_name"] == "draftbench gate: acceptance regression"


def test_a_passing_gate_annotates_nothing(
    baseline: Callable[..., Baseline], counts: Callable[..., RequestCounts]
) -> None:
    same = baseline([counts()])
    assert findings(compare(same, same)) == []
    assert to_code_quality([], "b.json") == "[]\n"


def test_a_refused_baseline_is_told_where_the_verdict_would_be() -> None:
    refused = IncomparableError(f"k was 3, is 4 {HOSTILE}", hint="save a new baseline")
    assert to_github([refused_finding(refused)])[0].startswith(
        "::error title=draftbench gate%3A incomparable::k was 3, is 4 a|b <img"
    )
    assert len(to_github([refused_finding(refused)])[0].splitlines()) == 1
    text = refused_markdown(refused)
    assert text.startswith("### ⛔ draftbench gate: incomparable\n\nk was 3, is 4 a")
    assert "<img" not in rendered(text)
    (found,) = json.loads(to_code_quality([refused_finding(refused)], "b.json"))
    assert found["severity"] == "major"


def test_json_holds_the_whole_result(failed: GateResult) -> None:
    document = json.loads(to_json(failed))
    assert (document["verdict"], document["exit_code"], document["k"]) == ("fail", 1, 4)
    length = document["checks"][0]
    assert length["difference"]["value"] == pytest.approx(-0.04)
    assert length["old"] == {"value": 2.5, "low": 2.5, "high": 2.5}
    assert length["limit"] == {"metric": "mean_accepted_length", "value": 0.03, "relative": True}
    assert document["changes"][0] == {"what": "draft", "old": "small", "new": HOSTILE}
