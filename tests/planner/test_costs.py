"""What a pass costs between, on and beyond the timed points."""

from itertools import pairwise

import numpy as np
import pytest
from draftbench.planner.costs import Surface, between, block_costs, isotonic
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import NGRAM, SELF_DRAFT, SMALL

from draftbench.records import Candidate


def test_costs_are_interpolated_in_tokens_and_in_context(scene):
    for context, seconds in ((100, 1.0), (300, 2.0)):
        scene.times({1: seconds, 5: seconds + 0.4}, {1: 0.1, 2: 0.1}, contexts=(context,))
    costs = block_costs(scene.observed(4), SMALL)[1]
    assert costs.target.at(1, 100) == pytest.approx(1.0)
    assert costs.target.at(3, 100) == pytest.approx(1.2)
    assert costs.target.at(3, 250) == pytest.approx(1.2 + 0.75)


def test_beyond_the_timed_points_the_nearest_answers_and_says_so(scene):
    scene.times({1: 1.0, 5: 1.4}, {1: 0.1, 2: 0.1}, contexts=(100, 300))
    costs = block_costs(scene.observed(4), SMALL)[1]
    assert costs.target.at(9, 500) == pytest.approx(1.4)
    asked = costs.target.covers(np.array([5, 6, 5, 1]), np.array([300, 300, 301, 99]))
    assert asked.tolist() == [True, False, False, False]


def test_the_median_of_all_repeats_counts(scene):
    scene.times({1: (1.0, 9.0, 1.2), 2: (1.2,) * 3}, {1: (0.1,) * 3})
    costs = block_costs(scene.observed(1), SMALL)[1]
    assert costs.target.at(1, 0) == pytest.approx(1.2)


def test_a_longer_pass_is_never_cheaper(scene):
    # 1.2 before 1.0: the nearest non-decreasing pair is their mean, twice.
    scene.times({1: 1.2, 2: 1.0, 3: 1.3}, {1: 0.1, 2: 0.1})
    costs = block_costs(scene.observed(2), SMALL)[1]
    assert costs.target.at(np.array([1, 2, 3]), 0) == pytest.approx([1.1, 1.1, 1.3])


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=8))
def test_the_monotone_curve_keeps_the_mean_and_is_unchanged_where_it_was_monotone(values):
    curve = isotonic(np.array(values))
    assert all(a <= b + 1e-9 for a, b in pairwise(curve))
    assert curve.mean() == pytest.approx(np.mean(values))
    assert isotonic(np.sort(values)) == pytest.approx(np.sort(values))


def test_values_that_fall_become_their_mean_in_every_row_alone():
    # 3, 1, 2 have the mean 2 and 5, 4 the mean 4.5; 4, 3, 2 have the mean 3, below the 5 before it,
    # so that all four become 3.5.
    rows = np.array([[3.0, 1.0, 2.0, 5.0, 4.0], [5.0, 4.0, 3.0, 2.0, 6.0]])
    nearest = [[2.0, 2.0, 2.0, 4.5, 4.5], [3.5, 3.5, 3.5, 3.5, 6.0]]
    assert isotonic(rows) == pytest.approx(np.array(nearest))


def test_points_of_other_blocks_do_not_count(scene):
    scene.times({1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1})
    scene.times({1: 7.0, 2: 7.0}, {1: 3.0, 2: 3.0}, Candidate(draft="small", quant="int4"))
    costs = block_costs(scene.observed(1), SMALL)[1]
    ratio = costs.draft_cost_ratio(500.0)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.1, 0.1, 0.1))


def test_ratios_carry_the_spread_of_their_visits(scene):
    visits = (1.0, 1.0, 1.5, 1.5, 2.0, 2.0)
    scene.times({1: (1.0,) * 6, 3: visits}, {1: (0.1,) * 6, 2: (0.1,) * 6})
    ratio = block_costs(scene.observed(2), SMALL)[1].verify_ratio(3, 500.0)
    # A median of three draws is 1 or 2 in 7 of 27 cases each. Intervals of three are √(3/2) · 4.30
    # wide where 1.96 stands for many (Student, two degrees of freedom); v is never under 1.
    high = 1.5 * (2 / 1.5) ** (1.5**0.5 * 4.303 / 1.96)
    assert (ratio.value, ratio.low) == (1.5, 1.0)
    assert ratio.high == pytest.approx(high, rel=0.05)


def test_a_stalled_visit_is_not_in_the_interval_of_c(scene):
    # One visit of three took 8 s: it counts as the longest of the others, 0.11, which is the
    # median; 0.1 is one in 7 of 27 draws of three.
    scene.times({1: (1.0,) * 6, 2: (1.1,) * 6}, {1: (0.1, 0.1, 0.11, 0.11, 8.0, 8.0)})
    ratio = block_costs(scene.observed(1), SMALL)[1].draft_cost_ratio(500.0)
    assert (ratio.value, ratio.high) == pytest.approx((0.11, 0.11))
    assert ratio.low == pytest.approx(0.11 * (0.1 / 0.11) ** (1.5**0.5 * 4.303 / 1.96), rel=0.05)


def test_samples_of_one_visit_are_drawn_together(scene):
    # 1 and 2 in every visit: what was drawn is always half of each.
    scene.times({1: (1.0,) * 6, 3: (1.0, 2.0) * 3}, {1: (0.1,) * 6, 2: (0.1,) * 6})
    ratio = block_costs(scene.observed(2), SMALL)[1].verify_ratio(3, 500.0)
    assert (ratio.low, ratio.high) == (1.5, 1.5)


@pytest.mark.parametrize(("processes", "differ"), [(2, False), (3, True)])
def test_from_three_processes_on_their_differences_are_in_the_interval(scene, processes, differ):
    for at in range(processes):
        scene.times({1: 1.0, 2: 1.1}, {1: (0.1 + 0.01 * at,) * 6}, process=str(at))
    ratio = block_costs(scene.observed(1), SMALL)[1].draft_cost_ratio(500.0)
    assert (ratio.low < ratio.value < ratio.high) is differ


def test_the_target_as_its_own_draft_costs_a_target_step(scene):
    control = SELF_DRAFT
    scene.times({1: 1.0, 2: 1.2}, None, control)
    costs = block_costs(scene.observed(1), control)[1]
    assert costs.draft.at(2, 0) == pytest.approx(1.2)
    assert costs.draft_cost_ratio(0.0).value == 1.0


def test_a_level_without_kernel_and_steps_that_nobody_timed_cost_nobody_knows_what(scene):
    scene.facts("small", has_kernel=False)
    scene.times({1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1})
    scene.times({1: 1.0, 2: 1.0}, None, Candidate(draft="other"))
    run = scene.observed(1)
    assert block_costs(run, SMALL) == {}
    assert block_costs(run, Candidate(draft="other")) == {}
    assert block_costs(run, Candidate(draft="third")) == {}


def test_each_batch_size_has_its_own_steps_and_all_share_the_prefill(scene):
    scene.times({1: 1.0, 2: 1.1}, {1: 0.1, 2: 0.2})
    scene.times({1: 3.0, 2: 3.6}, {1: 0.4, 2: 0.5}, batch=4)
    scene.prefills(2.0, 0.5)
    found = block_costs(scene.observed(1), SMALL)
    assert list(found) == [1, 4]
    one, four = found.values()
    assert one.target.at(2, 500) == pytest.approx(1.1)
    assert four.target.at(2, 500) == pytest.approx(3.6)
    assert four.draft_cost_ratio(500.0).value == pytest.approx(0.4 / 3)
    assert four.prefill.at(10, 0) == pytest.approx(2.0)


def test_more_rows_never_cost_less(scene):
    # At two tokens the larger batch was timed faster than the smaller one, by noise.
    scene.times({1: 1.0, 2: 1.4}, {1: 0.1, 2: 0.2})
    scene.times({1: 1.2, 2: 1.3}, {1: 0.1, 2: 0.2}, batch=2)
    costs = block_costs(scene.observed(1), SMALL)[2]
    assert costs.target.at(np.array([1, 2]), 0) == pytest.approx([1.2, 1.4])


def test_rows_are_looked_up_one_after_the_other(scene):
    ngram = NGRAM
    scene.times({1: 1.0, 2: 1.0}, None, ngram)
    scene.times({1: 2.0, 2: 2.0}, None, ngram, batch=8)
    scene.cost("ngram", ngram, 2, 0.01, what="proposal")
    costs = block_costs(scene.observed(1), ngram)[8]
    assert costs.proposal.at(1, 0) == pytest.approx(0.08)


def rooflines(knee, rows=(1, 4, 16), sizes=(1, 2, 3, 5)):
    """Passes of 1 s up to `knee` tokens, and of as much more as they have more tokens."""
    return {
        batch: Surface.of(
            np.array(sizes),
            np.array([0, 100]),
            np.array([[[max(1.0, batch * size / knee)] * 3] * 2 for size in sizes]),
        )
        for batch in rows
    }


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        (1, 1.0),  # 8 tokens
        (2, 1.0),  # 16; straight in the rows it would be 1.2, between 1.0 at 4 and 1.6 at 16
        (3, 1.2),  # 24, 20 of which are free
        (5, 2.0),  # 40
    ],
)
def test_between_two_batch_sizes_a_pass_takes_what_its_tokens_take(size, seconds):
    assert between(rooflines(20), 8).at(size, 50) == pytest.approx(seconds)


def test_a_bend_between_two_points_is_half_in_doubt():
    # 20 tokens take 1 s and 32 take 32 / 26: at 24 the line between them has 1.077 s, while what
    # is flat before and rises after it has 1.
    timed, line = rooflines(26), 1 + (32 / 26 - 1) / 3
    assert between(timed, 8, bend=-1).at(3, 0) == pytest.approx(1.0)
    assert between(timed, 8, bend=1).at(3, 0) == pytest.approx(line)
    assert between(timed, 8).at(3, 0) == pytest.approx((1 + line) / 2)
    # Passes over one token a row, eight tokens, are flat whatever the others do.
    assert between(timed, 8, bend=1, bend_of_steps=-1).at(1, 0) == pytest.approx(1.0)


def test_a_step_between_two_points_may_lie_anywhere_between_them():
    # Flat up to 4 tokens and from 16 on: 1 s, then 3 s, and no telling from where on.
    timed = {
        rows: Surface.of(np.array([1, 2]), np.array([0]), np.full((2, 1, 1), seconds))
        for rows, seconds in ((1, 1.0), (2, 1.0), (16, 3.0))
    }
    found = [between(timed, 10, bend, bend).at(1, 0) for bend in (-1, 0, 1)]
    assert found == pytest.approx([1.0, 2.0, 3.0])


@settings(deadline=None)  # a busy machine takes over .2 s for one
@given(
    st.lists(st.floats(0.01, 10), min_size=8, max_size=8),
    st.lists(st.floats(0.01, 10), min_size=8, max_size=8),
    st.sampled_from([-1.0, 0.0, 1.0]),
)
def test_between_two_batch_sizes_more_rows_never_cost_less(fewer, more, bend):
    one = surface(fewer, (0, 100))
    timed = {2: one, 9: surface(more, (0, 100)).raised(one)}
    every = [one, *(between(timed, rows, bend, bend) for rows in range(3, 9)), timed[9]]
    for size in (1, 2, 3, 4):
        for context in (0, 100):
            seconds = [float(each.at(size, context)) for each in every]
            assert seconds == pytest.approx(sorted(seconds))


def test_between_two_batch_sizes_only_the_contexts_of_both_count():
    timed = {2: surface([1.0] * 8, (0, 100)), 9: surface([2.0] * 8, (50, 200))}
    assert between(timed, 4).contexts.tolist() == [50, 100]


def test_surfaces_without_a_common_context_have_nothing_between_them():
    timed = {1: surface([1.0] * 8, (0, 10)), 4: surface([1.0] * 8, (20, 30))}
    assert between(timed, 2) is None


def surface(seconds, contexts):
    samples = np.array(seconds).reshape(4, 2, 1)
    return Surface.of(np.array([1, 2, 3, 4]), np.array(contexts), samples)
