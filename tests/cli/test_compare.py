"""`draftbench compare` on the sweep that the tests of this folder share."""

import json
from pathlib import Path

import pytest

REFERENCE = Path(__file__).parents[2] / "results/reference"


def test_a_run_against_itself_exits_0(command, swept):
    folder, _ = swept
    outcome = command("compare", folder, folder)
    assert (outcome.code, outcome.err) == (0, "")
    assert "6 requests in common (A: 6, B: 6)" in outcome.out
    assert "Differences" not in outcome.out


def test_json_names_both_runs(command, swept, tmp_path):
    folder, _ = swept
    outcome = command("compare", folder, folder, "--format", "json", "-o", tmp_path / "c.json")
    assert (outcome.code, outcome.out) == (0, "")
    found = json.loads((tmp_path / "c.json").read_text())
    assert (found["a"], found["b"]) == (str(folder), str(folder))
    assert [change["candidate"] for change in found["candidates"]] == ["draft", "ngram"]


@pytest.mark.parametrize(("runs", "where"), [(2, 0), (2, 1), (3, 2)])
def test_a_folder_that_is_no_run(failing, swept, tmp_path, runs, where):
    runs = [swept[0]] * runs
    runs[where] = tmp_path / "none"
    assert str(tmp_path / "none") in failing(2, "compare", *runs)


def test_the_answers_of_three_runs_are_listed(command, swept):
    folder, _ = swept
    outcome = command("compare", folder, folder, folder)
    assert (outcome.code, outcome.err) == (0, "")
    assert "B − A" not in outcome.out
    found = json.loads(command("compare", folder, folder, folder, "--format", "json").out)
    assert found["runs"] == [str(folder)] * 3
    assert [answer["runner"] for answer in found["answers"]] == ["built-in decoder"] * 3


def test_a_run_that_is_named_twice_is_listed_twice(command, swept):
    outcome = command("compare", swept[0], swept[0], REFERENCE / "tinyllama-stories")
    assert (outcome.code, outcome.err) == (0, "")
    assert "Settings that differ: --target" in outcome.out
    everything = command("compare", swept[0], swept[0], REFERENCE / "tinyllama-stories", "--all")
    assert "Differences in the settings" in everything.out


def test_of_two_runs_without_a_common_request_only_the_answers_are_shown(command):
    one, other = (REFERENCE / name for name in ("tinyllama-stories", "tinyllama-gsm8k"))
    outcome = command("compare", one, other)
    assert (outcome.code, outcome.err) == (0, "")
    line = "no request is in both runs: only their answers can be compared"
    assert line in outcome.out
    assert "B − A" not in outcome.out
    answers = [
        line
        for line in outcome.out.splitlines()
        if line.startswith(("A  concurrency 1 ", "B  concurrency 1 "))
    ]
    assert ["stories15M" in line for line in answers] == [True, True]


def test_one_run_is_not_enough(failing, swept):
    assert "RUN_B" in failing(2, "compare", swept[0])
