"""Trainings as a user runs them."""

import json

import pytest
from safetensors.torch import load_file
from training.conftest import write_log

from draftbench.acceptance.intervals import Estimate
from draftbench.models.source import ModelSource
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.key import request_key
from draftbench.run_folder.run import read_run
from draftbench.training import course
from draftbench.training.examples import examples_of
from draftbench.training.held_out import Replayer
from draftbench.training.outcome import Forecast

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
    assert result.startswith("The trained draft is faster on ")
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


def test_of_a_target_that_samples_its_distribution_is_learned(command, spoiled, tmp_path, embedded):
    words = ["sweep", "--target", embedded / "target", "--drafts", spoiled, "--k", "1,2"]
    words += ["--traffic", write_log(tmp_path / "log.jsonl", cuts=6), "--temperature", 0.8]
    words += ["--measure", "replay"]
    assert command(*words, "--no-controls", "--threads", 1, "--out", tmp_path / "run").code == 0
    words = ["train", tmp_path / "run", "--draft", "spoiled", "--out", tmp_path / "out", *RECIPE]
    outcome = command(*words, "--format", "json")
    answer = json.loads(outcome.out)
    assert answer["training"]["proof"]["rate"]["difference"]["low"] > 0
    assert answer["training"]["proof"]["after"] is None


@pytest.mark.parametrize(
    ("high", "code", "title"),
    [(0.009, 1, "Not worth training"), (0.2, 3, "Cannot tell if training pays")],
)
def test_what_is_not_expected_to_be_worth_it_is_not_trained(
    high, code, title, command, swept, tmp_path, monkeypatch
):
    found = Forecast(
        rate=0.3,
        parts=(),
        gain=Estimate(0.0, 0.0, high),
        before=None,
        after=None,
        fastest=None,
        requests=9,
        tokens=1664,
        seconds=60.0,
        device="cpu",
    )
    monkeypatch.setattr(course, "forecast_once", lambda *_: found)
    outcome = command("train", swept, "--draft", "spoiled", "--out", tmp_path / "out")
    assert outcome.code == code
    assert outcome.out.startswith(title)
    assert ("`--anyway` trains" in " ".join(outcome.out.split())) == (code == 3)
    assert not (tmp_path / "out").exists()


def test_too_few_steps_to_forecast_from_are_trained_anyway(command, swept, tmp_path):
    recipe = ("--draft", "spoiled", "--epochs", 2, "--batch", 32, "--learning-rate", 1e-3)
    outcome = command("train", swept, *recipe, "--out", tmp_path / "out", "--device", "cpu")
    assert outcome.code == 2
    assert "too few to forecast from" in outcome.err
    outcome = command("train", swept, *recipe, "--out", tmp_path / "out", "--anyway")
    assert outcome.code == 0
    assert outcome.out.rstrip().endswith("No forecast: too few steps to tell")
    assert json.loads((tmp_path / "out" / "training.json").read_text())["forecast"] is None


def test_an_interrupted_forecast_is_made_again(train, tmp_path, monkeypatch):
    whole = train("--out", tmp_path / "whole", "--format", "json")
    looks, along = [], Replayer.along

    def interrupted(self, checkpoint, responses):
        looks.append(checkpoint)
        if looks.count(tmp_path / ".out.training" / "part") == 2:
            raise KeyboardInterrupt
        return along(self, checkpoint, responses)

    with monkeypatch.context() as patch:
        patch.setattr(Replayer, "along", interrupted)
        assert train("--out", tmp_path / "out").code == 130
    again = train("--out", tmp_path / "out", "--format", "json")
    for figure in ("parts", "gain"):
        assert (
            json.loads(again.out)["forecast"][figure] == (json.loads(whole.out)["forecast"][figure])
        )


def test_a_trained_draft_is_swept_quantized_gated_and_exported_like_any_other(
    train, command, tmp_path, embedded, swept
):
    assert train("--out", tmp_path / "mine").code == 0
    words = ["sweep", "--target", embedded / "target", "--drafts", tmp_path / "mine", "--k", 2]
    words += ["--traffic", swept.parent / "log.jsonl", "--quant", "none,int8", "--no-controls"]
    words += ["--measure", "none", "--threads", 1, "--quiet", "--format", "json"]
    saved, later = (command(*words, "--out", tmp_path / name) for name in ("run", "later"))
    assert (saved.code, later.code) == (0, 0)
    levels = {each["quant"]: each for each in json.loads(later.out)["evaluations"]}
    assert levels["int8"]["alpha"]["value"] == pytest.approx(
        levels["none"]["alpha"]["value"], abs=0.03
    )
    assert command("gate", "--save", tmp_path / "base.json", tmp_path / "run").code == 0
    assert command("gate", "--baseline", tmp_path / "base.json", tmp_path / "later").code == 0
    words = ["--engine", "vllm", "--candidate", "mine", "--anyway"]
    exported = command("export", tmp_path / "run", *words)
    assert exported.code == 0
    assert str(tmp_path / "mine") in exported.out
