"""One bad candidate never ends a sweep: it is recorded with a reason and a hint."""

import errno
import os
import time
import weakref
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from scenes import with_fields

from draftbench.decoder.llama import LlamaRunner
from draftbench.drafts.model import draft as model_draft
from draftbench.drafts.model.draft import ModelDraft
from draftbench.errors import ModelError, RunFolderError
from draftbench.measure import decoding, trajectories
from draftbench.records import Candidate
from draftbench.sweep import worker
from draftbench.sweep.failures import reason_of

pytestmark = pytest.mark.slow

GONE = os.strerror(errno.ENOENT)
NGRAM = Candidate(draft="ngram")


def truncate(model):
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def without_weights(model):
    (model / "model.safetensors").unlink()


def poison(model):
    weights = load_file(model / "model.safetensors")
    name = next(n for n in weights if n.endswith("down_proj.weight"))
    poisoned = {**weights, name: weights[name] * float("nan")}
    save_file(poisoned, model / "model.safetensors", metadata={"format": "pt"})


def from_the_future(model):
    with_fields(model / "config.json", model_type="mindreader", architectures=["MindReader"])


def without_tokenizer(model):
    for file in model.glob("tokenizer*"):
        file.unlink()


def nested(model):
    (model / "config.json").write_text("[" * 100_000)


BROKEN = {
    "truncated": (truncate, "cannot load the weights"),
    "missing": (without_weights, "cannot load the weights"),
    "poisoned": (poison, "numbers of model.layers.0.mlp.down_proj.weight are not finite"),
    "future": (from_the_future, "cannot load the configuration"),
    "wordless": (without_tokenizer, "cannot load the tokenizer"),
    "nested": (nested, "maximum recursion depth"),
}


def test_every_broken_draft_is_recorded_and_the_others_are_measured(small):
    drafts = {name: small.copy("draft", name) for name in BROKEN}
    for name, (breaking, _) in BROKEN.items():
        breaking(drafts[name])
    found = small.found(*drafts.values(), "ngram")
    assert found.candidates == (NGRAM,)
    failures = {failure.candidate.draft: failure for failure in found.failures}
    assert failures.keys() == BROKEN.keys()
    for name, (_, words) in BROKEN.items():
        assert words in failures[name].reason
        assert failures[name].hint
    assert "cannot load the weights" in failures["truncated"].reason


def test_a_repaired_draft_is_measured_by_the_same_command(small):
    draft = small.copy("draft", "draft")
    whole = (draft / "model.safetensors").read_bytes()
    truncate(draft)
    assert [f.candidate.draft for f in small.found(draft, "ngram").failures] == ["draft"]
    (draft / "model.safetensors").write_bytes(whole)
    again = small.found(draft, "ngram")
    assert again.failures == ()
    assert Candidate(draft="draft") in again.candidates


def test_slabs_of_the_target_are_given_up_after_every_candidate(small, monkeypatch):
    """On a GPU they would be in the next draft's way."""
    given_up = []
    monkeypatch.setattr(LlamaRunner, "forget_caches", lambda runner: given_up.append(runner))
    small.sweep(small.models / "draft", "ngram")
    assert len(given_up) == 2
    assert given_up[0] is given_up[1]


AGAIN, MEMORY, REPORT = "tries this candidate again", "smaller draft", "report it"
SHAPES = "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"
SIZES = "The size of tensor a (3) must match the size of tensor b (4) at non-singleton dimension 1"
TRIED = "Tried to allocate 2.00 GiB"
HEADER = "Error while deserializing header: incomplete metadata"
COMPILER = "Failed to find C compiler"
IMAGE = "no kernel image is available for execution on the device"
TOOLCHAIN = "the provided PTX was compiled with an unsupported toolchain"


@pytest.mark.parametrize(
    ("error", "reason", "hint"),
    [
        (MemoryError(), "out of memory", MEMORY),
        (MemoryError("no room for customer"), "out of memory", MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "out of memory", MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "out of memory", MEMORY),
        (ModelError("cannot load: can't allocate memory", hint=""), "out of memory", MEMORY),
        (
            RuntimeError(f"CUDA out of memory. {TRIED} for customer"),
            f"out of memory: {TRIED}",
            MEMORY,
        ),
        (RuntimeError(f"{SHAPES}\nmore"), SHAPES, AGAIN),
        (RuntimeError(f"{SIZES}, customer"), SIZES, AGAIN),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 5"), "shape '[2, 3]'", AGAIN),
        (RuntimeError("size mismatch for a.b: customer"), "size mismatch for a.b", AGAIN),
        (OSError(f"{HEADER}, customer"), HEADER, AGAIN),
        (RuntimeError(f"{COMPILER}. Please specify more"), COMPILER, AGAIN),
        (RuntimeError(f"CUDA error: {IMAGE}\nmore"), IMAGE, AGAIN),
        (RuntimeError(f"Triton Error [CUDA]: {TOOLCHAIN}. more"), TOOLCHAIN, AGAIN),
        (FileNotFoundError(2, "customer", "/home/customer/a.json"), f"{GONE}: a.json", AGAIN),
        (OSError(28, "customer"), "No space left on device", AGAIN),
        (RuntimeError("the customer's text"), "the model's code failed (RuntimeError)", REPORT),
        (OSError("the customer's text"), "the model's code failed (OSError)", REPORT),
        (KeyError("the customer's secret"), "the model's code failed (KeyError)", REPORT),
        (ModelError("no kernel", hint="take int8"), "no kernel", "take int8"),
    ],
)
def test_an_exception_is_put_in_words_without_what_it_was_given(error, reason, hint):
    found = reason_of(error)
    assert found[0].startswith(reason)
    assert hint in found[1]
    assert "customer" not in found[0]
    assert "more" not in found[0]


@pytest.fixture
def models_replay(monkeypatch):
    """Do something before every group that a model replays."""

    def models_replay(before):
        replay = ModelDraft.replay

        def instead(self, *given, **how):
            before()
            return replay(self, *given, **how)

        monkeypatch.setattr(ModelDraft, "replay", instead)

    return models_replay


def test_a_candidate_over_its_time_stops_and_resumes_with_more(small, models_replay, monkeypatch):
    models_replay(lambda: time.sleep(0.2))
    # One response a group, so that the time is looked at between the two.
    monkeypatch.setattr(trajectories, "GROUP", 1)
    found = small.found(candidate_timeout=0.1, measure="none")
    assert "longer than the 0.1 seconds of --candidate-timeout" in found.failures[0].reason
    assert len([r for r in found.replays if r.candidate.draft == "draft"]) == 1
    found = small.found(candidate_timeout=60.0, measure="none")
    assert found.failures == ()
    assert len([r for r in found.replays if r.candidate.draft == "draft"]) == 2


def test_a_batch_over_its_time_ends_between_two_turns_and_leaves_nothing(small, monkeypatch):
    """On a clock of its own: every round is a turn of 10 s, and ten of them are not the batch."""
    begin_turn, now = decoding.Batch.pause, [0.0]

    def slow(batch):
        now[0] += 10.0
        return begin_turn(batch)

    monkeypatch.setattr(decoding.Batch, "pause", slow)
    monkeypatch.setattr(decoding, "SECONDS_A_TURN", 0.0)
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now[0]))
    draft, concurrency = small.models / "draft", {"concurrency": (2,), "measure_requests": 2}
    found = small.found(draft, candidate_timeout=95.0, **concurrency)
    assert "longer than the 95 seconds of --candidate-timeout" in found.failures[0].reason
    assert (now[0], found.decodes) == (100.0, ())
    assert len(found.replays) == 2
    found = small.found(draft, **concurrency)
    assert found.failures == ()
    assert {(row.k, row.concurrency) for row in found.decodes} == {(0, 2), (1, 2), (2, 2)}


def test_a_target_that_cannot_be_loaded_ends_the_sweep_in_words(small):
    target = small.copy("target", "target")
    truncate(target)
    with pytest.raises(ModelError, match="cannot load the weights") as caught:
        small.sweep("ngram", target=str(target))
    assert caught.value.hint


def test_a_run_folder_that_cannot_be_written_ends_the_sweep(tmp_path, small, models_replay):
    models_replay(lambda: (tmp_path / "run" / "observations").rename(tmp_path / "gone"))
    with pytest.raises(RunFolderError, match="cannot write"):
        small.sweep()


def test_a_drafts_weights_are_gone_before_the_next_ones_are_loaded(small, monkeypatch):
    build, loaded = model_draft.build_runner, []

    def watched(source, how, draft):
        assert [runner for runner in loaded if runner() is not None] == []
        runner, facts = build(source, how, draft)
        if draft is not None:
            runner.itself = runner  # the modules of some models refer to each other
            loaded.append(weakref.ref(runner))
        return runner, facts

    monkeypatch.setattr(model_draft, "build_runner", watched)
    drafts = small.models / "draft", small.copy("draft", "copy")
    assert small.found(*drafts, measure="replay").failures == ()
    assert len(loaded) == 2
