"""Timed passes on a scripted clock: every point has exactly the seconds that the script says.

A target pass over n tokens takes 1 + n/8 seconds, a draft pass 1/4 + n/16.
"""

import pytest
import torch

from draftbench.decoder.drafters import LookupDrafter
from draftbench.decoder.scripted_model import ScriptedClock, ScriptedRunner
from draftbench.measure.step_costs import CostGrid, measure_costs
from draftbench.records import Candidate

DRAFT, NGRAM = Candidate(draft="small", quant="int4"), Candidate(draft="ngram")
GRID = CostGrid(contexts=(10, 20), largest_k=4, prompts=(8, 24), text=(0, 1, 1, 0, 1))


def runner(clock, a_pass, a_token):
    logits = torch.tensor([0.0, 1.0])
    return ScriptedRunner(lambda tokens: logits, 2, clock, a_pass, a_token)


@pytest.fixture
def target():
    return runner(ScriptedClock(), 1.0, 0.125)


def small(target):
    return runner(target.clock, 0.25, 0.0625)


def measured(target, draft, candidate, grid=GRID):
    points = measure_costs(target, draft, candidate, grid, (target.clock, "process"))
    return {
        (p.candidate and p.candidate.draft, p.what, p.new_tokens, p.context): p.seconds
        for p in points
    }


def test_every_point_has_its_exact_seconds(target):
    expected = {}
    for context in (10, 20):
        for n in (1, 2, 3, 4, 5):
            expected[None, "step", n, context] = (1 + n / 8,) * 12
        for n in (1, 2):
            expected["small", "step", n, context] = (0.25 + n / 16,) * 12
    expected[None, "prefill", 8, 0] = (2.0,) * 3
    expected[None, "prefill", 24, 0] = (4.0,) * 3
    expected["small", "prefill", 8, 0] = (0.75,) * 3
    expected["small", "prefill", 24, 0] = (1.75,) * 3
    assert measured(target, small(target), DRAFT) == expected


def test_points_name_their_block_runner_and_process(target):
    points = measure_costs(target, small(target), DRAFT, GRID, (target.clock, "process"))
    assert {p.block for p in points} == {"small:int4"}
    assert {p.candidate for p in points} == {None, DRAFT}
    assert {(p.runner, p.process, p.batch) for p in points} == {("scripted", "process", 1)}
    alone = measure_costs(target, None, None, GRID, (target.clock, "process"))
    assert {(p.block, p.candidate) for p in alone} == {("target", None)}


def test_a_proposal_of_prompt_lookup_costs_no_pass(target):
    found = measured(target, LookupDrafter(2, 1, "cpu"), NGRAM)
    proposals = {key: seconds for key, seconds in found.items() if key[0] == "ngram"}
    assert proposals == {
        ("ngram", "proposal", 4, 10): (0.0,) * 12,
        ("ngram", "proposal", 4, 20): (0.0,) * 12,
    }


@pytest.mark.parametrize(
    ("largest_k", "sizes"),
    [(1, (1, 2)), (4, (1, 2, 3, 4, 5)), (5, (1, 2, 3, 4, 5, 6)), (8, (1, 2, 3, 4, 5, 7, 9))],
)
def test_passes_of_every_size_that_a_round_may_need_are_timed(largest_k, sizes):
    assert CostGrid((10,), largest_k, (8,), (0,)).verify_sizes == sizes


def test_what_does_not_fit_a_models_context_is_not_timed(target):
    draft = small(target)
    draft.context_length = 12
    found = measured(target, draft, DRAFT)
    assert {key[1:] for key in found if key[0] == "small"} == {
        ("step", 1, 10),
        ("step", 2, 10),
        ("prefill", 8, 0),
    }


def test_all_points_are_visited_in_turn_in_every_repeat(target, monkeypatch):
    """Six repeats, each a warm pass and two timed ones of every size; the prompt in the first
    three, a warm pass and a timed one.
    """
    visited = []
    forward = ScriptedRunner.forward

    def watched(self, tokens, cache, **how):
        visited.append(len(tokens))
        return forward(self, tokens, cache, **how)

    monkeypatch.setattr(ScriptedRunner, "forward", watched)
    measured(target, None, None, CostGrid((10,), 1, (8,), (0, 1)))
    filling, steps, prompt = [10], [1, 1, 1, 2, 2, 2], [8, 8]
    assert visited == filling + 3 * (steps + prompt) + 3 * steps


def test_a_short_text_is_repeated():
    assert GRID.tokens(3, 4) == [0, 1, 0, 1]


@pytest.mark.parametrize(("batch", "turns"), [(1, 6), (4, 3)])
def test_between_two_turns_somebody_may_look_at_the_time(target, batch, turns):
    grid = CostGrid((10,), 1, (), (0, 1), batch)
    told = []
    measure_costs(target, None, None, grid, (target.clock, "process"), told.append)
    assert grid.turns == turns
    assert told == [1] * (turns - 1)
