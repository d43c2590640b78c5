"""Which rule to stop by is chosen, and on which requests it is judged."""

from functools import partial

import msgspec
import numpy as np
import pytest
from scenes import SELF_DRAFT, SMALL, Scene, replay, trajectory

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.other_rules import _next_step, foresight
from draftbench.planner.passes import Block, exactly
from draftbench.planner.recommend import recommend
from draftbench.planner.seconds import in_seconds
from draftbench.planner.stop_choice import by_passes, chosen_rules
from draftbench.records import Confidences

KS = (1, 2, 3, 4, 6, 8)
# A verifying pass over n tokens, and a draft step, in target steps.
TARGET, DRAFT = {n: 1 + 0.05 * (n - 1) for n in range(1, 10)}, {1: 0.15, 2: 0.15}


def pair(name, generator, tells, length=60, candidate=SMALL):
    """A response with a replay whose draft is right with a chance that its confidence `tells`, or
    not; what it drafts after a wrong token it is rarely sure of.
    """
    chance = generator.beta(2.0, 1.0, length - 1)
    right = (generator.random(length - 1) < chance).astype(float)
    told = chance if tells else generator.permutation(chance)
    confidence = tuple(np.floor(told * 1000) / 1000)
    runs = [[0.5, 0.3, 0.05] for _ in range(int((right == 0).sum()) + 1)]
    flat = tuple(value for run in runs for value in run)
    off_path = Confidences(lengths=tuple(map(len, runs)), of_all=flat, of_ten=flat)
    record = replay(
        right,
        candidate,
        request=name,
        draftable=length,
        confidence=confidence,
        confidence_of_ten=confidence,
        off_path=off_path,
    )
    return trajectory(name, length), record


def pairs(count, tells, seed=0):
    generator = np.random.default_rng(seed)
    return tuple(pair(f"r{at}", generator, tells) for at in range(count))


BLOCK = Block(exactly(TARGET), exactly(DRAFT))


def speed(rounds, k, stop=None):
    plain, drafted = (in_seconds(rounds, BLOCK, 1, *at)[0].sum() for at in ((None,), (k, stop)))
    return plain / drafted


def cost_of(rounds):
    return partial(by_passes, BLOCK, rounds.context, 1)


def observed(count, tells):
    scene = Scene()
    for response, record in pairs(count, tells):
        scene.records += [response, record]
    scene.times(TARGET, DRAFT)
    return scene.observed(*KS)


def test_a_rule_is_chosen_where_confidence_tells_what_is_accepted():
    answer = recommend(observed(60, tells=True))
    fixed, rule = answer.stopping.fixed, answer.stopping.rule
    assert answer.choice.stop is not None
    assert answer.choice == rule
    assert fixed.stop is None
    assert answer.stopping.speedup_fixed < answer.stopping.speedup_rule
    assert answer.stopping.speedup_rule < answer.stopping.speedup_foresight


def test_a_fixed_k_is_chosen_where_confidence_tells_nothing():
    answer = recommend(observed(60, tells=False))
    assert answer.stopping.rule.stop is not None
    assert answer.choice.stop is None


def test_only_the_kinds_that_are_allowed_are_candidates():
    run = observed(20, tells=True)
    found = [
        {each.stop and each.stop.kind for each in Evaluator(run, options).table(1).configurations}
        for options in (DecisionOptions(), DecisionOptions(stops=("before",)))
    ]
    assert found == [{None, "after", "before", "product"}, {None, "before"}]
    assert recommend(run, DecisionOptions(stops=())).stopping is None


def test_a_rule_is_judged_on_requests_that_did_not_choose_it():
    """On its own requests the best of many rules looks faster than it is on new ones; judged on
    others it does not, over 40 samples of 12 requests.
    """
    population, own, judged, new = pairs(1500, tells=False, seed=99), [], [], []
    every = CandidateRounds.of(population, KS)
    for seed in range(40):
        rounds = CandidateRounds.of(pairs(12, tells=False, seed=seed), KS)
        (rule,) = chosen_rules(rounds, cost_of(rounds), ("product",))
        plain = in_seconds(rounds, BLOCK, 1, None)[0].sum()
        own.append(speed(rounds, rule.k, rule.stop))
        judged.append(plain / rule.seconds(rounds, BLOCK, 1).sum())
        new.append(speed(every, rule.k, rule.stop))
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
    for response, record in pairs(10, tells=True):
        scene.records += [response, msgspec.structs.replace(record, candidate=SELF_DRAFT)]
    scene.times(TARGET, DRAFT, SELF_DRAFT)
    stops = {
        each.stop
        for each in Evaluator(scene.observed(*KS), DecisionOptions()).table(1).configurations
    }
    assert stops == {None}


@pytest.mark.parametrize(
    ("k", "average", "following"),
    # Thresholds of SGLang's slot {1, 3, 5, 7}: down at k' - .75 of the smaller k', up at k - .5.
    [(5, 4.6, 7), (5, 4.4, 5), (5, 2.25, 3), (7, 0.1, 1), (1, 9.0, 7), (3, 0.25, 1), (3, 0.3, 3)],
)
def test_the_moving_average_steps_as_sglangs_does(k, average, following):
    assert _next_step(k, average) == following
