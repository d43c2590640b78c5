"""When a training stops, what it keeps, and how it resumes: a weight that falls with every step."""

import math

import numpy as np
import pytest
from training.falling import Falling, Silent

from draftbench.errors import RunFolderError, UsageError
from draftbench.training import fit as fits
from draftbench.training.fit import PATIENCE, begin, fit
from draftbench.training.forecast import share_of
from draftbench.training.settings import TrainingSettings

SETTINGS = TrainingSettings(epochs=8, batch=1, learning_rate=0.1)
RESPONSES = (1.0,) * 2  # two steps an epoch, so that every step is looked at


@pytest.fixture
def trained(tmp_path):
    """Train a new draft that is seen to be accepted so, and what it weighed at each look."""

    def run(*rates, folder="checkpoints"):
        draft, weights, left = Falling(), [], list(rates)

        def look():
            weights.append(draft.weight)
            rate = left.pop(0)
            if rate is None:
                raise KeyboardInterrupt
            return rate

        looks = fit(draft, RESPONSES, SETTINGS, tmp_path / folder, Silent(), look)
        return draft, looks, weights

    return run


def test_the_weights_that_were_accepted_most_often_are_kept(trained):
    draft, looks, weights = trained(0.1, 0.3, 0.2, 0.2, 0.2)
    assert draft.weight == weights[1]
    assert weights == sorted(weights, reverse=True)
    assert looks == [(1, 0.1), (2, 0.3), (3, 0.2), (4, 0.2), (5, 0.2)]


@pytest.mark.parametrize(
    ("rates", "looks"),
    [([0.3] + [0.2] * 20, 1 + PATIENCE), ([at / 100 for at in range(16)], 16)],
    ids=["after some looks without a better one", "after every epoch"],
)
def test_a_training_ends(trained, rates, looks):
    assert len(trained(*rates)[1]) == looks


def test_interrupted_it_resumes_at_its_last_look_and_remembers_those_before(trained):
    whole, looks, _ = trained(0.3, 0.2, 0.2, 0.2, folder="whole")
    with pytest.raises(KeyboardInterrupt):
        trained(0.3, 0.2, None)
    again, resumed, _ = trained(0.2, 0.2)
    assert resumed == looks
    assert again.weight == whole.weight


def test_a_checkpoint_that_was_cut_is_not_resumed_from(trained, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        trained(0.1, 0.2, None)
    (tmp_path / "checkpoints" / "checkpoint-9").mkdir()
    _, looks, _ = trained(0.3, *[0.2] * PATIENCE)
    assert looks[:3] == [(1, 0.1), (2, 0.2), (3, 0.3)]


def test_a_full_disk_is_an_error_to_resume_from(trained, monkeypatch):
    def full(*_):
        raise RuntimeError("PyTorchStreamWriter failed writing file")

    with monkeypatch.context() as patch:
        patch.setattr(fits.Trainer, "_save_optimizer_and_scheduler", full)
        with pytest.raises(RunFolderError, match="failed writing") as seen:
            trained(0.1, 0.2)
    assert isinstance(seen.value.__cause__, OSError)
    _, looks, _ = trained(0.3, *[0.2] * PATIENCE)
    assert looks[0] == (1, 0.3)


@pytest.fixture
def rates(monkeypatch):
    """The learning rate of each step."""
    seen, on_step_end = [], fits._Shown.on_step_end

    def noted(self, args, state, control, **given):
        seen.append(given["lr_scheduler"].get_last_lr()[0])
        on_step_end(self, args, state, control, **given)

    monkeypatch.setattr(fits._Shown, "on_step_end", noted)
    return seen


def fit_whole(folder):
    better = iter(range(16))
    fit(Falling(), RESPONSES, SETTINGS, folder, Silent(), lambda: next(better))


def test_the_learning_rate_rises_and_falls_to_nothing(rates, tmp_path):
    fit_whole(tmp_path)
    assert max(rates) == pytest.approx(0.1)
    assert rates.index(max(rates)) <= 2
    assert rates[-1] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("looks", [(2, 4, 6), (10, 20, 40)], ids=["one", "four"])
def test_the_first_steps_are_the_largest_of_a_training_and_count_by_their_rates(
    looks, rates, tmp_path
):
    """With so many steps of warm-up. AdamW takes steps as large as the rate, along any gradient."""
    fit_whole(tmp_path / "whole")
    whole = sum([0.0, *rates[:-1]])  # the first step is taken at 0, each other as was seen before
    rates.clear()
    draft, falls = Falling(), []

    def look():
        falls.append(1 - draft.module.weight.item())
        return 0.0

    begin(draft, RESPONSES, SETTINGS, tmp_path / "first", Silent(), looks, look)
    assert len(rates) == looks[-1]
    assert rates[4:] == pytest.approx([0.1] * (looks[-1] - 4))
    taken = np.cumsum([0.0, *rates[:-1]])[[steps - 1 for steps in looks]]
    assert falls == pytest.approx(taken, rel=0.1)  # besides AdamW's decay of the weight
    assert draft.weight == round(1 - falls[-1], 4)
    assert [share_of(n, looks[-1], total=16) for n in looks] == pytest.approx(taken / whole)
    assert not any(each.is_file() for each in (tmp_path / "first").rglob("*"))


@pytest.mark.parametrize("rate", [0.0, -1e-4, math.inf, math.nan])
def test_a_learning_rate_that_trains_nothing_is_refused(rate):
    with pytest.raises(UsageError, match="--learning-rate"):
        TrainingSettings(learning_rate=rate)


def test_without_a_learning_rate_it_is_by_the_width_of_the_draft():
    assert TrainingSettings().rate_for(128) == pytest.approx(0.02 / 128)
    assert TrainingSettings(learning_rate=1e-4).rate_for(128) == 1e-4
