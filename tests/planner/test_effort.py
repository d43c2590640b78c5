"""A command line tells what it asked to be measured, or nothing."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from draftbench.cli.sweep import sweep
from draftbench.planner.effort import SHORTEST_DECODED, Effort, effort_of
from draftbench.sweep.responses import SHORTEST_MEASURED

COMMAND = "draftbench sweep --target './a b' --traffic prod.jsonl"


@pytest.mark.parametrize(
    ("flags", "effort"),
    [
        ("", Effort("best", 24, True)),
        ("--measure all --measure-requests 7 --no-controls", Effort("all", 7, False)),
        ("--measure=none --measure-requests=7", Effort("none", 7, True)),
    ],
)
def test_flags_are_read_with_their_defaults(flags: str, effort: Effort) -> None:
    assert effort_of(f"{COMMAND} {flags}") == effort


@pytest.mark.parametrize(
    "command",
    [
        "draftbench demo",
        "draftbench sweep sweep.yaml",
        f"{COMMAND} more.yml",
        "draftbench sweep --target t",
        "draftbench -f kernel.json",
        f"{COMMAND} --measure-requests many",
        "draftbench sweep 'a quote that does not end",
        "",
    ],
)
def test_a_command_that_holds_not_all_flags_tells_nothing(command: str) -> None:
    assert effort_of(command) is None


def test_defaults_and_the_least_length_are_those_of_the_sweep() -> None:
    flags = signature(sweep).parameters
    assert {name: flags[name].default for name in vars(Effort())} == vars(Effort())
    assert SHORTEST_DECODED == SHORTEST_MEASURED


def test_responses_that_are_too_short_are_decoded_only_where_there_are_no_others(
    scene: Any,
) -> None:
    scene.requests(2, [1.0] * 3)
    scene.request("of one token", 1)
    assert Effort().decoded(scene.observed(1)) == 2
    scene.request("long", 8)
    assert Effort().decoded(scene.observed(1)) == 1
    assert Effort(measure="none").decoded(scene.observed(1)) == 0
    assert not Effort(measure="replay").times
