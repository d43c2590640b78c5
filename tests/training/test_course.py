"""Trainings as a user runs them."""

import json

import pytest
from safetensors.torch import load_file

from draftbench.models.source import ModelSource
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.key import request_key
from draftbench.run_folder.run import read_run
from draftbench.training import course
from draftbench.training.examples import examples_of
from draftbench.training.held_out import Replayer

pytestmark = pytest.mark.slow
# Steps enough for a forecast, of few responses.
RECIPE = ("--epochs", 2, "--batch", 4, "--learning-rate", 1e-3, "--device", "cpu", "--anyway")


@pytest.fixture
def train(command, swept):
    """Train the spoiled draft shortly, whatever the forecast says."""

    def run(*words, draft="spoiled"):
        return command("train", swept, "--draft", draft, *RECIPE, *words)

    return run


def weights(folder):
    return {name: each.tolist() for name, each in load_file(folder / "model.safetensors").items()}


def test_a_draft_is_trained_into_an_ordinary_checkpoint_that_says_how(train, tmp_path, spoiled):
    before = ModelSource(str(spoiled)).fingerprint()
    outcome = train("--out", tmp_path / "out", "--format", "json")
    assert outcome.code == 0
    answer = json.loads(outcome.out)
    proof = answer["training"]["proof"]
    assert proof["rate"]["difference"]["low"] > 0
    assert answer["kept"]
    kept = json.loads((tmp_path / "out" / "training.json").read_text())
    assert kept == answer["training"]
    assert kept["fingerprint"] == before == ModelSource(str(spoiled)).fingerprint()
    original, trained = (ModelSource(str(each)) for each in (spoiled, tmp_path / "out"))
    assert trained.parts() == original.parts()
    assert trained.config.dtype == original.config.dtype
    assert not (tmp_path / ".out.training").exists()


def test_nothing_that_is_kept_holds_a_text(train, tmp_path):
    train("--out", tmp_path / "out")
    report = (tmp_path / "out" / "training.json").read_text()
    assert "import" not in report
    assert "def " not in report


def test_the_result_in_a_file_has_the_proof_and_the_forecast(train, tmp_path):
    assert train("--out", tmp_path / "out", "-q", "-o", tmp_path / "result.txt").code == 0
    result = (tmp_path / "result.txt").read_text()
    assert result.startswith("The trained draft is faster")
    assert "\nForecast: " in result


@pytest.fixture(params=[None, 4])
def lora(request):
    """All weights, or adapters of rank 4."""
    if request.param is None:
        return ()
    pytest.importorskip("peft")
    return "--lora", request.param


def test_trained_twice_it_has_the_same_weights(train, lora, tmp_path):
    for name in ("one", "two"):
        assert train("--out", tmp_path / name, *lora).code == 0
    assert weights(tmp_path / "one") == weights(tmp_path / "two")


def test_an_interrupted_training_resumes_to_the_same_weights(train, lora, tmp_path, monkeypatch):
    assert train("--out", tmp_path / "whole", *lora).code == 0
    looks, along = [], Replayer.along

    def interrupted(self, checkpoint, responses):
        looks.append(checkpoint)
        if looks.count(tmp_path / ".out.training" / "look") == 3:
            raise KeyboardInterrupt
        return along(self, checkpoint, responses)

    with monkeypatch.context() as patch:
        patch.setattr(Replayer, "along", interrupted)
        outcome = train("--out", tmp_path / "out", *lora)
    assert outcome.code == 130
    assert f"--out {tmp_path / 'out'}" in outcome.err.splitlines()[-1]
    assert not (tmp_path / "out").exists()

    def made_again(*_):
        raise AssertionError("the forecast was made again")

    monkeypatch.setattr(course, "forecast", made_again)
    assert train("--out", tmp_path / "out", *lora).code == 0
    assert weights(tmp_path / "out") == weights(tmp_path / "whole")


def test_a_training_that_is_interrupted_while_it_is_proven_is_not_trained_again(
    train, tmp_path, monkeypatch
):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(course, "prove", interrupted)
        assert train("--out", tmp_path / "out").code == 130

    def trained_again(*_):
        raise AssertionError("the training was made again")

    monkeypatch.setattr(course, "fit", trained_again)
    assert train("--out", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "training.json").exists()


def test_a_training_that_was_begun_otherwise_is_not_resumed(train, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(course, "prove", interrupted)
    assert train("--out", tmp_path / "out").code == 130
    outcome = train("--out", tmp_path / "out", "--seed", 1)
    assert outcome.code == 2
    assert "other data, settings or another draft" in outcome.err


def test_the_trained_draft_is_replayed_as_it_decodes_and_writes_what_the_target_writes(
    train, command, tmp_path, embedded
):
    assert train("--out", tmp_path / "out").code == 0
    words = ["sweep", "--target", embedded / "target", "--drafts", tmp_path / "out", "--audit"]
    words += ["--traffic", "suite:completion", "--sample", 8, "--max-new-tokens", 24, "--k", 2]
    words += ["--measure", "all", "--no-controls", "--dtype", "float32", "--format", "json"]
    outcome = command(*words, "--out", tmp_path / "run")
    assert outcome.code == 0
    assert "0 unexplained" in outcome.err
    (only,) = json.loads(outcome.out)["evaluations"]
    assert only["acceptance_luck"] == pytest.approx(0, abs=1e-12)


def test_the_original_is_accepted_in_the_proof_as_the_sweep_found(train, tmp_path, swept):
    outcome = train("--out", tmp_path / "out", "--format", "json")
    proof = json.loads(outcome.out)["training"]["proof"]
    run = read_run(RunFolder(swept))
    proving = {r.key for r in examples_of(run, request_key()).prove}
    replays = [
        each for each in run.replays if each.candidate.draft == "spoiled" and each.key in proving
    ]
    rate = sum(sum(each.accept) for each in replays) / sum(len(each.accept) for each in replays)
    assert proof["rate"]["original"]["value"] == pytest.approx(rate)


def test_adapters_are_trained_into_an_ordinary_checkpoint(train, tmp_path, spoiled):
    pytest.importorskip("peft")
    outcome = train("--out", tmp_path / "out", "--format", "json", "--lora", 4)
    assert outcome.code == 0
    training = json.loads(outcome.out)["training"]
    assert (training["lora"], training["proof"]["rate"]["difference"]["low"] > 0) == (4, True)
    assert weights(tmp_path / "out").keys() == weights(spoiled).keys()


def test_a_head_is_trained(train, tmp_path, embedded):
    outcome = train("--out", tmp_path / "out", "--format", "json", draft="eagle3:head")
    answer = json.loads(outcome.out)
    assert answer["training"]["proof"]["rate"]["trained"]["value"] > 0.3
    if answer["kept"]:
        assert weights(tmp_path / "out").keys() == weights(embedded / "head").keys()


def test_of_a_target_that_samples_its_distribution_is_learned(
    train, command, swept, spoiled, tmp_path, embedded
):
    words = ["sweep", "--target", embedded / "target", "--drafts", spoiled, "--k", "1,2"]
    words += ["--traffic", swept.parent / "log.jsonl", "--temperature", 0.8, "--measure", "replay"]
    assert command(*words, "--no-controls", "--threads", 1, "--out", tmp_path / "run").code == 0
    words = ["train", tmp_path / "run", "--draft", "spoiled", "--out", tmp_path / "out", *RECIPE]
    outcome = command(*words, "--format", "json")
    answer = json.loads(outcome.out)
    assert answer["training"]["proof"]["rate"]["difference"]["low"] > 0
    assert answer["training"]["proof"]["after"] is None


def test_what_is_not_worth_it_is_not_trained(command, swept, tmp_path):
    outcome = command(
        *("train", swept, "--draft", "spoiled", "--out", tmp_path / "out", "--device", "cpu"),
        *("--epochs", 1, "--batch", 2, "--learning-rate", 1e-9),
    )
    assert outcome.code == 1
    assert outcome.out.startswith("Not worth training")
    assert not (tmp_path / "out").exists()
