"""Layers that a target carries to draft for itself: decoding against transformers' own use of them,
and one pass against decoding.
"""

from functools import cache, partial
from operator import eq

import pytest
import random_mtp
import torch
from transformers import AutoModelForCausalLM, Glm4MoeForCausalLM
from transformers.generation import candidate_generator
from transformers.modeling_layers import MtpModel

from draftbench.decoder.any_transformer import TransformersRunner
from draftbench.decoder.runner import DecodeTask, HiddenStates, HostClock
from draftbench.decoder.sampling import Uniforms, top_two_margin
from draftbench.decoder.speculate import decode, decode_all
from draftbench.drafts.loading import Pairing
from draftbench.drafts.mtp.draft import build_mtp, check
from draftbench.drafts.mtp.head import MtpHead
from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource
from draftbench.records import Sampling

LIMIT, VOCABULARY = 64, 64
PROMPTS = [
    torch.randint(VOCABULARY, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
    for seed in range(3)
]


def task(prompt):
    return DecodeTask(prompt, LIMIT, Sampling(), Uniforms("r", 0, LIMIT + 1), lambda output: False)


def runners(layers):
    return run_here(*random_mtp.target(layers, VOCABULARY))


def run_here(model, drafting):
    runner = TransformersRunner(model, "none")
    return runner, MtpHead(drafting, random_mtp.LAYERS, "none", random_mtp.CONTEXT)


def matched(proposal, tokens):
    """How many tokens of a proposal, from the first on, came out."""
    return [*map(eq, proposal, tokens), False].index(False)


@cache
def alone(layers, k):
    """The prompts decoded one after the other."""
    runner, head = runners(layers)
    return [decode(task(prompt), runner, head.drafter(), k, HostClock()) for prompt in PROMPTS]


def states_along(runner, head, text):
    """The target's states that a head reads along a text."""
    hidden = HiddenStates(head.reads)
    cache = runner.new_cache(len(text))
    runner.forward(torch.tensor(text[:-1]), cache, every=False, hidden=hidden)
    return hidden.joined()


def passes_along(runner, head, text, first, depths):
    """What every round that starts in a text drafts, by one pass along it."""
    parts = list(head.along(text, states_along(runner, head, text), first, depths))
    assert all((part.margins > 0).all() for part in parts)
    return [proposal for part in parts for proposal in part.tokens.tolist()]


def written_by_transformers(model, monkeypatch):
    """Text and accepted tokens of each round for each prompt; it drafts one token by each layer,
    from the second token on.
    """
    accepted, theirs = [], []
    generator = candidate_generator.MTPCandidateGenerator
    monkeypatch.setattr(
        generator, "update_candidate_strategy", lambda self, ids, scores, n: accepted.append(int(n))
    )
    for prompt in PROMPTS:
        accepted.clear()
        ids = torch.tensor([prompt])
        how = {"max_new_tokens": LIMIT, "do_sample": False, "pad_token_id": 0, "use_mtp": True}
        text = model.generate(ids, attention_mask=torch.ones_like(ids), **how)[0].tolist()
        theirs.append((text[len(prompt) :], accepted[1:]))
    return theirs


def compared(runner, head, theirs, layers):
    """How many rounds were compared, all of them the same."""
    rounds = 0
    for prompt, (text, wanted) in zip(PROMPTS, theirs, strict=True):
        found = decode(task(prompt), runner, head.drafter(), layers, HostClock())
        assert found.tokens == text
        # Near the limit draftbench drafts fewer.
        whole = sum(proposed == layers for proposed in found.proposed) - 1
        assert found.accepted[:whole] == wanted[:whole]
        rounds += whole
    return rounds


@pytest.mark.parametrize(
    ("layers", "made"),
    [
        pytest.param(1, partial(random_mtp.target, 1), marks=pytest.mark.slow),
        (1, partial(random_mtp.target, 1, states_first=True)),
        (1, random_mtp.mellum),
        (2, partial(random_mtp.target, 2)),
        pytest.param(3, partial(random_mtp.target, 3, states_first=True), marks=pytest.mark.slow),
    ],
    ids=["one", "states first", "Mellum", "two", "three, states first"],
)
def test_every_round_is_that_of_transformers_use_of_the_same_layers(monkeypatch, layers, made):
    model, drafting = made(vocabulary=VOCABULARY)
    monkeypatch.setattr(MtpModel, "from_pretrained", lambda model, **how: drafting)
    theirs = written_by_transformers(model, monkeypatch)
    rounds = compared(*run_here(*made(vocabulary=VOCABULARY)), theirs, layers)
    assert rounds > 60 / layers


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [lambda: random_mtp.deepseek(VOCABULARY), lambda: random_mtp.target(1, VOCABULARY)],
    ids=["DeepSeek-V3", "GLM-4-MoE"],
)
def test_a_layer_is_found_by_its_name_and_drafts_as_in_transformers(monkeypatch, tmp_path, made):
    """From its files; of DeepSeek-V3 without a word to transformers about them."""
    monkeypatch.setattr(
        Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", random_mtp.LEFT_OUT
    )
    folder = str(random_mtp.write(tmp_path / "target", *made()))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    theirs = written_by_transformers(model, monkeypatch)
    assert sum(map(sum, (accepted for _, accepted in theirs))) > 0
    source, build = ModelSource(folder), Build(torch.float32, "none", "cpu")
    assert check(source, Pairing(source, {}, chats=False), "mtp") == ()
    runner, _ = build_runner(source, build, None)
    head, _ = build_mtp(source, build, "mtp", runner)
    assert compared(runner, head, theirs, 1) > 60


def rounds_apart(found, prompt, runner, head, depths):
    """How many rounds accepted something else than one pass along their text says."""
    said = passes_along(runner, head, prompt + found.tokens, len(prompt) - 1, depths)
    at, apart = 1, 0
    for kept, proposed in zip(found.accepted, found.proposed, strict=True):
        assert proposed <= len(said[0])
        apart += proposed > 0 and kept != matched(said[at - 1][:proposed], found.tokens[at:])
        at += kept + 1
    return apart


@pytest.mark.parametrize(
    ("layers", "ks", "depths"),
    [(1, (1, 3), 3), (2, (3,), 2), pytest.param(3, (1, 2, 3, 5), 3, marks=pytest.mark.slow)],
)
def test_every_decoded_round_is_the_one_that_a_pass_along_the_text_says(layers, ks, depths):
    """A single layer is used again; several draft no more tokens than they are."""
    runner, head = runners(layers)
    accepted = 0
    for k in ks:
        for prompt, found in zip(PROMPTS, alone(layers, k), strict=True):
            assert max(found.proposed) == min(k, depths)
            assert rounds_apart(found, prompt, runner, head, max(ks)) == 0
            accepted += sum(found.accepted)
    assert accepted > 20


@torch.inference_mode()
def test_a_pass_turns_later_depths_as_far_as_stepping_does():
    """Their margins show it, where the tokens do not, since the layer leans on an embedding. Of
    several layers no position shows: each turns its queries as far as its own keys.
    """
    runner, head = runners(1)
    text, first, depths = PROMPTS[0] + PROMPTS[1], 3, 4
    states = states_along(runner, head, text)
    along = torch.cat([part.margins for part in head.along(text, states, first, depths)])
    for row in range(first, len(text) - depths - 1):
        cache, left, stepped = head.new_cache(len(text)), states[: row + 1], []
        tokens = torch.tensor(text[1 : row + 2])
        for _ in range(depths):
            logits, left = head.step(tokens, left, cache, [len(tokens)])
            tokens = head.chosen(logits)
            stepped.append(top_two_margin(logits))
        torch.testing.assert_close(along[row - first], torch.cat(stepped), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_long_text_is_read_some_rows_at_a_time(layers, monkeypatch):
    """A mask of all rows over all of them would be as large as the text's length squared."""
    runner, head = runners(layers)
    text = [token for prompt in PROMPTS for token in prompt]
    whole = passes_along(runner, head, text, 3, 2)
    masks = []
    for layer in head.model.layers:
        layer.register_forward_pre_hook(
            lambda layer, args, given: masks.append(given["attention_mask"].shape[-2]),
            with_kwargs=True,
        )
    monkeypatch.setattr("draftbench.drafts.mtp.head.CHUNK", 5)
    assert passes_along(runner, head, text, 3, 2) == whole
    assert max(masks) == 5


@pytest.mark.parametrize("layers", [1, 2])
def test_rows_side_by_side_take_the_rounds_that_they_take_alone(layers):
    runner, head = runners(layers)
    tasks = [task(prompt) for prompt in PROMPTS]
    together = decode_all(tasks, runner, head.drafter(), 3, HostClock(), rows=2)
    assert [(r.tokens, r.accepted) for r in together] == [
        (r.tokens, r.accepted) for r in alone(layers, 3)
    ]


def states_before_the_last_layer(drafter):
    drafter.reads = (random_mtp.LAYERS - 1,)


def a_state_too_late(drafter):
    keep = drafter.keep
    drafter.keep = lambda row, length, states: keep(row, length, states.roll(1, 0))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("fault", [states_before_the_last_layer, a_state_too_late])
def test_a_fault_of_the_drafter_shows_against_the_pass(layers, fault):
    runner, head = runners(layers)
    apart, prompts = 0, iter(PROMPTS)
    while apart < 3:
        prompt, drafter = next(prompts), head.drafter()
        fault(drafter)
        found = decode(task(prompt), runner, drafter, 3, HostClock())
        apart += rounds_apart(found, prompt, runner, head, 3)
