"""Block drafters with random weights: passes along a text against plain formulas, decoding against
both.
"""

from itertools import product

import pytest
import random_blocks
import random_heads
import scenes
import torch
from stopped_rounds import decoded, simulated

from draftbench.decoder import linear
from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.decoder.linear import unquantized_linear
from draftbench.decoder.llama import LlamaRunner
from draftbench.decoder.runner import DecodeTask, HiddenStates, HostClock
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.speculate import decode, decode_all
from draftbench.drafts.block.draft import BlockDraft, BlockDrafter, replay_blocks
from draftbench.drafts.block.head import BlockHead
from draftbench.drafts.block.shape import shape_of
from draftbench.drafts.heads.tensors import rotary_of
from draftbench.drafts.stopping import STOP_RULES
from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, Request, Sampling, StopRule

WINDOW, LIMIT = 4, 30
PROMPTS = [[1, 2, 3, 4, 5], [7], [2, 2, 9, 0, 4, 1, 8, 3]]
HEAD = Candidate(draft="dflash:head")


def head_of(config, weights, target):
    shape = shape_of(config)
    rotary = rotary_of(shape.layer)
    return BlockHead(shape, weights, target, rotary, unquantized_linear, torch.float32)


@pytest.fixture(params=random_blocks.VARIANTS)
def variant(request):
    config = random_blocks.config(**random_blocks.VARIANTS[request.param])
    return config, random_blocks.tensors(config)


@pytest.fixture(scope="module")
def one():
    config = random_blocks.config()
    return config, random_blocks.tensors(config)


@pytest.fixture(scope="module")
def target():
    return LlamaRunner(random_heads.target(), "none")


@pytest.fixture(scope="module")
def responses(target):
    """The target's to each prompt."""
    return [response_of(prompt, target) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def text(responses):
    return [*PROMPTS[0], *responses[0].tokens]


def task(prompt):
    uniforms = Uniforms("r", 0, LIMIT + 1)
    return DecodeTask(prompt, LIMIT, Sampling(), uniforms, lambda output: False)


def response_of(prompt, target):
    tokens = decode(task(prompt), target, None, 0, HostClock()).tokens
    request = Request(id="r", source="log:1", prompt="", max_tokens=LIMIT, sampling=Sampling())
    trajectory = scenes.trajectory("r", len(tokens), prompt_tokens=len(prompt))
    return ScoredResponse(Prompt(request, tuple(prompt), LIMIT), tokens, trajectory)


def states_of(target, text, reads=random_blocks.READS):
    hidden = HiddenStates(reads)
    target.forward(torch.tensor(text), target.new_cache(len(text)), every=False, hidden=hidden)
    return hidden.joined()


def by_formulas(config, weights, target, text, first, k):
    states = states_of(target, text)
    return [
        random_blocks.drafted_from(config, weights, text, states, newest, k)
        for newest in range(first, len(text) - 1)
    ]


@pytest.mark.parametrize("k", [1, WINDOW])
def test_passes_along_a_text_draft_what_every_start_drafts_by_the_formulas(
    variant, target, text, k
):
    config, weights = variant
    states = states_of(target, text)[:-1]
    head = head_of(config, weights, target)
    found = head.along(torch.tensor(text), states, 5, [k], stops=True)[k]
    tokens, sure = torch.tensor(by_formulas(config, weights, target, text, 5, k)).unbind(-1)
    assert found.tokens.tolist() == tokens.tolist()
    # Cut to thousandths; of ten tokens the ten best are all.
    for among in found.sure.unbind(-1):
        torch.testing.assert_close(among, sure.double(), atol=1.01e-3, rtol=0)


@pytest.mark.parametrize("places", [1, 12, 10_000])
def test_blocks_draft_side_by_side_as_each_does_alone(one, target, text, monkeypatch, places):
    head, states = head_of(*one, target), states_of(target, text)[:-1]
    whole = head.along(torch.tensor(text), states, 5, [3])[3].tokens.tolist()
    monkeypatch.setattr("draftbench.drafts.block.head.PLACES", places)
    assert head.along(torch.tensor(text), states, 5, [3])[3].tokens.tolist() == whole


def test_a_block_whose_places_see_what_follows_depends_on_its_length(one, target, text):
    head, states = head_of(*one, target), states_of(target, text)[:-1]
    found = head.along(torch.tensor(text), states, 5, [2, 4])
    assert found[2].tokens.tolist() != found[4].tokens[:, :2].tolist()


def test_one_whose_places_see_only_what_is_before_does_not(target, text):
    fields = random_blocks.VARIANTS["dflash, sliding causally"]
    config = random_blocks.config(**(fields | {"layer_types": ["sliding_attention"] * 2}))
    head = head_of(config, random_blocks.tensors(config), target)
    assert head.shape.same_at_every_length
    found = head.along(torch.tensor(text), states_of(target, text)[:-1], 5, [2, 4])
    assert found[2].tokens.tolist() == found[4].tokens[:, :2].tolist()


@pytest.mark.parametrize("k", [3, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2, 9))])
@pytest.mark.parametrize("kind", [LlamaRunner, TransformersRunner])
def test_decoding_goes_through_the_rounds_that_replay_predicts(variant, responses, k, kind):
    target = kind(random_heads.target(), "none")
    head = head_of(*variant, target)
    more, most = 0, head.shape.most
    for prompt, response in zip(PROMPTS, responses, strict=True):
        whole = replay_blocks(response, HEAD, head, target, max(k, WINDOW))
        record = whole.of_length(k)
        assert record.proposed == (min(record.window, most),) * (LIMIT - 1)
        output = decode(task(prompt), target, BlockDrafter(head), k, HostClock())
        assert output.tokens == response.tokens
        at = 1
        for proposed, accepted in zip(output.proposed, output.accepted, strict=True):
            room = min(k, most, LIMIT - at - 1)
            assert (proposed, accepted) == (room, min(record.matched[at - 1], room))
            more += accepted
            at += accepted + 1
    assert more > 0


@pytest.mark.parametrize("in_panels", [True, False])
def test_one_in_bfloat16_drafts_whatever_layers_it_gets(variant, monkeypatch, in_panels):
    if not in_panels:
        monkeypatch.setattr(linear, "narrow_type", lambda weight: None)
    target = LlamaRunner(random_heads.target().bfloat16(), "none")
    config, weights = variant
    narrow = {name: each.bfloat16() for name, each in weights.items()}
    shape = shape_of(config)
    rotary = rotary_of(shape.layer)
    head = BlockHead(shape, narrow, target, rotary, unquantized_linear, torch.bfloat16)
    output = decode(task(PROMPTS[0]), target, BlockDrafter(head), 3, HostClock())
    assert sum(output.proposed) > 0


@pytest.mark.parametrize("rule", STOP_RULES)
def test_a_rule_cuts_the_block_that_was_drafted_as_replay_says(variant, target, responses, rule):
    head, stop, cut = head_of(*variant, target), StopRule(kind=rule, threshold=0.4), 0
    for k, (prompt, response) in product((2, 4), zip(PROMPTS, responses, strict=True)):
        record = replay_blocks(response, HEAD, head, target, WINDOW)
        output = decode(task(prompt), target, BlockDrafter(head), k, HostClock(), stop)
        assert output.tokens == response.tokens
        assert decoded(output) == simulated(record, LIMIT, LIMIT, k, stop)
        cut += sum(output.drafted) - sum(output.proposed)
    assert cut > 0


@pytest.mark.parametrize(("has_head", "recorded"), [(True, True), (False, False)])
def test_dspark_is_as_sure_as_its_head_for_that_says_or_tells_nothing(
    target, responses, has_head, recorded
):
    """llama-server, told to stop a draft without that head, serves without the draft."""
    fields = random_blocks.VARIANTS["dspark"] | {"enable_confidence_head": has_head}
    config = random_blocks.config(**fields)
    head = head_of(config, random_blocks.tensors(config), target)
    (replay,) = BlockDraft(head, target).replay(HEAD, responses[:1], WINDOW)
    assert (replay.confidences is not None) is recorded


def test_rows_side_by_side_draft_as_each_does_alone(variant, target):
    head = head_of(*variant, target)
    tasks = [task(prompt) for prompt in (*PROMPTS, PROMPTS[0])]
    alone = [decode(each, target, BlockDrafter(head), 3, HostClock()) for each in tasks]
    together = decode_all(tasks, target, BlockDrafter(head), 3, HostClock(), rows=3)
    assert [(r.tokens, r.accepted) for r in together] == [(r.tokens, r.accepted) for r in alone]
