"""What can be trained here, found out before anything is computed."""

import pytest
from scenes import EMBEDDED

from draftbench.cli import main
from draftbench.errors import ModelError, UsageError
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.key import request_key
from draftbench.run_folder.run import read_run
from draftbench.training import plan as plans
from draftbench.training.examples import examples_of
from draftbench.training.plan import plan_training
from draftbench.training.settings import TrainingSettings

pytestmark = pytest.mark.slow


@pytest.fixture
def planned(swept):
    """Plan the training of a draft on the run."""
    run = read_run(RunFolder(swept))
    examples = examples_of(run, request_key())

    def plan(draft, **changes):
        return plan_training(run, examples, draft, TrainingSettings(**changes), "cpu")

    return plan


def test_a_draft_of_the_run_is_known_by_its_weights(planned, spoiled):
    assert planned("spoiled").candidate.draft == "spoiled"
    assert planned(str(spoiled)).candidate.draft == "spoiled"
    assert planned(str(spoiled)).speeds.by_k.keys() == {2}


def test_of_other_weights_no_speed_is_known(planned, embedded):
    assert planned(str(embedded / "draft")).speeds is None


@pytest.mark.parametrize("draft", ["ngram", "mtp", "ngram+mtp", "self"])
def test_what_has_no_weights_is_not_trained(planned, draft):
    with pytest.raises(UsageError, match="no weights"):
        planned(draft)


@pytest.mark.parametrize(
    ("draft", "trained"), [("spoiled", "ngram+FOLDER"), ("eagle3:head", "ngram+eagle3:FOLDER")]
)
def test_of_a_stack_the_draft_is_trained_by_its_own_name(planned, draft, trained):
    with pytest.raises(UsageError, match="prompt lookup before") as refused:
        planned(f"ngram+{draft}")
    assert f"`--draft {draft}`" in refused.value.hint
    assert refused.value.hint.endswith(f"`{trained}`")


def test_a_head_that_is_named_as_a_model_is_refused_with_its_name(planned, embedded):
    with pytest.raises(UsageError, match="EAGLE-3 head") as refused:
        planned(str(embedded / "head"))
    assert f"eagle3:{embedded / 'head'}" in refused.value.hint


def test_training_changes_no_model_that_a_draft_is_made_of(swept, spoiled, tmp_path, capsys):
    (tmp_path / "link").symlink_to(spoiled)
    before = sorted(spoiled.iterdir())
    for folder in (spoiled, tmp_path / "link", EMBEDDED / "target"):
        words = ["train", swept, "--draft", "spoiled", "--out", folder / "trained"]
        assert main([*map(str, words), "--quiet"]) == 2
        assert "which training never changes" in capsys.readouterr().err
    assert sorted(spoiled.iterdir()) == before


def test_other_token_ids_are_not_trained(planned, embedded):
    with pytest.raises(ModelError, match="other token ids"):
        planned(str(embedded / "foreign"))


@pytest.mark.parametrize(
    ("left", "hint"), [(1350, "`--batch 3` fits"), (900, "smaller draft"), (900, "--lora 16")]
)
def test_too_little_memory_is_refused_with_the_batch_that_fits(planned, monkeypatch, left, hint):
    monkeypatch.setattr(plans, "training_bytes", lambda *_: (1000, 100))
    monkeypatch.setattr(plans, "memory_left", lambda: left)
    with pytest.raises(ModelError) as refused:
        planned("spoiled", batch=8)
    assert hint in refused.value.hint


def test_adapters_need_little_memory_beside_the_weights(planned, monkeypatch):
    """By hand: inputs and outputs of q and o 128 + 128, of k and v 128 + 64, of gate, up and down
    128 + 352, together 2336, in two layers, at rank 2.
    """
    monkeypatch.setattr(plans, "find_spec", lambda name: name)
    seen = []
    monkeypatch.setattr(plans, "training_bytes", lambda *given: seen.append(given) or (0, 0))
    for lora in (None, 2):
        planned("spoiled", lora=lora)
    whole, (parameters, trained, *_) = seen
    assert whole[0] == whole[1]
    assert trained == 2 * 2 * 2336
    assert parameters == whole[0] + trained


def test_adapters_are_for_draft_models_and_need_peft(planned, monkeypatch):
    with pytest.raises(UsageError, match="a head is one layer"):
        planned("eagle3:head", lora=2)
    monkeypatch.setattr(plans, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="peft, which is not installed"):
        planned("spoiled", lora=2)
