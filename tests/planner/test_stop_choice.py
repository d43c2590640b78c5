"""Which rule to stop by is chosen, and on which requests it is judged."""

from functools import partial

import msgspec
import numpy as np
import pytest
from scenes import (
    SELF_DRAFT,
    SMALL,
    TELLING_DRAFT,
    TELLING_KS,
    TELLING_TARGET,
    Scene,
    replay,
    telling_pairs,
    telling_run,
    trajectory,
)

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.gate.make_baseline import choose
from draftbench.planner.cost_sources import CostSource
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.other_rules import _next_step, foresight
from draftbench.planner.passes import Block, exactly
from draftbench.planner.recommend import recommend
from draftbench.planner.seconds import in_seconds
from draftbench.planner.stop_choice import bounds, by_passes, chosen_rules
from draftbench.planner.what_to_measure import lengths_to_decode
from draftbench.records import Confidences

BLOCK = Block(exactly(TELLING_TARGET), exactly(TELLING_DRAFT))


def speed(rounds, k, stop=None):
    plain, drafted = (in_seconds(rounds, BLOCK, 1, *at)[0].sum() for at in ((None,), (k, stop)))
    return plain / drafted


def cost_of(rounds):
    return partial(by_passes, BLOCK, rounds.context, 1)


def test_a_rule_is_chosen_where_confidence_tells_what_is_accepted():
    answer = recommend(telling_run(60))
    fixed, rule = answer.stopping.fixed, answer.stopping.rule
    assert answer.choice.stop is not None
    assert answer.choice == rule
    assert fixed.stop is None
    assert answer.stopping.speedup_fixed < answer.stopping.speedup_rule
    assert answer.stopping.speedup_rule < answer.stopping.speedup_foresight


def test_a_fixed_k_is_chosen_where_confidence_tells_nothing():
    answer = recommend(telling_run(60, tells=False))
    assert answer.stopping.rule.stop is not None
    assert answer.choice.stop is None


def test_only_the_kinds_that_are_allowed_are_candidates():
    run = telling_run(20)
    found = [
        {each.stop and each.stop.kind for each in Evaluator(run, options).at(1).configurations}
        for options in (DecisionOptions(), DecisionOptions(stops=("before",)))
    ]
    assert found == [{None, "after", "before", "product"}, {None, "before"}]
    assert recommend(run, DecisionOptions(stops=())).stopping is None


def test_a_rule_is_judged_on_requests_that_did_not_choose_it():
    """On its own requests the best of many rules looks faster than it is on new ones; judged on
    others it does not, over 40 samples of 12 requests.
    """
    population, own, judged, new = telling_pairs(1500, tells=False, seed=99), [], [], []
    every = CandidateRounds.of(population, TELLING_KS)
    for seed in range(40):
        rounds = CandidateRounds.of(telling_pairs(12, tells=False, seed=seed), TELLING_KS)
        (rule,) = chosen_rules(rounds, cost_of(rounds), ("product",))
        plain = in_seconds(rounds, BLOCK, 1, None)[0].sum()
        own.append(speed(rounds, *rule.length))
        judged.append(plain / rule.seconds(rounds, BLOCK, 1).sum())
        new.append(speed(every, *rule.length))
    optimism, error = np.mean(own) - np.mean(new), np.std(judged) / np.sqrt(40)
    assert optimism > 2 * error
    assert np.mean(judged) - np.mean(new) < 2 * error


def test_foresight_is_what_the_best_draft_length_of_every_round_brings_by_hand():
    nothing = Confidences(lengths=(0, 0), of_all=(), of_ten=())
    record = replay((1.0, 1.0, 0.0, 1.0), confidence_of_ten=(0.9,) * 4, off_path=nothing)
    rounds = CandidateRounds.of(((trajectory("r", 5), record),), (1, 2, 3))
    # At k = 1: a right token and one of the target's (1.05 + .15); a wrong one; then no room.
    at_one = 1.2 + 1.2 + 1.0
    assert speed(rounds, 1) == pytest.approx(4 / at_one)
    # Two right tokens at once (1.1 + .3), then a step.
    assert foresight(rounds, BLOCK, 1) == pytest.approx(at_one / (1.4 + 1.0))


def test_the_control_stops_by_no_rule():
    scene = Scene()
    for response, record in telling_pairs(10):
        scene.records += [response, msgspec.structs.replace(record, candidate=SELF_DRAFT)]
    scene.times(TELLING_TARGET, TELLING_DRAFT, SELF_DRAFT)
    table = Evaluator(scene.observed(*TELLING_KS), DecisionOptions()).table(1)
    assert {each.stop for each in table.configurations} == {None}


@pytest.mark.parametrize(
    ("k", "average", "following"),
    # Thresholds of SGLang's slot {1, 3, 5, 7}: down at k' - .75 of the smaller k', up at k - .5.
    [(5, 4.6, 7), (5, 4.4, 5), (5, 2.25, 3), (7, 0.1, 1), (1, 9.0, 7), (3, 0.25, 1), (3, 0.3, 3)],
)
def test_the_moving_average_steps_as_sglangs_does(k, average, following):
    assert _next_step(k, average) == following


def test_without_confidences_off_the_path_a_rule_brings_something_between_two_bounds():
    """The draft is unsure at once after a wrong token, or never; what it really does is between."""
    pairs = telling_pairs(60)
    exact = CandidateRounds.of(pairs, TELLING_KS)
    rules = chosen_rules(exact, cost_of(exact), ("after", "product"))
    plain = in_seconds(exact, BLOCK, 1, 4)[0].sum()
    gain = plain / min(rule.seconds(exact, BLOCK, 1).sum() for rule in rules)
    unknown = tuple((t, msgspec.structs.replace(r, off_path=None)) for t, r in pairs)
    low, high = bounds(CandidateRounds.of(unknown, TELLING_KS), BLOCK, 1, 4)
    assert 1.0 <= low < gain < high


def test_a_run_without_them_says_between_what_a_rule_lies():
    scene = Scene()
    for response, record in telling_pairs(40):
        scene.records += [response, msgspec.structs.replace(record, off_path=None)]
    scene.times(TELLING_TARGET, TELLING_DRAFT)
    run = scene.observed(*TELLING_KS)
    answer = recommend(run)
    assert answer.stopping is None
    assert answer.stopping_bounds.low < recommend(telling_run(40)).stopping.speedup_rule
    assert recommend(telling_run(40)).stopping.speedup_rule < answer.stopping_bounds.high
    assert any("was not replayed" in each for each in answer.checks)
    assert recommend(run, DecisionOptions(stops=())).stopping_bounds is None


def test_rows_of_a_batch_wait_for_the_one_that_drafts_longest_by_hand():
    """Half of the rounds draft one token and half two, all proposed; four rows step together."""
    proposed = np.array([[0.0, 5.0, 5.0]])
    (seconds,) = by_passes(BLOCK, 100.0, 4, proposed, proposed)
    # All draft one; a second step is needed unless all four stop after one; 1.5 tokens to verify.
    verified, second = 1.075, 1 - 0.5**4
    assert seconds == pytest.approx(10 * (verified + 0.15 + second * 0.15))


def test_a_round_with_a_block_makes_one_pass_as_wide_as_the_block_by_hand():
    """Ten rounds, of which six draft two tokens, of which four are proposed, and four draft one."""
    block = Block(exactly(TELLING_TARGET), block=exactly({1: 0.2, 2: 0.3}))
    proposed, drafted = np.array([[0.0, 6.0, 4.0]]), np.array([[0.0, 4.0, 6.0]])
    (seconds,) = by_passes(block, 100.0, 1, proposed, drafted)
    assert seconds == pytest.approx(6 * 1.05 + 4 * 1.1 + 4 * 0.2 + 6 * 0.3)


def test_the_best_fixed_k_is_decoded_beside_a_rule():
    run = telling_run(40)
    lengths = lengths_to_decode(run, SMALL)
    answer = recommend(run)
    assert set(lengths) == {answer.stopping.rule.length, answer.stopping.fixed.length}


def test_a_schedule_names_the_rule_of_each_load():
    answer = recommend(telling_run(60))
    assert [(entry.k, entry.stop) for entry in answer.schedule] == [answer.choice.length]


def test_costs_of_short_passes_leave_rules_of_short_rounds():
    """A file that times target passes over up to five tokens says nothing of k = 6."""
    run = telling_run(40)
    block = exactly({n: TELLING_TARGET[n] for n in (1, 2, 3, 4, 5)})
    blocks = {SMALL: {1: Block(block, exactly(TELLING_DRAFT), longest=5)}}
    answer = recommend(run, DecisionOptions(costs=CostSource(blocks, "a file")))
    assert answer.stopping.rule.k <= 4


def test_with_one_token_a_round_there_is_nothing_to_stop():
    scene = Scene()
    for response, record in telling_pairs(10):
        scene.records += [response, record]
    scene.times(TELLING_TARGET, TELLING_DRAFT)
    assert recommend(scene.observed(1)).stopping is None


def test_a_baseline_is_of_a_fixed_k_whatever_rule_is_best():
    configuration, _ = choose(telling_run(60), None, None)
    assert configuration.stop is None


@pytest.mark.parametrize("tells", [True, False])
def test_a_baseline_names_the_best_rule_that_it_leaves_out(tells):
    _, remarks = choose(telling_run(60, tells), None, None)
    assert any("is not in the baseline" in remark for remark in remarks) is tells
