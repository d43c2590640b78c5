"""How much of the data a forecast trains on."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from draftbench.errors import UsageError
from draftbench.training.forecast import part_sizes


def test_of_much_data_the_parts_are_less_than_a_tenth():
    assert part_sizes(10_000, 8) == [50, 100, 200, 400]


def test_of_little_data_they_are_one_two_four_and_eight_steps():
    assert part_sizes(149, 8) == [8, 16, 32, 64]


def test_no_part_is_more_than_half_of_the_data():
    assert part_sizes(100, 8) == [8, 16, 32]


def test_too_few_responses_for_three_parts_are_refused_with_the_batch_that_makes_them():
    with pytest.raises(UsageError, match="too few to forecast") as refused:
        part_sizes(40, 8)
    assert "`--batch 5`" in refused.value.hint
    assert part_sizes(40, 5) == [5, 10, 20]


@given(responses=st.integers(8, 100_000), batch=st.integers(1, 64))
def test_every_part_has_more_steps_than_the_one_before(responses, batch):
    assume(responses >= 8 * batch)
    steps = [math.ceil(size / batch) for size in part_sizes(responses, batch)]
    assert len(steps) >= 3
    assert steps == sorted(set(steps))
