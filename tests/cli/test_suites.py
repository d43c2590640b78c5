"""The built-in traffic as a list for people and for programs."""

import json

from draftbench.traffic.suites import suites


def test_every_suite_is_named_as_a_sweep_takes_it(command):
    outcome = command("suites")
    assert (outcome.code, outcome.err) == (0, "")
    named = [line.split()[0] for line in outcome.out.splitlines()[2:-1]]
    assert named == [f"suite:{suite.name}" for suite in suites()]
    assert len(command("suites", "--format", "markdown").out.splitlines()) == 4 + len(suites())
    (own,) = [
        row
        for row in json.loads(command("suites", "--format", "json").out)
        if row["name"] == "completion"
    ]
    assert own["file"] == "completion.jsonl"
    assert own["license"]
