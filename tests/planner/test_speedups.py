"""A speed-up by its names: each has one value wherever it stands, and none where requests are too
few for an interval.
"""

from __future__ import annotations

from typing import Any

import pytest

from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration, Evaluation, Recommendation
from draftbench.records import Candidate

SMALL = Candidate(draft="small")
TARGET = {1: 1.0, 2: 1.1, 3: 1.2}
CHEAP = {1: 0.1, 2: 0.15}
ALL, NONE = [1.0] * 8, [0.0] * 8


def at(found: Recommendation, draft: str, k: int) -> Evaluation:
    return next(c for c in found.evaluations if (c.draft, c.k) == (draft, k))


def test_each_name_of_a_speedup_is_one_figure_everywhere(scene: Any) -> None:
    # Of five good requests and two bad ones the good were decoded, at 8 / 5 where 8 / 4.1 is
    # predicted; 56 / 41.7 is for all.
    scene.requests(5, ALL)
    for name in ("bad", "worse"):
        scene.request(name)
        scene.replay(name, NONE)
    scene.times(TARGET, CHEAP)
    for name in (f"r{i}" for i in range(5)):
        scene.decode(name, 0, 8.0)
        scene.decode(name, 2, 5.0)
    found = recommend(scene.observed(2))
    cell, (level,) = at(found, "small", 2), found.levels
    predicted, expected = 56 / 41.7, 56 / 41.7 * 1.6 / (8 / 4.1)
    values = {"predicted": predicted, "measured": 1.6, "expected": expected}
    for name, value in values.items():
        figure = getattr(cell, f"speedup_{name}")
        assert figure.value == pytest.approx(value)
        assert getattr(level, f"speedup_{name}") == figure
    assert cell.requests_measured == 5
    assert level.tokens_per_second == pytest.approx(expected * level.tokens_per_second_plain)
    assert level.speedup_deciding == found.speedup_deciding


def test_what_decides_is_seen_by_requests_that_did_not_choose(scene: Any) -> None:
    # k = 1 takes 4.95 s of a good request and 9.4 of a bad one, k = 2 takes 4.1 and 10.6.
    for i in range(6):
        scene.request(f"r{i}")
        scene.replay(f"r{i}", NONE if i in (4, 5) else ALL)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(1, 2))
    assert found.leader == Configuration(draft="small", quant="none", k=2)
    expected, deciding = at(found, "small", 2).speedup_expected, found.speedup_deciding
    assert expected is not None
    assert expected.value == pytest.approx(48 / (4 * 4.1 + 2 * 10.6))
    # Without one of r1, r2, r3 the two k's are a tie, and the smaller is taken.
    assert deciding is not None
    assert deciding.value == pytest.approx(48 / (4.1 + 3 * 4.95 + 2 * 10.6))
    assert deciding == found.levels[0].speedup_deciding == found.speedup_predicted_cross_fitted


def test_one_request_has_a_speedup_without_an_interval(scene: Any) -> None:
    scene.requests(1, ALL)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(2))
    assert found.speedup_without_interval == pytest.approx(8 / 4.1)
    assert (found.speedup_deciding, found.probability_best, found.break_even) == (None,) * 3
    assert found.evaluations[0].probability_best is None
    scene.request("another")
    scene.replay("another", ALL)
    assert recommend(scene.observed(2)).speedup_without_interval is None


def test_a_k_that_was_not_decoded_beside_one_that_was_has_no_expectation(scene: Any) -> None:
    # k = 2 is predicted at 8 / 4.1 and took 16 s. The prediction of k = 1, 8 / 4.95, would look
    # better beside it than it is.
    scene.requests(5, ALL)
    scene.times(TARGET, CHEAP)
    for draft, seconds in ((None, 2.0), ("small", 1.0)):
        scene.cost(draft, SMALL, 10, seconds, contexts=(0,), what="prefill")
    before = at(recommend(scene.observed(1, 2)), "small", 1)
    assert before.speedup_expected == before.speedup_predicted
    assert before.speedup_end_to_end_expected == before.speedup_end_to_end
    for name in (f"r{i}" for i in range(5)):
        scene.decode(name, 0, 8.0)
        scene.decode(name, 2, 16.0)
    found = recommend(scene.observed(1, 2))
    one, two = at(found, "small", 1), at(found, "small", 2)
    assert one.speedup_predicted is not None
    assert (one.speedup_expected, one.speedup_end_to_end_expected) == (None, None)
    assert two.speedup_expected is not None
    assert two.speedup_expected.value == pytest.approx(0.5)
    assert two.speedup_end_to_end_expected is not None


def test_a_draft_of_which_nothing_was_decoded_expects_its_prediction(scene: Any) -> None:
    big = Candidate(draft="big")
    for candidate in (SMALL, big):
        scene.requests(2, ALL, candidate)
        scene.times(TARGET, CHEAP, candidate)
    for name in ("r0", "r1"):
        scene.decode(name, 0, 8.0)
        scene.decode(name, 2, 5.0)
    cell = at(recommend(scene.observed(1, 2)), "big", 1)
    assert cell.speedup_expected is not None
    assert cell.speedup_expected == cell.speedup_predicted
