"""Small sweeps on the embedded models, measured in this process, with step times made up: they
are the slow part, and nothing here depends on them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import draftbench
from draftbench.records import CostPoint, DraftingMode
from draftbench.sweep import SweepOptions, prepare, worker
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

    def note(self, text):
        self.append(text)


def options(*drafts, requests=2, temperature=0.0, **changes):
    """A sweep of two requests and ten tokens."""
    query = TrafficQuery("suite:completion", requests, 0, None, None, None, False, b"key")
    fields = {
        "target": str(EMBEDDED / "target"),
        "drafts": tuple(map(str, drafts)) or (str(EMBEDDED / "draft"), "ngram"),
        "traffic": query,
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


def made_up_costs(loaded, bench, sizes):
    return [
        CostPoint(
            candidate=candidate,
            what="step",
            batch=sizes.batch,
            new_tokens=1,
            context=context,
            seconds=(1.0, 1.0),
            block=str(loaded.candidate),
            runner="made up",
            process=bench.process,
        )
        for candidate in (None, loaded.candidate)
        for context in (1, 100)
    ]


@pytest.fixture
def small(monkeypatch):
    """What the tests of a sweep start from."""
    monkeypatch.setattr(worker, "time_steps", made_up_costs)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"

    def prepared(*drafts, **changes):
        return prepare(options(*drafts, **changes), "draftbench sweep", Notes())

    def copy(name, to):
        return Path(shutil.copytree(EMBEDDED / name, to))

    return SimpleNamespace(
        prepared=prepared, options=options, copy=copy, notes=Notes, models=EMBEDDED
    )
