"""Traffic from the hub is announced before it is fetched, and its commit stands in the run."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from draftbench.cli import main
from draftbench.sweep import prepare
from draftbench.traffic import TrafficQuery

COMMIT = "c" * 40
ROWS = [{"prompt": "def f():\n"}, {"prompt": "import os\n"}]


@pytest.fixture
def hub(monkeypatch):
    """The library with one data set; `when` is called as soon as the hub is asked."""
    hub = SimpleNamespace(
        when=lambda: None,
        hash=COMMIT,
        info=SimpleNamespace(splits={"train": None}),
        config=SimpleNamespace(data_files=None),
        download_and_prepare=lambda: None,
        as_dataset=lambda split: ROWS,
    )

    def ask(path, config, *, revision):
        hub.when()
        return hub

    monkeypatch.setattr("datasets.load_dataset_builder", ask)
    return hub


def test_a_sweep_announces_what_it_fetches_and_records_the_commit(small, hub):
    notes, before = small.notes(), []
    hub.when = lambda: before.extend(notes)
    query = TrafficQuery("hf:org/name@v1", None, 0, None, None, None, False, b"key")
    options = small.options("ngram", traffic=query)
    prepared = prepare(options, "draftbench sweep", notes)
    assert before[-2:] == [
        "reading traffic from hf:org/name@v1",
        "it is fetched from the hub of data sets where it is not cached",
    ]
    assert prepared.manifest.traffic.revision == COMMIT
    assert prepared.manifest.traffic.requests == 2


def test_traffic_of_no_hub_is_not_announced_and_has_no_commit(small):
    notes = small.notes()
    prepared = prepare(small.options("ngram"), "draftbench sweep", notes)
    assert not [note for note in notes if "fetched" in note]
    assert prepared.manifest.traffic.revision is None


def test_check_announces_what_it_fetches(small, hub, capsys):
    before = []
    hub.when = lambda: before.append(capsys.readouterr().err)
    models = ["--target", str(small.models / "target"), "--drafts", str(small.models / "draft")]
    assert main(["check", *models, "--traffic", "hf:org/name", "--format", "json"]) == 0
    assert "note: hf:org/name is fetched from the dataset hub unless it is cached" in before[0]
    assert json.loads(capsys.readouterr().out)


def test_a_run_folder_keeps_the_commit_and_answers_from_it(small, hub, tmp_path, capsys):
    models = ["--target", str(small.models / "target"), "--drafts", "ngram", "--no-controls"]
    effort = ["--max-new-tokens", "4", "--measure", "replay", "--threads", "1", "--k", "1"]
    out = tmp_path / "run"
    main(["sweep", *models, "--traffic", "hf:org/name", *effort, "--out", str(out)])
    assert json.loads((out / "run.json").read_text())["traffic"]["revision"] == COMMIT
    capsys.readouterr()
    assert main(["recommend", str(out), "--format", "json"]) == 0
