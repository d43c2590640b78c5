"""What is said of a machine that was not quiet, and that a quiet one is not mentioned."""

from __future__ import annotations

import pytest

from draftbench.planner.disturbed import disturbances
from draftbench.records import MachineState


def state(**changes):
    fields = {"at": 0.0, "seconds": 10.0, "others": 0.1, "throttled": 0, "process": "p"}
    return MachineState(**fields | changes)


def test_a_quiet_machine_is_not_mentioned():
    assert list(disturbances([state() for _ in range(9)])) == []
    assert list(disturbances([])) == []
    assert list(disturbances([state(others=None, throttled=None)])) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"others": 0.6}, ["up to 60% of the cores", "in 25% of the time"]),
        ({"throttled": 4}, ["slowed down 4 times"]),
    ],
)
def test_one_look_in_four_is_enough_to_be_told(changes, words):
    (told,) = disturbances([state(), state(**changes), state(), state()])
    assert [word for word in words if word not in told] == []
