"""Timed passes on a scripted clock: every point has exactly the seconds that the script says.

A target pass over n tokens takes 1 + n/8 seconds, a draft pass 1/4 + n/16.
"""

from dataclasses import replace

import pytest
import random_heads
import torch
from scripted import ScriptedClock, TimedRunner
from transformers import AutoModelForCausalLM, MixtralConfig

from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.decoder.linear import unquantized_linear
from draftbench.decoder.llama import LlamaRunner
from draftbench.decoder.runner import HostClock
from draftbench.drafts.eagle3.draft import shape_of
from draftbench.drafts.eagle3.head import EagleHead
from draftbench.drafts.heads.draft import HeadDraft
from draftbench.drafts.heads.tensors import rotary_of
from draftbench.drafts.lookup.draft import LookupDraft
from draftbench.drafts.model.draft import ModelDraft
from draftbench.measure.candidate import LoadedCandidate, MeasurementContext
from draftbench.measure.step_costs import grid_for, time_steps
from draftbench.measure.timed_passes import CostGrid
from draftbench.records import Candidate, DraftingMode

HEAD = Candidate(draft="eagle3:head")
DRAFT, NGRAM = Candidate(draft="small", quant="int4"), Candidate(draft="ngram")
GRID = CostGrid(contexts=(10, 20), largest_k=4, prompts=(8, 24), text=(0, 1, 1, 0, 1))
ONE_POINT = CostGrid((10,), 1, (8,), (0, 1))


def runner(clock, a_pass, a_token):
    logits = torch.tensor([0.0, 1.0])
    return TimedRunner(lambda tokens: logits, 2, clock=clock, a_pass=a_pass, a_token=a_token)


@pytest.fixture
def measurement():
    clock = ScriptedClock()
    target = runner(clock, 1.0, 0.125)
    return MeasurementContext(
        target, None, DraftingMode.GREEDY, (4,), (2, 1), "float32", clock, "process", str
    )


@pytest.fixture
def small(measurement):
    drafting = ModelDraft(
        runner(measurement.clock, 0.25, 0.0625), measurement.target, measurement.mode
    )
    return LoadedCandidate(DRAFT, drafting, measurement)


def always(points):
    return True


def seconds(points):
    return {
        (p.candidate and p.candidate.draft, p.what, p.new_tokens, p.context): p.seconds
        for p in points
    }


def test_every_point_has_its_exact_seconds_block_runner_and_process(measurement, small):
    expected = {}
    for context in (10, 20):
        for n in (1, 2, 3, 4, 5):
            expected[None, "step", n, context] = (1 + n / 8,) * 6
        for n in (1, 2):
            expected["small", "step", n, context] = (0.25 + n / 16,) * 6
    expected[None, "prefill", 8, 0] = (2.0,) * 3
    expected[None, "prefill", 24, 0] = (4.0,) * 3
    expected["small", "prefill", 8, 0] = (0.75,) * 3
    expected["small", "prefill", 24, 0] = (1.75,) * 3
    points = time_steps(small, GRID, always)
    assert seconds(points) == expected
    where = {(p.block, p.runner, p.process, p.concurrency) for p in points}
    assert where == {("small:int4", "scripted", "process", 1)}


def test_all_contexts_are_timed_in_one_cache_that_is_filled_once(measurement, small, monkeypatch):
    """20 tokens, and room for the widest pass behind them; a prompt has a cache of its own."""
    made, new_cache = [], TimedRunner.new_cache

    def watched(self, capacity, rows=1, widths=(), reads=()):
        made.append((self is measurement.target, capacity, tuple(widths)))
        return new_cache(self, capacity, rows, widths)

    monkeypatch.setattr(TimedRunner, "new_cache", watched)
    time_steps(small, replace(GRID, prompts=()), always)
    assert made == [(True, 25, (1, 2, 3, 4, 5)), (False, 22, (1, 2))]


def test_a_proposal_of_prompt_lookup_costs_no_pass(measurement):
    found = seconds(
        time_steps(
            LoadedCandidate(NGRAM, LookupDraft(measurement.lookup, "cpu"), measurement),
            GRID,
            always,
        )
    )
    assert {key: taken for key, taken in found.items() if key[0]} == {
        ("ngram", "proposal", 4, 10): (0.0,) * 6,
        ("ngram", "proposal", 4, 20): (0.0,) * 6,
    }


def test_a_head_is_timed_where_it_catches_up_where_it_steps_and_over_prompts(measurement):
    target = LlamaRunner(random_heads.target(), "none")
    config = random_heads.config()
    shape = shape_of(config, random_heads.LAYERS)
    head = EagleHead(
        shape, random_heads.tensors(config), target.embedding, rotary_of(shape.layer),
        unquantized_linear, torch.float32, "cpu", 128,
    )  # fmt: skip
    measurement = replace(measurement, target=target, clock=HostClock())
    loaded = LoadedCandidate(HEAD, HeadDraft(head, target), measurement)
    points = time_steps(loaded, replace(GRID, largest_k=2, concurrency=2, prompts=()), always)
    assert {key for key in seconds(points) if key[0]} == {
        ("eagle3:head", what, n, context)
        for context in (10, 20)
        for what, sizes in (("catch-up", (1, 2, 3)), ("step", (1,)))
        for n in sizes
    }
    assert all(p.concurrency == 2 and min(p.seconds) > 0 for p in points)
    alone = time_steps(loaded, GRID, always)
    lengths = [p.new_tokens for p in alone if p.candidate == HEAD and p.what == "prefill"]
    assert lengths == [8, 24]


@pytest.mark.parametrize(
    ("largest_k", "sizes"),
    [
        (1, (1, 2)),
        (4, (1, 2, 3, 4, 5)),
        (5, (1, 2, 3, 4, 5, 6)),
        (8, tuple(range(1, 10))),
        (12, (*range(1, 10), 11, 13)),
    ],
)
def test_passes_of_every_size_that_a_round_may_need_are_timed(largest_k, sizes):
    assert CostGrid((10,), largest_k, (8,), (0,)).verify_sizes == sizes


def test_what_does_not_fit_a_models_context_is_not_timed(measurement, small):
    small.draft.runner.context_length = 12
    found = seconds(time_steps(small, GRID, always))
    assert {key[1:] for key in found if key[0]} == {
        ("step", 1, 10),
        ("step", 2, 10),
        ("prefill", 8, 0),
    }


def test_all_points_are_visited_in_turn_until_it_is_enough(measurement, monkeypatch):
    """Five turns, each a warm pass and two timed ones of every size; the prompt in the first
    three, a warm pass and a timed one. As its own draft the target has no other passes.
    """
    visited, judged = [], []

    def enough(points):
        judged.append({len(point.seconds) for point in points if point.what == "step"})
        return len(judged) == 3

    forward = TimedRunner.forward

    def watched(self, tokens, cache, **how):
        visited.append(len(tokens))
        return forward(self, tokens, cache, **how)

    monkeypatch.setattr(TimedRunner, "forward", watched)
    own = ModelDraft(measurement.target, measurement.target, measurement.mode)
    time_steps(LoadedCandidate(Candidate(draft="self"), own, measurement), ONE_POINT, enough)
    filling, steps, prompt = [10], [1, 1, 1, 2, 2, 2], [8, 8]
    assert visited == filling + 3 * (steps + prompt) + 2 * steps
    assert judged == [{6}, {8}, {10}]


@pytest.mark.parametrize(("device", "steps"), [("cpu", 1), ("cpu:0", 4)])
def test_a_draft_whose_device_queues_is_timed_k_steps_at_a_time(
    measurement, small, monkeypatch, device, steps
):
    """Three turns, each a warm repeat and two timed ones of every size; a step's seconds are the
    same.
    """
    small.draft.runner.device = device
    read = []
    forward = TimedRunner.forward

    def watched(self, tokens, cache, **how):
        read.extend([len(tokens)] * (self is small.draft.runner))
        return forward(self, tokens, cache, **how)

    monkeypatch.setattr(TimedRunner, "forward", watched)
    points = time_steps(small, replace(GRID, contexts=(10,), prompts=()), always)
    of_draft = {p.new_tokens: p.seconds for p in points if p.candidate}
    assert of_draft == {1: (0.3125,) * 6, 2: (0.375,) * 6}
    assert [read.count(size) for size in (10, 1, 2)] == [1, 9 * steps, 9 * steps]


@pytest.mark.parametrize(("concurrency", "turns"), [(1, 12), (4, 6)])
def test_between_two_turns_somebody_may_look_at_the_time(measurement, small, concurrency, turns):
    grid, calls = replace(ONE_POINT, prompts=(), concurrency=concurrency), []
    watched = replace(small, measurement=replace(measurement, between=calls.append))
    time_steps(watched, grid, lambda points: False)
    assert grid.most_turns == turns
    assert calls == [1] * (turns - 1)


def test_costs_are_timed_where_the_traffic_is(make):
    """Prompts of 1, 3 and 9 tokens, responses of 4: contexts from the shortest middle, 1 + 2, over
    the median, 3 + 2, to the longest end, 9 + 4.
    """
    responses = [make.unscored((1,) * 4, (0,) * prompt) for prompt in (9, 1, 3)]
    grid = grid_for(responses, ks=(2, 4), room=100, concurrency=1)
    assert (grid.contexts, grid.prompts, grid.largest_k) == ((3, 5, 13), (1, 3, 9), 4)
    assert grid.text == (0,) * 9 + (1,) * 4
    assert grid.tokens(11, 4) == [1, 1, 0, 0]  # it begins again at its end
    # A context of 15 leaves room for 10 tokens before the 4 + 1 of the largest pass.
    assert grid_for(responses, ks=(2, 4), room=15, concurrency=1).contexts == (3, 5, 10)
    several = grid_for(responses, ks=(2, 4), room=100, concurrency=8)
    assert (several.contexts, several.prompts, several.concurrency) == ((3, 13), (), 8)


def test_passes_of_a_mixture_are_counted_with_the_experts_that_they_read(measurement, small):
    """Two layers of 4 experts, of which each token is sent to 2; nothing of a model without any."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4}
    sizes = {"vocab_size": 2, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    model = AutoModelForCausalLM.from_config(MixtralConfig(**heads, **sizes)).eval()
    target = TransformersRunner(model, "none")
    mixed = replace(measurement, target=target, clock=HostClock())
    points = time_steps(
        LoadedCandidate(DRAFT, ModelDraft(target, target, mixed.mode), mixed), ONE_POINT, always
    )
    read = {p.new_tokens: p.experts_read for p in points if p.what == "step"}
    assert read[1] == 2
    assert 2 <= read[2] <= 4
    assert {p.experts_read for p in points if p.what != "step"} == {None}
    assert {p.experts_read for p in time_steps(small, ONE_POINT, always)} == {None}


@pytest.mark.parametrize(("device", "passes"), [("cpu", 1), ("cuda", 4)])
def test_a_heads_passes_are_queued_as_in_a_round_where_waiting_for_each_takes_time(device, passes):
    """Of each size at each context but whole prompts, with k up to 4."""
    target = LlamaRunner(random_heads.target(), "none")
    config = random_heads.config()
    shape = shape_of(config, random_heads.LAYERS)
    head = EagleHead(
        shape, random_heads.tensors(config), target.embedding, rotary_of(shape.layer),
        unquantized_linear, torch.float32, "cpu", 128,
    )  # fmt: skip
    head.device, steps, step = device, [], head.step
    head.step = lambda *given: steps.append(len(given[0])) or step(*given)
    grid = replace(GRID, largest_k=4, concurrency=1, contexts=(10,), prompts=(8,))
    for point in HeadDraft(head, target).passes(lambda **_: None, grid):
        steps.clear()
        point.work()
        assert len(steps) == point.passes == (1 if point.prefill else passes)
