"""Small sweeps on the embedded models, measured in this process, with step times made up: they
are the slow part, and nothing here depends on them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import scenes

import draftbench
from draftbench.records import DraftingMode
from draftbench.run_folder.run import read_run
from draftbench.sweep import SweepOptions, prepare, run, worker
from draftbench.traffic import TrafficQuery

EMBEDDED = Path(draftbench.__file__).parent / "embedded"


class Notes(list):
    """A watcher that keeps the notes."""

    def stage(self, what, total):
        pass

    def advance(self, units=1):
        pass

    def kept(self, records):
        pass

    def note(self, text, *, always=False):
        self.append(text)


def options(*drafts, requests=2, temperature=0.0, **changes):
    """A sweep of two requests and ten tokens."""
    fields = {
        "target": str(EMBEDDED / "target"),
        "drafts": tuple(map(str, drafts)) or (str(EMBEDDED / "draft"), "ngram"),
        "traffic": TrafficQuery("suite:completion", requests, 0, None, None, None, False, b"key"),
        "ks": (1, 2),
        "mode": DraftingMode.SAMPLED if temperature else DraftingMode.GREEDY,
        "max_new_tokens": 10,
        "temperature": temperature,
        "measure": "all",
        "measure_requests": 1,
        "controls": False,
        "threads": 1,
    }
    return SweepOptions(**fields | changes)


def made_up_costs(loaded, bench, sizes, enough):
    where = {"batch": sizes.batch, "block": str(loaded.candidate), "process": bench.process}
    return [
        scenes.step(candidate, 1.0, 1.0, context=context, **where)
        for candidate in (None, loaded.candidate)
        for context in (1, 100)
    ]


@pytest.fixture
def small(monkeypatch, tmp_path):
    """What the tests of a sweep start from; `sweep` ends one in a folder, `found` reads it."""
    monkeypatch.setattr(worker, "time_steps", made_up_costs)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    notes = Notes()

    def prepared(*drafts, **changes):
        return prepare(options(*drafts, **changes), "draftbench sweep", notes)

    def sweep(*drafts, out="run", **changes):
        return run(prepared(*drafts, **changes), tmp_path / out, notes)

    return SimpleNamespace(
        prepared=prepared,
        sweep=sweep,
        found=lambda *drafts, **changes: read_run(sweep(*drafts, **changes)),
        copy=lambda name, to: Path(shutil.copytree(EMBEDDED / name, tmp_path / to)),
        notes=notes,
        models=EMBEDDED,
    )
