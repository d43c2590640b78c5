"""The answer at each concurrency: costs by hand at 1, 8 and 32 rows, acceptance the same at all."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from scenes import (
    ALL,
    BIG,
    DRAFT,
    NGRAM,
    NONE,
    OTHER_TEXT,
    SELF_DRAFT,
    SMALL,
    STEPS,
    TARGET,
    evaluation,
    says,
)

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.decide import DecisionAt, decide
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.latency import tail_ratio
from draftbench.planner.limits import memory_needed
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration
from draftbench.planner.table import Table
from draftbench.records import Candidate
from draftbench.report.answer import reasons

pytestmark = pytest.mark.usefixtures("requests_alone")


def at(found, concurrency):
    return next(level for level in found.by_concurrency if level.concurrency == concurrency)


def test_a_speed_up_beyond_the_tokens_of_a_round_decides_nothing(scene):
    # Every token is accepted: 2 tokens a round at k = 1. Plain decoding was disturbed: 8 tokens
    # took 80 s, where their steps take 8, and speculation 5.
    scene.requests(6, ALL)
    scene.times(TARGET, {1: 0.1, 2: 0.1})
    for number in range(6):
        scene.decode(f"r{number}", 0, 80.0)
        scene.decode(f"r{number}", 1, 5.0)
    found = recommend(scene.observed(1))
    assert (found.decision, found.choice, found.larger_sweep) == ("inconclusive", None, None)
    caveat = next(caveat for caveat in found.caveats if caveat.kind == "impossible")
    assert caveat.decisive
    assert found.settled_by == "quiet"
    assert caveat.text.startswith("16.00× is impossible with 2.00 tokens per round")


def test_the_headline_is_the_first_concurrency_asked(loaded):
    run = loaded.observed(1, 2, concurrency=(8, 1, 32))
    assert recommend(run).concurrency == 1
    found = recommend(run, DecisionOptions(concurrency=(32, 1)))
    assert (found.concurrency, found.decision) == (32, "do_not_speculate")
    assert [level.concurrency for level in found.by_concurrency] == [32, 1]
    assert evaluation(found, "small", 1).speedup_predicted.value == pytest.approx(16 / 16.4)


def test_throughput_and_cost_choose_the_concurrency_too(loaded):
    # 2.3 tokens a second at one row, 14.5 at eight, and 16 at 32 rows without speculation.
    run = loaded.observed(1, 2, concurrency=(1, 8, 32))
    for options in (
        DecisionOptions(objective="throughput"),
        DecisionOptions(objective="cost", price_per_hour=2.0),
    ):
        found = recommend(run, options)
        assert (found.concurrency, found.decision) == (32, "do_not_speculate")
    found = recommend(run, DecisionOptions(objective="throughput", concurrency=(1, 8)))
    small = Configuration("small", "none", 1, 8)
    assert (found.concurrency, found.choice) == (8, small)


@pytest.mark.parametrize(
    ("asked", "best"),
    [
        ({}, "small"),
        ({"objective": "latency"}, "big"),
        ({"objective": "throughput"}, "big"),
        ({"objective": "cost", "price_per_hour": 2.0}, "big"),
    ],
)
def test_whoever_waits_or_pays_for_prefills_gets_them_counted(scene, asked, best):
    # k = 2, decoding: small 4.1 s, big 4.6 s; big reads the prompt in 0.1 s, small in 3 s.
    scene.requests(5, ALL, SMALL, BIG)
    scene.times(TARGET, {1: 0.1, 2: 0.15})
    scene.times(TARGET, {1: 0.2, 2: 0.25}, BIG)
    scene.prefills(2.0, 3.0)
    scene.prefills(2.0, 0.1, BIG)
    found = recommend(scene.observed(2), DecisionOptions(**asked))
    assert (found.choice.draft, found.prefills_counted) == (best, bool(asked))


@pytest.mark.parametrize(
    ("prefill", "told"),
    [(0.1, None), (3.8, None), (5.0, "0.90"), (9.0, "0.66")],  # 10 / 6.2, / 9.9, / 11.1 and / 15.1
)
def test_a_draft_whose_prefill_makes_requests_slower_is_said(scene, prefill, told):
    scene.requests(5, ALL)
    scene.times(TARGET, {1: 0.1, 2: 0.15})
    scene.prefills(2.0, prefill)
    found = recommend(scene.observed(2))
    assert found.decision == "speculate"
    line = next((each for each in reasons(found) if "prefills" in each), None)
    assert (line is not None) is (told is not None)
    assert not told or line.startswith(f"Counting both prefills, requests get slower: {told}×")
    by_latency = recommend(scene.observed(2), DecisionOptions(objective="latency"))
    assert not any("requests get slower" in each for each in reasons(by_latency))


def test_latency_counts_what_the_drafts_prefill_takes(scene):
    # k = 2, decoding: small 4.1 s, big 4.6 s; big reads the prompt in 0.1 s, small in 3 s.
    scene.requests(5, ALL, SMALL, BIG)
    scene.times(TARGET, {1: 0.1, 2: 0.15})
    scene.times(TARGET, {1: 0.2, 2: 0.25}, BIG)
    scene.prefills(2.0, 3.0)
    scene.prefills(2.0, 0.1, BIG)
    run = scene.observed(2)
    assert recommend(run).choice == Configuration("small", "none", 2)
    found = recommend(run, DecisionOptions(objective="latency"))
    assert found.choice == Configuration("big", "none", 2)
    (level,) = found.by_concurrency
    assert level.speedup_deciding.value == pytest.approx(10 / (4.6 + 2.1))
    # What is expected after the first token keeps its meaning whatever candidates are ranked by.
    assert level.speedup_expected.value == pytest.approx(8 / 4.6)
    big = evaluation(found, "big")
    assert big.speedup_expected == level.speedup_expected
    assert big.speedup_end_to_end_expected == level.speedup_deciding
    assert evaluation(found, "small").reason == (
        "slower: 1.10× expected against 1.49×, both prefills included"
    )


def test_a_draft_that_does_not_fit_is_not_chosen_and_says_by_how_much(scene):
    # Both models 100 bytes, one byte of cache a token, 19 tokens a row; at k = 2 a verify pass
    # has 3 · 100 logits of 4 bytes a row.
    scene.timed(5, DRAFT)
    scene.facts("small")
    unknown = recommend(scene.observed(2), DecisionOptions(max_memory=1e9))
    assert unknown.choice is None
    assert "its memory is unknown" in unknown.evaluations[0].reason
    scene.facts(None)
    run = scene.observed(2)
    needed = 200 + 2 * 19 + 1200
    assert recommend(run, DecisionOptions(max_memory=needed)).decision == "speculate"
    two = scene.observed(2, max_concurrency=2)  # however many the engine takes at once
    assert recommend(two, DecisionOptions(max_memory=needed)).decision == "do_not_speculate"
    found = recommend(run, DecisionOptions(max_memory=needed / 1.25))
    assert (found.decision, found.choice, found.leader) == ("do_not_speculate", None, None)
    assert "25% over --max-memory" in found.evaluations[0].reason
    hardly = recommend(run, DecisionOptions(max_memory=needed - 1))
    assert "1% over --max-memory" in hardly.evaluations[0].reason  # not 0%, which would keep it
    assert says(found, "none of the timed candidates keeps the limits")


def test_memory_counts_both_models_their_caches_and_the_logits(scene):
    # 100 tokens of the longest request; at k = 3 a verify pass has 4 · 5 logits of 4 bytes a row.
    scene.requests(5, ALL)
    scene.request("long", 30, prompt_tokens=70)
    scene.facts(None, weight_bytes=4000, kv_bytes_per_token=20, vocab_size=5)
    scene.facts("small", weight_bytes=1000, kv_bytes_per_token=10)
    run = scene.observed(1, 3)
    assert memory_needed(run, SMALL, 2) == 5000 + 2 * (100 * 30 + 80)
    # The target as its own draft adds a cache, prompt lookup nothing; of `big` there are no facts.
    assert memory_needed(run, SELF_DRAFT, 1) == 4000 + 100 * 40 + 80
    assert memory_needed(run, NGRAM, 1) == 4000 + 100 * 20 + 80
    assert memory_needed(run, BIG, 1) is None


@pytest.fixture
def unequal(scene):
    """unequal(4): so many requests whose every token is accepted, 4.16 s at k = 2, and one of whom
    none is: six rounds of 1.2 + 0.24, one of 1.1 + 0.12 and a plain one, 10.86 s, 1.3575 times
    plain.
    """

    def make(good):
        scene.requests(good, ALL)
        scene.request("b")
        scene.replay("b", NONE)
        scene.times(TARGET, {1: 0.12, 2: 0.15})
        return scene

    return make


def test_a_limit_on_the_tail_leaves_the_next_draft(unequal):
    scene = unequal(4)
    for name in ("r0", "r1", "r2", "r3", "b"):
        scene.replay(name, ALL, BIG)
    scene.times(TARGET, {1: 0.4, 2: 0.4}, BIG)
    found = recommend(scene.observed(2), DecisionOptions(max_p99_ratio=1.06))
    assert found.choice == Configuration("big", "none", 2)
    small = evaluation(found, "small")
    assert "1.36 times that of plain decoding (the largest of 5, predicted)" in small.reason
    assert ", 28% over --max-p99-ratio (1.06)" in small.reason


def test_an_expected_tail_is_that_of_the_requests_that_were_decoded(unequal):
    scene = unequal(4)
    scene.decodes(4, 1, 5.0)
    found = recommend(scene.observed(1, 2), DecisionOptions(max_p99_ratio=0.5))
    reason = evaluation(found, k=2).reason
    assert "0.52 times that of plain decoding (the largest of 4, predicted)" in reason


def test_an_expected_tail_is_as_much_longer_as_the_speed_up_is_smaller_than_predicted(unequal):
    # 48 tokens in 5 · 4.16 + 10.86 = 31.66 s predicted at k = 2, while decoding at k = 1 took about
    # twice as long as its passes.
    scene = unequal(5)
    scene.decodes(5, 1, 10.0)
    evaluator = Evaluator(scene.observed(1, 2), DecisionOptions())
    two = Configuration("small", "none", 2)
    expected = evaluator.table(1, "expected").value(two)
    assert expected < 1.2
    ratio, _ = tail_ratio(evaluator.evidence(two), expected)
    assert ratio == pytest.approx(0.52 * 48 / 31.66 / expected, rel=1e-3)


def test_a_measured_batch_is_judged_by_its_steady_rounds(loaded):
    # Two rows: plain 1.6 s a round, k = 1 four rounds of 2.56 s; the round that ran alone is not
    # counted. 8 / 12.8 against 8 / 10.24 tokens a second.
    loaded.times({1: 1.6, 2: 2.0, 3: 2.4}, DRAFT, concurrency=2)
    for name in (f"r{at}" for at in range(5)):
        loaded.batch_run(name, 0, (0,) * 8, (1.6,) * 8)
        loaded.batch_run(name, 1, (1,) * 5, (2.56,) * 4 + (99.0,), active=(2,) * 4 + (1,))
    found = recommend(loaded.observed(1), DecisionOptions(concurrency=(2,)))
    level = at(found, 2)
    assert level.speedup_measured.value == pytest.approx(12.8 / 10.24)
    # With nothing but the baseline beside it, which took no longer than its passes.
    predicted = 12.8 / (4 * 2.1)
    assert level.speedup_predicted.value == pytest.approx(predicted)
    assert level.prediction_error == pytest.approx(predicted / 1.25 - 1)
    (checked,) = found.prediction_error.by_configuration
    assert (checked.draft, checked.k, checked.concurrency) == ("small", 1, 2)
    assert checked.error == pytest.approx(predicted / 1.25 - 1)


def test_ranked_by_latency_a_measured_configuration_needs_no_timed_prefill(scene):
    scene.timed(5, DRAFT)
    found = recommend(scene.observed(2), DecisionOptions(objective="latency"))
    assert (found.decision, found.leader) == ("inconclusive", None)
    assert found.evaluations[0].reason == "its speed is unknown: its prefill was not timed"
    # 1 + 8 s of a request without, 2 + 4 s with speculation, as decoded.
    scene.decodes(5, 2, 4.0)
    found = recommend(scene.observed(2), DecisionOptions(objective="latency"))
    assert (found.decision, found.leader.k) == ("speculate", 2)
    assert found.speedup_deciding.value == pytest.approx(9 / 6)
    assert evaluation(found).speedup_end_to_end_expected == found.speedup_deciding


def test_two_decoded_requests_of_thirteen_decide_nothing(scene):
    """Two requests ran 5.9 and 1.1 times as fast, eleven were not decoded, and their draft accepts
    too little to pay: neither a correction by those two nor a headline that rests on them.
    """
    for at in range(13):
        scene.request(f"r{at}")
        scene.replay(f"r{at}", NONE if at > 1 else ALL)
    scene.times(TARGET, {1: 0.3, 2: 0.36})
    for at, seconds in ((0, 8 / 5.9), (1, 8 / 1.1)):
        scene.decode(f"r{at}", 0, 8.0)
        scene.decode(f"r{at}", 2, seconds)
        scene.decode(f"r{at}", 1, 99.0)
    bare = replace(scene.observed(1, 2), decodes=())
    found = recommend(scene.observed(1, 2))
    small = evaluation(found, k=2)
    assert small.requests_measured == 2
    assert small.speedup_expected.value == pytest.approx(small.speedup_predicted.value)
    assert small.speedup_predicted == evaluation(recommend(bare), k=2).speedup_predicted
    assert found.decision == "do_not_speculate"
    assert "few-decoded" in [caveat.kind for caveat in found.caveats if caveat.decisive]


def table(*alike, sd=0.02, memory=None):
    """Configurations at k = 1 and one load, each with its draft's name, its expected speed-up and,
    unless it is `sd`, the doubt about it (sd of the logarithm).
    """
    normal = np.random.default_rng(0).standard_normal((len(alike), 2000))
    rows = [(*each, sd)[:3] for each in alike]
    logs = [
        math.log(value) + np.append(0.0, doubt * (draws - draws.mean()))
        for (_, value, doubt), draws in zip(rows, normal, strict=True)
    ]
    logs = np.stack(logs, axis=1)
    count = len(alike)
    return Table(
        concurrency=1,
        configurations=[Configuration(name, "none", 1) for name, *_ in rows],
        logs=logs,
        by_requests=logs[1:] - logs[0],
        by_time=np.zeros((2000, count)),
        shrunk=np.zeros((2001, count)),
        requests=np.full(count, 100),
        effective_requests=np.full(count, 100.0),
        tokens_per_round=np.full(count, 4.0),
        memory=memory or [None] * count,
    )


@pytest.mark.parametrize(
    ("doubt", "leads"), [(0.001, "small"), (0.03, "big")], ids=["surely", "not surely"]
)
def test_of_two_that_lose_as_little_the_smaller_leads_only_where_it_pays_as_surely(doubt, leads):
    pair = table(("small", 1.05, doubt), ("big", 1.052, 0.001), memory=[1, 2])
    assert DecisionAt(pair, 1.0).leader.draft == leads


def test_a_decision_follows_from_numbers_alone():
    """Speed-ups of 1.3 and 1.25 that requests leave open by 2%: a tie is a speed within 2% of the
    best, which log 1.25 / 1.3 = -.039 ± .028 is in 25% of draws.
    """
    two = DecisionAt(table(("fast", 1.3), ("other", 1.25)), 1.0)
    assert (two.decision, two.leader.draft, two.runner_up.draft) == ("speculate", "fast", "other")
    assert two.deciding.value == pytest.approx(1.3)
    assert two.deciding.low == pytest.approx(1.3 * math.exp(-1.96 * 0.02), rel=0.005)
    assert two.probability(two.runner_up) == pytest.approx(
        NormalDist(-0.0392, 0.0283).cdf(math.inf) - NormalDist(-0.0392, 0.0283).cdf(math.log(0.98)),
        abs=0.03,
    )
    assert two.chance(two.runner_up, two.leader) == pytest.approx(
        1 - NormalDist(-0.0392, 0.0283).cdf(0.0), abs=0.02
    )
    assert DecisionAt(two.table, 1.4).decision == "do_not_speculate"
    assert DecisionAt(two.table, 1.28).decision == "inconclusive"
    assert two.alone(Candidate(draft="other")).leader.draft == "other"


def test_what_breaks_a_limit_or_does_not_run_or_is_unknown_does_not_compete():
    fast, other = Configuration("fast", "none", 1), Configuration("other", "none", 1)
    rows = ("fast", 1.3), ("other", 1.25), ("self", 1.4)
    broken = DecisionAt(table(*rows), 1.0, breaks={fast: ("too large",)})
    assert broken.competing == [other]
    assert DecisionAt(table(*rows), 1.0, not_run={fast: "another k"}).competing == [other]
    unknown = DecisionAt(table(("fast", math.nan), ("other", 1.25)), 1.0)
    assert unknown.competing == [other]
    none = DecisionAt(table(*rows), 1.0, breaks={fast: ("x",), other: ("y",)})
    assert (none.decision, none.leader) == ("do_not_speculate", None)


def test_more_than_the_tokens_of_a_round_is_impossible():
    found = DecisionAt(table(("fast", 5.5)), 1.0)
    assert (found.impossible, found.decision) == (
        "5.50× is impossible with 4.00 tokens per round",
        "inconclusive",
    )


@pytest.mark.parametrize(
    ("low", "high", "least", "decision"),
    [
        (1.021, 1.2, 1.0, "speculate"),
        (1.005, 1.018, 1.0, "do_not_speculate"),
        (1.01, 1.05, 1.0, "inconclusive"),
        (1.21, 1.4, 1.2, "inconclusive"),  # 1.2 and 2% more is 1.224
        (1.23, 1.4, 1.2, "speculate"),
    ],
)
def test_two_percent_more_than_was_asked_must_be_left_out(low, high, least, decision):
    assert decide(Estimate((low + high) / 2, low, high), least) == decision
    assert decide(None, least) == "inconclusive"


def two_kinds(scene, count, processes=1, **changes):
    """A third of so many requests accepts all, the others nothing, as fast as their passes."""
    for at in range(count):
        scene.request(f"r{at}")
        scene.replay(f"r{at}", NONE if at % 3 else ALL)
    scene.times(TARGET, DRAFT)
    for number in range(processes):
        scene.decodes(count, 1, 4.8, process=f"p{number}", **OTHER_TEXT)
    return scene.observed(1, **changes)


def asked_within(run):
    """A speed-up that, with 2% more, lies at four fifths of the way to the interval's lower end;
    and the logarithm of that way.
    """
    now = recommend(run).speedup_deciding
    reach = math.log(now.value / now.low)
    return DecisionOptions(min_speedup=now.value * math.exp(-0.8 * reach) / 1.02), reach


@pytest.mark.parametrize(
    ("processes", "rows", "merged", "told"),
    [(1, 10, 0, 10), (1, 10**6, 0, None), (3, 10, 0, 10), (1, 10**6, 10**6 - 30, 30)],
)
def test_a_larger_sweep_has_no_fewer_processes_and_says_where_traffic_has_fewer_requests(
    scene, processes, rows, merged, told
):
    run = two_kinds(scene, 24, processes, rows=rows, merged=merged)
    larger = recommend(run, asked_within(run)[0]).larger_sweep
    assert larger.processes >= processes
    assert larger.distinct == told


def test_a_run_that_was_cut_off_is_resumed_before_more_requests_are_asked_for(scene):
    run = two_kinds(scene, 24, requests=25)
    assert recommend(run, asked_within(run)[0]).settled_by == "resuming"


def test_so_many_requests_are_asked_for_that_nine_of_ten_new_samples_settle_it(scene):
    """The share of samples of the advised size that are decided, drawn from what these 24 requests
    say of others.
    """
    run = two_kinds(scene, 24)
    options, reach = asked_within(run)
    found = recommend(run, options)
    assert (found.decision, found.settled_by) == ("inconclusive", "sample")
    then = reach * math.sqrt(24 / found.larger_sweep.requests)
    generator = np.random.default_rng(0)
    truth = 0.8 * reach + reach / 1.96 * generator.standard_normal(20000)
    seen = truth + then / 1.96 * generator.standard_normal(20000)
    settled = (abs(seen) > then).mean()
    assert settled > 0.9
    assert found.larger_sweep.chance == pytest.approx(settled, abs=0.01)


@pytest.mark.parametrize("share", [0.6, 1.2, 2.0])
@pytest.mark.parametrize("times", [2, 50])
def test_an_answer_stays_as_often_as_the_rest_of_the_requests_leaves_it(scene, share, times):
    """The mean of all the requests lies around the present one by what the others are yet to show
    of it; what they leave open is less.
    """
    run = two_kinds(scene, 240)
    now = recommend(run).speedup_deciding
    sd = math.log(now.high / now.low) / 2 / 1.96
    # Break-even, with 2% more, lies so many times as far below the estimate as half the interval.
    beyond = share * 1.96 * sd
    asked = DecisionOptions(min_speedup=now.value * math.exp(-beyond) / 1.02)
    here = Evaluator(run, asked).at(1)
    assert here.decision == ("inconclusive" if share < 1 else "speculate")
    mean = NormalDist(beyond, sd * math.sqrt(1 - 1 / times))
    half = 1.96 * sd / math.sqrt(times)
    stays = 1 - mean.cdf(half) if share > 1 else mean.cdf(half) - mean.cdf(-half)
    assert here.chance_unchanged(1 - 1 / times, 1 / times) == pytest.approx(stays, abs=0.03)


def test_an_answer_does_not_stay_where_another_draft_may_be_faster(scene):
    """Each of two drafts has the requests that the other has not, and both pay by far."""
    for at in range(20):
        scene.request(f"r{at}")
        scene.replay(f"r{at}", ALL if at % 2 else NONE)
        scene.replay(f"r{at}", NONE if at % 2 else ALL, BIG)
    for draft in (SMALL, BIG):
        scene.times({1: 1.0, 2: 1.0, 3: 1.0}, {1: 0.01, 2: 0.01}, draft)
    run = scene.observed(2)
    assert Evaluator(run, DecisionOptions()).at(1).decision == "speculate"
    both = Evaluator(run, DecisionOptions()).at(1).chance_unchanged(0.98, 0.02)
    alone = replace(run, replays=run.replays[::2])
    assert both < 0.6
    assert Evaluator(alone, DecisionOptions()).at(1).chance_unchanged(0.98, 0.02) > 0.95
    unknown = replace(run, costs=())
    assert Evaluator(unknown, DecisionOptions()).at(1).chance_unchanged(0.98, 0.02) == 0.0


def test_a_draft_that_was_not_timed_at_a_middle_load_is_answered_there_between_two(scene):
    """The other draft was decoded at all three loads, this one at the first and the last."""
    scene.requests(5, ALL, SMALL, BIG)
    for rows in (1, 8, 32):
        for draft in (BIG,) if rows == 8 else (SMALL, BIG):
            scene.times(STEPS[rows], DRAFT, draft, concurrency=rows)
            for name in (f"r{i}" for i in range(5)):
                scene.decode(name, 0, 8.0, draft, concurrency=rows, active=(rows,) * 8)
                scene.decode(name, 1, 4.4, draft, concurrency=rows, active=(rows,) * 4)
    found = recommend(scene.observed(1, concurrency=(1, 8, 32)))
    assert {level.concurrency for level in found.by_concurrency} == {1, 8, 32}
    assert at(found, 8).speedup_expected is not None


def test_the_draws_of_few_requests_are_as_wide_as_students_t(scene):
    """Five requests, every second one a fifth slower with the draft: plain steps take 8 s, rounds
    at k = 1 4.8 s or by one rejection more 5.8 s. By t of four degrees of freedom.
    """
    for at in range(5):
        scene.request(f"r{at}")
        scene.replay(f"r{at}", ALL if at % 2 else [*ALL[:6], 0.0, 1.0])
    scene.times(TARGET, DRAFT)
    evaluator = Evaluator(scene.observed(1), DecisionOptions())
    _, seconds = evaluator.evidence(Configuration("small", "none", 1)).seconds_by_response
    low, high = np.quantile(evaluator.table(1).by_requests[:, 0], (0.025, 0.975))
    reach = 2.776 * seconds.std(ddof=1) / seconds.mean() / 5**0.5
    assert (high - low) / 2 == pytest.approx(reach, rel=0.06)
