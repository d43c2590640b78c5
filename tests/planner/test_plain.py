"""One rate of plain decoding at each load, from blocks by hand; more rows never step faster."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import ALL, BIG, SMALL, Scene

from draftbench.planner.at_concurrency import Evaluator
from draftbench.planner.loads import level_of
from draftbench.planner.options import DecisionOptions
from draftbench.planner.plain import plain_decoding
from draftbench.planner.recommend import recommend

DRAFT = {1: 0.1, 2: 0.1}


@pytest.fixture
def blocks(scene):
    """Steps of each block by rows, the same over one and two tokens a row."""

    def timed(steps):
        scene.requests(5, ALL, *steps)
        for candidate, by_rows in steps.items():
            for rows, seconds in by_rows.items():
                scene.times({1: seconds, 2: seconds}, DRAFT, candidate, batch=rows)
        return scene

    return timed


def baseline(scene, candidate, rows, seconds):
    """Requests decoded without speculation, every step of which takes so long."""
    full = {"batch": rows, "active": (rows,) * 8}
    for name in (f"r{at}" for at in range(5)):
        scene.batch_run(name, 0, (0,) * 8, (seconds,) * 8, candidate=candidate, **full)


def plain(scene, rows):
    return plain_decoding(Evaluator(scene.observed(1), DecisionOptions()), rows)


def test_steps_are_the_geometric_mean_over_the_blocks_with_their_range(blocks):
    scene = blocks({SMALL: {8: 1.0}, BIG: {8: 4.0}})
    assert plain(scene, 8).step == pytest.approx(2.0)
    (level,) = recommend(scene.observed(1), DecisionOptions(concurrency=(8,))).levels
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
        scene.times(steps, DRAFT, batch=rows)
        baseline(scene, SMALL, rows, steps[1] + 0.5)
    assert plain(scene, 12).step == pytest.approx(2.0)
    assert plain(scene, 6).step == pytest.approx(1.5)


@pytest.mark.parametrize("rows", [2, 32])
def test_beyond_the_timed_loads_nothing_is_known(blocks, rows):
    assert plain(blocks({SMALL: {4: 1.0, 16: 1.0}}), rows) is None


def test_a_prefill_counts_for_the_token_that_it_gives(blocks):
    # Two seconds of prefill and eight steps for nine tokens.
    scene = blocks({SMALL: {4: 1.0}})
    scene.prefills(2.0, 1.0)
    assert plain(scene, 4).token == pytest.approx((2 + 8 * 1.0) / 9)


seconds = st.floats(0.5, 5.0)


@settings(max_examples=10, deadline=None)
@given(
    timed=st.lists(st.tuples(seconds, seconds, seconds), min_size=6, max_size=6),
    decoded=st.lists(st.none() | seconds, min_size=6, max_size=6),
)
def test_no_larger_load_has_less_throughput_and_less_latency_at_once(timed, decoded):
    """Two blocks at 1, 4 and 16 rows whose passes and baselines took what they took."""
    scene = Scene()
    scene.requests(5, ALL, SMALL, BIG)
    places = [(candidate, rows) for candidate in (SMALL, BIG) for rows in (1, 4, 16)]
    for (candidate, rows), passes, step in zip(places, timed, decoded, strict=True):
        by_tokens = dict(zip((1, 2, 3), passes, strict=True))
        scene.times(by_tokens, {1: 0.2, 2: 0.2}, candidate, batch=rows)
        if step is not None:
            baseline(scene, candidate, rows, step)
    evaluator = Evaluator(scene.observed(1, 2), DecisionOptions())
    levels = [level_of(evaluator, rows) for rows in range(1, 17)]
    plain_times = [level.seconds_per_token_plain for level in levels]
    assert plain_times == pytest.approx(sorted(plain_times))
    for rates, times in (
        ([at.tokens_per_second_plain for at in levels], plain_times),
        ([at.tokens_per_second for at in levels], [at.seconds_per_token for at in levels]),
    ):
        for fewer in range(16):
            for more in range(fewer + 1, 16):
                slower = rates[more] < rates[fewer] * (1 - 1e-9)
                assert not (slower and times[more] < times[fewer] * (1 - 1e-9))
