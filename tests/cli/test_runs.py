"""Runs are listed, the newest first, and a broken one does not hide the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from draftbench.cli import main
from draftbench.run_folder.folder import RunFolder

SAMPLE = Path(__file__).parents[1] / "run_folder" / "samples" / "alone"


@pytest.fixture
def runs(tmp_path):
    """A run with its private part, one from before without, a broken one, and something else."""
    for name in ("new", "old", "broken"):
        shutil.copytree(SAMPLE, tmp_path / name)
    (tmp_path / "new" / "private").mkdir()
    head = tmp_path / "old" / "run.json"
    head.write_text(head.read_text().replace('"created": "2026', '"created": "2025'))
    (tmp_path / "broken" / "run.json").write_text("{")
    (tmp_path / "notes").mkdir()
    return tmp_path


def test_runs_are_listed_by_age_with_what_they_are(runs, capsys):
    assert main(["runs", "list", str(runs), "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [Path(row["run"]).name for row in listed] == ["new", "old", "broken"]
    assert [row["private"] for row in listed] == ["kept", "deleted", None]
    assert [row["status"] for row in listed] == ["complete", "complete", None]
    assert listed[0]["answer"].startswith("Inconclusive")
    assert listed[0]["requests"] == 2
    assert "run.json" in listed[2]["problem"]


@pytest.mark.parametrize("flags", [[], ["--format", "json"]])
def test_without_a_word_the_runs_of_the_usual_folder_are_listed(runs, capsys, monkeypatch, flags):
    (runs / "results").mkdir()
    (runs / "results/runs").symlink_to(runs, target_is_directory=True)
    monkeypatch.chdir(runs)
    assert main(["runs", "list", *flags]) == 0
    listed = capsys.readouterr().out
    assert main(["runs", *flags]) == 0
    assert capsys.readouterr().out == listed
    assert "broken" in listed


def test_without_a_run_the_newest_is_taken_and_named(runs, command, failing, monkeypatch):
    monkeypatch.chdir(runs)
    words = ["recommend", "--format", "json"]
    said = failing(2, *words)
    assert said.startswith("error: no run is named, and `results/runs` has none\nhint: name a run")
    (runs / "results").mkdir()
    (runs / "results/runs").symlink_to(runs, target_is_directory=True)
    outcome = command(*words)
    assert (outcome.code, outcome.err) == (0, "the newest run: results/runs/new\n")
    assert outcome.out == command("recommend", "new", "--format", "json").out


def test_a_table_has_a_line_for_every_run_and_names_a_broken_one_with_its_problem(runs, capsys):
    assert main(["runs", "list", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["run", "answer", "n", "target", "traffic"]
    assert sum(line.startswith("run ") for line in lines) == 1
    assert any(line.startswith("  prompts and responses are kept in 1 run:") for line in lines)
    assert [line.split()[0] for line in lines[2:] if line[0] != " "] == ["new", "old"]
    assert any(line.startswith("  broken:") for line in lines)


def test_pruning_says_what_would_go_and_deletes_nothing(runs, capsys):
    assert main(["runs", "prune", str(runs), "--keep", "1"]) == 0
    assert capsys.readouterr().out == f"would delete {runs / 'old'}\n"
    assert (runs / "old").exists()


def test_pruning_keeps_the_newest_and_what_it_cannot_read(runs, capsys):
    assert main(["runs", "prune", str(runs), "--keep", "1", "--yes"]) == 0
    assert capsys.readouterr().out == f"deleted {runs / 'old'}\n"
    assert sorted(path.name for path in runs.iterdir()) == ["broken", "new", "notes"]


def test_a_run_that_is_being_made_is_not_pruned(runs, capsys):
    with RunFolder(runs / "old").writer():
        assert main(["runs", "prune", str(runs), "--keep", "1", "--yes"]) == 0
    assert "kept" in capsys.readouterr().err
    assert (runs / "old").exists()


def test_a_folder_that_is_not_there_is_an_error(tmp_path, capsys):
    assert main(["runs", "list", str(tmp_path / "none")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_redacting_something_else_is_refused_and_deletes_nothing(tmp_path, capsys):
    (tmp_path / "private").mkdir()
    assert main(["runs", "redact", str(tmp_path)]) == 2
    assert (tmp_path / "private").exists()
