"""The built-in traffic as a list for people and for programs."""

from __future__ import annotations

import json

from draftbench.traffic.suites import suites


def test_every_suite_is_named_as_a_sweep_takes_it(command):
    outcome = command("suites")
    assert (outcome.code, outcome.err) == (0, "")
    named = [line.split()[0] for line in outcome.out.splitlines()[2:-1]]
    assert named == [f"suite:{suite.name}" for suite in suites()]


def test_json_has_what_a_suite_says_of_itself(command):
    listed = json.loads(command("suites", "--format", "json").out)
    assert [row["name"] for row in listed] == sorted(row["name"] for row in listed)
    (own,) = [row for row in listed if row["name"] == "completion"]
    assert own["file"] == "completion.jsonl"
    assert own["requests"] > 0
    assert own["license"]


def test_markdown_is_a_table(command, tmp_path):
    outcome = command("suites", "--format", "markdown", "-o", tmp_path / "suites.md")
    assert (outcome.code, outcome.out) == (0, "")
    lines = (tmp_path / "suites.md").read_text().splitlines()
    assert lines[0] == "### Built-in traffic"
    assert len(lines) == 4 + len(suites())
