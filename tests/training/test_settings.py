"""What can be asked of a training."""

import math

import pytest

from draftbench.errors import UsageError
from draftbench.training.settings import TrainingSettings


@pytest.mark.parametrize("rate", [0.0, -1e-4, math.inf, math.nan])
def test_a_learning_rate_that_trains_nothing_is_refused(rate):
    with pytest.raises(UsageError, match="--learning-rate"):
        TrainingSettings(learning_rate=rate)


def test_without_one_it_is_by_the_width_of_the_draft():
    assert TrainingSettings().rate_for(128) == pytest.approx(0.02 / 128)
    assert TrainingSettings(lora=8).rate_for(128) == pytest.approx(0.2 / 128)
    assert TrainingSettings(learning_rate=1e-4).rate_for(128) == 1e-4
