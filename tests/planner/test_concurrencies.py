"""The answer at each load, k by load and up to which load it pays: costs by hand at 1, 8 and 32
rows, acceptance the same at all.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenes import ALL, BIG, DRAFT, NONE, SMALL, TARGET, Scene

from draftbench.planner.concurrencies import at_concurrency, plain_decoding
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration, ScheduleEntry
from draftbench.report.answer import crossover, speed_up

pytestmark = pytest.mark.usefixtures("requests_alone")


def at(found, concurrency):
    return next(level for level in found.by_concurrency if level.concurrency == concurrency)


def test_speculation_pays_at_one_row_and_loses_at_many(loaded):
    # k = 1 takes four rounds of t(2) + 0.1: at 8 rows 4.4 s against 8, at 32 16.4 s against 16.
    run = loaded.observed(1, 2, concurrency=(1, 8, 32))
    found = recommend(run)
    assert [level.k for level in found.by_concurrency] == [2, 1, 0]
    # Between 8 and 32 rows a pass over two tokens each takes b / 8 s, and four rounds of b / 8 + .1
    # against 8 s: more than 2% faster up to 14.9 rows.
    assert found.schedule == tuple(
        ScheduleEntry(concurrency=c, k=k, timed=timed)
        for c, k, timed in ((1, 2, True), (8, 1, True), (15, 0, False), (32, 0, True))
    )
    assert (found.crossover, found.crossover_between) == (14, (8, 32))
    interpolated = "(interpolated between 8 and 32)"
    assert crossover(found) == f"small pays off up to about 14 concurrent requests {interpolated}."
    never = recommend(run, DecisionOptions(min_speedup=5))
    assert never.crossover == 0
    assert crossover(never) == "small does not clearly pay off at any timed concurrency."
    eight, many = at(found, 8), at(found, 32)
    assert eight.speedup_predicted.value == pytest.approx(8 / 4.4)
    assert (many.decision, many.choice) == ("do_not_speculate", None)
    assert many.leader == Configuration("small", "none", 1, 32)
    assert many.speedup_expected.value == pytest.approx(16 / 16.4)


def test_at_a_load_neither_asked_about_nor_timed_k_changes_only_where_another_is_better(scene):
    """At 1 row k = 1 takes four rounds of 1 + .1 s, 4.4 s, and k = 2 3.5 s; at 4 rows four of 1.2 +
    .1 s, 5.2 s, and k = 2 6.6 s; at 3 rows, which were not timed, both 4.6 s.
    """
    scene.requests(5, ALL)
    for rows, pair, triple in ((1, 1.0, 1.0), (4, 1.2, 2.4)):
        scene.times({1: 1.0, 2: pair, 3: triple}, DRAFT, concurrency=rows)

    def ks(*asked):
        run = scene.observed(1, 2, concurrency=(1, 4))
        found = recommend(run, DecisionOptions(concurrency=asked))
        return [(entry.concurrency, entry.k) for entry in found.schedule]

    assert ks(1) == ks(4) == [(1, 2), (4, 1)]
    assert ks(3) == [(1, 2), (3, 1), (4, 1)]
    scene.times({1: 1.0, 2: 1.05, 3: 1.5}, DRAFT, concurrency=3)
    assert ks(1) == ks(3) == [(1, 2), (3, 1), (4, 1)]


def test_what_was_decoded_and_not_timed_pays_where_it_was_decoded(scene):
    scene.requests(5, ALL)
    scene.decodes(5, 2, 4.0)
    found = recommend(scene.observed(2))
    assert (found.decision, found.crossover) == ("speculate", None)
    assert crossover(found) == "small pays off at the largest timed concurrency too."
    assert found.schedule == (ScheduleEntry(concurrency=1, k=2),)


def test_one_row_that_is_not_clear_hides_no_larger_batch_that_pays(loaded):
    """Alone half of the requests are decoded in half the time and the others in a quarter more, so
    that nothing is clear, and predictions of passes alone are 59% too high (7 s for their 4.4):
    8 s against 1.59 times four rounds of b / 8 + .1 stay 2% above 1 up to 9.06 rows.
    """
    loaded.requests(6, ALL)
    for at in range(6):
        loaded.decode(f"r{at}", 0, 8.0)
        loaded.decode(f"r{at}", 1, 4.0 if at % 2 else 10.0)
    found = recommend(loaded.observed(1, concurrency=(1, 8, 32)))
    decisions = [level.decision for level in found.by_concurrency]
    assert decisions == ["inconclusive", "speculate", "do_not_speculate"]
    assert found.crossover == 9


def test_a_concurrency_between_two_timed_ones_is_interpolated_and_said(loaded):
    # 20 rows step in 20 / 16 s, and pass over two tokens each in 40 / 16.
    level = at(recommend(loaded.observed(1), DecisionOptions(concurrency=(20,))), 20)
    assert level.speedup_predicted.value == pytest.approx(8 * 1.25 / (4 * 2.6))
    assert level.costs.startswith("interpolated between 8 and 32")


def test_a_concurrency_beyond_what_was_timed_is_unknown(loaded):
    found = recommend(loaded.observed(1, 2), DecisionOptions(concurrency=(1, 64)))
    level = at(found, 64)
    unknown = (level.decision, level.k, level.choice, level.leader, level.speedup_predicted)
    assert unknown == (None,) * 5
    assert (level.tokens_per_second, level.seconds_per_token) == (None, None)
    assert level.costs == "concurrency 64 was not timed, only 1, 8, 32"
    assert found.schedule[-1] == ScheduleEntry(concurrency=64, k=None, timed=False)
    assert found.decision == "speculate"
    alone = recommend(loaded.observed(1, 2), DecisionOptions(concurrency=(64,)))
    assert level.costs in speed_up(alone)


def test_rates_are_those_of_all_rows_and_times_those_of_a_request(loaded):
    # Plain: 8 tokens in 8 s in each of 8 rows; the prefills take 2 s and 1 s for 9 tokens.
    loaded.prefills(2.0, 1.0)
    options = DecisionOptions(concurrency=(8,), price_per_hour=3.6)
    (level,) = recommend(loaded.observed(1), options).by_concurrency
    assert level.tokens_per_second_plain == pytest.approx(8.0)
    assert level.tokens_per_second == pytest.approx(8 * 8 / 4.4)
    assert level.seconds_per_token_plain == pytest.approx(10 / 9)
    assert level.seconds_per_token == pytest.approx((4.4 + 3) / 9)
    # 72 tokens in 10 s without a draft, in 7.4 s with it, at a thousandth of a dollar a second.
    assert level.tokens_per_dollar_plain == pytest.approx(7200)
    assert level.tokens_per_dollar == pytest.approx(72 / 7.4 * 1000)


@pytest.fixture
def two_drafts(scene):
    """Alone `small` takes four rounds of 1.1 s for 8 s, at 8 rows of 1.75 s. Every token of `big`
    is accepted in half of the requests and none in the others: six rounds of 1.1 s in the mean.
    """
    scene.requests(6, ALL)
    for at in range(6):
        scene.replay(f"r{at}", ALL if at % 2 else NONE, BIG)
    for rows, step in ((1, 0.1), (8, 0.75)):
        scene.times({1: 1.0, 2: 1.0}, {1: step, 2: step}, concurrency=rows)
        scene.times({1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1}, BIG, concurrency=rows)
    return scene


def test_a_draft_alone_pays_at_no_load_where_the_answer_is_open(two_drafts):
    found = recommend(two_drafts.observed(1, concurrency=(1, 8)))
    eight = at(found, 8)
    assert (found.leader.draft, eight.leader.draft) == ("small", "big")
    assert (found.decision, eight.decision) == ("speculate", "inconclusive")
    assert [(entry.concurrency, entry.k) for entry in found.schedule if entry.timed] == [
        (1, 1),
        (8, None),
    ]
    assert 1 <= found.crossover < 8


def test_what_does_not_pay_in_between_is_no_end_of_what_pays(scene):
    # Passes take 1 s up to 8 tokens, b / 8 up to 32 and hardly more after that. At k = 1, two
    # tokens a row, 8 to 16 rows pay most for them: at 7 rows eight steps of 1 s stand against four
    # rounds of 1.85 s, at 8 of 2.1 s; at 16 of 2 s against 4.1 s, at 17 of 2.125 against 4.1125 s.
    scene.requests(5, ALL)
    for rows, steps in ((1, (1.0, 1.0)), (8, (1.0, 2.0)), (32, (4.0, 4.2))):
        scene.times(dict(enumerate(steps, 1)), DRAFT, concurrency=rows)
    found = recommend(scene.observed(1, concurrency=(1, 8, 32)))
    assert (found.crossover, found.crossover_gaps) == (None, ((8, 16),))
    assert [(entry.concurrency, entry.k) for entry in found.schedule] == [
        (1, 1),
        (8, 0),
        (17, 1),
        (32, 1),
    ]
    assert crossover(found) == (
        "small pays off at the largest timed concurrency too, not clearly at 8 to 16."
    )


def test_what_was_decoded_at_both_ends_is_said_of_a_load_between(scene):
    scene.requests(5, ALL)
    for rows in (4, 16):
        scene.times(TARGET, DRAFT, concurrency=rows)
        for at in range(5):
            full = {"concurrency": rows, "candidate": SMALL}
            scene.batch_run(f"r{at}", 0, (0,) * 8, (1.0,) * 8, active=(rows,) * 8, **full)
            scene.batch_run(f"r{at}", 1, (1,) * 4, (1.5,) * 4, active=(rows,) * 4, **full)
    run = scene.observed(1, concurrency=(4, 16))
    level = recommend(run, DecisionOptions(concurrency=(8,))).by_concurrency[0]
    assert level.speedup_expected.value == pytest.approx(8 / 6)
    assert level.costs == ("interpolated between 4 and 16; corrected by what was decoded there")


# One rate of plain decoding at each load.


@pytest.fixture
def blocks(scene):
    """Steps of each block by rows, the same over one and two tokens a row."""

    def timed(steps):
        scene.requests(5, ALL, *steps)
        for candidate, by_rows in steps.items():
            for rows, seconds in by_rows.items():
                scene.times({1: seconds, 2: seconds}, DRAFT, candidate, concurrency=rows)
        return scene

    return timed


def baseline(scene, candidate, rows, seconds):
    """Requests decoded without speculation, every step of which takes so long."""
    full = {"concurrency": rows, "active": (rows,) * 8}
    for name in (f"r{at}" for at in range(5)):
        scene.batch_run(name, 0, (0,) * 8, (seconds,) * 8, candidate=candidate, **full)


def plain(scene, rows):
    return plain_decoding(Evaluator(scene.observed(1), DecisionOptions()), rows)


def test_steps_are_the_geometric_mean_over_the_blocks_with_their_range(blocks):
    scene = blocks({SMALL: {8: 1.0}, BIG: {8: 4.0}})
    assert plain(scene, 8).step == pytest.approx(2.0)
    (level,) = recommend(scene.observed(1), DecisionOptions(concurrency=(8,))).by_concurrency
    assert level.tokens_per_second_plain == pytest.approx(8 / 2.0)
    assert level.plain_range == pytest.approx((8 / 4.0, 8 / 1.0))
    # Big leads: four rounds of 4.1 s against eight steps of its own block.
    assert level.tokens_per_second == pytest.approx(8 / 2.0 * 32 / 16.4)


def test_where_the_target_was_decoded_its_passes_alone_do_not_count(blocks):
    scene = blocks({SMALL: {8: 1.0}, BIG: {8: 4.0}})
    baseline(scene, SMALL, 8, 1.5)
    assert plain(scene, 8).step == pytest.approx(1.5)


def test_more_rows_never_step_faster_whatever_blocks_were_decoded(blocks):
    scene = blocks({SMALL: {4: 1.0, 8: 1.0}, BIG: {4: 1.0, 8: 1.0}})
    baseline(scene, BIG, 4, 2.0)
    baseline(scene, SMALL, 8, 1.5)
    assert [plain(scene, rows).step for rows in (4, 6, 8)] == pytest.approx([2.0] * 3)


def test_between_two_timed_loads_steps_rise_as_passes_do(scene):
    # Passes take 1 s up to 8 tokens and as much longer as they have more: 1.5 s at 12 rows, half of
    # the way from 4 to 16. As decoded every step takes .5 s more.
    scene.requests(5, ALL)
    for rows in (4, 16):
        steps = {n: max(1.0, rows * n / 8) for n in (1, 2, 3)}
        scene.times(steps, DRAFT, concurrency=rows)
        baseline(scene, SMALL, rows, steps[1] + 0.5)
    assert plain(scene, 12).step == pytest.approx(2.0)
    assert plain(scene, 6).step == pytest.approx(1.5)


@pytest.mark.parametrize("rows", [2, 32])
def test_beyond_the_timed_loads_nothing_is_known(blocks, rows):
    assert plain(blocks({SMALL: {4: 1.0, 16: 1.0}}), rows) is None


seconds = st.floats(0.5, 5.0)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    timed=st.lists(
        # A step that is slower than longer passes is slower than more rows of one token, too.
        st.tuples(seconds, seconds, seconds).map(lambda passes: (min(passes), *passes[1:])),
        min_size=6,
        max_size=6,
    ),
    decoded=st.lists(st.none() | seconds, min_size=6, max_size=6),
)
def test_no_larger_load_has_less_throughput_and_less_latency_at_once(timed, decoded):
    """Two blocks at 1, 4 and 16 rows whose passes and baselines took what they took."""
    scene = Scene()
    scene.requests(5, ALL, SMALL, BIG)
    places = [(candidate, rows) for candidate in (SMALL, BIG) for rows in (1, 4, 16)]
    for (candidate, rows), passes, step in zip(places, timed, decoded, strict=True):
        by_tokens = dict(zip((1, 2, 3), passes, strict=True))
        scene.times(by_tokens, {1: 0.2, 2: 0.2}, candidate, concurrency=rows)
        if step is not None:
            baseline(scene, candidate, rows, step)
    evaluator = Evaluator(scene.observed(1, 2), DecisionOptions())
    loads = [at_concurrency(evaluator, rows) for rows in range(1, 17)]
    plain_times = [at.seconds_per_token_plain for at in loads]
    assert plain_times == pytest.approx(sorted(plain_times))
    for rates, times in (
        ([at.tokens_per_second_plain for at in loads], plain_times),
        ([at.tokens_per_second for at in loads], [at.seconds_per_token for at in loads]),
    ):
        for fewer in range(16):
            for more in range(fewer + 1, 16):
                slower = rates[more] < rates[fewer] * (1 - 1e-9)
                assert not (slower and times[more] < times[fewer] * (1 - 1e-9))
