"""Rounds of the built-in decoder under every rule against what a replay says of them: no difference
in float32, whatever drafts, in one row or in several side by side.
"""

from itertools import product

import pytest
import random_mtp
import scenes
import torch
from measure.conftest import PROMPTS, _source
from stopped_rounds import decoded, drafted_from, simulated

from draftbench.decoder import drafters
from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.decoder.runner import DecodeTask, HostClock
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.speculate import decode, decode_all
from draftbench.drafts.eagle3.draft import build_head
from draftbench.drafts.heads.draft import HeadDraft
from draftbench.drafts.lookup.draft import LookupDraft
from draftbench.drafts.model.draft import ModelDraft
from draftbench.drafts.mtp.head import MtpHead
from draftbench.drafts.stack.draft import StackDraft
from draftbench.drafts.stack.replay import combined
from draftbench.drafts.stopping import STOP_RULES
from draftbench.measure.prompts import Prompt, TargetText
from draftbench.measure.trajectories import ScoredResponse, task_of
from draftbench.models.quantize import Build, build_runner
from draftbench.models.translation import translated
from draftbench.records import (
    LOOKUP,
    Candidate,
    DraftingMode,
    NGramSizes,
    Request,
    Sampling,
    StopRule,
)

GREEDY, K = DraftingMode.GREEDY, 6
BUILD = Build(torch.float32, "none", "cpu")
RULES = [
    StopRule(kind=kind, threshold=threshold)
    for kind, threshold in product(STOP_RULES, (0.2, 0.5, 0.8))
]


@pytest.fixture(scope="module")
def written(text_source, target, make):
    """Responses that end at their limits and at a stop string, one of them drawn; their tasks."""
    text = TargetText(text_source)
    ends = (".idle_test",), (), ("None):",), (), ("\nimport os" * 4,)
    requests = [
        make.request(prompt, id=str(at), max_tokens=20 + 5 * at, stop=stop)
        for at, (prompt, stop) in enumerate(zip(PROMPTS, ends, strict=True))
    ]
    requests.append(make.request(PROMPTS[0], id="drawn", sampling=Sampling(temperature=0.7)))
    asked = [(text.prompt(request, request.max_tokens, 512), 0) for request in requests]
    responses = make.written(asked, target, text)
    finishes = [response.trajectory.finish for response in responses]
    assert finishes == ["stop", "length", "stop", "length", "stop", "length"]
    return responses, [task_of(prompt, sample, text) for prompt, sample in asked]


def model(name, target, text_source):
    source = _source(name)
    runner, _ = build_runner(source, BUILD, name)
    if name == "foreign":
        runner = translated(runner, text_source, source)
    return ModelDraft(runner, target, GREEDY)


def eagle(target, text_source):
    layers = text_source.config.get_text_config().num_hidden_layers
    head, _ = build_head(_source("head"), BUILD, "eagle3:head", target, layers)
    return HeadDraft(head, target)


def assert_no_difference(draft, target, responses, tasks, rules, rows, k):
    """Returns how many rounds a rule stopped."""
    window = max(k, K)
    replays = replayed(draft, responses, window)
    stopped = 0
    for rule, at_once in product(rules, rows):
        found = decode_all(tasks, target, draft.drafter(), k, HostClock(), at_once, rule)
        for response, record, output in zip(responses, replays, found, strict=True):
            assert output.tokens == list(response.tokens)
            length, limit = len(response.tokens), response.prompt.limit
            assert decoded(output) == simulated(record, length, limit, k, rule)
            stopped += sum(n < k for n in output.drafted[:-k])
    return stopped


def replayed(draft, responses, window):
    candidate = Candidate(draft="d")
    if not isinstance(draft, StackDraft):
        return draft.replay(candidate, responses, window)
    parts = [
        *draft.lookup.replay(Candidate(draft=LOOKUP), responses, window),
        *draft.draft.replay(candidate, responses, window),
    ]
    return list(combined(parts, ["ngram+d"]))


def stack(draft):
    return StackDraft(LookupDraft(NGramSizes(3, 1), "cpu"), draft)


DRAFTS = {
    "model": lambda *pair: model("draft", *pair),
    "head": eagle,
    "foreign": lambda *pair: model("foreign", *pair),
    "the target itself": lambda target, _: ModelDraft(target, target, GREEDY),
    "lookup, then a model": lambda *pair: stack(model("draft", *pair)),
    "lookup, then a head": lambda *pair: stack(eagle(*pair)),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_a_stopped_round_is_the_one_that_replay_says(name, target, text_source, written):
    draft, rules = DRAFTS[name](target, text_source), [RULES[1], RULES[4], RULES[7]]
    assert assert_no_difference(draft, target, *written, rules, [4], 5) > 10


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, K, 9])
@pytest.mark.parametrize("name", DRAFTS)
def test_every_stopped_round_is_the_one_that_replay_says(name, k, target, text_source, written):
    draft = DRAFTS[name](target, text_source)
    assert assert_no_difference(draft, target, *written, RULES, [1, 4], k) > 10


def own_layers(layers):
    """A target with so many layers that draft for it, and what it writes after four prompts."""
    model, drafting = random_mtp.target(layers, 64)
    target = TransformersRunner(model, "none")
    head = MtpHead(drafting, random_mtp.LAYERS, "none", random_mtp.CONTEXT)
    # Random weights are never sure.
    logits, head.logits = head.logits, lambda left: 5 * logits(left)
    tasks, responses = [], []
    # The first are shorter than the rows that the last layer reads for a round.
    for seed, size in enumerate((1, 2, 12, 7)):
        prompt = torch.randint(64, (size,), generator=torch.Generator().manual_seed(seed)).tolist()
        uniforms = Uniforms("r", 0, 40)
        tasks.append(DecodeTask(prompt, 30 + seed, Sampling(), uniforms, lambda output: False))
    written = decode_all(tasks, target, None, 0, HostClock())
    for name, task, output in zip("abcd", tasks, written, strict=True):
        request = Request(id=name, source="log:1", prompt="")
        lengths = {"prompt_tokens": len(task.prompt), "limit": task.limit}
        trajectory = scenes.trajectory(name, len(output.tokens), **lengths)
        prompt = Prompt(request, tuple(task.prompt), task.limit)
        responses.append(ScoredResponse(prompt, output.tokens, trajectory))
    return HeadDraft(head, target), target, responses, tasks


@pytest.mark.parametrize(
    ("layers", "rules"),
    [
        (1, RULES[1::3]),
        (3, RULES[1::3]),
        *(pytest.param(layers, RULES, marks=pytest.mark.slow) for layers in (1, 2, 3, 4)),
    ],
)
def test_a_stopped_round_of_own_layers_is_the_one_that_replay_says(layers, rules):
    draft, target, responses, tasks = own_layers(layers)
    rows = [1, 4] if rules == RULES else [4]
    sure = draft.replay(Candidate(draft="mtp"), responses, K)[2].confidences.of_all
    assert 0.2 < sum(each < 0.5 for each in sure) / len(sure) < 0.8
    for each in (draft, stack(draft)):
        assert assert_no_difference(each, target, responses, tasks, rules, rows, 4) > 10


@pytest.mark.parametrize("name", ["model", "head", "foreign", "1", "3", "4"])
def test_a_rule_looks_at_the_confidences_that_replay_recorded(name, monkeypatch, request):
    """At every token of rounds that it never stops; a number names that many own layers, which
    draft after short prompts too.
    """
    if name.isdigit():
        draft, target, responses, tasks = own_layers(int(name))
    else:
        target, responses, tasks = (
            request.getfixturevalue("target"),
            *request.getfixturevalue("written"),
        )
        draft = DRAFTS[name](target, request.getfixturevalue("text_source"))
    looked_at, confidence = [], drafters.confidence

    def look(logits, among):
        looked_at.extend(confidence(logits, among).tolist())
        return confidence(logits, among)

    monkeypatch.setattr(drafters, "confidence", look)
    never, compared = StopRule(kind="before", threshold=0.0), 0
    for record, response, task in zip(replayed(draft, responses, K), responses, tasks, strict=True):
        output, start = decode(task, target, draft.drafter(), K, HostClock(), never), 1
        for drafted, accepted in zip(output.drafted, output.accepted, strict=True):
            run, _ = drafted_from(record, start, len(response.tokens))
            recorded = [of_ten for _, of_ten in run[:drafted]]
            assert looked_at[:drafted] == pytest.approx(recorded, abs=0.0011)
            del looked_at[:drafted]
            start, compared = start + accepted + 1, compared + drafted
        assert looked_at == []
    assert compared > 100
