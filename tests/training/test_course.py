"""Trainings as a user runs them, and where one that is under way keeps what it has."""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from safetensors.torch import load_file
from scenes import with_fields
from training.conftest import write_log

from draftbench.acceptance.intervals import Estimate
from draftbench.cli import main
from draftbench.errors import RunFolderError, UsageError
from draftbench.models.source import ModelSource
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.key import request_key
from draftbench.run_folder.run import read_run
from draftbench.training import course
from draftbench.training.examples import Examples, examples_of
from draftbench.training.outcome import Forecast
from draftbench.training.plan import Plan
from draftbench.training.settings import TrainingSettings

# Steps enough for a forecast, of few responses.
RECIPE = ("--epochs", 2, "--batch", 4, "--learning-rate", 1e-3, "--device", "cpu", "--anyway")
slow = pytest.mark.slow


@pytest.fixture
def train(command, swept):
    """Train the spoiled draft shortly, whatever the forecast says."""

    def run(*words, draft="spoiled", run=swept):
        return command("train", run, "--draft", draft, *RECIPE, *words)

    return run


@pytest.fixture(scope="module")
def mine(swept, tmp_path_factory):
    """The folder of a draft that was trained so, with what the command answered."""
    folder = tmp_path_factory.mktemp("trained")
    words = ["train", swept, "--draft", "spoiled", *RECIPE, "--out", folder / "mine"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRAFTBENCH_KEY", "the key of the tests")
        words += ["--format", "json", "-o", folder / "answer.json", "-q"]
        assert main([*map(str, words)]) == 0
    return folder / "mine", json.loads((folder / "answer.json").read_text())


def weights(folder):
    return {name: each.tolist() for name, each in load_file(folder / "model.safetensors").items()}


def test_too_few_requests_are_refused_before_anything_that_trains_is_loaded(
    failing, brief, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "draftbench.training.forecast", None)
    monkeypatch.setattr("draftbench.training.examples.MIN_REQUESTS", 1000)
    said = failing(2, "train", brief, "--draft", "spoiled", "--out", tmp_path / "out")
    assert said.startswith("error: too few requests to train and prove the draft on: the run has")


def test_a_run_whose_acceptance_is_doubtful_proves_nothing(failing, brief, tmp_path, monkeypatch):
    monkeypatch.setattr("draftbench.training.examples.MIN_REQUESTS", 0)
    doubtful = shutil.copytree(brief, tmp_path / "run")
    with_fields(doubtful / "run.json", under_way=[{"draft": "spoiled", "quant": "none"}])
    said = failing(2, "train", doubtful, "--draft", "spoiled", "--out", tmp_path / "out")
    assert said.startswith("error: acceptance, which forecast and proof rest on, is doubtful: this")
    assert "hint: sweep again, or train all the same with --anyway" in said


@slow
def test_a_draft_is_trained_into_an_ordinary_checkpoint_that_says_how_without_a_text(mine, spoiled):
    folder, answer = mine
    assert answer["training"]["proof"]["rate"]["difference"]["low"] > 0
    assert answer["kept"]
    report = (folder / "training.json").read_text()
    assert json.loads(report) == answer["training"]
    assert not any(text in report for text in ("import", "def "))
    assert json.loads(report)["packages"].keys() == {"draftbench", "torch", "transformers"}
    original, trained = (ModelSource(str(each)) for each in (spoiled, folder))
    assert original.fingerprint() == answer["training"]["fingerprint"]
    assert trained.parts() == original.parts()
    assert trained.config.dtype == original.config.dtype
    assert not (folder.parent / ".mine.training").exists()


@slow
def test_trained_again_it_has_the_same_weights_and_the_answer_says_what_was_forecast(
    train, mine, tmp_path
):
    assert train("--out", tmp_path / "out", "-q", "-o", tmp_path / "result.txt").code == 0
    result = (tmp_path / "result.txt").read_text()
    assert result.startswith("The trained draft is faster on ")
    assert "\n  the forecast of +" in result
    assert weights(tmp_path / "out") == weights(mine[0])


def stopped(*_):
    raise KeyboardInterrupt


def at_look(number, folder):
    """`Plan.along`, interrupted at this look at the draft in a folder."""
    seen, along = [], Plan.along

    def look(self, checkpoint, responses):
        seen.append(checkpoint)
        if seen.count(folder) == number:
            raise KeyboardInterrupt
        return along(self, checkpoint, responses)

    return look


@slow
@pytest.mark.parametrize(("what", "look"), [("part", 2), ("look", 3)])
def test_an_interrupted_training_resumes_to_the_same_forecast_and_weights(
    train, mine, tmp_path, monkeypatch, what, look
):
    """A whole forecast is not made again."""
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "along", at_look(look, tmp_path / ".out.training" / what))
        outcome = train("--out", tmp_path / "out")
    assert outcome.code == 130
    assert f"--out {tmp_path / 'out'}" in outcome.err.splitlines()[-1]
    assert not (tmp_path / "out").exists()
    if what == "look":
        monkeypatch.setattr(course, "forecast", None)
    outcome = train("--out", tmp_path / "out", "--format", "json")
    whole, again = (answer["forecast"] for answer in (mine[1], json.loads(outcome.out)))
    assert [again[name] for name in ("parts", "gain")] == [
        whole[name] for name in ("parts", "gain")
    ]
    assert weights(tmp_path / "out") == weights(mine[0])


@slow
def test_a_training_that_is_interrupted_while_it_is_proven_is_only_proven_again(
    train, tmp_path, monkeypatch
):
    """Nor is it trained with another recipe, or written over what came to be in its place."""
    out, prove = tmp_path / "out", course.prove

    def appearing(*given):
        out.mkdir()
        return prove(*given)

    monkeypatch.setattr(course, "prove", stopped)
    assert train("--out", out).code == 130
    monkeypatch.setattr(course, "fit", None)
    outcome = train("--out", out, "--seed", 1)
    assert (outcome.code, "other data, settings or another draft" in outcome.err) == (2, True)
    monkeypatch.setattr(course, "prove", appearing)
    outcome = train("--out", out)
    assert (outcome.code, "appeared during the training" in outcome.err) == (2, True)
    assert not any(out.iterdir())
    out.rmdir()
    monkeypatch.setattr(course, "prove", prove)
    assert train("--out", out).code == 0
    assert (out / "training.json").exists()


@slow
def test_the_trained_draft_is_replayed_as_it_decodes_and_writes_what_the_target_writes(
    mine, command, tmp_path, embedded
):
    words = ["sweep", "--target", embedded / "target", "--drafts", mine[0], "--lossless", "--k", 2]
    words += ["--traffic", "suite:completion", "--sample", 8, "--max-new-tokens", 24]
    words += ["--measure", "all", "--no-controls", "--dtype", "float32", "--format", "json"]
    outcome = command(*words, "--out", tmp_path / "run")
    assert outcome.code == 0
    assert "0 unexplained" in outcome.err
    at_k, *rules = json.loads(outcome.out)["evaluations"]
    assert at_k["acceptance_luck"] == pytest.approx(0, abs=1e-12)
    decoded = [each["acceptance_luck"] for each in rules if each["requests_measured"]]
    assert decoded == pytest.approx([0.0] * len(decoded), abs=1e-12)


@slow
def test_the_original_is_accepted_in_the_proof_as_the_sweep_found(mine, swept):
    run = read_run(RunFolder(swept))
    proving = {r.key for r in examples_of(run, request_key()).test}
    replays = [r for r in run.replays if r.candidate.draft == "spoiled" and r.key in proving]
    rate = sum(sum(each.accept) for each in replays) / sum(len(each.accept) for each in replays)
    found = mine[1]["training"]["proof"]["rate"]["original"]["value"]
    assert found == pytest.approx(rate)


@slow
def test_adapters_are_trained_into_an_ordinary_checkpoint_and_proved_on_other_traffic(
    train, command, tmp_path, spoiled, embedded
):
    """Interrupted, they resume to the same weights."""
    pytest.importorskip("peft")
    words = ["sweep", "--target", embedded / "target", "--drafts", "ngram", "--measure", "none"]
    words += ["--traffic", "suite:stories", "--sample", 9, "--max-new-tokens", 16, "--threads", 1]
    assert command(*words, "--no-controls", "--k", 2, "--out", tmp_path / "other").code == 0
    lora = ("--lora", 4, "--other", tmp_path / "other", "--format", "json")
    outcome = train("--out", tmp_path / "whole", *lora)
    assert outcome.code == 0
    training = json.loads(outcome.out)["training"]
    assert (training["lora"], training["proof"]["rate"]["difference"]["low"] > 0) == (4, True)
    assert training["other"]["requests"] == 9
    assert weights(tmp_path / "whole").keys() == weights(spoiled).keys()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "along", at_look(3, tmp_path / ".out.training" / "look"))
        assert train("--out", tmp_path / "out", *lora).code == 130
    assert train("--out", tmp_path / "out", *lora).code == 0
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")


@slow
def test_a_head_is_trained(train, tmp_path, embedded):
    outcome = train("--out", tmp_path / "out", "--format", "json", draft="eagle3:head")
    answer = json.loads(outcome.out)
    assert answer["training"]["proof"]["rate"]["trained"]["value"] > 0.3
    if answer["kept"]:
        assert weights(tmp_path / "out").keys() == weights(embedded / "head").keys()


@slow
def test_of_a_target_that_samples_its_distribution_is_learned(
    train, command, spoiled, tmp_path, embedded
):
    words = ["sweep", "--target", embedded / "target", "--drafts", spoiled, "--k", "1,2"]
    words += ["--traffic", write_log(tmp_path / "log.jsonl", cuts=6), "--temperature", 0.8]
    words += ["--measure", "replay", "--no-controls", "--threads", 1, "--out", tmp_path / "run"]
    assert command(*words).code == 0
    outcome = train("--out", tmp_path / "out", "--format", "json", run=tmp_path / "run")
    proof = json.loads(outcome.out)["training"]["proof"]
    assert proof["rate"]["difference"]["low"] > 0
    assert proof["after"] is None


@slow
@pytest.mark.parametrize(
    ("high", "code", "title"),
    [(0.009, 1, "Not worth training"), (0.2, 3, "Cannot tell if training pays")],
)
def test_what_is_not_expected_to_be_worth_it_is_not_trained(
    high, code, title, command, swept, tmp_path, monkeypatch
):
    unknown = {"before": None, "after": None, "fastest": None, "over_fastest": None}
    size = {"requests": 9, "tokens": 1664, "seconds": 60.0, "device": "cpu"}
    found = Forecast(rate=0.3, parts=(), gain=Estimate(0.0, 0.0, high), **unknown, **size)
    monkeypatch.setattr(course, "forecast_once", lambda *_: found)
    outcome = command("train", swept, "--draft", "spoiled", "--out", tmp_path / "out")
    assert outcome.code == code
    assert outcome.out.startswith(title)
    assert "on 9 held-out requests" in outcome.out
    assert ("`--anyway` trains" in " ".join(outcome.out.split())) == (code == 3)
    assert not (tmp_path / "out").exists()


@slow
def test_too_few_steps_to_forecast_from_are_trained_anyway(command, swept, tmp_path):
    recipe = ("--draft", "spoiled", "--epochs", 2, "--batch", 32, "--learning-rate", 1e-3)
    outcome = command("train", swept, *recipe, "--out", tmp_path / "out", "--device", "cpu")
    assert outcome.code == 2
    assert "too few to forecast from" in outcome.err
    outcome = command("train", swept, *recipe, "--out", tmp_path / "out", "--anyway")
    assert outcome.code == 0
    assert "no forecast: too few steps to tell" in outcome.out
    assert json.loads((tmp_path / "out" / "training.json").read_text())["forecast"] is None


@slow
def test_a_trained_draft_is_swept_quantized_gated_and_exported_like_any_other(
    mine, command, tmp_path, embedded, swept
):
    words = ["sweep", "--target", embedded / "target", "--drafts", mine[0], "--k", 2, "--quiet"]
    words += ["--traffic", swept.parent / "log.jsonl", "--quant", "none,int8", "--no-controls"]
    words += ["--measure", "none", "--threads", 1, "--format", "json"]
    saved, later = (command(*words, "--out", tmp_path / name) for name in ("run", "later"))
    assert (saved.code, later.code) == (0, 0)
    found = {each["quant"]: each["alpha"]["value"] for each in json.loads(later.out)["evaluations"]}
    assert found["int8"] == pytest.approx(found["none"], abs=0.03)
    assert command("gate", "--save", tmp_path / "base.json", tmp_path / "run").code == 0
    assert command("gate", "--baseline", tmp_path / "base.json", tmp_path / "later").code == 0
    words = ["export", tmp_path / "run", "--candidate", "mine", "--anyway", "--engine"]
    for engine, named in (("vllm", str(mine[0])), ("llama.cpp", "-md mine-BF16.gguf ")):
        exported = command(*words, engine)
        assert (exported.code, named in exported.out) == (0, True)


@pytest.fixture
def begun(tmp_path):
    """Begin a training in a folder with this seed."""

    def begin(seed=0, work=tmp_path / ".out.training"):
        draft, examples = SimpleNamespace(fingerprint=lambda: "weights"), Examples((), (), ())
        settings = TrainingSettings(seed=seed)
        plan = SimpleNamespace(draft=draft, examples=examples, settings=settings, device="cpu")
        return course.begun(plan, work, b"the key of the tests".ljust(32))

    return begin


def test_a_place_that_cannot_be_written_is_an_error_with_a_hint(begun):
    with pytest.raises(RunFolderError, match="cannot write to"), begun(work=Path("/proc/none")):
        pass


def test_two_trainings_at_once_are_refused(begun):
    with begun(), pytest.raises(RunFolderError, match="another draftbench writes"), begun():
        pass
    with begun():
        pass


def test_other_settings_drop_a_forecast_and_nothing_that_was_trained(begun, tmp_path):
    work = tmp_path / ".out.training"
    with begun(0):
        (work / "forecast.json").touch()
    with begun(0):
        assert (work / "forecast.json").exists()
    with begun(1):
        assert not (work / "forecast.json").exists()
        (work / "checkpoints" / "checkpoint-9").mkdir(parents=True)
    with pytest.raises(UsageError, match="other data, settings"), begun(0):
        pass
    with begun(1):
        pass
