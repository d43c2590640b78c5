"""Run folders of every schema that was ever written are still read, with the same figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftbench.plan.recommend import recommend
from draftbench.store.folder import RunFolder
from draftbench.store.observed import read_run

SAMPLES = Path(__file__).parent / "samples"


@pytest.mark.parametrize("name", ["schema-1"])
def test_a_kept_run_is_read(name):
    found = read_run(RunFolder(SAMPLES / name))
    assert (len(found.trajectories), len(found.replays), len(found.costs)) == (2, 6, 12)
    assert len(found.decodes) == 18
    rates = {c.draft: c.alpha.value for c in recommend(found).candidates if c.alpha}
    # Four of the draft's 18 tokens and 16 of the target's own are in the files as accepted.
    assert rates == pytest.approx({"draft": 4 / 18, "self": 16 / 18})
