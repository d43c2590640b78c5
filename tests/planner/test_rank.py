"""Who wins, how sure that is, and what the winner is worth to requests that did not choose it."""

from dataclasses import replace

import numpy as np
import pytest
from scenes import ALL

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.definitions import Sample, quotient
from draftbench.planner.alternatives import Alternative
from draftbench.planner.measured import SPEEDUP, Measurement
from draftbench.planner.options import DecisionOptions
from draftbench.planner.predict import Predictor
from draftbench.planner.rank import Confidence, Ranking
from draftbench.planner.recommend import recommend
from draftbench.planner.time_factors import Scatter, TimeDoubt
from draftbench.records import Candidate


def option(draft, seconds, *, k=1, memory=1, measured=None):
    """Plain decoding takes 10 s a request, speculation `seconds`, the first ones `measured`."""
    candidate = Candidate(draft=draft)
    predicted = expected = sample_of(seconds)
    ran = None
    if measured is not None:
        ran = Measurement(sample_of(measured), (), frozenset())
        expected = sample_of([*measured, *seconds[len(measured) :]])
    predictor = Predictor(candidate=candidate, along=CandidateRounds(), memory_bytes=memory)
    return Alternative(predictor, k, None, predicted, ran, expected)


def sample_of(seconds):
    addends = np.array([(10.0, s) for s in seconds])
    names = tuple(f"r{i}" for i in range(len(seconds)))
    return Sample(SPEEDUP, names, np.ones(len(seconds)), addends, quotient)


def backwards(sample):
    """The same requests in reverse order."""
    return replace(sample, requests=sample.requests[::-1], addends=sample.addends[::-1])


def test_the_fastest_leads_and_another_candidate_runs_up():
    a3, a4, b = option("a", [5.0] * 4, k=3), option("a", [4.0] * 4, k=4), option("b", [8.0] * 4)
    ranking = Ranking([a3, a4, b])
    assert ranking.best is a4
    assert ranking.runner_up(a4) is b
    assert Ranking([a3, a4]).runner_up(a4) is None
    assert Ranking([]).best is None


def test_the_runner_up_is_the_fastest_of_the_others_at_its_best_k_not_the_smallest_in_a_tie():
    best, large = option("a", [4.0] * 4), option("b", [5.0] * 4, k=4, memory=100)
    smaller_k, small = option("b", [5.05] * 4, k=2, memory=100), option("c", [5.1] * 4, memory=10)
    assert Ranking([best, small, large]).runner_up(best) is large
    assert Ranking([best, small, large, smaller_k]).runner_up(best) is smaller_k


@pytest.mark.parametrize(
    ("other", "winner"),
    [
        (option("a", [5.05] * 4, k=3, memory=10), "other"),
        (option("a", [5.2] * 4, k=3, memory=10), "best"),
        (option("b", [5.05] * 4, k=8, memory=5), "other"),
        (option("b", [5.05] * 4, k=3, memory=None), "best"),
    ],
    ids=["smaller k within noise", "beyond noise", "smaller draft, larger k", "unknown size"],
)
def test_a_tie_within_timing_noise_goes_to_the_smaller(other, winner):
    best = option("a", [5.0] * 4, k=4, memory=10)
    ranking = Ranking([best, other])
    assert ranking.best is {"best": best, "other": other}[winner]
    assert ranking.faster_within_noise(other) == [best]


@pytest.mark.parametrize("memory", [None, 10])
def test_a_tie_of_equal_size_and_k_goes_to_the_faster_in_any_order(memory):
    fast, slow = (option(n, [s] * 4, k=3, memory=memory) for n, s in [("b", 5.0), ("a", 5.05)])
    assert Ranking([fast, slow]).best is fast
    assert Ranking([slow, fast]).best is fast


def test_a_measured_candidate_is_judged_by_what_was_measured():
    hoped = option("a", [1.0] * 5, k=1)
    ran = option("a", [2.0] * 5, k=2, measured=[8.0] * 5)
    other = option("b", [5.0] * 5)
    ranking = Ranking([hoped, ran, other])
    assert ranking.best is other
    assert hoped not in ranking.alternatives


def test_fewer_than_five_decoded_requests_neither_correct_nor_exclude():
    # Four requests ran at 1.25; the prediction of the other k, 10/5, still competes and leads.
    hoped = option("a", [5.0] * 8, k=1)
    ran = option("a", [8.0] * 8, k=2, measured=[8.0] * 4)
    assert not ran.corrected
    ranking = Ranking([hoped, ran])
    assert ranking.alternatives == [hoped, ran]
    assert ranking.best is hoped


def test_cross_fitting_looks_at_each_request_through_what_the_others_choose():
    # All: a 50/41, b 50/46, so a leads by its luck on r0. Without r0 it is a 40/40, b 40/36: r0 is
    # looked at through b, where it takes 10 s. The others choose a, where they take 10 s each.
    a, b = option("a", [1.0, 10, 10, 10, 10]), option("b", [10.0, 9, 9, 9, 9])
    ranking = Ranking([a, b])
    assert ranking.best is a
    found = ranking.cross_fit()
    assert found.value == pytest.approx(1.0)
    assert sorted(found.requests) == ["r0", "r1", "r2", "r3", "r4"]


def test_a_request_counts_with_the_mean_over_many_splits():
    # As above with six requests, of which two share a part: r0, 10 s through b, and the others,
    # 10 s through a, unless they were left out together with r0 (in one of 15 splits each), when b
    # leads and takes 9 s. One split alone has 60/60 or 60/59.
    a, b = option("a", [1.0, 10, 10, 10, 10, 10]), option("b", [10.0, 9, 9, 9, 9, 9])
    found = Ranking([a, b]).cross_fit()
    assert found.value == pytest.approx(60 / (60 - 5 / 15), abs=0.002)
    assert found.value not in (1.0, pytest.approx(60 / 59))


def test_neither_the_order_of_requests_nor_their_names_decide():
    # Seen through one split, these are 1.80 or 2.16 times as fast.
    seconds = np.random.default_rng(0).normal(5, 1.5, (4, 12))
    values = []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(12)
        options = [option(name, own[order]) for name, own in zip("abcd", seconds, strict=True)]
        turned = [replace(each, expected=backwards(each.expected)) for each in options]
        values.append(Ranking(options).cross_fit().value)
        assert Ranking(turned).cross_fit().value == pytest.approx(values[-1], rel=1e-12)
    assert max(values) < 1.015 * min(values)


def test_what_was_not_decoded_is_ranked_by_what_such_predictions_would_be_on_average():
    # Predicted 50/25 against 50/30 as measured: 2 · (1/1.1 + 1/1.45) / 2 = 1.60 is less than 1.67.
    hoped, ran = option("a", [5.0] * 5), option("b", [6.0] * 5, measured=[6.0] * 5)
    assert Ranking([hoped, ran]).best is hoped
    assert Ranking([hoped, ran], doubt=TimeDoubt((0.15, -0.2))).best is hoped
    ranking = Ranking([hoped, ran], doubt=TimeDoubt((0.1, 0.45)))
    assert ranking.best is ran
    assert ranking.faster_within_noise(ran) == []
    # In half of the draws the prediction is off by a tenth only.
    found = ranking.confidence(ran)
    assert found.probability == pytest.approx(0.5, abs=0.04)
    assert found.regret == pytest.approx(0.5 * (1 - 40 / 24 / (2 / 1.1)), abs=0.002)


def test_the_order_in_which_candidates_were_measured_changes_no_probability():
    hoped, ran = option("a", [5.0] * 5), option("b", [6.0] * 5, measured=[6.0] * 5)
    one, other = (Ranking([hoped, ran], doubt=TimeDoubt(e)) for e in ((0.1, 0.45), (0.45, 0.1)))
    assert one.confidence(ran) == other.confidence(ran)
    assert one.doubt(hoped) == other.doubt(hoped)


def test_errors_that_made_predictions_too_low_are_no_credit():
    hoped, ran = option("a", [6.0] * 5), option("b", [5.0] * 5, measured=[5.0] * 5)
    assert Ranking([hoped, ran], doubt=TimeDoubt((-0.4,))).best is ran


def test_one_cell_that_was_far_off_does_not_beat_every_draft_that_was_not_decoded():
    # 2.5 · (8 / 1.01 + 1 / 2.2) / 9 = 2.3 against 1.25, and 1.14 in one draw of nine.
    hoped, ran = option("a", [4.0] * 5), option("b", [8.0] * 5, measured=[8.0] * 5)
    ranking = Ranking([hoped, ran], doubt=TimeDoubt((*[0.01] * 8, 1.2)))
    assert ranking.best is hoped
    assert ranking.confidence(hoped).probability == pytest.approx(8 / 9, abs=0.03)


def test_parts_that_choose_a_measurement_and_a_prediction_are_summed_alike():
    """Without r0 b leads, 40/36; the others choose a, 10 s a request as measured. So r0 is seen at
    10 s through b and the rest at 10 s each through a.
    """
    a = option("a", [1.0, 10, 10, 10, 10], measured=[1.0, 10, 10, 10, 10])
    b = option("b", [10.0, 9, 9, 9, 9])
    found = Ranking([a, b]).cross_fit()
    assert found.value == pytest.approx(1.0)
    assert sorted(found.requests) == ["r0", "r1", "r2", "r3", "r4"]


@pytest.mark.parametrize(
    ("others", "luck"),
    [
        ([], 0.0),
        # The higher of two normal deviates is 1 / √π on average: of baselines and rounds at one k.
        ([5.0], 0.04 * 2**0.5 / np.pi**0.5),
        ([5.0] * 5, 0.04 * 2**0.5 * 1.267),
        ([9.0], 0.0),
    ],
    ids=["alone", "one of two equals", "one of six", "far ahead"],
)
def test_of_equal_drafts_the_one_that_was_timed_with_the_most_luck_leads(others, luck):
    drafts = [
        option(name, [seconds] * 5, measured=[seconds] * 5)
        for name, seconds in zip("abcdef", [5.0, *others], strict=False)
    ]
    doubt = TimeDoubt(scatter=Scatter(sd=0.04, freedom=1000))
    assert Ranking(drafts, doubt=doubt).luck == pytest.approx(luck, rel=0.1, abs=1e-6)


def test_certainty_counts_plain_decoding_among_the_options():
    fast, slow = option("a", [5.0] * 6), option("b", [20.0] * 6)
    ranking = Ranking([fast, slow])
    found = [ranking.confidence(choice) for choice in (fast, slow, None)]
    # 2 is lost to 0.5 and to 1.
    assert found == [Confidence(1.0, 0.0), Confidence(0.0, 0.75), Confidence(0.0, 0.5)]
    assert Ranking([]).confidence(None) is None


def test_a_choice_that_hangs_on_one_request_of_two_is_best_as_often_as_that_is_drawn():
    # a beats plain decoding unless the resample of two holds r1 twice: a quarter of the draws.
    ranking = Ranking([option("a", [2.0, 16.0])])
    found = ranking.confidence(ranking.best)
    assert found.probability == pytest.approx(0.75, abs=0.03)
    assert found.regret == pytest.approx(0.25 * (1 - 10 / 16), abs=0.03)


def noisy(scene, requests=5):
    """A draft step of 0.1 s at one visit of three and 2 s at two: redrawn, its median is 0.1 s
    where two or three of three draws are that visit, with probability 7/27, and is then spread to
    2 · (0.1 / 2)^2.69, nothing. Four rounds of 1.1 + 0 s beat 8 s of plain decoding, rounds with
    2 s do not.
    """
    scene.requests(requests, ALL)
    visits = (0.1, 0.1, 2.0, 2.0, 2.0, 2.0)
    scene.times({1: 1.0, 2: 1.1}, {1: visits, 2: visits})


def test_a_prediction_is_as_sure_as_its_timing_samples(scene, requests_alone):
    noisy(scene)
    found = recommend(scene.observed(1))
    # The interval reaches from 8 / 12.4, its value, to 8 / 4.4.
    assert found.decision == "inconclusive"
    deciding = found.speedup_deciding
    assert (deciding.value, deciding.low, deciding.high) == pytest.approx(
        (8 / 12.4, 8 / 12.4, 8 / 4.4), rel=0.02
    )
    assert found.probability_best == pytest.approx(7 / 27, abs=0.06)
    assert found.expected_regret == pytest.approx(20 / 27 * (1 - 8 / 12.4), abs=0.03)


def test_a_measurement_has_no_timing_samples_to_draw(scene):
    noisy(scene)
    scene.decodes(5, 1, 4.0)
    found = recommend(scene.observed(1))
    assert (found.decision, found.probability_best) == ("speculate", 1.0)


def test_prefills_do_not_move(scene, requests_alone):
    # 8 + 992 s against 4.8 or 12.4 + 992: nothing to choose within timing noise.
    noisy(scene)
    scene.prefills(992.0, 0.001)
    found = recommend(scene.observed(1), DecisionOptions(objective="latency"))
    assert found.probability_best == 1.0
