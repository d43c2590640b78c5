"""How much acceptance may be lost, where it can be solved by hand."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenes import NGRAM, SMALL

from draftbench.planner import evaluate
from draftbench.planner.decide import Evaluator
from draftbench.planner.evaluate import break_even, evaluations
from draftbench.planner.options import DecisionOptions
from draftbench.records import Mixture


def of_run(run, candidate=SMALL):
    every = Evaluator(run, DecisionOptions()).alternatives(1)
    return break_even(next(each for each in every if each.candidate == candidate))


def found_for(scene, acceptance):
    """Two tokens after the first at k = 1: a round of 1.1 + 0.3 s, and where its token is refused a
    plain step of 1 s. It breaks even where 2 = 1.4 + 1 - λa, at λa = 0.4.
    """
    scene.records.clear()
    scene.requests(2, [acceptance, 0.0])
    scene.times({1: 1.0, 2: 1.1}, {1: 0.3, 2: 0.3})
    return of_run(scene.observed(1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(acceptance=st.floats(0.41, 1.0))
def test_the_scaling_is_that_which_gives_the_break_even_acceptance(scene, acceptance):
    found = found_for(scene, acceptance)
    assert found.scaling == pytest.approx(0.4 / acceptance, abs=0.002)
    assert found.margin == pytest.approx(1 - 0.4 / acceptance, abs=0.002)


def test_what_does_not_pay_as_it_is_cannot_lose_acceptance(scene):
    assert found_for(scene, 0.3) is None


def test_a_measurement_moves_the_break_even(scene, requests_alone):
    # Predicted 2 / 1.4, measured 1.1: S keeps that ratio, 1.1 / (2 / 1.4) = 0.77, and is 1 where
    # 0.77 · 2 = 2.4 - λ.
    scene.requests(5, [1.0, 0.0])
    scene.times({1: 1.0, 2: 1.1}, {1: 0.3, 2: 0.3})
    for name in (f"r{i}" for i in range(5)):
        scene.decode(
            name, 0, 2.0, output_tokens=3, draft_seconds=(0.0, 0.0), verify_seconds=(1.0, 1.0)
        )
        scene.decode(name, 1, 2.0 / 1.1, output_tokens=3, verify_seconds=(2.0 / 1.1,))
    found = of_run(scene.observed(1))
    assert found.scaling == pytest.approx(2.4 - 0.77 * 2, abs=0.002)


def test_prompt_lookup_and_unknown_costs_have_none(scene):
    scene.request("a", 3)
    scene.lookup("a", [1, 0], [1, 0])
    scene.times({1: 1.0, 2: 1.1}, None, NGRAM)
    scene.cost("ngram", NGRAM, 1, 0.01, what="proposal")
    scene.replay("a", [1.0, 1.0])
    run = scene.observed(1)
    for candidate in (NGRAM, SMALL):
        assert of_run(run, candidate) is None


@pytest.mark.parametrize(
    ("gain", "ends", "first"),
    [
        (lambda s: s**3 - 0.2, (0.0, 1.0), 599 / 1024),  # 0.5848: 598.8 of 1,024
        (lambda s: 0.1 * s - 0.05, (0.0, 1.0), 512 / 1024),
        (lambda s: min(s, 1.5) - 1.25, (1.0, 9.0), 1.25),  # flat from 1.5 on
        (lambda s: s - 0.0001, (0.0, 1.0), 1 / 1024),
        (lambda s: s - 0.9999, (0.0, 1.0), 1.0),
    ],
)
def test_where_speculation_breaks_even_is_found_to_a_thousandth_by_few_looks(gain, ends, first):
    looks = []

    def looked(scaling):
        looks.append(scaling)
        return gain(scaling)

    low, high = ((end, gain(end)) for end in ends)
    assert evaluate._crossing(looked, low, high) == first
    assert len(looks) < 10  # halves: 10 and 13


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
    found = evaluations(run, Evaluator(run, DecisionOptions()).at(1))
    assert [(e.experts_read, e.experts_read_at_most) for e in found] == [(3, 3.5), (4, 4.625)]
