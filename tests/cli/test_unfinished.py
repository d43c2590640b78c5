"""`draftbench recommend` on a run that was cut off in a stage after replay."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

KEPT = Path(__file__).parents[2] / "results" / "reference" / "tinyllama-stories"


@pytest.fixture
def run(tmp_path):
    """A copy of the kept run of one draft, decoded on all of its 8 requests, with what it was asked
    to measure as newer runs have it.
    """
    copy = Path(shutil.copytree(KEPT, tmp_path / "run"))
    manifest = json.loads((copy / "run.json").read_text())
    manifest["effort"] = {"measure": "best", "measure_requests": 8, "controls": False}
    (copy / "run.json").write_text(json.dumps(manifest))
    return copy


def said(command, run):
    return " ".join(command("recommend", run, "--all").out.split())


def test_a_whole_run_is_not_called_unfinished(command, run):
    assert "not finished" not in said(command, run)


def test_decoding_that_was_cut_off_is_said_with_how_far_it_got(command, run):
    path = run / "observations" / "decode.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-3]))
    found = said(command, run)
    assert "this run is not finished (stories15M decoded on 5 of 8 responses)" in found
    answer = json.loads(command("recommend", run, "--format", "json").out)
    assert answer["caveats"][0]["kind"] == "unfinished"


def test_step_times_that_are_missing_are_said(command, run):
    for kind in ("decode", "costpoint"):
        (run / "observations" / f"{kind}.jsonl").write_text("")
    assert "this run is not finished (stories15M not timed)" in said(command, run)
