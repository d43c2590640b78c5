"""Every figure against counters and vectors that serving engines published."""

import numpy as np
import pytest
from scenes import replayed, trajectory

from draftbench.acceptance import definitions as d
from draftbench.acceptance.rounds import Rounds, expected_rounds
from draftbench.drafts.laws import PositionLaw
from draftbench.records import DraftingMode


def rounds_of(survival, drafts=1.0, **changes):
    """One response whose `drafts` rounds all propose k tokens and are never cut."""
    k = len(survival)
    survived = np.array([survival]) * drafts
    none, one = np.zeros(1), np.ones(1)
    counts = {
        "tokens": one * drafts + survived.sum(1),
        "with_draft": one * drafts,
        "without_draft": none,
        "proposed": one * drafts * k,
        "accepted": survived.sum(1),
        "cut": none,
        "full": survived[:, -1],
        "by_draft_length": np.array([[0.0] * k + [drafts]]),
        "after_full": np.zeros((1, k + 1)),
        "reached": np.concatenate([[[drafts]], survived[:, :-1]], axis=1),
        "survived": survived,
    }
    return Rounds(k=k, **counts | changes)


@pytest.mark.parametrize(
    ("drafts", "drafted", "accepted", "rate", "length"),
    [
        (87, 259, 167, 0.645, 2.92),  # llama.cpp server log
        (43, 129, 10, 0.0775, 1.2326),  # vLLM documentation of per-request metrics
        (84995, 254985, 128899, 0.505516, 2.5165),  # InferenceX, bf16
        (87994, 263982, 133034, 0.503951, 2.5119),  # InferenceX, fp8
        (220, 660, 538, 0.8152, 3.445),  # ik_llama.cpp, code
        (31214, 93642, 37294, 0.39826, 2.1948),  # vLLM, EAGLE on Spec-Bench
    ],
)
def test_counters_of_engines_give_the_figures_that_the_engines_print(
    drafts, drafted, accepted, rate, length
):
    counters = {"proposed": np.array([drafted]), "accepted": np.array([accepted])}
    rounds = rounds_of([0.5, 0.5, 0.5], drafts, **counters)
    one = [trajectory()]
    assert d.accepted_per_drafted(one, rounds).value == pytest.approx(rate, abs=6e-4)
    assert d.mean_accepted_length(one, rounds).value == pytest.approx(length, abs=5e-3)
    assert d.accepted_without_bonus(one, rounds).value == pytest.approx(length - 1, abs=5e-3)


def test_a_histogram_of_accepted_tokens_gives_survival_and_hazards():
    # vLLM: 39, 1, 0 and 3 of 43 rounds accepted 0, 1, 2 and 3 tokens.
    rounds = rounds_of([4 / 43, 3 / 43, 3 / 43], 43)
    one = [trajectory()]
    assert [d.survival(one, rounds, i).value for i in (1, 2, 3)] == pytest.approx(
        [0.093023, 0.069767, 0.069767], abs=1e-6
    )
    assert [d.hazard(one, rounds, i).value for i in (1, 2, 3)] == pytest.approx(
        [0.093023, 0.75, 1.0], abs=1e-6
    )


@pytest.mark.parametrize(
    ("survival", "length", "rate", "hazards"),
    [  # vLLM's acceptance tests: MT-Bench, temperature 0, k = 3
        ((0.7296, 0.5208, 0.3545), 2.605, 0.535, (0.7296, 0.7138, 0.6807)),
        ((0.6541, 0.3993, 0.2020), 2.255, 0.419, (0.6541, 0.6105, 0.5059)),
        ((0.7165, 0.5120, 0.3337), 2.562, 0.521, (0.7165, 0.7146, 0.6518)),
        ((0.2900, 0.0620, 0.0115), 1.364, 0.121, (0.2900, 0.2138, 0.1855)),
        ((0.805, 0.632, 0.483), 2.920, 0.640, (0.805, 0.7851, 0.7642)),  # llama.cpp
    ],
)
def test_survival_vectors_give_lengths_rates_and_hazards(survival, length, rate, hazards):
    rounds, one = rounds_of(survival, 1000), [trajectory()]
    assert d.mean_accepted_length(one, rounds).value == pytest.approx(length, abs=1e-3)
    assert d.uncut_accepted_length(one, rounds).value == pytest.approx(length, abs=1e-3)
    assert d.tokens_per_round(one, rounds).value == pytest.approx(length, abs=1e-3)
    assert d.accepted_per_drafted(one, rounds).value == pytest.approx(rate, abs=1e-3)
    found = [d.hazard(one, rounds, i).value for i in (1, 2, 3)]
    assert found == pytest.approx(hazards, abs=1e-4)
    assert [d.survival(one, rounds, i).value for i in (1, 2, 3)] == pytest.approx(survival)


def test_the_three_lengths_differ_where_the_end_of_the_response_cuts_a_round():
    # One round proposes 4; tokens 1 and 2 are accepted, the second ends the response.
    rounds = expected_rounds([PositionLaw(3, 50, np.ones(2), 49)], 4)
    one = [trajectory("r", 3)]
    assert d.tokens_per_round(one, rounds).value == 2
    assert d.mean_accepted_length(one, rounds).value == 3
    assert d.accepted_per_drafted(one, rounds).value == 0.5
    assert d.uncut_accepted_length(one, rounds).value is None  # nobody saw the third token


def test_a_round_cut_by_the_end_does_not_shorten_the_uncut_length():
    law = PositionLaw(12, 100, np.full(11, 0.7), 99)
    rounds = expected_rounds([law], 4)
    one = [trajectory("r", 12)]
    uncut = d.uncut_accepted_length(one, rounds).value
    assert uncut == pytest.approx(1 + 0.7 + 0.49 + 0.343 + 0.2401)
    length = d.mean_accepted_length(one, rounds).value
    assert length is not None
    assert length < 2.7


def test_rounds_without_a_draft_count_for_speed_but_not_for_the_engines():
    rounds = expected_rounds([PositionLaw(5, 9, np.ones(4), 1)], 1)
    one = [trajectory("r", 5)]  # one round emits two tokens, two target steps one each
    assert d.tokens_per_round(one, rounds).value == pytest.approx(4 / 3)
    assert d.mean_accepted_length(one, rounds).value == 2


def test_alpha_is_the_mean_over_the_positions_that_can_be_drafted():
    pairs = [replayed([1.0, 0.0, 1.0], "a"), replayed([1.0, 0.0], "b", weight=3.0, draftable=1)]
    alpha = d.alpha(pairs)
    assert alpha is not None
    assert alpha.figure is d.ALPHA_EMITTED
    assert alpha.value == pytest.approx((2 + 3 * 1) / (3 + 3 * 1))


def test_alpha_says_overlap_only_where_a_sampled_draft_has_it_everywhere():
    def alpha_of(mode, *overlaps):
        pairs = [
            replayed([1.0, 0.0], str(i), mode=mode, overlap=overlap)
            for i, overlap in enumerate(overlaps)
        ]
        sample = d.alpha(pairs)
        assert sample is not None
        return sample

    known = alpha_of(DraftingMode.SAMPLED, (0.9, 0.7), (0.8, 0.6))
    assert known.figure is d.ALPHA_OVERLAP
    assert known.value == pytest.approx(0.75)
    partly = alpha_of(DraftingMode.SAMPLED, (0.9, 0.7), None)
    assert (partly.figure, partly.value) == (d.ALPHA_EMITTED, 0.5)
    greedy = alpha_of(DraftingMode.GREEDY, (0.9, 0.7), (0.8, 0.6))
    assert (greedy.figure, greedy.value) == (d.ALPHA_EMITTED, 0.5)


def test_pooled_weighs_tokens_and_the_per_request_mean_weighs_requests():
    long, short = PositionLaw(101, 101, np.zeros(100), 100), PositionLaw(3, 3, np.ones(2), 2)
    rounds = expected_rounds([long, short], 1)
    sample = d.tokens_per_round([trajectory("a", 101), trajectory("b", 3, weight=2.0)], rounds)
    assert sample.value == pytest.approx((100 + 2 * 2) / (100 + 2 * 1))
    assert d.per_request_mean(sample).value == pytest.approx((1 + 2 * 2) / (1 + 2))


def test_several_responses_to_a_request_count_as_one_request():
    laws = [PositionLaw(3, 3, np.full(2, a), 2) for a in (1.0, 0.0, 0.0)]
    trajectories = [
        trajectory("a", 3),
        trajectory("b", 3, weight=2.0),
        trajectory("a", 3, sample=1),
    ]
    sample = d.tokens_per_round(trajectories, expected_rounds(laws, 1))
    assert sample.requests == ("a", "b")
    # a: 2 tokens in (1 + 2) / 2 rounds on average; b, twice as heavy, 2 tokens in 2 rounds.
    assert sample.value == pytest.approx((2 + 2 * 2) / (1.5 + 2 * 2))


def test_without_a_denominator_a_figure_is_unknown():
    rounds = expected_rounds([PositionLaw(4, 9, np.zeros(3), 0)], 2)
    sample = d.accepted_per_drafted([trajectory("r", 4)], rounds)
    assert sample.value is None
    assert d.per_request_mean(sample).value is None


def test_unequal_requests_say_as_much_as_fewer_equal_ones():
    # 176² / (11 · 8² + 88²)
    assert d.equal_requests(np.array([8.0] * 11 + [88.0])) == pytest.approx(3.667, abs=1e-3)
    assert (d.equal_requests(np.full(7, 3.0)), d.equal_requests(np.zeros(2))) == (7.0, 0.0)
