"""`draftbench compare` on the sweep that the tests of this folder share."""

import json

import pytest


def test_a_run_against_itself_exits_0(command, swept):
    folder, _ = swept
    outcome = command("compare", folder, folder)
    assert (outcome.code, outcome.err) == (0, "")
    assert "6 common requests; A has 6, B has 6" in outcome.out
    assert "Differences" not in outcome.out


def test_json_names_both_runs(command, swept, tmp_path):
    folder, _ = swept
    outcome = command("compare", folder, folder, "--format", "json", "-o", tmp_path / "c.json")
    assert (outcome.code, outcome.out) == (0, "")
    found = json.loads((tmp_path / "c.json").read_text())
    assert (found["a"], found["b"]) == (str(folder), str(folder))
    assert [change["candidate"] for change in found["candidates"]] == ["draft", "ngram"]


@pytest.mark.parametrize("where", [0, 1])
def test_a_folder_that_is_no_run(failing, swept, tmp_path, where):
    runs = [swept[0], swept[0]]
    runs[where] = tmp_path / "none"
    assert str(tmp_path / "none") in failing(2, "compare", *runs)


def test_one_run_is_not_enough(failing, swept):
    assert "RUN_B" in failing(2, "compare", swept[0])
