"""How much of a training a forecast takes."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from draftbench.errors import UsageError
from draftbench.training.forecast import part_steps
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
    assert refused.value.hint == "`--batch 6` is enough steps; better sweep more of the traffic"
    assert parts(40, 6) == [2, 4, 6]


def test_where_no_batch_makes_enough_steps_only_more_traffic_helps():
    with pytest.raises(UsageError) as refused:
        parts(5, 1)
    assert refused.value.hint == "sweep more of the traffic"


@given(responses=st.integers(8, 100_000), batch=st.integers(1, 64), epochs=st.integers(1, 20))
def test_every_part_takes_more_steps_than_the_one_before(responses, batch, epochs):
    assume(responses * epochs >= 24 * batch)
    first, second, third = parts(responses, batch, epochs)
    assert 0 < first < second < third
