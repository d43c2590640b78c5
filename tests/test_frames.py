"""Frames hold what the files hold."""

from pathlib import Path

import pytest

from draftbench import frames
from draftbench.errors import RunFolderError

SAMPLE = Path(__file__).parent / "run_folder" / "samples" / "schema-1"


def test_every_record_is_a_row():
    found = frames.observations(SAMPLE)
    lines = (SAMPLE / "observations" / "trajectory.jsonl").read_text().count("\n")
    assert len(found["trajectories"]) == lines
    assert {"request", "output_tokens", "finish"} <= set(found["trajectories"].columns)


def test_a_candidates_figures_have_their_intervals_beside_them():
    found = frames.candidates(SAMPLE)
    assert {"draft", "quant", "k", "alpha", "alpha_low", "alpha_high"} <= set(found.columns)
    known = found.dropna(subset=["alpha"])
    assert (known.alpha_low <= known.alpha).all()


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError):
        frames.observations(tmp_path)
