"""What a better draft would bring, where it can be solved by hand: eight tokens after the first, a
round of 1.2 s at k = 1 and 1.4 s at k = 2 beside steps of 1 s.
"""

import pytest
from msgspec.structs import replace
from scenes import BIG, CHEAP, DRAFT, NGRAM, SELF_DRAFT, SMALL, TARGET

from draftbench.planner.headroom import better_draft as trainable
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Headroom, Reach
from draftbench.records import Candidate, Sampling
from draftbench.report.answer import better_draft


@pytest.fixture
def answered(scene):
    """The answer where the draft is accepted so, and other replays beside it."""

    def found(accept, *others, temperature=0.0, ks=(1, 2)):
        for name in (f"r{at}" for at in range(5)):
            sampling = Sampling(temperature=temperature)
            scene.request(name, 9, limit=100, sampling=sampling)
            scene.replay(name, accept)
            for candidate, accepts in others:
                scene.replay(name, accepts, candidate)
        for candidate in (SMALL, *(candidate for candidate, _ in others)):
            scene.times(TARGET, CHEAP if candidate == BIG else DRAFT, candidate)
        return recommend(scene.observed(*ks))

    return found


def of(answer, candidate=SMALL):
    return next(each for each in answer.headroom if each.candidate == candidate)


def test_a_draft_that_is_never_accepted_pays_from_the_acceptance_that_makes_up_for_its_rounds(
    answered,
):
    better = of(answered([0.0] * 8))
    assert better.alpha == 0
    assert better.speedup == pytest.approx(1 / 1.2)
    # 1 + α = 1.2 at k = 1; at k = 2 more is needed: 1 + α + α² = 1.4.
    pays = better.to_pay
    assert (pays.k, pays.tokens_per_round) == (1, pytest.approx(1.2))
    assert (pays.alpha, pays.speedup) == (pytest.approx(0.2), pytest.approx(1.0))


def test_a_draft_that_pays_already_breaks_even_between_no_acceptance_and_its_own(answered):
    better = of(answered([0.5] * 8, ks=(1,)))
    assert better.speedup > 1
    assert better.to_pay.tokens_per_round == pytest.approx(1.2)
    # By 1 + α = 1.2; rounds at the end of so short a response draft less than others.
    assert better.to_pay.alpha == pytest.approx(0.2, rel=0.15)


def test_at_most_every_drafted_token_is_accepted_at_the_fastest_draft_length(answered):
    most = of(answered([0.0] * 8, ks=(1,))).most
    # Eight tokens in four rounds of 1.2 s.
    assert (most.k, most.alpha) == (1, 1.0)
    assert (most.tokens_per_round, most.speedup) == (2.0, pytest.approx(2 / 1.2))
    # Three rounds of about 1.4 s at k = 2, four of 1.2 s at k = 1.
    most = of(answered([0.0] * 8)).most
    assert (most.k, most.tokens_per_round) == (2, pytest.approx(8 / 3))


def test_it_wins_where_it_is_as_fast_as_the_fastest_other_draft(answered):
    better = of(answered([0.0] * 8, (BIG, [1.0] * 8)))
    # At k = 2 the other takes three rounds of 1.2 + 0.1 + 0.15 s at most.
    assert better.best_of_others > 1.5
    assert better.to_win.speedup == pytest.approx(better.best_of_others)
    assert better.to_win.alpha > better.to_pay.alpha
    assert of(answered([0.0] * 8, (BIG, [0.0] * 8))).best_of_others == 1.0


def test_a_cost_that_no_acceptance_makes_up_for_is_never_worth_it(scene):
    for name in (f"r{at}" for at in range(5)):
        scene.request(name, 9, limit=100)
        scene.replay(name, [0.5] * 8)
    scene.times(TARGET, {1: 1.0, 2: 1.0})
    better = of(recommend(scene.observed(1)))
    # Two tokens in 2.1 s.
    assert better.most.speedup == pytest.approx(2 / 2.1, rel=0.01)
    assert (better.to_pay, better.to_win) == (None, None)


def test_where_the_target_samples_a_greedy_draft_reaches_what_the_target_accepts_of_itself(
    answered,
):
    answer = answered([0.25] * 8, (SELF_DRAFT, [0.5] * 8), temperature=1.0, ks=(1,))
    most = of(answer).most
    assert most.alpha == answer.ceiling_alpha == 0.5
    own, of_self = (each.tokens_per_round.value for each in answer.evaluations)
    assert 1 < own < of_self < 1.5
    assert most.tokens_per_round == pytest.approx(of_self)
    assert most.speedup == pytest.approx(of(answer).speedup * of_self / own)


def test_a_rule_cannot_be_trained_and_the_control_is_no_draft(answered, scene):
    for at in range(5):
        scene.lookup(f"r{at}", [0] * 8, [0] * 8)
    scene.times(TARGET, None, NGRAM)
    scene.cost("ngram", NGRAM, 1, 0.01, what="proposal")
    answer = answered([0.0] * 8, (SELF_DRAFT, [1.0] * 8))
    assert [each.draft for each in answer.headroom] == ["small"]


@pytest.mark.parametrize("draft", ["mtp", "dflash:head", "suffix", "spec:fast"])
def test_a_draft_that_train_refuses_is_not_advised_to_be_trained(answered, draft):
    answer = answered([0.0] * 8, (Candidate(draft=draft), [0.0] * 8))
    assert [each.draft for each in answer.headroom] == ["small"]


def test_a_stack_of_the_same_draft_is_no_other_draft(scene):
    """Lookup is right in every round; training would change the draft behind it, too."""
    stacked = Candidate(draft="ngram+small")
    for name in (f"r{at}" for at in range(5)):
        scene.request(name, 9, limit=100)
        scene.lookup(name, [2] * 8, [2] * 8)
        scene.replay(name, [0.0] * 8)
    for candidate in (SMALL, stacked):
        scene.times(TARGET, DRAFT, candidate)
    scene.cost(stacked.draft, stacked, 2, 0.01, what="proposal")
    specs = {"small": "s", "ngram": "ngram", "ngram+small": "ngram+s"}
    (better,) = recommend(scene.observed(2, specs=specs)).headroom
    assert (better.draft, better.best_of_others) == ("small", 1.0)


@pytest.fixture(scope="module")
def log(answers):
    """The answer of a kept run."""
    return answers["qwen2.5-coder"]


def better(**changes):
    """A draft at 1.2× with α .5, which would win from .7 beside another at 1.5×."""
    most, to_win = Reach(4, 5.0, 1.0, 2.4), Reach(4, 2.5, 0.7, 1.5)
    fields = {"draft": "small", "quant": "none", "alpha": 0.5, "speedup": 1.2, "most": most}
    fields |= {"to_pay": Reach(1, 1.3, 0.3, 1.0), "to_win": to_win, "best_of_others": 1.5}
    return Headroom(**fields | changes)


NO_TRAINING = "a perfect draft of these costs would reach 2.40×"


@pytest.mark.parametrize(
    ("headroom", "changes", "says"),
    [
        ([better()], {}, "to win, one as cheap as small needs α 0.70 (now 0.50)"),
        (
            [better(speedup=0.9, best_of_others=1.0)],
            {},
            "to pay off, one as cheap as small needs α 0.70",
        ),
        (
            [better(alpha=None, to_win=Reach(4, 2.5, None, 1.5))],
            {},
            "needs 2.50 tok/round at k = 4; at best it reaches 2.40×.",
        ),
        # The one that lacks least.
        ([better(), better(draft="near", speedup=1.4)], {}, "one as cheap as near"),
        ([better(to_win=None)], {}, f"No training helps: {NO_TRAINING}"),
        # Nor is more known of a draft behind prompt lookup, the last of the evaluations.
        (
            [better(to_win=None)],
            {"stack": "ngram+small"},
            f"No training helps a draft alone: {NO_TRAINING}, behind prompt lookup perhaps more.",
        ),
        ([], {}, None),  # the answer is a draft that could be trained
        ([better()], {"requests": 4}, None),
        ([better(speedup=9.0)], {}, None),  # as fast already: something else led
    ],
)
def test_what_a_trained_draft_must_reach_is_one_line_where_it_could_change_the_answer(
    log, headroom, changes, says
):
    asked = dict(changes)
    if stack := asked.pop("stack", None):
        asked["evaluations"] = (*log.evaluations, replace(log.evaluations[0], draft=stack))
    found = replace(log, **asked)
    candidates = [each.candidate for each in found.evaluations]
    better = trainable(found.choice, candidates, headroom, found.requests)
    said = better_draft(replace(found, better_draft=better))
    assert says in said if says else said is None
