"""A candidate in its own process cannot take the sweep with it.

Only the hardest case: every child imports torch anew. `scripts/hostile_drafts.py` shows more.
"""

from __future__ import annotations

import os
import signal

import pytest
from scenes import with_fields

from draftbench.hub import Trust
from draftbench.records import Candidate

pytestmark = pytest.mark.slow

# What it leaves behind holds its end of the pipe, and must not be waited for.
KILLS_ITSELF = """
import os, pathlib, signal, time
left = os.fork()
if left:
    pathlib.Path({file!r}).write_text(str(left))
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(3600)
"""


def test_a_candidate_that_dies_is_recorded_and_the_next_is_measured(tmp_path, small, monkeypatch):
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    killer = small.copy("draft", "killer")
    with_fields(killer / "config.json", auto_map={"AutoModelForCausalLM": "modeling_killer.Model"})
    (killer / "modeling_killer.py").write_text(KILLS_ITSELF.format(file=str(tmp_path / "left")))
    trust = Trust(remote_code=True)
    found = small.found(killer, "ngram", trust=trust, workers=1, measure="none")
    os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)  # fails if it is gone
    assert [(str(f.candidate), f.reason) for f in found.failures] == [
        ("killer", "its process was ended by SIGKILL")
    ]
    assert "out-of-memory killer" in found.failures[0].hint
    assert found.candidates == (Candidate(draft="ngram"),)
    assert len(found.trajectories) == 2


def test_several_processes_measure_each_candidate(small):
    found = small.found("ngram", processes=2, max_new_tokens=4)
    assert len({row.process for row in found.decodes}) == 2
    assert {point.process for point in found.costs} == {row.process for row in found.decodes}
