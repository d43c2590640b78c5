"""What an evaluation says beside its figures, where it can be solved by hand."""

from scenes import SMALL

from draftbench.planner.decide import Evaluator
from draftbench.planner.evaluate import evaluations
from draftbench.planner.options import DecisionOptions
from draftbench.records import Mixture


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
