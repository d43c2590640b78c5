"""Responses, generated or logged, and what the target thinks of their tokens."""

import math
from dataclasses import replace

import msgspec
import pytest
import torch

from draftbench.decoder.runner import HostClock
from draftbench.decoder.scripted_model import ScriptedRunner
from draftbench.decoder.speculate import decode
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.errors import TrafficError
from draftbench.measure import trajectories
from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import (
    EXCLUDED,
    generate,
    logged,
    looping,
    plan,
    refuse_foreign_log,
    score,
    task_of,
)
from draftbench.records import DraftingMode, Sampling
from draftbench.run_folder import run

SAMPLED = Sampling(temperature=1.0, top_p=0.9)
WRITTEN = " # The mainloop() is"
PIECES = [" #", " The", " main", "loop", "()", " is"]


def author(text, prompt, answer):
    """A model that writes `answer` after a prompt, one token a pass."""
    ids, vocabulary = text.tokenizer(answer)["input_ids"], text.source.config.vocab_size

    def script(tokens):
        logits = torch.zeros(vocabulary)
        logits[ids[(len(tokens) - len(prompt.tokens)) % len(ids)]] = 20.0
        return logits

    return ScriptedRunner(script, vocabulary)


def pieces(text, tokens):
    return [text.tokenizer.decode([token]) for token in tokens]


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
def test_a_logged_response_gives_the_records_of_a_generated_one(text, make, sampling):
    request = make.request(sampling=sampling)
    prompt = text.prompt(request, 7, 512)
    target = author(text, prompt, WRITTEN)
    ((tokens, finish),) = generate([(prompt, 0)], target, text, HostClock())
    logged_too = msgspec.structs.replace(request, response=text.tokenizer.decode(tokens))
    other = replace(prompt, logged=text.answer(logged_too)[:7])
    assert logged(other) == (tokens, finish) == (tokens, "length")
    (ours,) = score([(prompt, 0)], [(tokens, finish)], target, "target", str)
    (theirs,) = score([(other, 0)], [logged(other)], target, "log", str)
    assert ours.private() == theirs.private()
    assert msgspec.structs.replace(ours.trajectory, origin="log") == theirs.trajectory


def test_a_generated_greedy_response_is_the_argmax_everywhere(text, target, make):
    (response,) = make.written([(text.prompt(make.request(), 24, 512), 0)], target, text)
    private, trajectory = response.private(), response.trajectory
    assert trajectory.argmax == (1,) * 24
    assert len(trajectory.margins) == trajectory.output_tokens == trajectory.limit == 24
    assert min(trajectory.margins) >= 0
    assert (private.log_p, private.expected_log_p) == ((), None)


def test_samples_of_a_request_differ_and_repeat(text, target, make):
    prompt = text.prompt(make.request(sampling=SAMPLED), 24, 512)
    asked = [(prompt, sample) for sample in (0, 1, 0)]
    one, other, again = (tokens for tokens, _ in generate(asked, target, text, HostClock()))
    assert one == again
    assert one != other


@pytest.mark.parametrize(("limit", "finish"), [(64, "stop"), (4, "stop"), (3, "length")])
def test_a_log_that_reaches_the_limit_ended_by_it(make, limit, finish):
    assert logged(Prompt(make.request(), [0], limit, (7, 8, 9))) == ((7, 8, 9), finish)


@pytest.fixture
def scored(make):
    """A logged response, scored by a model that thinks the same after every token."""

    def scored(tokens, sampling, *probabilities):
        prompt = Prompt(make.request(sampling=sampling), [0], len(tokens))
        target = make.constant(*probabilities, context_length=512)
        return score([(prompt, 0)], [(tokens, "stop")], target, "log", str)[0]

    return scored


def test_a_margin_beyond_any_tie_is_kept_as_one(scored):
    """ln 3 is 1.099; where the choice was close the margin is exact: ln (0.52 / 0.48) is .080."""
    clear = scored((1,), Sampling(), 0.25, 0.75).trajectory
    close = scored((1,), Sampling(), 0.48, 0.52).trajectory
    assert (clear.margins, close.margins) == ((1.0,), (0.08,))


def test_each_token_is_scored_by_its_log_probability(scored):
    """p = (¼, ¾): ln ¾ and ln ¼, and ¼ ln ¼ + ¾ ln ¾ expected at each."""
    response = scored((1, 0), Sampling(temperature=1.0), 0.25, 0.75)
    assert list(response.log_p) == pytest.approx([math.log(0.75), math.log(0.25)], abs=1e-5)
    expected = 2 * (0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert response.expected_log_p == pytest.approx(expected, abs=1e-3)
    assert response.trajectory.argmax == (1, 0)


def test_a_token_outside_the_requests_filters_is_impossible(scored):
    response = scored((1, 0), Sampling(temperature=1.0, top_k=1), 0.25, 0.75)
    assert list(response.log_p) == [0.0, EXCLUDED]


def refusal(responses):
    """Why a log cannot be the target's, None if it can."""
    try:
        refuse_foreign_log(responses)
    except TrafficError as error:
        return error.message.removeprefix("the logged responses are not this target's: ")
    return None


def test_a_greedy_log_must_be_the_targets_argmax(scored):
    def log(hits, misses):
        return scored((1,) * hits + (0,) * misses, Sampling(), 0.25, 0.75)

    assert refusal([log(95, 5)]) is None
    assert refusal([log(94, 6)]) == "only 94% of 100 tokens logged at temperature 0 are the argmax"
    assert refusal([log(100, 0), log(90, 10)]) is None  # pooled over requests: 190 of 200


@pytest.mark.parametrize(
    ("log_p", "expected", "why"),
    [
        ((-1.0,) * 199 + (EXCLUDED,), -200.0, None),
        (
            (-1.0,) * 197 + (EXCLUDED,) * 3,
            -200.0,
            "3 of 200 logged tokens have probability 0 under the target",
        ),
        ((-1.25,) * 100, -100.0, None),
        ((-0.5,) * 100, -100.0, None),
        (
            (-1.5,) * 100,
            -100.0,
            "the logged tokens are 0.50 nats each less likely than the target's own",
        ),
    ],
)
def test_a_sampled_log_must_be_as_likely_as_the_targets_own(scored, log_p, expected, why):
    response = scored((1,), Sampling(temperature=1.0), 0.25, 0.75)
    assert refusal([replace(response, log_p=log_p, expected_log_p=expected)]) == why


def decoded(text, request, k):
    """The author of `WRITTEN` as its own draft; k = 0 is plain decoding."""
    prompt = text.prompt(request, request.max_tokens, 512)
    target = author(text, prompt, WRITTEN)
    drafter = ModelDrafter(target, DraftingMode.GREEDY) if k else None
    return decode(task_of(prompt, 0, text), target, drafter, k, HostClock())


def test_a_stop_string_inside_an_accepted_block_ends_the_response_there(text, make):
    """` #` comes from the prefill, then ` The`, ` main`, `loop` and `()` are proposed, of which the
    stop string leaves two and cuts two; the bonus token is not written.
    """
    assert pieces(text, text.tokenizer(WRITTEN)["input_ids"]) == PIECES
    response = decoded(text, make.request(stop=("main",)), 4)
    assert pieces(text, response.tokens) == PIECES[:3]
    assert (response.proposed, response.accepted, response.cut) == ([4], [2], [2])
    assert response.finish == "stop"


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    ("end", "asked", "written", "finish"),
    [
        (None, {"stop": ("never", "loop() i")}, PIECES, "stop"),  # over several tokens
        (" main", {}, PIECES[:3], "stop"),
        (None, {"max_tokens": 7}, [*PIECES, PIECES[0]], "length"),
    ],
)
def test_a_stop_string_an_end_token_or_the_limit_ends_the_response(
    text, make, end, asked, written, finish, k
):
    if end:
        text.__dict__["end_tokens"] = frozenset(text.tokenizer(end)["input_ids"])
    response = decoded(text, make.request(**asked), k)
    assert (pieces(text, response.tokens), response.finish) == (written, finish)
    assert finish == "length" or (
        sum(response.accepted) + sum(response.cut) == sum(response.proposed)
    )


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((1, 2, 3, 4), 0),
        ((9, 7, 7), 0),  # twice is no loop
        ((9, 7, 7, 7), 3),
        ((5, 1, 2, 1, 2, 1, 2), 6),
        ((5, 1, 2, 1, 2, 1, 2, 1), 7),  # the passage may be cut by the end
        ((1, 2, 1, 2, 1, 2, 9), 0),  # the response went on
        ((), 0),
    ],
)
def test_a_passage_three_times_in_a_row_at_the_end_is_a_loop(tokens, expected):
    assert looping(tokens) == expected


def test_the_longest_prompts_of_a_wave_come_first(make, monkeypatch):
    """Five requests, the hashes of which say nothing of their length: waves of two, two and one."""
    monkeypatch.setattr(run, "WAVE", 2)
    monkeypatch.setattr(trajectories, "GROUP", 3)
    lengths = {"a": 1, "b": 5, "c": 3, "d": 9, "e": 2}
    prompts = [Prompt(make.request(id=n), (0,) * long, 8) for n, long in lengths.items()]
    planned = plan(reversed(prompts), 2)
    keys = [[[each.key for each in group] for group in wave] for wave in planned]
    assert keys == [
        [[("b", 0), ("b", 1), ("a", 0)], [("a", 1)]],
        [[("d", 0), ("d", 1), ("c", 0)], [("c", 1)]],
        [[("e", 0), ("e", 1)]],
    ]
