"""The decision, from runs made by hand to the JSON that scripts read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import promising_ks, recommend
from draftbench.planner.recommendation import (
    Configuration,
    Evaluation,
    PredictionError,
    Recommendation,
)
from draftbench.records import Candidate

SMALL, BIG = Candidate(draft="small"), Candidate(draft="big")
SELF, NGRAM = Candidate(draft="self"), Candidate(draft="ngram")
TARGET = {1: 1.0, 2: 1.1, 3: 1.2}
CHEAP, DEAR = {1: 0.1, 2: 0.15}, {1: 1.0, 2: 1.0}
ALL, QUARTER, NONE = [1.0] * 8, [1.0, 0, 0, 0, 1, 0, 0, 0], [0.0] * 8


def texts(found: Recommendation) -> list[str]:
    return [caveat.text for caveat in found.caveats]


def at(found: Recommendation, draft: str, k: int) -> Evaluation:
    return next(c for c in found.evaluations if (c.draft, c.k) == (draft, k))


def says(found: Recommendation, *words: str) -> bool:
    return any(all(word in caveat for word in words) for caveat in texts(found))


def test_a_cheap_draft_that_is_right_is_recommended_at_its_best_k(scene: Any) -> None:
    # k = 1: four rounds, 4 × 1.2 + 3 × 0.05 = 4.95 s; k = 2: 4.1 s; plain decoding: 8 s.
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(1, 2))
    assert found.decision == "speculate"
    assert found.choice == found.leader == Configuration(draft="small", quant="none", k=2)
    one, two = at(found, "small", 1), at(found, "small", 2)
    assert one.speedup_predicted is not None
    assert two.speedup_predicted is not None
    assert one.speedup_predicted.value == pytest.approx(8 / 4.95)
    assert two.speedup_predicted.value == pytest.approx(8 / 4.1)
    assert (one.best, two.best, two.reason) == (False, True, None)
    assert one.reason is not None
    assert one.reason.startswith("slower: ")
    assert (found.requests, found.output_tokens) == (2, 18)


def test_more_acceptance_loses_when_it_is_too_dear(scene: Any) -> None:
    # small at k = 1: proposals at 1, 3, 4, 5, 7, the first and fourth right, one plain step:
    # 5 × 1.1 + 1 + 5 × 0.1 = 7 s, and after both full rounds 0.05 s more. big: 4 × (1.1 + 1) s.
    scene.requests(2, QUARTER)
    scene.requests(2, ALL, BIG)
    scene.times(TARGET, CHEAP)
    scene.times(TARGET, DEAR, BIG)
    found = recommend(scene.observed(1))
    assert found.choice == Configuration(draft="small", quant="none", k=1)
    assert found.runner_up == Configuration(draft="big", quant="none", k=1)
    small, big = at(found, "small", 1), at(found, "big", 1)
    assert small.alpha is not None
    assert big.alpha is not None
    assert (small.alpha.value, big.alpha.value) == (0.25, 1.0)
    assert small.speedup_predicted is not None
    assert small.speedup_predicted.value == pytest.approx(8 / 7.1)
    assert big.reason == (
        "no faster than plain decoding: 0.95×, 2.00 tokens per round at the cost of 2.10 target "
        "steps"
    )


def test_do_not_speculate_is_an_answer(scene: Any) -> None:
    scene.requests(2, ALL, BIG)
    scene.times(TARGET, DEAR, BIG)
    found = recommend(scene.observed(1))
    assert (found.decision, found.choice) == ("do_not_speculate", None)
    assert found.leader == Configuration(draft="big", quant="none", k=1)
    assert (found.probability_best, found.expected_regret) == (1.0, 0.0)


def test_the_asked_speedup_is_the_bar(scene: Any) -> None:
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    run = scene.observed(2)
    assert recommend(run, DecisionOptions(min_speedup=1.9)).decision == "speculate"
    assert recommend(run, DecisionOptions(min_speedup=2.0)).decision == "do_not_speculate"


def test_a_speedup_that_only_reaches_the_bar_is_not_worth_having(scene: Any) -> None:
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    run = scene.observed(2)
    reached = at(recommend(run), "small", 2).speedup_expected
    assert reached is not None
    assert recommend(run, DecisionOptions(min_speedup=reached.high)).decision == "do_not_speculate"


def test_requests_that_disagree_too_much_are_inconclusive_and_more_are_asked_for(
    scene: Any,
) -> None:
    # Good requests take 4.95 s, bad ones 7 × 1.2 + 1 = 9.4 s, plain decoding 8 s: pooled 16/14.35.
    for i in range(8):
        scene.request(f"r{i}")
        scene.replay(f"r{i}", ALL if i % 2 else NONE)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(1))
    assert (found.decision, found.choice) == ("inconclusive", None)
    assert found.leader == Configuration(draft="small", quant="none", k=1)
    cell = at(found, "small", 1)
    assert cell.speedup_predicted is not None
    assert cell.speedup_predicted.value == pytest.approx(16 / 14.35)
    assert found.requests_needed is not None
    assert found.requests_needed > 8


def test_unknown_cost_leaves_acceptance_and_says_why(scene: Any) -> None:
    scene.requests(2, QUARTER)
    scene.facts("small", has_kernel=False, caveats=("simulated",))
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(1))
    assert (found.decision, found.choice, found.leader) == ("inconclusive", None, None)
    cell = at(found, "small", 1)
    assert cell.alpha is not None
    assert cell.mean_accepted_length is not None
    unknown = (
        cell.draft_cost_ratio,
        cell.verify_ratio,
        cell.speedup_predicted,
        cell.speedup_end_to_end,
        cell.speedup_measured,
    )
    assert unknown == (None,) * 5
    assert cell.reason == "its speed is unknown: no fast kernel for none on this device"
    assert not cell.best
    assert says(found, "no candidate's speed is known")
    assert says(found, "small: simulated")


def test_the_control_is_never_recommended(scene: Any) -> None:
    scene.requests(2, ALL, SELF)
    scene.times(TARGET, None, SELF)
    for name in ("r0", "r1"):
        scene.decode(name, 0, 8.0, SELF)
        scene.decode(name, 1, 2.0, SELF)
    found = recommend(scene.observed(1))
    cell = at(found, "self", 1)
    assert cell.speedup_measured is not None
    assert cell.speedup_measured.value == pytest.approx(4.0)
    assert (found.decision, found.leader) == ("inconclusive", None)
    assert cell.reason == "a control: the target as its own draft is never recommended"


def test_prompt_lookup_may_win_and_takes_no_memory(scene: Any) -> None:
    for name in ("a", "b"):
        scene.request(name)
        scene.lookup(name, [2] * 8, [2] * 8)
    scene.times(TARGET, None, NGRAM)
    scene.cost("ngram", NGRAM, 2, 0.01, what="proposal")
    found = recommend(scene.observed(1, 2))
    assert found.choice == Configuration(draft="ngram", quant="none", k=2)
    cell = at(found, "ngram", 2)
    assert (cell.alpha, cell.alpha_basis, cell.memory_bytes) == (None, None, 0)


def test_memory_is_weights_and_cache_at_the_longest_context(scene: Any) -> None:
    scene.requests(2, ALL)
    scene.request("long", 30, prompt_tokens=70)
    scene.facts("small", weight_bytes=5000, kv_bytes_per_token=3)
    assert at(recommend(scene.observed(1)), "small", 1).memory_bytes == 5000 + 100 * 3


def test_a_tie_goes_to_the_smaller_draft_and_is_said(scene: Any) -> None:
    scene.requests(2, ALL)
    scene.requests(2, ALL, BIG)
    scene.times(TARGET, {1: 0.105, 2: 0.15})
    scene.times(TARGET, CHEAP, BIG)
    scene.facts("small", weight_bytes=100)
    scene.facts("big", weight_bytes=999)
    found = recommend(scene.observed(2))
    assert found.choice == Configuration(draft="small", quant="none", k=2)
    assert says(found, "big at k = 2 is faster than small at k = 2 by less than timing noise")
    assert (
        at(found, "big", 2).reason
        == "a tie with small at k = 2 (1.94), which has the smaller draft"
    )


def test_a_measurement_overrules_its_prediction(scene: Any) -> None:
    scene.requests(5, ALL)
    scene.times(TARGET, CHEAP)
    for name in (f"r{i}" for i in range(5)):
        scene.decode(name, 0, 8.0)
        scene.decode(name, 2, 16.0)
    found = recommend(scene.observed(1, 2))
    assert found.decision == "do_not_speculate"
    words = "small at k = 2: 1.95× predicted, 0.50× expected after measuring; the decision goes"
    assert says(found, words)
    assert at(found, "small", 1).reason == "not decoded: this draft is judged by the k's that were"


def test_the_prediction_error_is_taken_on_the_measured_requests(scene: Any) -> None:
    # "r0" accepts all (k = 1: 8/4.95), "r1" nothing (8/9.4); only "r1" was decoded, at 8/10.
    scene.requests(1, ALL)
    scene.request("r1")
    scene.replay("r1", NONE)
    scene.times(TARGET, CHEAP)
    scene.decode("r1", 0, 8.0)
    scene.decode("r1", 1, 10.0)
    found = recommend(scene.observed(1))
    error = (8 / 9.4) / (8 / 10) - 1
    assert at(found, "small", 1).prediction_error == pytest.approx(error)
    assert found.prediction_error is not None
    assert found.prediction_error.median == found.prediction_error.worst == pytest.approx(error)
    assert found.prediction_error.configurations == 1


def test_median_and_worst_error_ignore_the_sign(scene: Any) -> None:
    # Predicted 4.95 and 4.1 s; measured 10 % less and 20 % more time. One cell a draft, so that the
    # baseline alone (no overhead) prices the rounds.
    other = Candidate(draft="other")
    for candidate in (Candidate(draft="small"), other):
        scene.requests(2, ALL, candidate)
        scene.times(TARGET, CHEAP, candidate)
    for name in ("r0", "r1"):
        scene.decode(name, 0, 8.0)
        scene.decode(name, 1, 4.95 * 0.9)
        scene.decode(name, 0, 8.0, other)
        scene.decode(name, 2, 4.1 * 1.2, other)
    found = recommend(scene.observed(1, 2)).prediction_error
    assert found is not None
    assert (found.median, found.worst, found.configurations) == pytest.approx((0.15, 0.2, 2))


def test_counters_of_the_decoding_runs_stand_beside_the_replayed_ones(scene: Any) -> None:
    # Counted: 2 proposed and 2 accepted in one round. Replayed: 5 of 5 in three rounds.
    scene.requests(2, ALL)
    for name in ("r0", "r1"):
        scene.decode(name, 0, 8.0)
        scene.decode(name, 2, 4.0)
    cell = at(recommend(scene.observed(2)), "small", 2)
    assert cell.mean_accepted_length_measured is not None
    assert cell.mean_accepted_length is not None
    assert cell.mean_accepted_length_measured.value == pytest.approx(3.0)
    assert cell.mean_accepted_length.value == pytest.approx(1 + 5 / 3)


def test_the_json_is_the_contract(scene: Any) -> None:
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    document = msgspec.json.decode(msgspec.json.encode(recommend(scene.observed(2))))
    assert document["decision"] == "speculate"
    assert document["choice"] == {"draft": "small", "quant": "none", "k": 2, "concurrency": 1}
    (cell,) = document["evaluations"]
    assert (cell["draft"], cell["quant"], cell["k"]) == ("small", "none", 2)
    for figure in ("alpha", "mean_accepted_length", "draft_cost_ratio", "verify_ratio"):
        assert set(cell[figure]) == {"value", "low", "high"}
    assert cell["speedup_predicted"]["value"] == pytest.approx(8 / 4.1)
    assert cell["speedup_measured"] is None
    assert cell["verify_ratio"]["value"] == pytest.approx(1.2)
    assert (document["requests"], document["output_tokens"]) == (2, 18)
    assert document["prediction_error"] is None
    assert msgspec.convert(document, Recommendation) == recommend(scene.observed(2))
    assert set(PredictionError.__struct_fields__) >= {
        "median",
        "worst",
    }


def test_the_cells_worth_measuring_are_the_best_k_and_its_neighbours_in_the_grid(
    scene: Any,
) -> None:
    # Passes of 4 and more tokens cost 6 s: k = 2 is best.
    scene.requests(2, ALL)
    scene.times(TARGET | {4: 6.0, 9: 6.0}, CHEAP)
    assert promising_ks(scene.observed(1, 2, 4, 8), SMALL) == [1, 2, 4]
    assert promising_ks(scene.observed(2, 4, 8), SMALL) == [2, 4]
    assert promising_ks(scene.observed(2), SMALL) == [2]


def test_decoding_runs_do_not_change_which_cells_are_worth_measuring(scene: Any) -> None:
    scene.requests(2, ALL)
    scene.times(TARGET | {4: 6.0, 9: 6.0}, CHEAP)
    scene.decode("r0", 8, 99.0, verify_seconds=(1.0,))
    scene.decode("r0", 1, 1.0, verify_seconds=(1.0,))
    assert promising_ks(scene.observed(1, 2, 4, 8), SMALL) == [1, 2, 4]


def test_without_costs_no_cell_is_worth_measuring(scene: Any) -> None:
    scene.requests(2, ALL)
    run = scene.observed(1, 2)
    assert promising_ks(run, SMALL) == []
    assert promising_ks(run, BIG) == []
