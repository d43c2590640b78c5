"""Who wins, how sure that is, and what the winner is worth to requests that did not choose it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from draftbench.acceptance.definitions import Sample, quotient
from draftbench.planner.measured import SPEEDUP, Measurement
from draftbench.planner.predict import Prediction, Predictor
from draftbench.planner.rank import Alternative, Confidence, Ranking, corrected
from draftbench.records import Candidate


def cell(
    draft: str,
    seconds: Sequence[float],
    *,
    k: int = 1,
    memory: int | None = 1,
    measured: Sequence[float] | None = None,
) -> Alternative:
    """Plain decoding takes 10 s a request, speculation `seconds`, the first ones `measured`."""
    candidate = Candidate(draft=draft)
    predicted = expected = _sample(seconds)
    ran = None
    if measured is not None:
        ran = Measurement(candidate, k, _sample(measured), (), frozenset())
        some = _sample(seconds[: len(measured)])
        expected = corrected(predicted, some, ran.speedup)
    predictor = Predictor(candidate, (), (), None, {}, memory)
    return Alternative(predictor, k, cast(Prediction, None), predicted, ran, expected)


def _sample(seconds: Sequence[float]) -> Sample:
    addends = np.array([(10.0, s) for s in seconds])
    names = tuple(f"r{i}" for i in range(len(seconds)))
    return Sample(SPEEDUP, names, np.ones(len(seconds)), addends, quotient)


def value(sample: Sample | None) -> float:
    assert sample is not None
    assert sample.value is not None
    return sample.value


def test_the_fastest_leads_and_another_candidate_runs_up() -> None:
    a3, a4, b = cell("a", [5.0] * 4, k=3), cell("a", [4.0] * 4, k=4), cell("b", [8.0] * 4)
    ranking = Ranking([a3, a4, b])
    assert ranking.best is a4
    assert ranking.runner_up(a4) is b
    assert Ranking([a3, a4]).runner_up(a4) is None
    assert Ranking([]).best is None


@pytest.mark.parametrize(
    ("other", "winner"),
    [
        (cell("a", [5.05] * 4, k=3, memory=10), "other"),
        (cell("a", [5.2] * 4, k=3, memory=10), "best"),
        (cell("b", [5.05] * 4, k=8, memory=5), "other"),
        (cell("b", [5.05] * 4, k=3, memory=None), "best"),
    ],
    ids=["smaller k within noise", "beyond noise", "smaller draft, larger k", "unknown size"],
)
def test_a_tie_within_timing_noise_goes_to_the_smaller(other: Alternative, winner: str) -> None:
    best = cell("a", [5.0] * 4, k=4, memory=10)
    ranking = Ranking([best, other])
    assert ranking.best is {"best": best, "other": other}[winner]
    assert ranking.faster_within_noise(other) == [best]


def test_a_measured_candidate_is_judged_by_what_was_measured() -> None:
    hoped = cell("a", [1.0] * 5, k=1)
    ran = cell("a", [2.0] * 5, k=2, measured=[8.0] * 5)
    other = cell("b", [5.0] * 5)
    ranking = Ranking([hoped, ran, other])
    assert ranking.best is other
    assert hoped not in ranking.alternatives


def test_fewer_than_five_decoded_requests_neither_correct_nor_exclude() -> None:
    # Four requests ran at 1.25; the prediction of the other k, 10/5, still competes and leads.
    hoped = cell("a", [5.0] * 8, k=1)
    ran = cell("a", [8.0] * 8, k=2, measured=[8.0] * 4)
    assert not ran.corrected
    ranking = Ranking([hoped, ran])
    assert ranking.alternatives == [hoped, ran]
    assert ranking.best is hoped


def test_what_measuring_some_requests_showed_corrects_the_prediction_for_all() -> None:
    # Predicted 40/50 for all and 20/10 for the first two, which were measured at 20/8.
    found = cell("a", [5.0, 5, 20, 20], measured=[4.0, 4])
    assert value(found.expected) == pytest.approx(0.8 * 2.5 / 2)
    assert found.expected is not None
    assert len(found.expected.requests) == 4


def test_where_all_requests_were_measured_the_measurement_stands() -> None:
    assert value(cell("a", [5.0, 3], measured=[2.0, 6]).expected) == pytest.approx(20 / 8)
    ran = _sample([4.0])
    assert corrected(None, None, ran) is ran


def test_a_correction_weighs_requests_as_they_weigh() -> None:
    # r1 counts three times: (10 + 30) / (5 + 60) predicted; 10/20 predicted and 10/10 ran on it.
    predicted = _sample([5.0, 20.0])
    predicted = replace(predicted, weights=np.array([1.0, 3.0]))
    few = replace(_sample([20.0]), requests=("r1",), weights=np.array([3.0]))
    ran = replace(_sample([10.0]), requests=("r1",), weights=np.array([3.0]))
    assert value(corrected(predicted, few, ran)) == pytest.approx(2 * 40 / 65)


def test_cross_fitting_looks_at_each_request_through_what_the_others_choose() -> None:
    # All: a 50/41, b 50/46, so a leads by its luck on r0. Without r0 it is a 40/40, b 40/36: r0 is
    # looked at through b, where it takes 10 s. The others choose a, where they take 10 s each.
    a, b = cell("a", [1.0, 10, 10, 10, 10]), cell("b", [10.0, 9, 9, 9, 9])
    ranking = Ranking([a, b])
    assert ranking.best is a
    found = ranking.cross_fit("predicted")
    assert value(found) == pytest.approx(1.0)
    assert found is not None
    assert sorted(found.requests) == ["r0", "r1", "r2", "r3", "r4"]


def test_cross_fitted_measurements_are_those_of_the_cells_chosen_by_measurement() -> None:
    a = cell("a", [2.0] * 5, measured=[1.0, 10, 10, 10, 10])
    b = cell("b", [4.0] * 5, measured=[10.0, 9, 9, 9, 9])
    ranking = Ranking([a, b])
    assert value(ranking.cross_fit("measured")) == pytest.approx(1.0)
    assert value(ranking.cross_fit("predicted")) == pytest.approx(50 / (4 + 4 * 2))
    assert Ranking([cell("a", [5.0] * 5)]).cross_fit("measured") is None


def test_requests_that_chose_nothing_are_predicted_too() -> None:
    # Measured on two requests, predicted on six: all six have a prediction by the chosen cell.
    found = Ranking([cell("a", [5.0] * 6, measured=[4.0, 4.0])]).cross_fit("predicted")
    assert found is not None
    assert len(found.requests) == 6


def test_what_was_not_decoded_is_ranked_by_what_such_predictions_would_be_on_average() -> None:
    # Predicted 50/25 against 50/30 as measured: 2 · (1/1.1 + 1/1.45) / 2 = 1.60 is less than 1.67.
    hoped, ran = cell("a", [5.0] * 5), cell("b", [6.0] * 5, measured=[6.0] * 5)
    assert Ranking([hoped, ran]).best is hoped
    assert Ranking([hoped, ran], errors=[0.15, -0.2]).best is hoped
    ranking = Ranking([hoped, ran], errors=[0.1, 0.45])
    assert ranking.best is ran
    assert ranking.faster_within_noise(ran) == []
    # In half of the draws the prediction is off by a tenth only.
    found = ranking.confidence(ran)
    assert found is not None
    assert found.probability == pytest.approx(0.5, abs=0.04)
    assert found.regret == pytest.approx(0.5 * (2 / 1.1 - 40 / 24), abs=0.02)


def test_errors_that_made_predictions_too_low_are_no_credit() -> None:
    hoped, ran = cell("a", [6.0] * 5), cell("b", [5.0] * 5, measured=[5.0] * 5)
    assert Ranking([hoped, ran], errors=[-0.4]).best is ran


def test_one_cell_that_was_far_off_does_not_beat_every_draft_that_was_not_decoded() -> None:
    # 2.5 · (8 / 1.01 + 1 / 2.2) / 9 = 2.3 against 1.25, and 1.14 in one draw of nine.
    hoped, ran = cell("a", [4.0] * 5), cell("b", [8.0] * 5, measured=[8.0] * 5)
    ranking = Ranking([hoped, ran], errors=[0.01] * 8 + [1.2])
    assert ranking.best is hoped
    found = ranking.confidence(hoped)
    assert found is not None
    assert found.probability == pytest.approx(8 / 9, abs=0.03)


def test_parts_that_choose_a_measurement_and_a_prediction_are_summed_alike() -> None:
    """Without r0 b leads, 40/36; the others choose a, 10 s a request as measured. So r0 is seen at
    10 s through b and the rest at 10 s each through a.
    """
    a = cell("a", [1.0, 10, 10, 10, 10], measured=[1.0, 10, 10, 10, 10])
    b = cell("b", [10.0, 9, 9, 9, 9])
    found = Ranking([a, b]).cross_fit("expected")
    assert value(found) == pytest.approx(1.0)
    assert found is not None
    assert sorted(found.requests) == ["r0", "r1", "r2", "r3", "r4"]


def test_certainty_counts_plain_decoding_among_the_options() -> None:
    fast, slow = cell("a", [5.0] * 6), cell("b", [20.0] * 6)
    ranking = Ranking([fast, slow])
    found = [ranking.confidence(choice) for choice in (fast, slow, None)]
    assert found == [Confidence(1.0, 0.0), Confidence(0.0, 1.5), Confidence(0.0, 1.0)]
    assert Ranking([]).confidence(None) is None


def test_a_choice_that_hangs_on_one_request_of_two_is_best_as_often_as_that_is_drawn() -> None:
    # a beats plain decoding unless the resample of two holds r1 twice: a quarter of the draws.
    ranking = Ranking([cell("a", [2.0, 16.0])])
    found = ranking.confidence(ranking.best)
    assert found is not None
    assert found.probability == pytest.approx(0.75, abs=0.03)
    assert found.regret == pytest.approx(0.25 * (1 - 10 / 16), abs=0.03)
