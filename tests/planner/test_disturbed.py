"""What is said of a machine that was not quiet, and that a quiet one is not mentioned."""

from __future__ import annotations

import pytest

from draftbench.planner.disturbed import disturbances
from draftbench.run_folder.machine import MachineState


def state(**changes):
    fields = {"at": 0.0, "seconds": 10.0, "others": 0.1, "jump": 0.2, "megahertz": 2000.0,
              "throttled": 0, "process": "p"}  # fmt: skip
    return MachineState(**fields | changes)


def test_a_quiet_machine_is_not_mentioned():
    assert list(disturbances([state() for _ in range(9)])) == []
    assert list(disturbances([])) == []
    assert list(disturbances([state(others=None, megahertz=None, throttled=None)])) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"others": 0.6}, ["up to 60% of the cores", "in 25% of the time"]),
        ({"jump": -3600.0}, ["clock jumped 1 times, by -3600 s"]),
        ({"throttled": 4}, ["slowed down 4 times"]),
    ],
)
def test_one_look_in_four_is_enough_to_be_told(changes, words):
    (told,) = disturbances([state(), state(**changes), state(), state()])
    assert [word for word in words if word not in told] == []


def test_a_frequency_that_fell_is_told_by_the_ends_of_the_run():
    falling = [state(megahertz=m) for m in (3000, 3000, 2800, 2700, 2000, 2000)]
    (told,) = disturbances(falling)
    assert "from 3000 to 2000 MHz" in told
    assert list(disturbances([state(megahertz=m) for m in (3000, 1000, 3000)])) == []
