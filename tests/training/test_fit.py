"""When a training stops, what it keeps, and how it resumes: a weight that falls with every step."""

import pytest
import torch
from torch import nn

from draftbench.errors import RunFolderError
from draftbench.training import fit as fits
from draftbench.training.fit import PATIENCE, fit
from draftbench.training.settings import TrainingSettings

SETTINGS = TrainingSettings(epochs=8, batch=1, learning_rate=0.1)
RESPONSES = (1.0,) * 2  # two steps an epoch, so that every step is looked at


class Falling:
    """A draft of one weight, whose loss it is."""

    width = 1

    def __init__(self):
        self.module = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.module.weight)

    def batch(self, responses):
        return {"of": torch.tensor(responses)}

    def loss(self, batch):
        return self.module.weight.sum()

    @property
    def weight(self):
        return round(self.module.weight.item(), 4)


class Silent:
    def stage(self, what, total):
        pass

    def advance(self, units=1):
        pass


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


def test_after_some_looks_without_a_better_one_it_ends(trained):
    _, looks, _ = trained(0.3, *[0.2] * 20)
    assert len(looks) == 1 + PATIENCE


def test_with_ever_better_looks_it_reads_every_epoch(trained):
    _, looks, _ = trained(*(at / 100 for at in range(16)))
    assert len(looks) == 16


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


def test_without_a_look_it_trains_to_the_end_and_keeps_no_checkpoint(tmp_path):
    draft = Falling()
    assert fit(draft, RESPONSES, SETTINGS, tmp_path / "work", Silent()) == []
    assert draft.weight < 1
    assert not any(tmp_path.glob("work/checkpoint-*"))


def test_the_learning_rate_rises_and_falls_to_nothing(tmp_path, monkeypatch):
    rates = []

    def seen(self, args, state, control, **given):
        rates.append(given["lr_scheduler"].get_last_lr()[0])

    monkeypatch.setattr(fits._Shown, "on_step_end", seen)
    fit(Falling(), RESPONSES, SETTINGS, tmp_path / "work", Silent())
    assert max(rates) == pytest.approx(0.1)
    assert rates.index(max(rates)) <= 2
    assert rates[-1] == pytest.approx(0.0, abs=1e-9)
