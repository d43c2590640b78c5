"""How much of a training a forecast takes, and how long it finds that all of it will."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from training.falling import Falling, Silent

from draftbench.acceptance.definitions import ALPHA_EMITTED, Sample, quotient
from draftbench.errors import UsageError
from draftbench.training.forecast import first_parts, part_steps
from draftbench.training.settings import TrainingSettings


def parts(responses, batch, epochs=4):
    settings = TrainingSettings(batch=batch, epochs=epochs)
    return part_steps(responses, settings)


def test_two_four_and_six_percent_of_the_training_take_half_as_many_steps_at_the_largest_rate():
    assert parts(8000, 8) == [40, 80, 120]  # of 4000


def test_of_little_data_they_are_two_four_and_six_steps():
    assert parts(149, 8) == [2, 4, 6]  # of 76


def test_parts_beyond_half_of_the_training_are_refused_with_the_batch_that_makes_them():
    assert parts(41, 8) == [2, 4, 6]  # of 24
    with pytest.raises(UsageError, match="too few to forecast") as refused:
        parts(40, 8)
    assert refused.value.hint.startswith("`--batch 6` is enough steps; better sweep more of the ")
    assert parts(40, 6) == [2, 4, 6]


def test_where_no_batch_makes_enough_steps_only_more_traffic_helps():
    with pytest.raises(UsageError) as refused:
        parts(5, 1)
    assert refused.value.hint.startswith("sweep more of the traffic; ")


@given(responses=st.integers(8, 100_000), batch=st.integers(1, 64), epochs=st.integers(1, 20))
def test_every_part_takes_more_steps_than_the_one_before(responses, batch, epochs):
    assume(responses * epochs >= 24 * batch)
    first, second, third = parts(responses, batch, epochs)
    assert 0 < first < second < third


class Clock:
    """Counts seconds that are said to pass."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def passes(self, seconds):
        self.now += seconds


class Stepping(Falling):
    """A draft of which a step takes two seconds, the first of them twenty."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.steps = clock, 0

    def loss(self, batch):
        self.clock.passes(2.0 if self.steps else 20.0)
        self.steps += 1
        return super().loss(batch)


class Replayed:
    """A look takes three seconds besides a tenth for each response."""

    def __init__(self, clock):
        self.clock = clock

    def along(self, _, responses):
        reading = 0.1 * len(responses)
        self.clock.passes(reading)
        accepted = np.column_stack([np.full(60, 5.0), np.full(60, 10.0)])
        names = tuple(map(str, range(60)))
        rate = Sample(ALPHA_EMITTED, names, np.ones(60), accepted, quotient)
        return SimpleNamespace(rate=rate, seconds=reading)

    def now(self, draft, folder, responses):
        self.clock.passes(3.0)
        return self.along(draft, responses)


def test_of_a_look_only_the_reading_takes_longer_in_a_training_and_a_start_is_no_step(
    tmp_path, monkeypatch
):
    clock = Clock(monkeypatch)
    plan = SimpleNamespace(
        examples=SimpleNamespace(train=(1.0,) * 40, stop=(None,) * 300),
        settings=TrainingSettings(batch=1, epochs=4, learning_rate=0.1),
        draft=SimpleNamespace(spec="draft"),
        replayer=Replayed(clock),
        in_training=lambda: Stepping(clock),
    )
    first = first_parts(plan, tmp_path, Silent())
    assert first.steps == [2, 4, 6]
    assert first.a_step == pytest.approx(2.0)
    assert first.a_look == pytest.approx(3.0 + 0.1 * 300)
