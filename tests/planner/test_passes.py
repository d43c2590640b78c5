"""What a pass costs between, on and beyond the timed points."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes import INT4, NGRAM, SELF_DRAFT, SMALL, lookup

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.rounds import expected_rounds
from draftbench.drafts.laws import StartLaw
from draftbench.planner.passes import PASS_DRAWS, Block, Passes, between, blocks_of, rising
from draftbench.records import Candidate


def at(passes, size, context):
    """Seconds of passes by the medians."""
    return passes.at(size, context)[0]


def test_costs_are_interpolated_in_tokens_and_in_context_and_constant_beyond(scene):
    for context, seconds in ((100, 1.0), (300, 2.0)):
        scene.times({1: seconds, 5: seconds + 0.4}, {1: 0.1, 2: 0.1}, contexts=(context,))
    target = blocks_of(scene.observed(4), SMALL)[1].target
    sizes, contexts = [1, 3, 3, 9], [100, 100, 250, 500]
    assert at(target, sizes, contexts) == pytest.approx([1.0, 1.2, 1.2 + 0.75, 2.4])
    asked = target.covers(np.array([5, 6, 5, 1]), np.array([300, 300, 301, 99]))
    assert asked.tolist() == [True, False, False, False]


def test_the_median_of_all_repeats_counts(scene):
    scene.times({1: (1.0, 9.0, 1.2), 2: (1.2,) * 3}, {1: (0.1,) * 3})
    costs = blocks_of(scene.observed(1), SMALL)[1]
    assert at(costs.target, 1, 0) == pytest.approx(1.2)


def test_a_longer_pass_is_never_cheaper(scene):
    # 1.04 before 1.0: half-way between 1.04 and 1.0, twice.
    scene.times({1: 1.04, 2: 1.0, 3: 1.3}, {1: 0.1, 2: 0.1})
    costs = blocks_of(scene.observed(2), SMALL)[1]
    assert at(costs.target, np.array([1, 2, 3]), 0) == pytest.approx([1.02, 1.02, 1.3])
    assert costs.target.slow_step is None


def test_a_step_that_takes_longer_than_a_pass_over_several_tokens_stays_as_timed(scene):
    # Of 1.26, 1.01, 0.88, 0.87 half-way between 1.26 and 0.87: 1.065; a step takes 1.07.
    passes = {1: 1.07, 2: 1.26, 3: 1.01, 4: 0.88, 5: 0.87, 6: 1.09}
    scene.times(passes, {1: 0.1, 2: 0.1}, contexts=(100, 300))
    costs = blocks_of(scene.observed(5), SMALL)[1]
    assert costs.target.slow_step == (5, 0.87, 1.07)
    seconds = at(costs.target, np.arange(1, 7), 200)
    assert seconds == pytest.approx([1.07, 1.065, 1.065, 1.065, 1.065, 1.175])
    v = costs.verify_ratio(5, 200.0)
    assert (v.value, v.low, v.high) == pytest.approx((1.065 / 1.07,) * 3)


@pytest.mark.parametrize(("step", "slow"), [((1.07, 1.07), True), ((1.07, 0.88), False)])
def test_a_step_is_slow_where_it_is_so_at_every_context(scene, step, slow):
    for context, seconds in zip((100, 300), step, strict=True):
        scene.times({1: seconds, 5: 0.87}, {1: 0.1, 2: 0.1}, contexts=(context,))
    assert (blocks_of(scene.observed(4), SMALL)[1].target.slow_step is not None) is slow


def test_of_more_rows_a_step_may_cost_less_than_a_slow_one(scene):
    """Four rows of one token are as many rows of a product as four tokens."""
    scene.times({1: 1.07, 4: 0.88}, {1: 0.1, 2: 0.1})
    scene.times({1: 0.88, 4: 1.5}, {1: 0.1, 2: 0.1}, concurrency=4)
    costs = blocks_of(scene.observed(3, concurrency=(1, 4)), SMALL)
    assert at(costs[4].target, 1, 0) == pytest.approx(0.88)


# A median of three visits is the lowest or the highest in 7 of 27 draws each. Such intervals are
# √(3/2) · 4.30 wide where 1.96 stands for many (Student, two degrees of freedom).
OF_THREE = 1.5**0.5 * 4.303 / 1.96


@pytest.mark.parametrize(
    ("longer", "step", "v", "c"),
    [
        # v is never under 1.
        ((1.0, 1.0, 1.5, 1.5, 2.0, 2.0), (0.1,) * 6, (1.5, 1.0, 1.5 * (2 / 1.5) ** OF_THREE), None),
        # One visit of three took 8 s: it counts as the longest of the others, .11, the median.
        (
            (1.1,) * 6,
            (0.1, 0.1, 0.11, 0.11, 8.0, 8.0),
            None,
            (0.11, 0.11 * (0.1 / 0.11) ** OF_THREE, 0.11),
        ),
        # 1 and 2 in every visit are drawn together: what was drawn is always half of each.
        ((1.0, 2.0) * 3, (0.1,) * 6, (1.5, 1.5, 1.5), (0.1, 0.1, 0.1)),
    ],
)
def test_ratios_carry_the_spread_of_their_visits(scene, longer, step, v, c):
    scene.times({1: (1.0,) * 6, 3: longer}, {1: step, 2: step})
    scene.times({1: 7.0, 3: 7.0}, {1: 3.0, 2: 3.0}, INT4)  # points of other blocks do not count
    costs = blocks_of(scene.observed(2), SMALL)[1]
    for wanted, found in ((v, costs.verify_ratio(3, 500.0)), (c, costs.draft_cost_ratio(500.0))):
        if wanted:
            assert (found.value, found.low, found.high) == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize(("processes", "differ"), [(2, False), (3, True)])
def test_from_three_processes_on_their_differences_are_in_the_interval(scene, processes, differ):
    for at in range(processes):
        scene.times({1: 1.0, 2: 1.1}, {1: (0.1 + 0.01 * at,) * 6}, process=str(at))
    ratio = blocks_of(scene.observed(1), SMALL)[1].draft_cost_ratio(500.0)
    assert (ratio.low < ratio.value < ratio.high) is differ


def test_the_target_as_its_own_draft_costs_a_target_step(scene):
    scene.times({1: 1.0, 2: 1.2}, None, SELF_DRAFT)
    costs = blocks_of(scene.observed(1), SELF_DRAFT)[1]
    assert at(costs.draft, 2, 0) == pytest.approx(1.2)
    assert costs.draft_cost_ratio(0.0).value == 1.0


def test_a_level_without_kernel_and_steps_that_nobody_timed_cost_nobody_knows_what(scene):
    scene.facts("small", has_kernel=False)
    scene.times({1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1})
    scene.times({1: 1.0, 2: 1.0}, None, Candidate(draft="other"))
    run = scene.observed(1)
    assert blocks_of(run, SMALL) == {}
    assert blocks_of(run, Candidate(draft="other")) == {}
    assert blocks_of(run, Candidate(draft="third")) == {}


def test_each_batch_size_has_its_own_steps_and_all_share_the_prefill(scene):
    # At two tokens two rows were timed faster than one, by noise: more rows never cost less.
    scene.times({1: 1.0, 2: 1.4}, {1: 0.1, 2: 0.2})
    scene.times({1: 1.2, 2: 1.3}, {1: 0.1, 2: 0.2}, concurrency=2)
    scene.times({1: 3.0, 2: 3.6}, {1: 0.4, 2: 0.5}, concurrency=4)
    scene.prefills(2.0, 0.5)
    found = blocks_of(scene.observed(1), SMALL)
    seconds = {rows: at(block.target, [1, 2], 500).tolist() for rows, block in found.items()}
    assert seconds == {1: [1.0, 1.4], 2: [1.2, 1.4], 4: [3.0, 3.6]}
    assert found[4].draft_cost_ratio(500.0).value == pytest.approx(0.4 / 3)
    assert at(found[4].prefill, 10, 0) == pytest.approx(2.0)


def test_rows_are_looked_up_one_after_the_other(scene):
    scene.times({1: 1.0, 2: 1.0}, None, NGRAM)
    scene.times({1: 2.0, 2: 2.0}, None, NGRAM, concurrency=8)
    scene.cost("ngram", NGRAM, 2, 0.01, what="proposal")
    costs = blocks_of(scene.observed(1), NGRAM)[8]
    assert at(costs.proposal, 1, 0) == pytest.approx(0.08)


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("step", "ratio"), [(0.2, 0.2), (None, 0.4)])
def test_a_head_catches_up_on_what_was_accepted_and_steps_for_each_further_token(
    scene, rows, step, ratio
):
    """Rounds from the tokens 1, 4 and 5 accept 2, 0 and 1 of 2: three passes over three tokens,
    catch-ups over 3, 1 and 2 tokens, or 2 on average, and three steps, unless it drafts all at
    once.
    """
    head = Candidate(draft="eagle3:head")
    scene.times({1: 1.0, 2: 1.2, 3: 1.3}, step and {1: step}, head, concurrency=rows)
    for tokens, seconds in {1: 0.4, 2: 0.5, 3: 0.6}.items():
        scene.cost(head.draft, head, tokens, seconds, what="catch-up", concurrency=rows)
    block = blocks_of(scene.observed(2), head)[rows]
    proposed, matched = np.full(6, 2), np.array([2, 1, 0, 0, 1, 0])
    rounds = expected_rounds([StartLaw(7, 20, proposed, matched, 2)], 2)
    spent = block.rounds(rounds, np.array([10.0]), rows, np.ones(1))
    assert spent.seconds == pytest.approx([3 * 1.3 + 3 * 0.5 + 3 * (step or 0.0)])
    assert block.draft_cost_ratio(10).value == pytest.approx(ratio)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_block_drafter_catches_up_and_then_drafts_its_whole_block_in_one_pass(scene, rows):
    """The rounds of the head above, with a block of two tokens each, whatever is proposed."""
    head = Candidate(draft="dflash:head")
    scene.times({1: 1.0, 2: 1.2, 3: 1.3}, None, head, concurrency=rows)
    for what, times in {"catch-up": {1: 0.4, 2: 0.5, 3: 0.6}, "block": {1: 0.3, 2: 0.35}}.items():
        for tokens, seconds in times.items():
            scene.cost(head.draft, head, tokens, seconds, what=what, concurrency=rows)
    block = blocks_of(scene.observed(2), head)[rows]
    proposed, matched = np.full(6, 2), np.array([2, 1, 0, 0, 1, 0])
    rounds = expected_rounds([StartLaw(7, 20, proposed, matched, 2)], 2)
    spent = block.rounds(rounds, np.array([10.0]), rows, np.ones(1))
    assert spent.seconds == pytest.approx([3 * 1.3 + 3 * 0.5 + 3 * 0.35])
    assert block.draft_cost_ratio(10).value == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("kind", "rows", "seconds"), [("model", 1, 5.53), ("model", 2, 5.8633), ("head", 1, 5.73)]
)
def test_the_draft_of_a_stack_reads_at_once_what_lookup_brought(scene, kind, rows, seconds):
    """Rounds from the tokens 1 and 6 are the draft's, from 4 of lookup, which brought two: verify
    4 + 3 + 4 tokens, read 1 and 3 (a head 1 and 5, by its catch-up), four more steps.
    """
    candidate = Candidate(draft="ngram+small")
    scene.times(
        {1: 1.0, 2: 1.2, 3: 1.3, 4: 1.4}, {1: 0.2, 2: 0.3, 4: 0.5}, candidate, concurrency=rows
    )
    for tokens, read in {1: 0.2, 5: 0.6}.items() if kind == "head" else ():
        scene.cost(candidate.draft, candidate, tokens, read, what="catch-up")
    scene.cost(candidate.draft, candidate, 3, 0.01, what="proposal", concurrency=rows)
    scene.request("r", 9, limit=20)
    scene.lookup("r", (0, 0, 0, 2, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0, 0, 0))
    if kind == "head":
        head = lookup((3,) * 8, (2, 1, 0, 1, 0, 2, 1, 0))
        scene.records.append(msgspec.structs.replace(head, candidate=SMALL))
    else:
        scene.replay("r", (1, 1, 0, 1, 0, 1, 1, 0), draftable=19)
    run = scene.observed(3, specs={"small": "s", "ngram": "ngram", "ngram+small": "ngram+s"})
    along = candidate_rounds(run, candidate)
    spent = blocks_of(run, candidate)[rows].rounds(along.at(3), along.contexts, rows, np.ones(1))
    assert spent.seconds == pytest.approx([seconds], abs=1e-4)


def passes(sizes, contexts, seconds):
    """Passes whose seconds [sizes, contexts] are known exactly."""
    every = np.repeat(np.array(seconds, float)[None], PASS_DRAWS + 1, axis=0)
    return Passes(np.array(sizes), np.array(contexts), every)


def target_between(timed, rows):
    """Target passes at so many rows; those of the draft are the same."""
    found = between({n: Block(each, each) for n, each in timed.items()}, rows)
    return found and found.target


def rooflines(knee, rows=(1, 4, 16), sizes=(1, 2, 3, 5)):
    """Passes of 1 s up to `knee` tokens, and of as much more as they have more tokens."""
    return {
        n: passes(sizes, (0, 100), [[max(1.0, n * size / knee)] * 2 for size in sizes])
        for n in rows
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
    assert at(target_between(rooflines(20), 8), size, 50) == pytest.approx(seconds)


def test_where_two_batch_sizes_have_passes_over_as_many_tokens_their_mean_is_on_the_curve():
    # Four tokens take 2 s in one row and 3 s in four: 2.5 s. Two rows of one token take 1.5 s on a
    # curve that begins at 1 s, a third of the way.
    timed = {
        1: passes((1, 2, 4), (0,), [[1.0], [1.5], [2.0]]),
        4: passes((1, 2), (0,), [[3.0], [4.0]]),
    }
    assert at(target_between(timed, 2), 1, 0) == pytest.approx(1 + 2 / 3)


def test_a_bend_between_two_points_is_half_in_doubt():
    # 20 tokens take 1 s and 32 take 32 / 26: at 24 the line between them has 1.077 s, while what
    # is flat before and rises after it has 1.
    line = 1 + (32 / 26 - 1) / 3
    found = target_between(rooflines(26), 8).at(3, 0)[:, 0]
    assert found[0] == pytest.approx((1 + line) / 2)
    assert (found.min(), found.max()) == pytest.approx((1.0, line), abs=0.001)
    # Passes over one token a row, eight tokens, are flat whatever the others do.
    assert at(target_between(rooflines(26), 8), 1, 0) == pytest.approx(1.0)


def test_a_step_between_two_points_may_lie_anywhere_between_them():
    # Flat up to 4 tokens and from 16 on: 1 s, then 3 s, and no telling from where on.
    timed = {n: passes((1, 2), (0,), [[s], [s]]) for n, s in ((1, 1.0), (2, 1.0), (16, 3.0))}
    found = target_between(timed, 10).at(1, 0)[:, 0]
    assert found[0] == pytest.approx(2.0)
    assert (found.min(), found.max()) == pytest.approx((1.0, 3.0), abs=0.02)


@settings(max_examples=25)
@given(
    st.lists(st.floats(0.01, 10), min_size=8, max_size=8),
    st.lists(st.floats(0.01, 10), min_size=8, max_size=8),
)
def test_between_two_batch_sizes_more_rows_never_cost_less(fewer, more):
    one, other = (
        passes((1, 2, 3, 4), (0, 100), rising(rising(np.reshape(each, (4, 2)), 0), 1))
        for each in (fewer, more)
    )
    timed = {2: one, 9: other.raised(one)}
    every = [target_between(timed, rows) for rows in range(2, 10)]
    for size in (1, 2, 3, 4):
        for context in (0, 100):
            seconds = np.stack([each.at(size, context)[:, 0] for each in every])
            assert (np.diff(seconds, axis=0) > -1e-9).all()


@pytest.mark.parametrize(("larger", "common"), [((50, 200), [50, 100]), ((120, 130), None)])
def test_between_two_batch_sizes_only_the_contexts_of_both_count(larger, common):
    contexts = {2: (0, 100), 9: larger}
    timed = {rows: passes((1, 2), each, [[1.0] * 2] * 2) for rows, each in contexts.items()}
    found = target_between(timed, 4)
    assert (found and found.contexts.tolist()) == common
