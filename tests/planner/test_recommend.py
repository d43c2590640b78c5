"""The decision, from runs made by hand to the JSON that scripts read.

At k = 2 a draft that is always right takes two rounds of t(3) and one of t(2), five draft steps and
two catch-ups after full rounds: 3.5 + 0.5 + 0.1 = 4.1 s where plain decoding takes 8. At k = 1 it
takes four rounds, 4 · 1.2 + 3 · 0.05 = 4.95 s; one that is never right 9.4 s and at k = 2 10.6 s.
"""

import math

import msgspec
import numpy as np
import pytest
from scenes import (
    ALL,
    BIG,
    CHEAP,
    NGRAM,
    NONE,
    OTHER_TEXT,
    SELF_DRAFT,
    SMALL,
    TARGET,
    evaluation,
    says,
)

from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration, Recommendation
from draftbench.records import Candidate, Sampling

DEAR = {1: 1.0, 2: 1.0}
PASSES = 4.1


def configuration(draft, k):
    return Configuration(draft=draft, quant="none", k=k)


def decoded(scene, seconds, plain=8.0, requests=5):
    """`small`, timed, and decoded at k = 2 with the rounds that its replay expects."""
    scene.requests(requests, ALL)
    scene.times(TARGET, CHEAP)
    scene.decodes(requests, 2, seconds, plain=plain)


def undecoded(scene, step):
    """`big`, timed and never decoded: at k = 2 it takes 3.6 s and five of its steps."""
    scene.requests(5, ALL, BIG)
    scene.times(TARGET, {1: step, 2: step + 0.05}, BIG)


def test_a_cheap_draft_that_is_right_is_recommended_at_its_best_k(scene):
    scene.requests(5, ALL)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(1, 2))
    assert found.decision == "speculate"
    assert found.choice == found.leader == configuration("small", 2)
    one, two = evaluation(found, "small", 1), evaluation(found, "small", 2)
    assert one.speedup_predicted.value == pytest.approx(8 / 4.95)
    assert two.speedup_predicted.value == pytest.approx(8 / 4.1)
    assert (one.best, two.best, two.reason) == (False, True, None)
    assert one.reason.startswith("slower: ")
    assert (found.requests, found.output_tokens) == (5, 45)


def test_more_acceptance_loses_when_it_is_too_dear(scene, requests_alone):
    # small at k = 1: proposals at 1, 3, 4, 5, 7, the first and fourth right, one plain step:
    # 5 · 1.1 + 1 + 5 · 0.1 = 7 s, and after both full rounds 0.05 s more. big: 4 · (1.1 + 1) s.
    scene.requests(5, [1.0, 0, 0, 0, 1, 0, 0, 0])
    scene.requests(5, ALL, BIG)
    scene.times(TARGET, CHEAP)
    scene.times(TARGET, DEAR, BIG)
    found = recommend(scene.observed(1))
    assert found.choice == configuration("small", 1)
    assert found.runner_up == configuration("big", 1)
    small, big = evaluation(found, "small"), evaluation(found, "big")
    assert (small.alpha.value, big.alpha.value) == (0.25, 1.0)
    assert small.speedup_predicted.value == pytest.approx(8 / 7.1)
    assert big.reason == (
        "no faster than plain decoding: 0.95× expected, 2.00 tokens per round at the cost of 2.10 "
        "target steps"
    )


def test_do_not_speculate_is_an_answer(scene, requests_alone):
    scene.requests(5, ALL, BIG)
    scene.times(TARGET, DEAR, BIG)
    found = recommend(scene.observed(1))
    assert (found.decision, found.choice) == ("do_not_speculate", None)
    assert found.leader == configuration("big", 1)
    assert (found.probability_best, found.expected_regret) == (1.0, 0.0)


def test_the_asked_speedup_is_the_bar_and_must_be_passed(scene, requests_alone):
    scene.requests(5, ALL)
    scene.times(TARGET, CHEAP)
    run = scene.observed(2)
    reached = evaluation(recommend(run)).speedup_expected.high
    for bar, decision in (
        (1.9, "speculate"),
        (reached, "do_not_speculate"),
        (2.0, "do_not_speculate"),
    ):
        assert recommend(run, DecisionOptions(min_speedup=bar)).decision == decision


def test_requests_that_disagree_too_much_are_inconclusive_and_more_are_asked_for(
    scene, requests_alone
):
    # Good requests take 4.95 s, bad ones 9.4 s, plain decoding 8 s: pooled 16 / 14.35.
    for i in range(8):
        scene.request(f"r{i}")
        scene.replay(f"r{i}", ALL if i % 2 else NONE)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(1))
    assert (found.decision, found.choice) == ("inconclusive", None)
    assert found.leader == configuration("small", 1)
    assert evaluation(found).speedup_predicted.value == pytest.approx(16 / 14.35)
    # Nothing was decoded, which comes first.
    assert (found.settled_by, found.larger_sweep) == ("decoding", None)
    scene.decodes(8, 1, 4.95, **OTHER_TEXT)
    found = recommend(scene.observed(1))
    assert (found.decision, found.settled_by) == ("inconclusive", "sample")
    assert found.larger_sweep.requests > 8


def test_unknown_cost_leaves_acceptance_and_says_why(scene):
    scene.requests(5, ALL)
    scene.facts("small", has_kernel=False, caveats=("simulated",))
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(1))
    assert (found.decision, found.choice, found.leader) == ("inconclusive", None, None)
    small = evaluation(found)
    assert (small.alpha.value, small.mean_accepted_length.value) == (1.0, 2.0)
    unknown = (
        small.draft_cost_ratio,
        small.verify_ratio,
        small.speedup_predicted,
        small.speedup_end_to_end,
        small.speedup_measured,
    )
    assert unknown == (None,) * 5
    assert small.reason == "its speed is unknown: no fast kernel for none on this device"
    assert not small.best
    assert says(found, "no candidate's speed is known")
    assert says(found, "small: simulated")


def test_the_control_is_never_recommended(scene):
    scene.requests(5, ALL, SELF_DRAFT)
    scene.times(TARGET, None, SELF_DRAFT)
    scene.decodes(5, 1, 2.0, SELF_DRAFT)
    found = recommend(scene.observed(1))
    control = evaluation(found, "self")
    assert control.speedup_measured.value == pytest.approx(4.0)
    assert (found.decision, found.leader) == ("inconclusive", None)
    assert control.reason == "a control: the target as its own draft is never recommended"


def test_prompt_lookup_may_win_and_takes_no_memory(scene):
    for name in "abcde":
        scene.request(name)
        scene.lookup(name, [2] * 8, [2] * 8)
    scene.times(TARGET, None, NGRAM)
    scene.cost("ngram", NGRAM, 2, 0.01, what="proposal")
    found = recommend(scene.observed(1, 2))
    assert found.choice == configuration("ngram", 2)
    lookup = evaluation(found, "ngram", 2)
    assert (lookup.alpha, lookup.memory_bytes) == (None, 0)


def test_memory_is_weights_and_cache_at_the_longest_context(scene):
    scene.requests(5, ALL)
    scene.request("long", 30, prompt_tokens=70)
    scene.facts("small", weight_bytes=5000, kv_bytes_per_token=3)
    assert evaluation(recommend(scene.observed(1))).memory_bytes == 5000 + 100 * 3


def test_a_tie_goes_to_the_smaller_draft_and_is_said(scene, requests_alone):
    scene.requests(5, ALL, SMALL, BIG)
    scene.times(TARGET, {1: 0.105, 2: 0.15})
    scene.times(TARGET, CHEAP, BIG)
    scene.facts("small", weight_bytes=100)
    scene.facts("big", weight_bytes=999)
    found = recommend(scene.observed(2))
    assert found.choice == configuration("small", 2)
    assert says(found, "big at k = 2 is expected to be hardly better than small at k = 2, which")
    reason = "equally good by expected loss: 1.95× and 1.94×; small at k = 2 needs less memory"
    assert evaluation(found, "big").reason == reason


@pytest.mark.parametrize(
    ("step", "memory", "reason"),
    [
        (0.1001, 100, "equally good by expected loss: 1.95×; small at k = 2 is the faster one"),
        (0.1001, 999, "equally good by expected loss: 1.95×; small at k = 2 needs less memory"),
        (
            0.1001,
            None,
            "equally good by expected loss: 1.95×; small at k = 2 is the one whose memory is known",
        ),
        # 8 / 4.25 and 8 / 4.1.
        (0.13, 999, "slower: 1.88× expected against 1.95×, 2.67 tokens per round at the cost of"),
    ],
)
def test_speeds_that_look_alike_are_told_apart_by_what_decided(
    scene, requests_alone, step, memory, reason
):
    scene.requests(5, ALL, SMALL, BIG)
    scene.times(TARGET, CHEAP)
    scene.times(TARGET, {1: step, 2: step + 0.05}, BIG)
    scene.facts("small", weight_bytes=100)
    if memory is not None:
        scene.facts("big", weight_bytes=memory)
    found = recommend(scene.observed(2))
    assert found.choice == configuration("small", 2)
    assert evaluation(found, "big").reason.startswith(reason)


def test_a_round_that_seems_cheaper_than_a_target_step_gives_no_cost(scene, requests_alone):
    # 8 plain tokens in 8 s; small 3 rounds in 2 s, big in 2.5 s: 2.67 tokens per round.
    scene.requests(6, ALL, SMALL, BIG)
    for candidate, seconds in ((SMALL, 2.0), (BIG, 2.5)):
        scene.times(TARGET, CHEAP, candidate)
        for at in range(6):
            scene.decode(f"r{at}", 0, 8.0, candidate)
            scene.decode(f"r{at}", 2, seconds, candidate)
    big = evaluation(recommend(scene.observed(2)), "big")
    assert big.reason == "slower: 3.20× expected against 4.00×, 2.67 tokens per round"


def test_the_chosen_k_is_the_one_that_the_table_shows(scene):
    """Alone, small would be listed at k = 1: 8 / (4 · 1.0283) = 1.945× ties with its 1.975× at
    k = 2. Against big's 2.000× only k = 2 still ties, so that is the choice.
    """
    scene.requests(5, ALL, SMALL, BIG)
    target = {1: 1.0, 2: 1.0083, 3: 1.4711}
    scene.times(target, {1: 0.02, 2: 0.02})
    scene.times(target, {1: 0.0099, 2: 0.0099}, BIG)
    scene.facts("small", weight_bytes=100)
    scene.facts("big", weight_bytes=999)
    found = recommend(scene.observed(1, 2))
    assert found.choice == configuration("small", 2)
    assert [(e.k, e.best) for e in found.evaluations if e.draft == "small"] == [
        (1, False),
        (2, True),
    ]


def test_all_that_tie_with_the_choice_are_one_caveat(scene, requests_alone):
    other = Candidate(draft="other")
    scene.requests(5, ALL, SMALL, BIG, other)
    scene.times(TARGET, {1: 0.105, 2: 0.15})
    for each in (BIG, other):
        scene.times(TARGET, CHEAP, each)
        scene.facts(each.draft, weight_bytes=999)
    scene.facts("small", weight_bytes=100)
    ties = [caveat.text for caveat in recommend(scene.observed(2)).caveats if caveat.kind == "tie"]
    assert len(ties) == 1
    assert ties[0].startswith(
        "big at k = 2 and other at k = 2 are expected to be hardly better than small at k = 2, "
    )


def test_a_measurement_overrules_its_prediction(scene, requests_alone):
    scene.requests(5, ALL)
    scene.times(TARGET, CHEAP)
    scene.prefills(2.0, 1.0)
    before = evaluation(recommend(scene.observed(1, 2)), "small", 1)
    assert before.speedup_expected.value == before.speedup_predicted.value
    assert before.speedup_end_to_end_expected.value == before.speedup_end_to_end.value
    scene.decodes(5, 2, 16.0)
    found = recommend(scene.observed(1, 2))
    assert found.decision == "do_not_speculate"
    one, two = evaluation(found, "small", 1), evaluation(found, "small", 2)
    assert two.speedup_predicted.value == pytest.approx(8 / 4.1)
    assert two.speedup_expected.value == pytest.approx(0.5)
    assert two.speedup_end_to_end_expected.value < 1
    # What its rounds took longer, those of another k of the draft are expected to take too.
    assert one.speedup_expected.value < 1


def test_the_control_decides_nothing_of_other_drafts(scene):
    scene.requests(5, ALL, SMALL, SELF_DRAFT)
    for candidate in (SMALL, SELF_DRAFT):
        scene.times(TARGET, CHEAP if candidate == SMALL else None, candidate)
    assert recommend(scene.observed(2)).leader == configuration("small", 2)


def test_a_draft_of_which_nothing_was_decoded_expects_its_prediction(scene):
    scene.requests(5, ALL, SMALL, BIG)
    for candidate in (SMALL, BIG):
        scene.times(TARGET, CHEAP, candidate)
    scene.decodes(2, 2, 5.0)
    big = evaluation(recommend(scene.observed(1, 2)), "big", 1)
    assert big.speedup_expected.value == big.speedup_predicted.value
    assert big.speedup_expected.value == pytest.approx(8 / 4.95)


def test_the_prediction_error_is_taken_on_the_measured_requests(scene):
    # "r0" accepts all (k = 1: 8 / 4.95), "r1" nothing (8 / 9.4); only "r1" was decoded, at 8 / 10.
    scene.requests(5, ALL)
    scene.request("r1")
    scene.replay("r1", NONE)
    scene.times(TARGET, CHEAP)
    scene.decode("r1", 0, 8.0)
    scene.decode("r1", 1, 10.0, **OTHER_TEXT)
    found = recommend(scene.observed(1))
    error = (8 / 9.4) / (8 / 10) - 1
    assert evaluation(found).prediction_error == pytest.approx(error)
    assert found.prediction_error.median == found.prediction_error.worst == pytest.approx(error)
    assert found.prediction_error.configurations == 1


def test_median_and_worst_error_ignore_the_sign(scene):
    # Measured 10% less and 20% more time than predicted. One k a draft, so that the baseline
    # alone (no overhead) prices the rounds.
    scene.requests(5, ALL, SMALL, BIG)
    for candidate in (SMALL, BIG):
        scene.times(TARGET, CHEAP, candidate)
    scene.decodes(2, 1, 4.95 * 0.9)
    scene.decodes(2, 2, 4.1 * 1.2, BIG)
    found = recommend(scene.observed(1, 2)).prediction_error
    assert (found.median, found.worst, found.configurations) == pytest.approx((0.15, 0.2, 2))


def test_counters_of_the_decoding_runs_stand_beside_the_replayed_ones(scene):
    # Counted: 2 proposed and 2 accepted in one round. Replayed: 5 of 5 in three rounds.
    scene.requests(5, ALL)
    scene.decodes(5, 2, 4.0, verify_seconds=(4.0,), **OTHER_TEXT)
    found = evaluation(recommend(scene.observed(2)))
    assert found.mean_accepted_length_measured.value == pytest.approx(3.0)
    assert found.mean_accepted_length.value == pytest.approx(1 + 5 / 3)


def test_the_json_is_the_contract(scene):
    scene.requests(5, ALL)
    scene.times(TARGET, CHEAP)
    answer = recommend(scene.observed(2))
    document = msgspec.json.decode(msgspec.json.encode(answer))
    assert document["choice"] == {"draft": "small", "quant": "none", "k": 2, "concurrency": 1}
    (small,) = document["evaluations"]
    assert (small["draft"], small["quant"], small["k"]) == ("small", "none", 2)
    for figure in ("alpha", "mean_accepted_length", "draft_cost_ratio", "verify_ratio"):
        assert set(small[figure]) == {"value", "low", "high"}
    assert small["speedup_predicted"]["value"] == pytest.approx(8 / 4.1)
    assert small["verify_ratio"]["value"] == pytest.approx(1.2)
    assert (small["speedup_measured"], document["prediction_error"]) == (None, None)
    assert msgspec.convert(document, Recommendation) == answer


def test_each_name_of_a_speedup_is_one_figure_everywhere(scene, requests_alone):
    # Of five good requests and two bad ones the good were decoded, at 8 / 5 where 8 / 4.1 is
    # predicted: rounds took 5 / 4.1 of their passes. 56 / 41.7 is for all, of which the bad ones
    # take eight rounds each.
    scene.requests(5, ALL)
    for name in ("bad", "worse"):
        scene.request(name)
        scene.replay(name, NONE)
    scene.times(TARGET, CHEAP)
    scene.decodes(5, 2, 5.0)
    found = recommend(scene.observed(2))
    small, (level,) = evaluation(found), found.levels
    predicted, expected = 56 / 41.7, 56 / 41.7 * 4.1 / 5
    for name, value in {"predicted": predicted, "measured": 1.6, "expected": expected}.items():
        figure = getattr(small, f"speedup_{name}")
        assert figure.value == pytest.approx(value, rel=1e-3)
        assert getattr(level, f"speedup_{name}") == figure
    assert small.requests_measured == 5
    assert level.tokens_per_second == pytest.approx(
        expected * level.tokens_per_second_plain, rel=1e-3
    )
    assert level.speedup_deciding == found.speedup_deciding


def test_requests_so_unequal_that_they_say_as_much_as_four_decide_nothing(scene):
    # A round yields two tokens: eleven requests of 8 tokens after the first, one of 88. They say as
    # much as 176² / (11 · 8² + 88²) = 3.7 of one length.
    scene.requests(11, ALL)
    scene.request("long", 89)
    scene.replay("long", [1.0] * 88)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(1))
    assert found.decision == "inconclusive"
    assert (found.speedup_deciding, found.probability_best) == (None, None)
    assert found.speedup_without_interval == pytest.approx(8 / 4.95, rel=0.02)
    unequal = "12 requests of such unequal length count as only 4"
    assert says(found, unequal, "too few to decide by")


def test_four_requests_have_a_speedup_without_an_interval(scene):
    scene.requests(4, ALL)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(2))
    assert found.speedup_without_interval == pytest.approx(8 / 4.1)
    assert (found.speedup_deciding, found.probability_best, found.break_even) == (None,) * 3
    assert found.evaluations[0].probability_best is None
    scene.requests(5, ALL)
    assert recommend(scene.observed(2)).speedup_without_interval is None


def test_rounds_and_plain_steps_have_overheads_over_their_passes(scene):
    # Eight passes of a second took 9.6 s; without costs or runs there is none.
    decoded(scene, 1.3 * PASSES, plain=9.6)
    undecoded(scene, 0.2)
    found = recommend(scene.observed(2))
    small = evaluation(found, "small")
    assert (small.round_overhead, small.plain_overhead) == pytest.approx((1.3, 1.2))
    assert evaluation(found, "big").plain_overhead is None


def test_what_rounds_and_plain_steps_took_longer_alike_is_no_error(scene):
    # The speed-up of the passes, 8 / 4.1, is that of the decoding: (1.3 · 8) / (1.3 · 4.1).
    decoded(scene, 1.3 * PASSES, plain=1.3 * 8)
    found = recommend(scene.observed(2))
    assert found.prediction_error.passes_only_worst == pytest.approx(0.0)
    assert not says(found, "do not match decoding")


def test_passes_alone_are_off_by_what_rounds_took_longer_than_plain_steps_did(scene):
    # Plain steps took a tenth more than their passes, rounds 30%.
    decoded(scene, 1.3 * PASSES, plain=8.8)
    found = recommend(scene.observed(2)).prediction_error
    assert found.passes_only_worst == pytest.approx(1.3 / 1.1 - 1)
    # Nothing else was decoded that could say so.
    assert found.worst == pytest.approx(1.3 / 1.1 - 1)


def test_what_rounds_of_one_draft_took_longer_is_expected_in_part_of_another(scene):
    # small took 1.3 of its passes; big is predicted at 8 / 4.6 = 1.74 by its passes alone.
    decoded(scene, 1.3 * PASSES)
    undecoded(scene, 0.2)
    big = evaluation(recommend(scene.observed(2)), "big")
    assert 1.74 / 1.3 < big.speedup_predicted.value < 1.7


def test_a_draft_that_was_not_decoded_is_less_certain_than_one_that_was(scene):
    decoded(scene, PASSES)
    scene.requests(5, ALL, BIG)
    scene.times(TARGET, CHEAP, BIG)
    small, big = (evaluation(recommend(scene.observed(2)), name) for name in ("small", "big"))
    assert small.speedup_expected.low > big.speedup_expected.low
    assert small.speedup_expected.high < big.speedup_expected.high


def test_more_requests_do_not_settle_what_only_decoding_would(scene):
    # One request of eight accepts less; nothing was decoded.
    undecoded(scene, 0.04)
    scene.requests(8, ALL, BIG)
    scene.replay("r7", [0.0, *ALL[1:]], BIG)
    asked = recommend(scene.observed(2)).speedup_deciding.value / 1.02
    found = recommend(scene.observed(2), DecisionOptions(min_speedup=asked))
    assert (found.decision, found.settled_by) == ("inconclusive", "decoding")
    assert found.larger_sweep is None


def test_where_nothing_was_decoded_a_prediction_is_taken_to_be_off_by_what_is_usual(scene):
    # Rounds of 4.0 s for 8 tokens, of which three would be steps: .06 of 3 / 4.0 beside .035 twice,
    # .02 twice and .012 twice.
    undecoded(scene, 0.08)
    found = recommend(scene.observed(2))
    assert (found.decision, found.probability_best) == ("speculate", 1.0)
    deciding = found.speedup_deciding
    sd = math.sqrt(2 * (0.035**2 + 0.02**2 + 0.012**2) + (0.06 * 3 / 4.0) ** 2)
    reach = np.log([deciding.value / deciding.low, deciding.high / deciding.value])
    assert reach == pytest.approx(1.96 * sd, rel=0.3)
    assert says(found, "the interval of big at k = 2", "since big at k = 2 was not decoded")


@pytest.mark.parametrize(
    ("temperature", "responses", "other", "ceiling"),
    [
        (1.0, "target", 0.3, 0.5),
        (0.0, "target", 0.3, None),  # near ties, no sampling
        (1.0, "log", 0.3, None),  # others' responses can suit a draft better than the target
        (1.0, "target", 0.6, None),  # luckier
    ],
)
def test_what_the_target_accepts_of_itself_is_the_ceiling_where_it_sampled(
    scene, temperature, responses, other, ceiling
):
    for at in range(5):
        scene.request(f"r{at}", sampling=Sampling(temperature=temperature))
        scene.replay(f"r{at}", [0.5] * 8, SELF_DRAFT)
        scene.replay(f"r{at}", [other] * 8)
    assert recommend(scene.observed(1, responses=responses)).ceiling_alpha == ceiling
