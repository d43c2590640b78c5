"""What decoding took over its passes, how far that is trusted, and what doubt does to an interval.

A target step takes 1 s and a round of k = 1 takes 1.1 + 0.1 s by its passes; all is accepted, so
that 8 tokens are eight steps or four rounds (4.8 s).
"""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import ALL, BIG, DRAFT, NONE, OTHER_TEXT, SMALL, TARGET

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.at_concurrency import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.time_factors import (
    DRAFTS_DIFFER,
    USUAL_SCATTER,
    Scatter,
    TimeFactor,
    gains_by_k,
    mean_factor,
    scatter_of,
    stretched,
    time_doubt,
)
from draftbench.records import Candidate


def alternatives(scene, *ks, **options):
    return Evaluator(scene.observed(*ks), DecisionOptions(**options)).at(1).alternatives


def factor(value, **by_process):
    return TimeFactor(value, by_process or {"p": value}, passes_only=value)


@pytest.fixture
def timed(scene):
    scene.requests(6, ALL)
    scene.times(TARGET, DRAFT)
    return scene


def test_the_factor_is_plain_decoding_over_rounds_each_over_its_passes(timed):
    # Plain decoding took 10% more than its passes, rounds 25%.
    timed.decodes(6, 1, 4.8 * 1.25, plain=8.8)
    (found,) = alternatives(timed, 1)
    assert found.time.passes_only == pytest.approx(1.1 / 1.25)
    assert found.time.value == pytest.approx(1.0)
    assert found.expected.value == pytest.approx(8 / 4.8 * 1.1 / 1.25)


def test_all_ks_of_a_draft_share_what_a_round_takes_beyond_its_passes(timed):
    # .3 s in each round, of which k = 1 has four and k = 2 three (3, 3 and 2 tokens: 4.0 s).
    timed.decodes(6, 1, 4.8 + 4 * 0.3)
    timed.decodes(6, 2, 4.0 + 3 * 0.3)
    one, two = alternatives(timed, 1, 2)
    assert (one.time.value, two.time.value) == pytest.approx((1.0, 1.0))
    assert one.expected.value == pytest.approx(8 / 6.0)
    assert two.expected.value == pytest.approx(8 / 4.9)
    # With that left out a factor of each is needed, and predictions from passes were off by it.
    assert (one.time.passes_only, two.time.passes_only) == pytest.approx((4.8 / 6.0, 4.0 / 4.9))


def test_what_is_left_is_the_geometric_mean_of_the_factors_of_all_ks(timed):
    # .96 s more than their passes in four rounds and .4 s less in three: .08 s a round, with which
    # 5.12 and 4.24 s are expected.
    timed.decodes(6, 1, 4.8 * 1.2)
    timed.decodes(6, 2, 4.0 * 0.9)
    one, two = alternatives(timed, 1, 2)
    pooled = math.sqrt(5.12 / 5.76 * 4.24 / 3.6)
    assert one.expected.value == pytest.approx(8 / 5.12 * pooled)
    assert two.expected.value == pytest.approx(8 / 4.24 * pooled)


def test_a_factor_that_few_requests_are_sure_of_weighs_less():
    # Standard errors of 0 and of √3 times what cells scatter by: weights of 4 and 1.
    sure, unsure = factor(1.0), replace(factor(2.0), error=math.sqrt(3) * USUAL_SCATTER)
    assert mean_factor([sure, unsure]) == pytest.approx(2.0 ** (1 / 5))
    assert mean_factor([]) is None


@pytest.mark.parametrize(("drafts", "alike"), [(3, True), (2, False)])
def test_a_k_that_gains_as_much_with_each_of_three_drafts_keeps_it(scene, drafts, alike):
    # At k = 1 5% less than the passes, at k = 2 5% more: nothing beyond them on average.
    candidates = [SMALL, BIG, Candidate(draft="third")][:drafts]
    scene.requests(6, ALL, *candidates)
    for each in candidates:
        scene.times(TARGET, DRAFT, each)
        scene.decodes(6, 1, 4.8 * 0.95, each)
        scene.decodes(6, 2, 4.0 * 1.05, each)
    pooled = 1 / math.sqrt(0.95 * 1.05)
    factors = (1 / 0.95, 1 / 1.05) if alike else (pooled, pooled)
    one, two, *_ = alternatives(scene, 1, 2)
    assert one.expected.value == pytest.approx(8 / 4.8 * factors[0])
    assert two.expected.value == pytest.approx(8 / 4.0 * factors[1])


def logs(*by_k):
    return {k: factor(math.exp(each)) for k, each in enumerate(by_k, 1)}


def test_what_drafts_have_alike_at_a_k_is_shrunk_by_what_each_has_to_itself():
    # Gains of .03, .02 and .01 at k = 1 and as much less at k = 2: products .0006, .0003 and
    # .0002, squares .0009, .0004 and .0001. Of a variance of .000367 + .0001 / 3 the k has .000367.
    found = gains_by_k([logs(each, -each) for each in (0.03, 0.02, 0.01)])
    shared, squares = 0.0011 / 3, 0.0014 / 3
    share = shared / (shared + (squares - shared) / 3)
    assert {k: math.log(each) for k, each in found.items()} == pytest.approx(
        {1: 0.02 * share, 2: -0.02 * share}
    )


def test_a_draft_at_one_k_has_its_effect_once():
    """By hand: three drafts gain 6 % at k = 1 and lose it at k = 2, one was decoded at k = 1 alone;
    without noise the effect is all of it, and nothing is left of that draft's own.
    """
    gain = math.log(1.06)
    found = gains_by_k([logs(gain, -gain)] * 3 + [logs(gain)])
    assert {k: math.log(each) for k, each in found.items()} == pytest.approx({1: gain, 2: -gain})


def test_drafts_at_other_ks_do_not_mix_their_own_gain_into_that_of_a_k():
    """By hand: k = 1, 2 and 3 gain .02, 0 and -.02, whoever was decoded where; of their variance
    (six of ten cells .0004) pairs at one k show .0002 (six of twelve), so a little is shrunk.
    """
    of_k = {1: 0.02, 2: 0.0, 3: -0.02}
    drafts = [
        {k: factor(math.exp(own + of_k[k])) for k in ks}
        for own, ks in [(0.1, (1, 2)), (0.0, (1, 2)), (-0.1, (2, 3)), (0.05, (2, 3)), (0, (1, 3))]
    ]
    found = {k: math.log(each) for k, each in gains_by_k(drafts).items()}
    share = 0.0002 / (0.0002 + 0.00004 / 3)
    assert found == pytest.approx({1: 0.02 * share, 2: 0.0, 3: -0.02 * share}, abs=1e-6)


@pytest.mark.parametrize(
    "drafts",
    [
        [],
        [logs(0.03, -0.03), logs(0.03, -0.03)],
        [logs(0.03, -0.03), logs(-0.03, 0.03), logs(0.0, 0.0)],
        [logs(0.03, -0.01, -0.02), logs(0.03, -0.03), logs(0.03)],
    ],
    ids=["no draft", "two drafts", "drafts that contradict each other", "one k of three drafts"],
)
def test_nothing_is_alike_where_drafts_do_not_show_it(drafts):
    assert gains_by_k(drafts) == {}


def test_the_luck_of_decoded_outputs_is_shown_and_not_expected(scene):
    """What replay expects to accept nothing was decoded with all accepted, in texts that differ
    from a near tie on: twice the tokens per round, by rounds that took what their passes take.
    """
    scene.requests(6, NONE)
    scene.times(TARGET, DRAFT)
    scene.decodes(6, 1, 4.8, **OTHER_TEXT)
    (found,) = alternatives(scene, 1)
    # Alone: seven rounds of 1.2 s and a plain step. As decoded: 2 tokens a round, not 1.
    assert found.expected.value == pytest.approx(8 / (7 * 1.2 + 1))
    assert found.measured.speedup.value == pytest.approx(8 / 4.8)
    assert found.acceptance_luck == pytest.approx(1.0)


def test_prefills_count_where_latency_decides(timed):
    # Prompts should take 2 s and the draft's 1 s, and took 3 s and 1.5 s: 8 + 3 against 10 s
    # without speculation, 4.8 + 4.5 against 4.8 + 3 s with it.
    timed.prefills(2.0, 1.0)
    for at in range(6):
        timed.decode(f"r{at}", 0, 8.0, prefill_seconds=3.0)
        timed.decode(f"r{at}", 1, 4.8, prefill_seconds=3.0, draft_prefill_seconds=1.5)
    (found,) = alternatives(timed, 1)
    assert found.time.value == pytest.approx(1.0)
    worth = (11 / 10) / ((4.8 + 4.5) / (4.8 + 3))
    assert found.end_to_end_time.value == pytest.approx(worth)
    assert found.end_to_end.value == pytest.approx(10 / 7.8 * worth)


def test_requests_that_differ_in_time_are_a_doubt(timed):
    # Rounds took 20% more than their passes on half of the requests and 20% less on the others:
    # shares of 1/6 · 1.2 and 1/6 · .8 against 1/6, so √(6/5 · 6 · (.2/6)²).
    for at in range(6):
        timed.decode(f"r{at}", 0, 8.0)
        timed.decode(f"r{at}", 1, 4.8 * (1.2 if at % 2 else 0.8))
    (found,) = alternatives(timed, 1)
    assert found.time.error == pytest.approx(0.2 / math.sqrt(5))
    assert found.time.half_width == pytest.approx(2.571 * 0.2 / math.sqrt(5), rel=0.01)


def test_processes_with_enough_requests_are_told_apart(timed):
    for process, pace in (("p1", 1.0), ("p2", 1.5)):
        timed.decodes(6, 1, 4.8 * pace, process=process)
    timed.decodes(4, 1, 4.8 * 9, process="p3")
    (found,) = alternatives(timed, 1)
    # In 64 rounds 6 · 2.4 + 4 · 38.4 s beyond their passes: 2.625 s a round, 15.3 s a request.
    assert found.time.by_process == pytest.approx({"p1": 15.3 / 4.8, "p2": 15.3 / 7.2})
    assert found.processes == 2


def test_the_scatter_between_the_ks_of_a_draft_counts_with_what_is_usual():
    # ±.05 and ±.03 about their own means; four degrees of freedom of 1.2%, and one of each draft.
    drafts = [[factor(math.exp(0.3 + sign * d)) for sign in (1, -1)] for d in (0.05, 0.03)]
    found = scatter_of(drafts)
    variance = (4 * USUAL_SCATTER**2 + 2 * 0.05**2 + 2 * 0.03**2) / 6
    assert (found.sd, found.freedom) == (pytest.approx(math.sqrt(variance)), 6)
    assert (found.cells, found.processes, found.usual) == (4, 1, True)
    # t of 6 degrees of freedom is 2.447; baseline and rounds, each in one process of two.
    assert found.half_width(2) == pytest.approx(2.447 * found.sd, rel=0.01)


def test_processes_that_differ_by_more_than_cells_do_are_what_counts():
    # Two k's alike in each of three processes at +.1, 0 and -.1: the mean of two rounds and a
    # baseline varies by 1 + 1/2.
    by_process = {"a": math.exp(0.1), "b": 1.0, "c": math.exp(-0.1)}
    found = scatter_of([[factor(1.0, **by_process)] * 2])
    assert found.sd == pytest.approx(math.sqrt((4 * USUAL_SCATTER**2 + 0.02 / 1.5) / 6))
    assert (found.freedom, found.processes, found.usual) == (6, 3, False)


def test_drafts_with_one_cell_each_are_compared_with_each_other():
    # ±.06 about their mean on passes alone, of rounds and a baseline each: half of 2 · .06².
    found = scatter_of([[factor(math.exp(sign * 0.06))] for sign in (1, -1)])
    assert found.sd == pytest.approx(math.sqrt((4 * USUAL_SCATTER**2 + 0.06**2) / 5))
    assert (found.freedom, found.usual) == (5, True)


def test_a_cell_that_its_requests_leave_in_doubt_scatters_little():
    # An error of .24 is ten times what counts whole: a weight of a hundredth.
    sure, unsure = factor(1.0), replace(factor(math.exp(1.0)), error=0.24)
    found = scatter_of([[sure, sure, unsure]])
    middle = 0.01 / 2.01
    squares = 2 * middle**2 + 0.01 * (1 - middle) ** 2
    assert found.freedom == pytest.approx(4 + 1.01)
    assert found.sd == pytest.approx(math.sqrt((4 * USUAL_SCATTER**2 + squares) / 5.01))


def test_where_one_configuration_was_decoded_the_usual_scatter_stands():
    found = scatter_of([[factor(0.7)]])
    assert (found.sd, found.freedom, found.usual) == (USUAL_SCATTER, 4, True)
    assert scatter_of([]) == Scatter()
    # 2.776 · √2 · 1.2%.
    assert found.half_width(1) == pytest.approx(0.0471, rel=0.01)


def test_many_configurations_that_agree_scatter_by_a_percent_all_the_same():
    found = scatter_of([[factor(0.9)] * 30] * 3)
    assert found.sd * math.sqrt(2) == pytest.approx(0.01)


@given(
    st.lists(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=5), min_size=1, max_size=4),
    st.floats(0.5, 2.0),
)
def test_what_a_draft_has_in_common_is_no_scatter(drafts, common):
    plain = scatter_of([[factor(value) for value in values] for values in drafts])
    moved = scatter_of([[factor(value * common) for value in values] for values in drafts])
    assert moved.sd == pytest.approx(plain.sd)


def test_the_more_drafts_were_decoded_the_less_the_next_may_differ():
    assert time_doubt({}).drafts_differ == DRAFTS_DIFFER
    one = {(SMALL, rows): [factor(0.8), factor(1.25)] for rows in (1, 4)}
    found = time_doubt(one)
    # One known: the next differs from it by √2; of two, one drawn at random varies by 1/2, and the
    # next from their mean by 1 + 1/2.
    assert found.drafts_differ == pytest.approx(DRAFTS_DIFFER * math.sqrt(2))
    assert found.errors == pytest.approx((0.25, -0.2) * 2)
    two = time_doubt(one | {(BIG, 1): [factor(1.0)]})
    assert two.drafts_differ == pytest.approx(DRAFTS_DIFFER)


def test_a_doubt_is_combined_with_an_interval_in_quadrature():
    interval = Estimate(2.0, 2.0 * math.exp(-0.03), 2.0 * math.exp(0.06))
    found = stretched(interval, 0.04, 0.08)
    assert found.value == 2.0
    assert found.low == pytest.approx(2.0 * math.exp(-0.05))
    assert found.high == pytest.approx(2.0 * math.exp(0.10))


@given(st.floats(0.1, 10), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_doubt_never_narrows_an_interval(value, below, above, down, up):
    interval = Estimate(value, value * math.exp(-below), value * math.exp(above))
    found = stretched(interval, down, up)
    assert found.low <= interval.low * (1 + 1e-12)
    assert found.high >= interval.high * (1 - 1e-12)
    assert found.low <= value * math.exp(-down) * (1 + 1e-12)
    assert found.high >= value * math.exp(up) * (1 - 1e-12)
