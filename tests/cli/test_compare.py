"""`draftbench compare` as a command: two runs paired, or the answers of several."""

import json

import pytest
from scenes import REFERENCE


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
    assert "RUN_B" in failing(2, "compare", swept[0])


def test_the_answers_of_three_runs_are_listed_also_of_one_that_is_named_twice(command, swept):
    words = ["compare", swept[0], swept[0], REFERENCE / "tinyllama-stories"]
    outcome = command(*words)
    assert (outcome.code, outcome.err) == (0, "")
    assert "B − A" not in outcome.out
    assert "Different settings: --target" in outcome.out
    found = json.loads(command(*words, "--format", "json").out)
    assert found["runs"] == list(map(str, words[1:]))
    assert {answer["runner"] for answer in found["answers"]} == {"built-in decoder"}
    assert "Differences in the settings" in command(*words, "--all").out


def test_of_two_runs_without_a_common_request_only_the_answers_are_shown(command):
    one, other = (REFERENCE / name for name in ("tinyllama-stories", "tinyllama-gsm8k"))
    outcome = command("compare", one, other)
    assert (outcome.code, outcome.err) == (0, "")
    assert "no request is in both runs: only their answers can be compared" in outcome.out
    assert "B − A" not in outcome.out
    for letter in "AB":
        (line,) = [x for x in outcome.out.splitlines() if x.startswith(f"{letter}  concurrency 1 ")]
        assert "stories15M" in line
