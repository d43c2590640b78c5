"""Responses, generated or logged, and what the target thinks of their tokens."""

import math
from dataclasses import replace

import msgspec
import pytest
import torch

from draftbench.decoder.drafters import ModelDrafter
from draftbench.decoder.runner import HostClock
from draftbench.decoder.scripted_model import ScriptedRunner
from draftbench.decoder.speculate import decode
from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import (
    EXCLUDED,
    Given,
    LogCheck,
    generate,
    logged,
    looping,
    score,
    task_of,
)
from draftbench.records import DraftingMode, Sampling

SAMPLED = Sampling(temperature=1.0, top_p=0.9)
WRITTEN = " # The mainloop() is"
PIECES = [" #", " The", " main", "loop", "()", " is"]


def prompt_of(text, request):
    return text.prompt(request, 64, 512)


def author(text, request, answer):
    """A model that writes `answer` after the request's prompt, one token a pass."""
    begun = len(prompt_of(text, request).tokens)
    ids = text.tokenizer(answer)["input_ids"]
    vocabulary = text.source.config.vocab_size

    def script(tokens):
        logits = torch.zeros(vocabulary)
        logits[ids[(len(tokens) - begun) % len(ids)]] = 20.0
        return logits

    return ScriptedRunner(script, vocabulary)


def pieces(text, tokens):
    return [text.tokenizer.decode([token]) for token in tokens]


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED])
def test_a_logged_response_gives_the_records_of_a_generated_one(text, make_request, sampling):
    request = make_request(sampling=sampling, max_tokens=7)
    target = author(text, request, WRITTEN)
    ((tokens, finish),) = generate([(prompt_of(text, request), 0)], target, text, HostClock())
    logged_too = msgspec.structs.replace(request, response=text.tokenizer.decode(tokens))
    other = replace(prompt_of(text, request), logged=text.answer(logged_too)[:7])
    found = logged(other)
    assert found == (tokens, finish) == (tokens, "length")
    given = Given(prompt_of(text, request), 0, tokens, finish, "target", "d")
    (ours,) = score([given], target)
    (theirs,) = score([Given(other, 0, *found, "log", "d")], target)
    assert ours.private() == theirs.private()
    assert msgspec.structs.replace(ours.trajectory, origin="log") == theirs.trajectory


def test_a_generated_greedy_response_is_the_argmax_everywhere(text, target, make_request):
    prompt = prompt_of(text, make_request())
    ((tokens, finish),) = generate([(prompt, 0)], target, text, HostClock())
    (response,) = score([Given(prompt, 0, tokens, finish, "target", "d")], target)
    private, trajectory = response.private(), response.trajectory
    assert trajectory.argmax == (1,) * 24
    assert len(trajectory.margins) == trajectory.output_tokens == trajectory.limit == 24
    assert min(trajectory.margins) >= 0
    assert (private.log_p, private.expected_log_p) == ((), None)


def test_samples_of_a_request_differ_and_repeat(text, target, make_request):
    prompt = prompt_of(text, make_request(sampling=SAMPLED))
    asked = [(prompt, sample) for sample in (0, 1, 0)]
    one, other, again = (tokens for tokens, _ in generate(asked, target, text, HostClock()))
    assert one == again
    assert one != other


@pytest.mark.parametrize(("limit", "finish"), [(64, "stop"), (4, "stop"), (3, "length")])
def test_a_log_that_reaches_the_limit_ended_by_it(make_request, limit, finish):
    assert logged(Prompt(make_request(), [0], limit, (7, 8, 9))) == ((7, 8, 9), finish)


def constant(*probabilities):
    """A model that thinks the same after every token."""
    logits = torch.tensor(probabilities).log()
    return ScriptedRunner(lambda tokens: logits, len(probabilities))


def scored(make_request, tokens, sampling, *probabilities):
    prompt = Prompt(make_request(sampling=sampling), [0], 8)
    return score([Given(prompt, 0, tokens, "stop", "log", "d")], constant(*probabilities))[0]


def test_a_margin_beyond_any_tie_is_kept_as_one(make_request):
    """ln 3 is 1.099; where the choice was close the margin is exact: ln (0.52 / 0.48) is .080."""
    clear = scored(make_request, (1,), Sampling(), 0.25, 0.75).trajectory
    close = scored(make_request, (1,), Sampling(), 0.48, 0.52).trajectory
    assert (clear.margins, close.margins) == ((1.0,), (0.08,))


def test_each_token_is_scored_by_its_log_probability(make_request):
    """p = (¼, ¾): ln ¾ and ln ¼, and ¼ ln ¼ + ¾ ln ¾ expected at each."""
    response = scored(make_request, (1, 0), Sampling(temperature=1.0), 0.25, 0.75)
    assert list(response.log_p) == pytest.approx([math.log(0.75), math.log(0.25)], abs=1e-5)
    expected = 2 * (0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert response.expected_log_p == pytest.approx(expected, abs=1e-3)
    assert response.trajectory.argmax == (1, 0)


def test_a_token_outside_the_requests_filters_is_impossible(make_request):
    only_best = Sampling(temperature=1.0, top_k=1)
    response = scored(make_request, (1, 0), only_best, 0.25, 0.75)
    assert list(response.log_p) == [0.0, EXCLUDED]


def log_objection(scored):
    check = LogCheck()
    for response in scored:
        check.add(response)
    return check.objection()


def greedy_log(make_request, hits, misses):
    tokens = (1,) * hits + (0,) * misses
    return scored(make_request, tokens, Sampling(), 0.25, 0.75)


def test_a_greedy_log_must_be_the_targets_argmax(make_request):
    assert log_objection([greedy_log(make_request, 95, 5)]) is None
    assert log_objection([greedy_log(make_request, 94, 6)]) == (
        "only 94% of 100 tokens logged at temperature 0 are the argmax"
    )
    # Pooled over requests: 190 of 200.
    both = [greedy_log(make_request, 100, 0), greedy_log(make_request, 90, 10)]
    assert log_objection(both) is None


def sampled_log(make_request, log_p, expected):
    response = scored(make_request, (1,), Sampling(temperature=1.0), 0.25, 0.75)
    return replace(response, log_p=log_p, expected_log_p=expected)


def test_a_sampled_log_must_be_possible(make_request):
    def objection(impossible):
        likely = (-1.0,) * (200 - impossible)
        log = sampled_log(make_request, (*likely, *(EXCLUDED,) * impossible), -200.0)
        return log_objection([log])

    assert objection(1) is None
    assert objection(3) == "3 of 200 logged tokens have probability 0 under the target"


def test_a_sampled_log_must_be_as_likely_as_the_targets_own(make_request):
    def objection(each):
        return log_objection([sampled_log(make_request, (each,) * 100, -100.0)])

    assert objection(-1.25) is None
    assert objection(-0.5) is None
    assert objection(-1.5) == (
        "the logged tokens are 0.50 nats each less likely than the target's own"
    )


def decoded(text, request, k):
    """The author of `WRITTEN` as its own draft; k = 0 is plain decoding."""
    target = author(text, request, WRITTEN)
    task = task_of(prompt_of(text, request), 0, text)
    drafter = ModelDrafter(target, DraftingMode.GREEDY, target.vocab_size)
    return decode(task, target, drafter if k else None, k, HostClock())


def test_a_stop_string_inside_an_accepted_block_ends_the_response_there(text, make_request):
    """` #` comes from the prefill, then ` The`, ` main`, `loop` and `()` are proposed, of which the
    stop string leaves two and cuts two; the bonus token is not written.
    """
    assert pieces(text, text.tokenizer(WRITTEN)["input_ids"]) == PIECES
    response = decoded(text, make_request(stop=("main",)), 4)
    assert pieces(text, response.tokens) == PIECES[:3]
    assert (response.proposed, response.accepted, response.cut) == ([4], [2], [2])
    assert response.finish == "stop"


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 5, 8])
def test_a_stop_string_over_several_tokens_ends_the_response_at_its_last(text, make_request, k):
    response = decoded(text, make_request(stop=("never", "loop() i")), k)
    assert pieces(text, response.tokens) == PIECES
    assert response.finish == "stop"
    assert sum(response.accepted) + sum(response.cut) == sum(response.proposed)


@pytest.mark.parametrize("k", [0, 4])
def test_an_end_token_ends_the_response(text, make_request, k):
    (ending,) = text.tokenizer(" main")["input_ids"]
    text.__dict__["end_tokens"] = frozenset({ending})
    response = decoded(text, make_request(), k)
    assert (pieces(text, response.tokens), response.finish) == (PIECES[:3], "stop")


@pytest.mark.parametrize("k", [0, 4])
def test_a_limit_ends_the_response(text, make_request, k):
    response = decoded(text, make_request(max_tokens=7), k)
    assert pieces(text, response.tokens) == [*PIECES, PIECES[0]]
    assert response.finish == "length"


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
