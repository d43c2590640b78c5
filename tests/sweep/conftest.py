"""Small sweeps on the embedded models, measured in this process, with step times made up: they
are the slow part, and nothing here depends on them."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import scenes
from scenes import EMBEDDED, FEW
from sweep.engine import FakeEngine, fake_drive

from draftbench.drafts.laws import drafted_from
from draftbench.drafts.stack.replay import StackReplay
from draftbench.records import DraftingMode, LookupReplay
from draftbench.run_folder.run import read_run
from draftbench.sweep import SweepOptions, engine_ask, engine_check, engine_prepare, prepare, worker
from draftbench.sweep.measure import measure_sweep
from draftbench.sweep.options import ServingOptions
from draftbench.sweep.resume import SweepState
from draftbench.traffic import TrafficQuery


class Notes(list):
    """A watcher that keeps the notes."""

    def stage(self, what, total, candidate=None, longer=1.0):
        pass

    def advance(self, units=1):
        pass

    def recorded(self, records):
        pass

    def note(self, text, *, always=False):
        self.append(text)


def options(*drafts, requests=2, temperature=0.0, **changes):
    """A sweep of two requests and ten tokens."""
    # Whatever is sampled, all are rendered.
    traffic = str(FEW) if requests <= 12 else "suite:completion"
    fields = {
        "target": str(EMBEDDED / "target"),
        "drafts": tuple(map(str, drafts)) or (str(EMBEDDED / "draft"), "ngram"),
        "traffic": TrafficQuery(traffic, b"key", requests),
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


def made_up_costs(loaded, sizes, enough):
    where = {
        "concurrency": sizes.concurrency,
        "block": str(loaded.candidate),
        "process": loaded.measurement.process,
    }
    return [
        scenes.step(candidate, 1.0, 1.0, context=context, **where)
        for candidate in (None, loaded.candidate)
        for context in (1, 100)
    ]


def of_one_kind(run):
    """With lists that were read, where a reader of the folder has not asked for them yet."""
    replays = [
        {name: getattr(replay, name) for name in type(replay).__struct_fields__}
        for replay in run.replays
        if not isinstance(replay, StackReplay)
    ]
    return replays, replace(run, replays=())


@pytest.fixture
def small(monkeypatch, tmp_path):
    """What the tests of a sweep start from; `sweep` ends one in a folder, `found` reads it. What a
    sweep knows of its run at the end is what everybody reads.
    """
    monkeypatch.setattr(worker, "time_steps", made_up_costs)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    notes = Notes()

    def prepared(*drafts, **changes):
        return prepare(options(*drafts, **changes), "draftbench sweep", notes)

    states, read = [], SweepState.read

    def read_state(prepared, folder):
        states.append(read(prepared, folder))
        return states[-1]

    monkeypatch.setattr(SweepState, "read", read_state)

    def sweep(*drafts, out="run", **changes):
        folder = measure_sweep(prepared(*drafts, **changes), tmp_path / out, notes)
        seen, kept = states[-1].run(), read_run(folder)
        assert of_one_kind(seen) == of_one_kind(replace(kept, manifest=seen.manifest, path=None))
        return folder

    return SimpleNamespace(
        prepared=prepared,
        sweep=sweep,
        found=lambda *drafts, **changes: read_run(sweep(*drafts, **changes)),
        ids=lambda count: sorted(p.request.id for p in prepared(requests=count).prompts),
        copy=lambda name, to: Path(shutil.copytree(EMBEDDED / name, tmp_path / to)),
        notes=notes,
        out=tmp_path / "run",
        models=EMBEDDED,
    )


def rows_as_replayed(run):
    """The decoding runs with heads, own layers and stacks, of which every round must be the one
    that the replays say.
    """
    along = {(record.key, record.candidate): record for record in run.replays}
    rows = [row for row in run.decodes if row.k]
    for row in rows:
        record, response = along[row.key, row.candidate], run.responses[row.key]
        assert row.digest == response.digest
        found = list(zip(row.proposed, row.accepted, strict=True))
        if row.stop is not None:
            _, proposed, matched = drafted_from(response, record, row.k).under(row.k, row.stop)
            at = 1
            for tokens, accepted in found:
                room = min(row.k, response.limit - at - 1)
                assert tokens == min(proposed[at - 1], room)
                assert accepted == min(matched[at - 1], room)
                at += accepted + 1
        elif isinstance(record, StackReplay):
            assert found == list(scenes.rounds_of_stack(record, response, row.k))
        elif isinstance(record, LookupReplay):
            at, record = 1, record.of_length(row.k)
            for proposed, accepted in found:
                room = min(row.k, response.limit - at - 1)
                assert proposed == min(room, record.proposed[at - 1])
                assert accepted == min(record.matched[at - 1], room)
                at += accepted + 1
    return rows


@pytest.fixture
def served(small, monkeypatch, tmp_path):
    """A sweep on servers of this process; `on` is the engine or the user's servers."""
    for module in (engine_ask, engine_check):
        monkeypatch.setattr(module, "drive", fake_drive)

    def sweep(*drafts, on=None, out="run", ks=(2, 4, 8), **changes):
        on = on if on is not None else FakeEngine()
        serving = dict(changes.pop("serving", {}))
        if isinstance(on, FakeEngine):
            monkeypatch.setattr(engine_ask, "started", on.started)
            monkeypatch.setattr(engine_ask, "connect", on.connect)
            serving.setdefault("engine", "vllm")
        else:
            urls = dict(zip(("http://spec", "http://plain"), on, strict=False))
            monkeypatch.setattr(engine_prepare, "connect", lambda url, engine, **_: urls[url])
            names = dict(zip(("server", "baseline"), urls, strict=False))
            serving |= {**names, "engine": None}
        changes = {"measure": "best", "measure_requests": 2, **changes}
        folder = small.sweep(*drafts, out=out, ks=ks, serving=ServingOptions(**serving), **changes)
        return SimpleNamespace(run=read_run(folder), folder=folder, engine=on)

    return sweep
