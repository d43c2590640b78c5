"""Heads with random weights: one pass against the plain formulas, decoding against both."""

import pytest
import random_heads
import scenes
import torch

from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.decoder.attention import LaterDepths
from draftbench.decoder.linear import unquantized_linear
from draftbench.decoder.llama import LlamaRunner
from draftbench.decoder.runner import DecodeTask, HiddenStates, HostClock
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.speculate import decode, decode_all
from draftbench.drafts.eagle3.draft import shape_of
from draftbench.drafts.eagle3.head import EagleHead
from draftbench.drafts.heads.draft import replay_head
from draftbench.drafts.heads.head import HeadDrafter
from draftbench.drafts.heads.tensors import rotary_of
from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, Request, Sampling

DEPTHS, LIMIT = 5, 40
PROMPTS = [[1, 2, 3, 4, 5], [7], [2, 2, 9, 0, 4, 1, 8, 3]]
HEAD = Candidate(draft="eagle3:head")


def runner(kind=LlamaRunner):
    return kind(random_heads.target(), "none")


def head_of(config, weights, target):
    return EagleHead(
        shape := shape_of(config, random_heads.LAYERS),
        weights,
        target.embedding,
        rotary_of(shape.layer),
        unquantized_linear,
        torch.float32,
        "cpu",
        target.context_length,
    )


@pytest.fixture(params=random_heads.VARIANTS)
def variant(request):
    config = random_heads.config(**random_heads.VARIANTS[request.param])
    return config, random_heads.tensors(config)


@pytest.fixture(scope="module")
def one():
    config = random_heads.config()
    return config, random_heads.tensors(config)


@pytest.fixture(scope="module")
def target():
    return runner()


@pytest.fixture(scope="module")
def responses(target):
    """The target's to each prompt."""
    return [response_of(prompt, target) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def text(responses):
    return [*PROMPTS[0], *responses[0].tokens]


@pytest.fixture(scope="module")
def by_formulas(one, target, text):
    """What `one` drafts from every start of the text."""
    return expected(*one, target, text, 4)


def task(prompt):
    uniforms = Uniforms("r", 0, LIMIT + 1)
    return DecodeTask(prompt, LIMIT, Sampling(), uniforms, lambda output: False)


def response_of(prompt, target):
    tokens = decode(task(prompt), target, None, 0, HostClock()).tokens
    request = Request(id="r", source="log:1", prompt="", max_tokens=LIMIT, sampling=Sampling())
    trajectory = scenes.trajectory("r", len(tokens), prompt_tokens=len(prompt))
    return ScoredResponse(Prompt(request, tuple(prompt), LIMIT), tokens, trajectory)


def states_of(target, text, reads=random_heads.READS):
    hidden = HiddenStates(reads)
    cache = target.new_cache(len(text))
    target.forward(torch.tensor(text), cache, every=False, hidden=hidden)
    return hidden.joined()


def along(head, target, text, first):
    parts = head.along(text, states_of(target, text)[:-1], first, DEPTHS)
    return torch.cat([part.tokens for part in parts]).tolist()


def expected(config, weights, target, text, first):
    states = states_of(target, text)
    return [
        random_heads.drafted_from(config, weights, text, states, newest, DEPTHS)
        for newest in range(first + 1, len(text) - 1)
    ]


def test_passes_along_a_text_draft_what_every_start_drafts_by_the_formulas(variant, target, text):
    config, weights = variant
    found = along(head_of(config, weights, target), target, text, 4)
    assert len(found) == LIMIT - 1
    assert found == expected(config, weights, target, text, 4)


@pytest.mark.parametrize("length", [1, 38, 120])
def test_rows_are_read_in_parts(one, target, text, by_formulas, monkeypatch, length):
    monkeypatch.setattr("draftbench.drafts.eagle3.head.CHUNK", length)
    assert along(head_of(*one, target), target, text, 4) == by_formulas


@pytest.mark.parametrize("kind", [LlamaRunner, TransformersRunner])
def test_a_runner_tells_what_enters_its_layers(kind):
    """transformers' hidden_states[i] is what enters layer i, whatever a runner reads at once."""
    text, other = [5, 1, 4, 4, 2, 9, 0], [3, 8, 8]
    model = random_heads.target()
    with torch.no_grad():
        wanted = [
            torch.cat([model(torch.tensor([t]), output_hidden_states=True).hidden_states[i][0]
                       for i in (4, 0)], 1)
            for t in (text, other)
        ]  # fmt: skip
    target, hidden = runner(kind), HiddenStates((4, 0))
    cache = target.new_cache(16, rows=2)
    states = {0: [], 1: []}
    for counts, read in (([4, 1], text[:4] + other[:1]), ([3, 2], text[4:] + other[1:])):
        target.forward(torch.tensor(read), cache, every=True, counts=counts, hidden=hidden)
        parts = hidden.joined().split(counts)
        for row, part in enumerate(parts):
            states[row].append(part)
    for row, every in enumerate(wanted):
        torch.testing.assert_close(torch.cat(states[row]), every, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("k", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 5))])
def test_decoding_goes_through_the_rounds_that_replay_predicts(variant, target, responses, k):
    head = head_of(*variant, target)
    more = 0
    for prompt, response in zip(PROMPTS, responses, strict=True):
        record = replay_head(response, HEAD, head, target, DEPTHS)
        assert record.proposed == (DEPTHS,) * (LIMIT - 1)
        output = decode(task(prompt), target, HeadDrafter(head), k, HostClock())
        assert output.tokens == response.tokens
        at = 1
        for proposed, accepted in zip(output.proposed, output.accepted, strict=True):
            room = min(k, LIMIT - at - 1)
            assert (proposed, accepted) == (room, min(record.matched[at - 1], room))
            more += accepted
            at += accepted + 1
    assert more > 5


def test_rows_side_by_side_draft_as_each_does_alone(one, target):
    head = head_of(*one, target)
    tasks = [task(prompt) for prompt in (*PROMPTS, PROMPTS[0])]
    alone = [decode(each, target, HeadDrafter(head), 3, HostClock()) for each in tasks]
    together = decode_all(tasks, target, HeadDrafter(head), 3, HostClock(), rows=3)
    assert [(r.tokens, r.accepted) for r in together] == [(r.tokens, r.accepted) for r in alone]


def at_the_position_before(*given):
    later = LaterDepths(*given)
    later.place = later.place - 1
    return later


@pytest.mark.parametrize("fault", ["none", "layers", "position", "d2t", "flag", "state"])
def test_a_fault_drafts_otherwise(one, target, text, by_formulas, fault):
    config, weights = one
    head = head_of(config | {"norm_before_residual": fault == "flag"}, weights, target)
    states = states_of(target, text, (3, 1, 4) if fault == "layers" else head.reads)
    states = states[1:] if fault == "state" else states[:-1]
    if fault == "position":
        head.later_depths = at_the_position_before
    elif fault == "d2t":
        head.target_ids = head.target_ids.roll(1)
    found = torch.cat([part.tokens for part in head.along(text, states, 4, DEPTHS)]).tolist()
    assert (found == by_formulas) == (fault == "none")
