"""Run folders of every schema that was ever written are still read, with the same figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftbench.planner.recommend import recommend
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import SCHEMA_VERSION
from draftbench.run_folder.run import read_run

SAMPLES = Path(__file__).parent / "samples"


def test_a_run_of_the_first_layout_is_read():
    found = read_run(RunFolder(SAMPLES / "schema-1"))
    assert (len(found.trajectories), len(found.replays), len(found.costs)) == (2, 6, 12)
    assert len(found.decodes) == 18
    # What came later is what it was then.
    assert found.manifest.question.batches == (1,)
    assert {row.active for row in found.decodes} == {()}
    assert found.states == ()
    rates = {c.draft: c.alpha.value for c in recommend(found).evaluations if c.alpha}
    # Four of the draft's 18 tokens and 16 of the target's own are in the files as accepted.
    assert rates == pytest.approx({"draft": 4 / 18, "self": 16 / 18})


@pytest.mark.parametrize("layout", ["schema-2", "schema-3"])
def test_a_run_with_batches_is_read(layout):
    found = read_run(RunFolder(SAMPLES / layout))
    assert found.manifest.question.batches == (1, 2)
    assert {row.batch for row in found.decodes} == {1, 2}
    active = {row.active for row in found.decodes if row.batch == 2}
    assert (2, 2, 1, 1, 1) in active
    assert [state.others for state in found.states] == [0.4]
    assert recommend(found).evaluations


def test_every_layout_has_a_sample():
    kept = {f"schema-{version}" for version in range(1, SCHEMA_VERSION + 1)}
    assert {path.name for path in SAMPLES.iterdir()} == kept
