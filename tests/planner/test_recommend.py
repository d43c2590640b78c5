"""The decision, from runs made by hand to the JSON that scripts read.

At k = 2 a draft that is always right takes two rounds of t(3) and one of t(2), five draft steps and
two catch-ups after full rounds: 3.5 + 0.5 + 0.1 = 4.1 s where plain decoding takes 8. At k = 1 it
takes four rounds, 4 · 1.2 + 3 · 0.05 = 4.95 s; one that is never right 9.4 s and at k = 2 10.6 s.
"""

import math

import hand
import msgspec
import numpy as np
import pytest
import scenes
from planner.engine_run import PLAIN, in_pieces, in_rounds, replayed_run, served_run
from scenes import (
    ALL,
    BIG,
    CHEAP,
    INT4,
    NGRAM,
    NONE,
    OTHER_TEXT,
    SELF_DRAFT,
    SMALL,
    TARGET,
    engine_facts,
    evaluation,
    manifest,
    replay,
    says,
    trajectory,
)

from draftbench.cli.recommend import render
from draftbench.planner.decide import DecisionAt
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration, Recommendation
from draftbench.records import Mixture, Sampling
from draftbench.run_folder.run import run_of

DEAR = {1: 1.0, 2: 1.0}
PASSES = 4.1


def configuration(draft, k):
    return Configuration(draft=draft, quant="none", k=k)


def test_a_cheap_draft_that_is_right_is_recommended_at_its_best_k(scene):
    scene.timed(5)
    found = recommend(scene.observed(1, 2))
    assert found.decision == "speculate"
    assert found.choice == found.leader == configuration("small", 2)
    one, two = evaluation(found, "small", 1), evaluation(found, "small", 2)
    assert one.speedup_predicted.value == pytest.approx(8 / 4.95)
    assert two.speedup_predicted.value == pytest.approx(8 / 4.1)
    assert (one.best, two.best, two.reason) == (False, True, None)
    assert one.reason.startswith("slower: ")
    assert (found.requests, found.output_tokens, found.engine) == (5, 45, None)


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
    assert big.reason == "no faster than plain decoding: 0.95× expected"


def test_do_not_speculate_is_an_answer(scene, requests_alone):
    scene.requests(5, ALL, BIG)
    scene.times(TARGET, DEAR, BIG)
    found = recommend(scene.observed(1))
    assert (found.decision, found.choice) == ("do_not_speculate", None)
    assert found.leader == configuration("big", 1)
    assert (found.probability_best, found.expected_regret) == (1.0, 0.0)


def test_the_asked_speedup_is_the_bar_and_must_be_passed(scene, requests_alone):
    scene.timed(5)
    run = scene.observed(2)
    reached = evaluation(recommend(run)).speedup_expected.high
    for bar, decision in (
        (1.9, "speculate"),
        (reached, "do_not_speculate"),
        (2.0, "do_not_speculate"),
    ):
        assert recommend(run, DecisionOptions(min_speedup=bar)).decision == decision


@pytest.mark.parametrize(
    ("draft", "measure", "more", "asked", "remedy"),
    [
        ("small", "replay", [], 1, "timing"),
        ("small", "best", [], 1, None),
        ("small", "replay", [scenes.failure("broken", "shapes", stage="check")], 1, "timing"),
        ("small", "replay", [scenes.failure("tiny", "late")], 1, None),  # first tried again
        ("small", "replay", [scenes.facts(scenes.named("small"), has_kernel=False)], 1, None),
        ("self", "replay", [], 1, None),  # a control
        ("small", "replay", [], 8, None),  # the sweep did not ask for this load
    ],
)
def test_drafts_that_were_only_replayed_are_to_be_timed_next(draft, measure, more, asked, remedy):
    effort = msgspec.structs.replace(hand.manifest().effort, measure=measure)
    run = hand.run([*hand.untimed(draft), *more], effort=effort)
    found = recommend(run, DecisionOptions(concurrency=(asked,)))
    assert (found.decision, found.leader) == ("inconclusive", None)
    assert found.settled_by == remedy


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
    # A sweep that began with another k of the draft decodes at this one only among all.
    scene.decodes(8, 2, 4.95, **OTHER_TEXT)
    found = recommend(scene.observed(1, 2))
    assert (found.decision, found.leader.k, found.settled_by) == ("inconclusive", 1, "every-k")
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
    assert control.best  # of its own k's


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
    scene.replay("long", [1.0] * 29, SELF_DRAFT)
    scene.facts(None, kv_bytes_per_token=7)
    scene.facts("small", weight_bytes=5000, kv_bytes_per_token=3)
    found = recommend(scene.observed(1))
    assert evaluation(found).memory_bytes == 5000 + 100 * 3
    assert evaluation(found, "self").memory_bytes == 100 * 7  # a second cache
    scene.facts("small", weight_bytes=5000, kv_bytes_per_token=3, context_length=50)
    assert evaluation(recommend(scene.observed(1))).memory_bytes == 5000 + 50 * 3


@pytest.mark.parametrize(
    ("step", "memory", "reason"),
    [
        (0.095, 999, "about as good, 1.96× against 1.95×; small at k = 2 needs less memory"),
        (0.1001, 100, "about as good, 1.95×; small at k = 2 is the faster one"),
        (0.1001, 999, "about as good, 1.95×; small at k = 2 needs less memory"),
        (0.1001, None, "about as good, 1.95×; small at k = 2 is the one whose memory is known"),
        # 8 / 4.25 and 8 / 4.1.
        (0.13, 999, "slower: 1.88× expected against 1.95×"),
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


@pytest.mark.parametrize(
    ("chance", "how"),
    [(0.04, "slower"), (0.05, "probably slower"), (0.25, "25% likely to be the faster one")],
)
def test_another_draft_is_as_surely_slower_as_is_known(
    scene, requests_alone, monkeypatch, chance, how
):
    scene.requests(5, ALL, SMALL, BIG)
    scene.times(TARGET, CHEAP)
    scene.times(TARGET, {1: 0.13, 2: 0.18}, BIG)
    monkeypatch.setattr(DecisionAt, "chance", lambda self, one, other: chance)
    reason = evaluation(recommend(scene.observed(2)), "big").reason
    assert reason == f"{how}: 1.88× expected against 1.95×"


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


def test_a_measurement_overrules_its_prediction(scene, requests_alone):
    scene.timed(5)
    scene.prefills(2.0, 1.0)
    before = evaluation(recommend(scene.observed(1, 2)), "small", 1)
    assert before.speedup_expected.value == pytest.approx(before.speedup_predicted.value)
    end_to_end = before.speedup_end_to_end.value
    assert before.speedup_end_to_end_expected.value == pytest.approx(end_to_end)
    scene.decodes(5, 2, 16.0)
    found = recommend(scene.observed(1, 2))
    assert found.decision == "do_not_speculate"
    one, two = evaluation(found, "small", 1), evaluation(found, "small", 2)
    assert two.speedup_predicted.value == pytest.approx(8 / 4.1)
    assert two.speedup_expected.value == pytest.approx(0.5)
    assert two.speedup_end_to_end_expected.value < 1
    # What its rounds took longer, those of another k of the draft are expected to take too.
    assert one.speedup_expected.value < 1


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
    scene.timed(5)
    answer = recommend(scene.observed(2))
    document = msgspec.json.decode(msgspec.json.encode(answer))
    choice = {"draft": "small", "quant": "none", "k": 2, "concurrency": 1, "stop": None}
    assert document["choice"] == choice
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
    small, (level,) = evaluation(found), found.by_concurrency
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
    scene.timed(4)
    found = recommend(scene.observed(2))
    assert found.speedup_without_interval == pytest.approx(8 / 4.1)
    assert (found.speedup_deciding, found.probability_best) == (None,) * 2
    assert found.evaluations[0].probability_best is None
    scene.requests(5, ALL)
    assert recommend(scene.observed(2)).speedup_without_interval is None


@pytest.mark.parametrize(("plain", "rounds"), [(1.3, 1.3), (1.1, 1.3)])
def test_passes_alone_are_off_by_what_rounds_took_longer_than_plain_steps_did(scene, plain, rounds):
    """Eight passes of a second, and rounds of 4.1 s, each took so many times as long."""
    scene.requests(5, ALL, SMALL, BIG)
    scene.times(TARGET, CHEAP)
    scene.times(TARGET, {1: 0.2, 2: 0.25}, BIG)
    scene.decodes(5, 2, rounds * PASSES, plain=plain * 8)
    found = recommend(scene.observed(2))
    small = evaluation(found, "small")
    assert (small.round_overhead, small.plain_overhead) == pytest.approx((rounds, plain))
    assert found.prediction_error.passes_only_worst == pytest.approx(rounds / plain - 1)
    # Nothing else was decoded that could say so.
    assert found.prediction_error.worst == pytest.approx(rounds / plain - 1)
    assert evaluation(found, "big").plain_overhead is None


def test_where_nothing_was_decoded_a_prediction_is_taken_to_be_off_by_what_is_usual(scene):
    # Rounds of 4.0 s for 8 tokens, of which three would be steps: .06 of 3 / 4.0 beside .035 twice,
    # .02 twice and .012 twice.
    scene.requests(5, ALL, BIG)
    scene.times(TARGET, {1: 0.08, 2: 0.13}, BIG)
    found = recommend(scene.observed(2))
    assert (found.decision, found.probability_best) == ("speculate", 1.0)
    deciding = found.speedup_deciding
    sd = math.sqrt(2 * (0.035**2 + 0.02**2 + 0.012**2) + (0.06 * 3 / 4.0) ** 2)
    reach = np.log([deciding.value / deciding.low, deciding.high / deciding.value])
    assert reach == pytest.approx(1.96 * sd, rel=0.3)
    assert found.leading_evaluation.interval_from.undecoded > 0


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
        scene.replay(f"r{at}", [0.3] * 8, INT4)
    assert recommend(scene.observed(1, responses=responses)).ceiling_alpha == ceiling


def test_a_mixture_has_its_counted_experts_beside_the_bound(scene):
    """Of 8 experts 2 a token: 8 · (1 - (3/4)^n) are 3.5 for 2 tokens and 4.625 for 3. Counted are 3
    for 2 and 5 for 4, so 4 for 3.
    """
    mixture = Mixture(experts=8, per_token=2, layers=2, parameters=1)
    scene.requests(2, [0.5, 0.5])
    for tokens, seconds, read in ((1, 1.0, 2.0), (2, 1.1, 3.0), (4, 1.3, 5.0)):
        scene.cost(None, SMALL, tokens, seconds, experts_read=read)
    scene.times({}, {1: 0.3, 2: 0.3})
    scene.facts(None, mixture=mixture)
    run = scene.observed(1, 2)
    found = recommend(run).evaluations
    assert [(e.experts_read, e.experts_read_at_most) for e in found] == [(3, 3.5), (4, 4.625)]


# Of one start of each server by the prior alone, as of its quotient.
OF_STARTS = 0.098 * 2**0.5


def asked(
    seconds, *, pieces=lambda at: (1, 2, 2, 2, 2), plain=lambda at: 0.1, replayed=0, often=()
):
    """A run of requests that take so many seconds a round at k = 1 (None: not answered), all of
    eight steps without a draft; those up to `replayed` were only replayed. Request `at` stands for
    `often[at]` rows of the log.
    """
    observations = []
    for at in range(max(len(seconds), replayed)):
        name, chunks = f"r{at:02}", pieces(at)
        weight = float(often[at]) if often else 1.0
        observations += [
            trajectory(name, 9, origin="engine", margins=(), argmax=(), weight=weight),
            replay((float(chunks[1] - 1),) * 8, request=name),
        ]
        if at >= len(seconds):
            continue
        rows = in_pieces(0, 0.5, plain(at), (1,) * 9)[:1]
        if seconds[at] is not None:
            accepted = (chunks[1] - 1,) * (len(chunks) - 1)
            rows += in_pieces(1, 0.5, seconds[at], chunks, accepted=accepted)[:1]
        observations += [msgspec.structs.replace(row, request=name) for row in rows]
    return run_of(manifest(engine="vllm", ks=(1,)), observations)


def half(interval):
    return np.log(interval.high / interval.low) / 2


AT_ONE = in_rounds(1, 0.12)  # four rounds of it, beside eight steps of .1 s


def many(count, *starts):
    """The first answer of each start for so many requests, or for every second one in turn."""
    return [
        msgspec.structs.replace(rows[at % len(rows)], request=f"r{at:02}")
        for rows in starts
        for at in range(count)
    ]


def test_speed_is_predicted_from_rounds_of_replay_and_seconds_of_whole_rounds():
    found = evaluation(recommend(replayed_run(*PLAIN, *AT_ONE)), k=4)
    # k = 4 accepts everything: rounds of 5 and 3 tokens, each 0.1 + 4 · 0.02 s.
    assert found.speedup_expected.value == pytest.approx(0.8 / (2 * 0.18), rel=1e-3)


# Rounds of .21 s and of .18 s in turn: .72 or .84 s for what takes .8 s without a draft, 1.03×.
CLOSE = [in_rounds(1, seconds)[0] for seconds in (0.21, 0.18)]


@pytest.mark.parametrize("started", [True, False])
def test_only_what_a_sweep_can_do_is_advised_of_starts(started):
    facts = [engine_facts(None, 0, process=each, started=started) for each in ("p1", "p2")]
    drafted = [msgspec.structs.replace(row, process="p2") for row in CLOSE]
    answer = recommend(served_run(*facts, *many(20, PLAIN[:1], drafted)))
    text = " ".join(render(answer, "table", 88, everything=True).split())
    assert answer.decision == "inconclusive"
    assert (answer.larger_sweep.processes > 1) is started
    assert ("--restarts" in text) is started


def test_the_answer_of_an_engine_names_it_and_measures_its_speed():
    """Ten requests alike: 0.8 s without, 0.48 s with k = 1, so 1.67×."""
    rows = many(10, PLAIN[:1], AT_ONE[:1])
    answer = recommend(served_run(engine_facts(SMALL, 1), *rows, ks=(1, 2, 4)))
    one = evaluation(answer, k=1)
    assert (answer.runner, one.draft_cost_ratio) == ("vllm 0.1", None)
    assert one.speedup_measured.value == pytest.approx(0.8 / 0.48)
    assert one.mean_accepted_length_measured.value == pytest.approx(2.0)
    # Requests alike leave one start of each server in doubt: their quotient varies by √2 as much as
    # a start, whose 95 % interval by the prior alone is 10.9 %.
    assert half(one.speedup_expected) == pytest.approx(0.109 * 2**0.5, rel=0.1)
    assert "memory" not in render(answer, "table", 88)


@pytest.mark.parametrize(
    ("accepted", "words"),
    [(1, []), (0, ["small: decoding accepted differently from replay at 48 of 48 positions"])],
)
def test_an_engine_that_accepts_other_than_replay_says_is_judged_by_what_it_counted(
    accepted, words
):
    """Replay says that all is accepted at k = 1: 8 tokens in 4 rounds; with none it is 8 rounds."""
    pieces = (1,) + (1 + accepted,) * (8 // (1 + accepted))
    rounds = len(pieces) - 1
    drafted = in_pieces(1, 0.1, 0.1, pieces, accepted=(accepted,) * rounds)
    answer = recommend(served_run(*many(6, PLAIN[:1], drafted[:1])))
    found = [c.text for c in answer.caveats if c.decisive and c.kind == "contradiction"]
    assert [text.partition(",")[0] for text in found] == words
    assert answer.evaluations[0].tokens_per_round.value == pytest.approx(1 + accepted)


def test_a_draft_that_was_replayed_beside_timed_ones_is_said_not_to_be_timed():
    other = [replay((0.0,) * 8, BIG, request=request) for request in "ab"]
    for more, said in (
        ((), []),
        (other, ["big: replayed but not timed in vllm, so it is unknown whether it pays there"]),
    ):
        answer = recommend(replayed_run(*PLAIN, *AT_ONE, *more))
        assert [c.text for c in answer.caveats if c.kind == "not-timed"] == said


def test_a_k_that_was_not_started_may_be_the_best_and_says_how_sure_that_is():
    # With .30 s at k = 4 the line says .187 at k = 2: 8 tokens in .56 s, in .52 s at k = 1. A bend
    # may be .0106 s (5.7 %), and starts differ: k = 2 is better by 2 % in about one of fifteen.
    answer = recommend(replayed_run(*PLAIN, *in_rounds(1, 0.13), *in_rounds(4, 0.30)))
    assert (answer.leader.k, answer.decision) == (1, "speculate")
    assert 0.9 < answer.probability_best < 0.97
    at_two = evaluation(answer, k=2).speedup_expected
    assert at_two.value == pytest.approx(0.8 / (3 * (0.13 + 0.17 / 3)))
    assert at_two.low < 0.8 / 0.6 < 0.8 / 0.5 < at_two.high


# Shares of .32 or .64 s of the sum against a tenth (a twelfth) of the rounds are a third of it, ten
# (twelve) times; by t of nine (eleven) degrees of freedom.
OF_TEN = 2.262 * np.sqrt(10 / 9) / 30 * 10**0.5
OF_TWELVE = 2.201 * np.sqrt(12 / 11) / 36 * 12**0.5


@pytest.mark.parametrize(
    ("options", "value", "doubt"),
    [
        # Eight steps of .1 s and four rounds, of .08 s for half of ten requests, else of .16 s.
        ({"seconds": [0.08, 0.16] * 5}, 0.8 / 0.48, np.hypot(OF_TEN, OF_STARTS)),
        # Half of ten requests have eight rounds of .1 s, half four of .2 s: all take .8 s.
        (
            {
                "seconds": [0.1, 0.2] * 5,
                "pieces": lambda at: (1,) + (1 + at % 2,) * (8 // (1 + at % 2)),
            },
            1.0,
            OF_STARTS,
        ),
        # Few answered requests leave the doubt of few however many were replayed.
        (
            {"seconds": [0.08, 0.16] * 6, "replayed": 120},
            0.8 / 0.48,
            np.hypot(OF_TWELVE, OF_STARTS),
        ),
        # One of ten stands for 91 rows of the log and takes twice as long.
        ({"seconds": [0.24] + [0.12] * 9, "often": [91] + [1] * 9}, 80 / (91 * 0.96 + 4.32), None),
        # One of ten takes four times as long both ways and failed with the draft.
        ({"seconds": [None] + [0.1] * 9, "plain": lambda at: 0.1 if at else 0.4}, 2.0, None),
    ],
)
def test_a_started_k_is_as_sure_as_its_requests_are_alike_in_speed(options, value, doubt):
    found = evaluation(recommend(asked(**options)), k=1)
    assert found.speedup_expected.value == pytest.approx(value)
    assert doubt is None or half(found.speedup_expected) == pytest.approx(doubt, rel=0.12)


def test_a_load_that_was_not_served_is_unknown_in_words():
    found = recommend(replayed_run(*PLAIN, *AT_ONE), DecisionOptions(concurrency=(4,)))
    assert found.by_concurrency[0].costs == "concurrency 4 was not timed, only 1"


def test_under_five_answered_requests_tell_no_costs():
    found = recommend(replayed_run(*(row for row in (*PLAIN, *AT_ONE) if row.request != "e")))
    assert found.leader is None
    reasons = {each.reason for each in found.evaluations}
    assert reasons == {"its speed is unknown: fewer than 5 requests were timed with it"}


@pytest.mark.parametrize(("seconds", "faster"), [(4.0, True), (9.0, False)])
def test_a_draft_is_clearly_faster_unless_its_interval_or_its_decoding_contradicts_it(
    scene, seconds, faster
):
    """Eight steps of a second, or four rounds that should take 4.4 s and took so many."""
    scene.requests(6, ALL)
    scene.times(TARGET, {1: 0.1, 2: 0.1})
    scene.decodes(6, 1, seconds)
    assert evaluation(recommend(scene.observed(1)), k=1).clearly_faster is faster
