"""Predicted speed-ups, each counted by hand from rounds and seconds."""

from __future__ import annotations

from typing import Any

import pytest

from draftbench.planner.predict import Prediction, Predictor, predict, predictor_of, untimed
from draftbench.records import Candidate

SMALL, NGRAM = Candidate(draft="small"), Candidate(draft="ngram")
TARGET = {1: 1.0, 2: 1.1, 3: 1.2}
DRAFT = {1: 0.1, 2: 0.15}


def predicted(scene: Any, k: int, candidate: Candidate = SMALL) -> Prediction:
    return predict(predictor(scene, candidate), k)


def predictor(scene: Any, candidate: Candidate = SMALL) -> Predictor:
    return predictor_of(scene.observed(1, 2), candidate)


def value(found: Prediction) -> float:
    sample = found.speedup()
    assert sample is not None
    assert sample.value is not None
    return sample.value


def test_two_requests_that_accept_everything(scene: Any) -> None:
    # 8 tokens after the first at k = 2: rounds start at 1, 4 and 7, the last proposes one token.
    # Plain 8 × 1.0. Passes 1.2 + 1.2 + 1.1, five draft steps of 0.1, and two rounds follow a full
    # one, whose first step reads two tokens: 2 × 0.05. Together 4.1.
    scene.requests(2, [1.0] * 8)
    scene.times(TARGET, DRAFT)
    assert value(predicted(scene, 2)) == pytest.approx(8 / 4.1)


def test_a_draft_that_is_never_right_costs_its_steps_and_longer_passes(scene: Any) -> None:
    # 8 rounds; at k = 1 the first seven propose one token, the last position proposes none.
    scene.requests(2, [0.0] * 8)
    scene.times(TARGET, DRAFT)
    assert value(predicted(scene, 1)) == pytest.approx(8 / (7 * (1.1 + 0.1) + 1.0))


def test_the_long_request_weighs_by_its_seconds_and_a_heavy_one_by_its_weight(scene: Any) -> None:
    # "a" accepts all 8 tokens (k = 1: rounds at 1, 3, 5, 7: 4 × 1.2 and 3 × 0.05), "b" is one plain
    # step and stands for three.
    scene.request("a", 9)
    scene.request("b", 2, weight=3.0)
    scene.replay("a", [1.0] * 8)
    scene.replay("b", [1.0])
    scene.times(TARGET, DRAFT)
    assert value(predicted(scene, 1)) == pytest.approx((8 + 3) / (4.95 + 3))


def test_each_request_pays_at_its_own_context(scene: Any) -> None:
    # prompt + L/2 is 10 + 2 / 2 = 11 and 90 + 2 / 2 = 91; a step takes a second per 100 tokens.
    for name, prompt in (("near", 10), ("far", 90)):
        scene.request(name, 2, prompt_tokens=prompt, limit=9)
        scene.replay(name, [0.0])
    for context in (0, 100):
        scene.times(dict.fromkeys((1, 2, 3), context / 100), {1: 0.1, 2: 0.1}, contexts=(context,))
    found = predicted(scene, 1)
    assert found.decoding is not None
    assert found.decoding[:, 0] == pytest.approx([0.11, 0.91])
    assert found.decoding[:, 1] == pytest.approx([0.21, 1.01])


def test_overheads_are_paid_per_round_by_both_sides(scene: Any) -> None:
    # Each of the baseline's 8 steps takes 0.1 s beyond its pass; the other cell's one round (k = 1:
    # a draft step of 0.1, a pass of 1.1) takes 0.5 s beyond them.
    scene.requests(2, [1.0] * 8)
    scene.times(TARGET, DRAFT)
    scene.decode("r0", 0, 8 * 1.1)
    scene.decode("r0", 1, 1.2 + 0.5)
    scene.decode("r0", 2, 99.0)
    assert value(predicted(scene, 2)) == pytest.approx(8 * 1.1 / (4.1 + 3 * 0.5))


def test_the_runs_of_the_predicted_cell_change_nothing(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.times(TARGET, DRAFT)
    scene.decode("r0", 1, 1.5, verify_seconds=(1.0,))
    before = value(predicted(scene, 2))
    scene.decode("r0", 2, 99.0, verify_seconds=(1.0,), draft_seconds=(50.0,))
    assert value(predicted(scene, 2)) == before


def test_prompt_lookup_pays_one_proposal_a_round_whatever_it_finds(scene: Any) -> None:
    # Starts 1 (two found, both match), 4 (nothing found), 5 (one found, wrong), 6, 7, 8 (nothing).
    for name in ("a", "b"):
        scene.request(name)
        scene.lookup(name, [2, 0, 0, 0, 1, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0])
    scene.times(TARGET, None, NGRAM)
    scene.cost("ngram", NGRAM, 2, 0.01, what="proposal")
    rounds = 1.2 + 1.0 + 1.1 + 3 * 1.0 + 6 * 0.01
    assert value(predicted(scene, 2, NGRAM)) == pytest.approx(8 / rounds)


def test_end_to_end_adds_both_prefills(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.times(TARGET, DRAFT)
    assert predicted(scene, 2).end_to_end() is None
    for draft, seconds in ((None, 2.0), ("small", 0.5)):
        scene.cost(draft, SMALL, 10, seconds, contexts=(0,), what="prefill")
    sample = predicted(scene, 2).end_to_end()
    assert sample is not None
    assert sample.value == pytest.approx((8 + 2) / (4.1 + 2.5))


def test_without_costs_the_rounds_are_still_known(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    found = predicted(scene, 2)
    assert found.speedup() is None
    assert found.end_to_end() is None
    assert found.rounds.accepted.tolist() == [5, 5]


def test_costs_asked_beyond_the_timed_points_are_named(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.times(TARGET, DRAFT, contexts=(0, 14))
    assert untimed(predictor(scene), 3) == (
        "target passes were not timed at the size or context of 2 of 2 responses; "
        "the nearest timed ones stand in",
        "draft steps were not timed at the size or context of 2 of 2 responses; "
        "the nearest timed ones stand in",
    )
    scene.times(TARGET, DRAFT, contexts=(15,))
    assert untimed(predictor(scene), 2) == ()
    assert len(untimed(predictor(scene), 3)) == 1
