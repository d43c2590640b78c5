"""What `sweep` says before anything is loaded."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import pytest

from draftbench.cli.planned import BUSY, tell_preparation


def told(load):
    traffic = SimpleNamespace(requests=2, rows=3, form="prompt", merged=1, dropped={"too long": 4})
    manifest = SimpleNamespace(traffic=traffic, environment=SimpleNamespace(load=load))
    failure = SimpleNamespace(draft="foreign", reason="its vocabulary differs")
    notes: list[str] = []
    prepared = SimpleNamespace(manifest=manifest, failures=[failure], caveats={"draft": ("slow",)})
    tell_preparation(prepared, notes.append)
    return notes


@pytest.mark.parametrize(("load", "said"), [(None, 0), (BUSY, 0), (1.25, 1)])
def test_a_busy_machine_is_said_before_the_sweep(load, said):
    assert sum("a load of 1.2 for each core" in note for note in told(load)) == said


def test_what_was_left_out_refused_or_doubtful_is_said():
    assert told(None) == [
        "2 requests of 3 rows (prompt), 1 merged",
        "left out, too long: 4",
        "refused foreign: its vocabulary differs",
        "note on draft: slow",
    ]


def test_a_dry_run_names_passes_time_and_memory(command, sweep_words, tmp_path):
    outcome = command(*sweep_words, "--out", tmp_path / "run", "--dry-run")
    for words in ("target writes", "drafts replay", "by arithmetic and not measured", "KV cache"):
        assert words in outcome.out


@pytest.mark.parametrize("written", [["draft,ngram"], ["draft", "ngram"], ["draft, ngram,draft"]])
def test_drafts_go_behind_one_flag_with_commas_or_each_behind_its_own(
    command, embedded, tmp_path, monkeypatch, written
):
    monkeypatch.chdir(embedded)
    assert planned_candidates(command, tmp_path, written) == ["draft", "ngram"]


def test_a_path_that_holds_a_comma_is_one_draft(command, embedded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(embedded / "draft", "small,greedy")
    shutil.copytree(embedded / "target", "target")
    written = ["small,greedy", "ngram"]
    assert planned_candidates(command, tmp_path, written) == written


def planned_candidates(command, folder, written):
    words = [word for text in written for word in ("--drafts", text)]
    words += ["--target", "target", "--traffic", "suite:completion", "--sample", 2]
    words += ["--no-controls", "--dry-run", "--format", "json", "--out", folder / "run"]
    outcome = command("sweep", *words)
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["candidates"]


def test_verbose_says_a_line_for_every_response(command, embedded, tmp_path):
    words = ["--target", embedded / "draft", "--drafts", "ngram", "--no-controls", "--sample", 2]
    words += ["--traffic", "suite:completion", "--max-new-tokens", 8, "--k", 2, "--threads", 1]
    outcome = command(
        "sweep", *words, "--measure", "none", "--verbose", "--out", tmp_path / "run", "-o", "-"
    )
    assert "  2 of 2" in outcome.err
    assert "τ" in outcome.err
