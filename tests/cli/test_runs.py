"""Runs are listed, the newest first, and a broken one does not hide the others."""

import json
import re
import shutil
from pathlib import Path

import pytest

from draftbench.run_folder.folder import RunFolder

SAMPLE = Path(__file__).parents[1] / "run_folder" / "samples" / "alone"


@pytest.fixture
def runs(tmp_path):
    """A run with its private part, one from before without, a broken one, and something else."""
    for name in ("new", "old", "broken"):
        shutil.copytree(SAMPLE, tmp_path / name)
    (tmp_path / "new" / "private").mkdir()
    head = tmp_path / "old" / "run.json"
    changed = head.read_text().replace('"created": "2026', '"created": "2025')
    head.write_text(re.sub(r'"target": "[^"]*"', '"target": "./old-target/"', changed, count=1))
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_runs_are_listed_by_age_with_what_they_are_and_a_broken_one_with_its_problem(runs, command):
    listed = json.loads(command("runs", "list", runs, "--format", "json").out)
    assert [Path(row["run"]).name for row in listed] == ["new", "old", "broken"]
    assert [row["private"] for row in listed] == ["kept", "deleted", None]
    assert [row["status"] for row in listed] == ["complete", "complete", None]
    assert listed[0]["answer"].startswith("Inconclusive")
    assert listed[0]["requests"] == 2
    assert "run.json" in listed[2]["problem"]
    lines = command("runs", "list", runs).out.splitlines()
    assert lines[1].split() == ["run", "answer", "n", "target", "traffic"]
    assert any(line.startswith("  prompts and responses are kept in 1 run:") for line in lines)
    rows = [line.split() for line in lines[2:] if line[0] != " "]
    assert [row[0] for row in rows] == ["new", "old"]
    assert rows[1][-2] == "old-target"
    assert any(line.startswith("  broken:") for line in lines)


def test_without_a_word_the_usual_folder_is_listed_and_its_newest_run_is_taken(
    runs, command, failing, monkeypatch
):
    monkeypatch.chdir(runs)
    words = ["recommend", "--format", "json"]
    said = failing(2, *words)
    assert said.startswith("error: no run is named, and `results/runs` has none\nhint: name a run")
    (runs / "results").mkdir()
    (runs / "results/runs").symlink_to(runs, target_is_directory=True)
    outcome = command(*words)
    assert (outcome.code, outcome.err) == (0, "the newest run: results/runs/new\n")
    assert outcome.out == command("recommend", "new", "--format", "json").out
    for flags in ([], ["--format", "json"]):
        listed = command("runs", "list", *flags)
        assert listed.code == 0
        assert command("runs", *flags).out == listed.out


def test_pruning_keeps_the_newest_and_what_is_being_made_or_cannot_be_read(runs, command):
    prune = ["runs", "prune", runs, "--keep", "1"]
    assert command(*prune).out == f"would delete {runs / 'old'}\n"
    assert (runs / "old").exists()
    with RunFolder(runs / "old").writer():
        assert "kept" in command(*prune, "--yes").err
    assert (runs / "old").exists()
    assert command(*prune, "--yes").out == f"deleted {runs / 'old'}\n"
    assert sorted(path.name for path in runs.iterdir()) == ["broken", "new", "notes"]


def test_redacting_deletes_the_texts_and_leaves_the_answer(runs, command):
    (runs / "new" / "private" / "trajectory.jsonl").write_text("zebra-quartz-4711")
    words = ["recommend", runs / "new", "--format", "json"]
    before = command(*words).out
    outcome = command("runs", "redact", runs / "new")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.endswith("; its figures are unchanged\n")
    assert not (runs / "new" / "private").exists()
    assert command(*words).out == before


def test_redacting_something_else_is_refused_and_deletes_nothing(failing, tmp_path):
    (tmp_path / "private").mkdir()
    failing(2, "runs", "redact", tmp_path)
    assert (tmp_path / "private").exists()
