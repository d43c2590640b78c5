"""One bad candidate never ends a sweep: it is recorded with a reason and a hint."""

from __future__ import annotations

import errno
import json
import os
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftbench.errors import ModelError, RunFolderError
from draftbench.measure import decoding, trajectories
from draftbench.records import Candidate
from draftbench.run_folder.run import read_run
from draftbench.sweep import run, worker
from draftbench.sweep.failures import describe

pytestmark = pytest.mark.slow

GONE = os.strerror(errno.ENOENT)


def truncate(model):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def without_weights(model):
    (model / "model.safetensors").unlink()


def poison(model):
    weights = load_file(model / "model.safetensors")
    name = next(n for n in weights if n.endswith("down_proj.weight"))
    save_file({**weights, name: weights[name] * float("nan")}, model / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip


def from_the_future(model):
    config = json.loads((model / "config.json").read_text())
    changed = {**config, "model_type": "mindreader", "architectures": ["MindReader"]}
    (model / "config.json").write_text(json.dumps(changed))


def without_tokenizer(model):
    for file in model.glob("tokenizer*"):
        file.unlink()


def nested(model):
    (model / "config.json").write_text("[" * 100_000)


BROKEN = {
    "truncated": (truncate, "cannot load the weights"),
    "missing": (without_weights, "cannot load the weights"),
    "poisoned": (poison, "logits are NaN"),
    "future": (from_the_future, "cannot load the configuration"),
    "wordless": (without_tokenizer, "cannot load the tokenizer"),
    "nested": (nested, "maximum recursion depth"),
}


def test_every_broken_draft_is_recorded_and_the_others_are_measured(tmp_path, small):
    drafts = {name: small.copy("draft", tmp_path / name) for name in BROKEN}
    for name, (breaking, _) in BROKEN.items():
        breaking(drafts[name])
    notes = small.notes()
    found = read_run(run(small.prepared(*drafts.values(), "ngram"), tmp_path / "run", notes))
    assert found.candidates == (Candidate(draft="ngram"),)
    failures = {failure.candidate.draft: failure for failure in found.failures}
    assert failures.keys() == BROKEN.keys()
    for name, (_, words) in BROKEN.items():
        assert words in failures[name].reason
        assert failures[name].hint
    assert any("truncated failed: cannot load the weights" in note for note in notes)


def test_a_repaired_draft_is_measured_by_the_same_command(tmp_path, small):
    draft = small.copy("draft", tmp_path / "draft")
    whole = (draft / "model.safetensors").read_bytes()
    truncate(draft)
    first = run(small.prepared(draft, "ngram"), tmp_path / "run", small.notes())
    assert [f.candidate.draft for f in read_run(first).failures] == ["draft"]
    (draft / "model.safetensors").write_bytes(whole)
    again = run(small.prepared(draft, "ngram"), tmp_path / "run", small.notes())
    assert read_run(again).failures == ()
    assert Candidate(draft="draft") in read_run(again).candidates


@pytest.mark.parametrize(
    ("error", "reason", "hint"),
    [
        (MemoryError(), "out of memory", "smaller draft"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "out of memory", "smaller draft"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory", "smaller"),
        (ModelError("cannot load: can't allocate memory", hint=""), "out of memory", "smaller"),
        (
            RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\nmore"),
            "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
            "tries this candidate again",
        ),
        (
            RuntimeError(
                "The size of tensor a (3) must match the size of tensor b (4) at "
                "non-singleton dimension 1, customer"
            ),
            "The size of tensor a (3) must match the size of tensor b (4)",
            "again",
        ),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 5"), "shape '[2, 3]'", "again"),
        (RuntimeError("size mismatch for a.b: customer"), "size mismatch for a.b", "again"),
        (
            OSError("Error while deserializing header: incomplete metadata, customer"),
            "Error while deserializing header: incomplete metadata",
            "again",
        ),
        (FileNotFoundError(2, "customer", "/home/customer/a.json"), f"{GONE}: a.json", "again"),
        (OSError(28, "customer"), "No space left on device", "again"),
        (
            RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB for customer"),
            "out of memory: Tried to allocate 2.00 GiB",
            "smaller draft",
        ),
        (MemoryError("no room for customer"), "out of memory", "smaller draft"),
        (
            RuntimeError("cannot take the customer's text"),
            "the model's code failed (RuntimeError)",
            "report it",
        ),
        (OSError("cannot read the customer's text"), "the model's code failed (OSError)", "report"),
        (KeyError("the customer's secret"), "the model's code failed (KeyError)", "report it"),
        (ModelError("no kernel", hint="take int8"), "no kernel", "take int8"),
    ],
)
def test_an_exception_is_told_in_words_without_what_it_was_given(error, reason, hint):
    told = describe(error)
    assert told[0].startswith(reason)
    assert hint in told[1]
    assert "customer" not in told[0]
    assert "more" not in told[0]


def test_a_candidate_out_of_memory_leaves_the_next_one_its_turn(tmp_path, small, monkeypatch):
    measure = worker.replay

    def hungry(loaded, bench, group):
        if loaded.runner is not None:
            raise MemoryError
        return measure(loaded, bench, group)

    monkeypatch.setattr(worker, "replay", hungry)
    found = read_run(run(small.prepared(), tmp_path / "run", small.notes()))
    assert [(str(f.candidate), f.reason) for f in found.failures] == [("draft", "out of memory")]
    assert found.candidates == (Candidate(draft="ngram"),)


def test_a_candidate_over_its_time_stops_and_goes_on_with_more(tmp_path, small, monkeypatch):
    measure = worker.replay

    def slow(loaded, bench, group):
        time.sleep(0.2 if loaded.runner is not None else 0)
        return measure(loaded, bench, group)

    # One response a group, so that the time is looked at between the two.
    monkeypatch.setattr(trajectories, "GROUP", 1)

    monkeypatch.setattr(worker, "replay", slow)
    limited = small.prepared(cell_timeout=0.1, measure="none")
    found = read_run(run(limited, tmp_path / "run", small.notes()))
    assert "longer than the 0.1 seconds of --cell-timeout" in found.failures[0].reason
    assert len([r for r in found.replays if r.candidate.draft == "draft"]) == 1
    patient = small.prepared(cell_timeout=60.0, measure="none")
    found = read_run(run(patient, tmp_path / "run", small.notes()))
    assert found.failures == ()
    assert len([r for r in found.replays if r.candidate.draft == "draft"]) == 2


def test_a_batch_over_its_time_ends_between_two_turns_and_leaves_nothing(
    tmp_path, small, monkeypatch
):
    """On a clock of its own: every round is a turn of 10 s, and ten of them are not the batch."""
    take_turn, now = decoding._take_turn, [0.0]

    def slow(batch):
        now[0] += 10.0
        return take_turn(batch)

    monkeypatch.setattr(decoding, "_take_turn", slow)
    monkeypatch.setattr(decoding, "SECONDS_A_TURN", 0.0)
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now[0]))
    batch = {"batches": (2,), "measure_requests": 2}
    limited = small.prepared(small.models / "draft", cell_timeout=95.0, **batch)
    found = read_run(run(limited, tmp_path / "run", small.notes()))
    assert "longer than the 95 seconds of --cell-timeout" in found.failures[0].reason
    assert (now[0], found.decodes) == (100.0, ())
    assert len(found.replays) == 2
    unlimited = small.prepared(small.models / "draft", **batch)
    found = read_run(run(unlimited, tmp_path / "run", small.notes()))
    assert found.failures == ()
    assert {(row.k, row.batch) for row in found.decodes} == {(0, 2), (1, 2), (2, 2)}


def test_a_target_that_cannot_be_loaded_ends_the_sweep_in_words(tmp_path, small):
    target = small.copy("target", tmp_path / "target")
    truncate(target)
    with pytest.raises(ModelError, match="cannot load the weights") as caught:
        run(small.prepared("ngram", target=str(target)), tmp_path / "run", small.notes())
    assert caught.value.hint


def test_a_run_folder_that_cannot_be_written_ends_the_sweep(tmp_path, small, monkeypatch):
    prepared = small.prepared("ngram")
    measure = worker.replay

    def unplugged(loaded, bench, left):
        (tmp_path / "run" / "observations").rename(tmp_path / "gone")
        return measure(loaded, bench, left)

    monkeypatch.setattr(worker, "replay", unplugged)
    with pytest.raises(RunFolderError, match="cannot write"):
        run(prepared, tmp_path / "run", small.notes())


def test_a_drafts_weights_are_gone_before_the_next_ones_are_loaded(tmp_path, small, monkeypatch):
    build, loaded = worker.build_runner, []

    def watched(source, how, draft):
        assert [runner for runner in loaded if runner() is not None] == []
        runner, facts = build(source, how, draft)
        if draft is not None:
            runner.itself = runner  # the modules of some models refer to each other
            loaded.append(weakref.ref(runner))
        return runner, facts

    monkeypatch.setattr(worker, "build_runner", watched)
    copy = small.copy("draft", tmp_path / "copy")
    prepared = small.prepared(small.models / "draft", copy, measure="replay")
    assert read_run(run(prepared, tmp_path / "run", small.notes())).failures == ()
    assert len(loaded) == 2
