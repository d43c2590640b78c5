"""A decision that a better run might not make is called provisional, with the reason; others are
not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from draftbench.planner.recommend import recommend
from draftbench.planner.sources import RunCosts
from draftbench.records import MachineState
from draftbench.run_folder.run import Run

ALL, NONE = [1.0] * 8, [0.0] * 8
ROUNDS = {"proposed": (2, 2, 1), "accepted": (2, 2, 1), "cut": (0,) * 3} | {
    "draft_seconds": (0.0,) * 3,
    "verify_seconds": (1.4,) * 3,
}


def run(scene: Any, requests: int = 30, decoded: int = 10, slower: float = 1.0) -> Run:
    """A draft that halves the time; every other decoding run is by so much slower."""
    scene.requests(requests, ALL)
    scene.times({1: 1.0, 2: 1.1, 3: 1.2}, {1: 0.1, 2: 0.15})
    for at in range(2 * decoded):
        pace = slower if at >= decoded else 1.0
        scene.decode(f"r{at % decoded}", 0, 8.0 * pace)
        scene.decode(f"r{at % decoded}", 2, 4.2 * pace, **ROUNDS)
    return scene.observed(2)


def state(seconds: float, others: float) -> MachineState:
    return MachineState(
        at=0.0,
        seconds=seconds,
        others=others,
        throttled=None,
        process="p",
    )


def test_a_clean_run_is_decided(scene: Any) -> None:
    found = recommend(run(scene))
    assert (found.decision, found.provisional) == ("speculate", ())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"requests": 29}, "only 29 requests"),
        ({"decoded": 9}, "only 9 decoded with a watch"),
        ({"slower": 1.1}, "the machine became 20% slower during the run"),
    ],
)
def test_what_a_decision_hangs_on_is_named(
    scene: Any, changes: dict[str, Any], reason: str
) -> None:
    # Two rounds of decoding, 20 baseline runs: 1.1 between a request's two is 1.1 ** 1.9 in all.
    assert recommend(run(scene, **changes)).provisional == (reason,)


def test_a_drift_below_what_intervals_allow_for_is_no_reason(scene: Any) -> None:
    found = recommend(run(scene, slower=1.04))
    assert any("plain decoding became" in caveat for caveat in found.caveats)
    assert found.provisional == ()


def test_a_machine_that_others_used_for_some_time_was_busy(scene: Any) -> None:
    clean = run(scene)
    for busy, said in ((9.0, ()), (12.0, ("the machine was busy",))):
        states = state(100.0 - busy, 0.1), state(busy, 0.5)
        assert recommend(dataclasses.replace(clean, states=states)).provisional == said


def test_a_load_at_the_start_is_a_busy_machine(scene: Any) -> None:
    run(scene)
    for load, said in ((0.7, ()), (0.8, ("the machine was busy",))):
        assert recommend(scene.observed(2, load=load)).provisional == said


def test_costs_from_elsewhere_do_not_hang_on_this_machine(scene: Any) -> None:
    run(scene)
    loaded = scene.observed(2, load=3.0)
    other = dataclasses.replace(loaded, manifest=scene.observed(2).manifest)
    costs = RunCosts(other, origin="elsewhere")
    assert recommend(loaded, costs=costs).provisional == ()
    assert recommend(other, costs=RunCosts(loaded, origin="elsewhere")).provisional == (
        "the machine was busy",
    )


def test_what_is_not_finished_is_provisional(scene: Any) -> None:
    found = run(scene)
    asked = dataclasses.replace(found, manifest=scene.observed(2, drafts=("small", "big")).manifest)
    assert recommend(asked).provisional == ("the run is not finished",)


def test_where_nothing_is_decided_it_is_said_what_a_better_run_needs(scene: Any) -> None:
    for i in range(8):
        scene.request(f"r{i}")
        scene.replay(f"r{i}", ALL if i % 2 else NONE)
    scene.times({1: 1.0, 2: 1.1, 3: 1.2}, {1: 0.1, 2: 0.15})
    found = recommend(scene.observed(1))
    assert (found.decision, found.provisional) == ("inconclusive", ("only 8 requests",))
