"""What the noise of timed passes does to a choice."""

from __future__ import annotations

from typing import Any

import pytest

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate

SMALL = Candidate(draft="small")
ALL = [1.0] * 8


def noisy(scene: Any, requests: int = 2) -> None:
    """A draft step of 0.1 s in one repeat of three and 2 s in two: redrawn, its median is 0.1 s
    where two or three of three draws are that repeat, with probability 7/27. At 0.1 s four rounds
    of 1.1 + 0.1 s beat 8 s of plain decoding, at 2 s they do not.
    """
    scene.requests(requests, ALL)
    scene.times({1: 1.0, 2: 1.1}, {1: (0.1, 2.0, 2.0), 2: (0.1, 2.0, 2.0)})


def test_a_prediction_is_as_sure_as_its_timing_samples(scene: Any) -> None:
    noisy(scene)
    found = recommend(scene.observed(1))
    assert found.decision == "do_not_speculate"
    assert found.probability_best == pytest.approx(20 / 27, abs=0.06)
    assert found.expected_regret == pytest.approx(7 / 27 * (8 / 4.8 - 1), abs=0.04)
    assert found.evaluations[0].probability_best == pytest.approx(7 / 27, abs=0.06)


def test_a_measurement_has_no_timing_samples_to_draw(scene: Any) -> None:
    noisy(scene, requests=5)
    for name in (f"r{i}" for i in range(5)):
        scene.decode(name, 0, 8.0)
        scene.decode(name, 1, 4.0)
    found = recommend(scene.observed(1))
    assert (found.decision, found.probability_best) == ("speculate", 1.0)


def test_prefills_do_not_move(scene: Any) -> None:
    # 8 + 992 s against 4.8 or 12.4 + 992: nothing to choose within timing noise.
    noisy(scene)
    for draft, seconds in ((None, 992.0), ("small", 0.0)):
        scene.cost(draft, SMALL, 10, seconds, contexts=(0,), what="prefill")
    found = recommend(scene.observed(1), DecisionOptions(objective="latency"))
    assert found.probability_best == 1.0
