"""One pass along a response: what a draft would have proposed, by hand and against stepping."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from draftbench.acceptance.rounds import expected_rounds, law_of
from draftbench.decoder.drafters import LookupIndex
from draftbench.decoder.scripted_model import ScriptedRunner
from draftbench.decoder.translated import TranslatedRunner
from draftbench.engines.every import ENGINES
from draftbench.measure.candidate import stepping_disagreement
from draftbench.measure.replay import ServedTarget, replay_lookup, replay_model
from draftbench.records import BUILT_IN_LOOKUP, Candidate, DraftingMode, Sampling

DRAFT = Candidate(draft="d")
SAMPLED = Sampling(temperature=1.0)


def replayed(draft, target, response, mode):
    (record,) = replay_model(draft, target, [response], DRAFT, mode)
    return record


def test_a_greedy_draft_is_accepted_where_it_would_have_said_the_same(make):
    q = make.constant(0.2, 0.5, 0.3)
    record = replayed(q, q, make.unscored((0, 1, 2, 1)), DraftingMode.GREEDY)
    assert record.accept == (1.0, 0.0, 1.0)
    assert record.confidence == (0.5, 0.5, 0.5)
    assert record.rank == (0, 1, 0)
    # ln .5 - ln .3
    assert record.margin == (0.511, 0.511, 0.511)
    assert record.overlap is None


def test_a_sampling_draft_is_accepted_by_the_ratio_of_probabilities(make):
    """p = (.5, .25, .25), q = (.2, .5, .3): a = .4, 1 and 1; Σ min(p, q) = .2 + .25 + .25."""
    p, q = make.constant(0.5, 0.25, 0.25), make.constant(0.2, 0.5, 0.3)
    response = make.unscored((0, 0, 1, 2), sampling=SAMPLED)
    record = replayed(q, p, response, DraftingMode.SAMPLED)
    assert record.accept == (0.4, 1.0, 1.0)
    assert record.overlap == (0.7, 0.7, 0.7)


@pytest.mark.parametrize(
    ("mode", "accept"),
    [(DraftingMode.SAMPLED, (1.0,)), (DraftingMode.SAMPLED_TEMPERATURE_ONLY, (0.5,))],
)
def test_a_draft_samples_with_or_without_the_requests_filters(make, mode, accept):
    """top-k 1 leaves q no choice but token 1; without it q(1) = .5, while p(1) = 1 after top-k."""
    p, q = make.constant(0.25, 0.75), make.constant(0.5, 0.5001)
    response = make.unscored((0, 1), sampling=Sampling(temperature=1.0, top_k=1))
    assert replayed(q, p, response, mode).accept == accept


@pytest.mark.parametrize("mode", list(DraftingMode))
def test_rows_that_only_one_of_both_models_has(make, mode):
    """A draft is translated into the target's rows: of (.1, .3, .6) are left (.25, .75), the
    target's own law. A token that the draft lacks is never accepted.
    """
    p, q = make.constant(0.25, 0.75), make.constant(0.1, 0.3, 0.6)
    q = TranslatedRunner(q, 2, {0: 0, 1: 1}, unknown=0)
    record = replayed(q, p, make.unscored((0, 1, 0), sampling=SAMPLED), mode)
    assert record.accept == ((1.0, 0.0) if mode is DraftingMode.GREEDY else (1.0, 1.0))
    p, q = (
        make.constant(0.2, 0.3, 0.5),
        TranslatedRunner(make.constant(0.5, 0.5), 3, {0: 0, 1: 1}, 0),
    )
    record = replayed(q, p, make.unscored((0, 2, 0), sampling=SAMPLED), mode)
    assert (record.accept[0], record.rank[0]) == (0.0, 2)


def test_nothing_is_accepted_beyond_the_drafts_context(make):
    q = make.constant(0.2, 0.8, context_length=4)
    response = make.unscored((1, 1, 1, 1, 1, 1), prompt=(0, 0))
    record = replayed(q, make.constant(0.2, 0.8), response, DraftingMode.GREEDY)
    # 4 = 2 of prompt and 2 of the response: the tokens 1 and 2 can be drafted.
    assert record.draftable == 2
    assert record.accept == (1.0, 1.0, 0.0, 0.0, 0.0)
    assert len(record.rank) == len(record.margin) == len(record.confidence) == 5


def test_a_draft_is_replayed_over_what_a_target_elsewhere_wrote(make):
    """Greedy: the ids are enough. Sampling: a = min(1, q/p) by the p that came with the ids, .5 and
    .1 against q = .2, and Σ min(p, q) is unknown.
    """
    q, elsewhere = make.constant(0.2, 0.5, 0.3), ServedTarget(64)
    greedy = replayed(q, elsewhere, make.unscored((0, 1, 0), sampling=SAMPLED), DraftingMode.GREEDY)
    assert greedy.accept == (1.0, 0.0)
    response = make.unscored((1, 0, 0), sampling=SAMPLED)
    response = replace(response, log_p=(0.0, math.log(0.5), math.log(0.1)))
    sampled = replayed(q, elsewhere, response, DraftingMode.SAMPLED)
    assert (sampled.accept, sampled.overlap) == ((0.4, 1.0), None)


def test_over_draws_a_greedy_draft_is_accepted_as_often_as_the_target_draws_its_token(make):
    """llama.cpp truncates before the temperature: of p = (.5, .3, .15, .05) top-p 0.9 leaves three,
    whose squares (temperature 0.5) are .25, .09 and .0225 of .3625: 100, 36 and 9 of 145. The draft
    proposes token 0 and each is accepted where the server draws it, with a = 100/145.

    Three tokens after the first at k = 2: R(3) = 1, R(2) = 1 + (1 - a) and
    R(1) = 1 + (1 - a) R(2) + a (1 - a) R(3) = 3 - 2a. Replay knows neither law nor order, only what
    was drawn; over all draws it comes to the same.
    """
    law, draft = {0: 100 / 145, 1: 36 / 145, 2: 9 / 145}, make.constant(0.4, 0.3, 0.2, 0.1)
    sampling, passes = Sampling(temperature=0.5, top_p=0.9), 0.0
    for drawn in product(law, repeat=3):
        response = make.unscored((3, *drawn), sampling=sampling)
        record = replayed(draft, ServedTarget(64), response, DraftingMode.GREEDY)
        rounds = expected_rounds([law_of(response.trajectory, record)], 2)
        passes += math.prod(law[token] for token in drawn) * rounds.target_passes[0]
    assert passes == pytest.approx(3 - 2 * 100 / 145)


def test_a_token_that_only_the_served_target_has_is_never_accepted(make):
    q = TranslatedRunner(make.constant(0.5, 0.5), 3, {0: 0, 1: 1}, 0)
    response = replace(make.unscored((0, 2), sampling=SAMPLED), log_p=(0.0, math.log(0.5)))
    assert replayed(q, ServedTarget(64), response, DraftingMode.SAMPLED).accept == (0.0,)


def test_prompt_lookup_is_recorded_per_start_of_a_round(make):
    """Prompt 1 2 3 4, response 1 2 3 9: after 1 the pair (4, 1) is new; after 1 2 follow 3 4 1 2 of
    which 3 is right; after 1 2 3 follows 4, which is wrong.
    """
    response = make.unscored((1, 2, 3, 9), prompt=(1, 2, 3, 4))
    record = replay_lookup(response, Candidate(draft="ngram"), LookupIndex(2, 2), 3)
    assert record.proposed == (0, 3, 3)
    assert record.matched == (0, 1, 0)
    assert record.window == 3


def test_real_models_step_as_they_pass_and_the_target_accepts_itself(target, draft, text, make):
    prompt = text.prompt(make.request(), 60, 512)
    (response,) = make.written([(prompt, 0)], target, text)
    assert stepping_disagreement(target, response, 0.0) == 0.0
    assert stepping_disagreement(draft, response, 0.0) == 0.0
    assert set(replayed(target, target, response, DraftingMode.GREEDY).accept) == {1.0}


def test_a_model_whose_tokens_depend_on_their_neighbours_is_found_out(make):
    """One that answers by the size of the pass: 1 when it reads one token, 0 when several, whose
    logit leads by 1. As a near tie that would say nothing.
    """

    class Fickle(ScriptedRunner):
        def forward(self, tokens, cache, **how):
            logits = super().forward(tokens, cache, **how)
            logits[:, 1] = 2.0 if len(tokens) == 1 else 0.0
            return logits

    runner = Fickle(lambda tokens: torch.ones(2), 2)
    assert stepping_disagreement(runner, make.unscored((0, 0, 0, 0, 0)), 0.9) == 1.0
    assert stepping_disagreement(runner, make.unscored((0, 0, 0, 0, 0)), 1.0) is None
    assert stepping_disagreement(make.constant(0.5, 0.5), make.unscored((0,)), 0.0) is None


TWICE = (1, 2, 3, 1, 2, 4, 5, 6, 1, 2)
LONGER = (0, 1, 2, 3, 7, 7, 7, 9, 2, 3, 8, 8, 8, 1, 2, 3)
VLLM, CPU = (ENGINES["vllm"].lookup_in([{}], on_cpu=on_cpu) for on_cpu in (False, True))
LLAMA_CPP = ENGINES["llama.cpp"].lookup_in([{}], on_cpu=True)


@pytest.mark.parametrize(
    ("rule", "sizes", "text", "k", "expected"),
    [
        # The built-in decoder takes the last match of the longest n-gram.
        (BUILT_IN_LOOKUP, (2, 1), TWICE, 2, [4, 5]),
        (BUILT_IN_LOOKUP, (3, 2), LONGER, 3, [7, 7, 7]),
        (BUILT_IN_LOOKUP, (2, 2), (1, 2, 5, 5, 5, 1, 2), 2, [5, 5]),
        # vLLM fills up with the last token (`_ngram_finalize_kernel` of vLLM 0.32 in
        # v1/worker/gpu/spec_decode/ngram/speculator.py).
        (VLLM, (2, 1), TWICE, 2, [4, 5]),
        (VLLM, (2, 1), (7, 8, 9), 3, [9, 9, 9]),
        (VLLM, (1, 1), (5, 6, 5), 4, [6, 5, 5, 5]),
        # On a CPU it takes the first match, as it did in 14 of 16 answers of vLLM 0.32 round by
        # round; in the other two it counted past the end of the response.
        (CPU, (2, 1), TWICE, 2, [3, 1]),
        (CPU, (2, 1), (7, 8, 9), 3, []),
        # llama.cpp's own case, test_ngram_simple: n-grams of 2, at most 2 tokens.
        (LLAMA_CPP, (2, 2), (99, 1, 2, 7, 8, 3, 4, 1, 2), 2, [7, 8]),
        (LLAMA_CPP, (2, 2), (99, 1, 2, 7, 8, 3, 4, 1, 9), 2, []),
        # It looks for one length, the shortest, proposes nothing shorter than its n-gram, and finds
        # no match at the first token.
        (LLAMA_CPP, (3, 2), LONGER, 3, [8, 8, 8]),
        (LLAMA_CPP, (2, 2), (0, 1, 2, 5, 5, 5, 1, 2), 1, []),
        (LLAMA_CPP, (2, 2), (0, 3, 3, 3, 3), 4, []),
        # After the last match stands one token besides the newest one.
        (LLAMA_CPP, (2, 2), (0, 3, 3, 3, 1, 2, 4, 1, 2), 4, [4, 1]),
        (LLAMA_CPP, (2, 2), (1, 2, 5, 5, 5, 1, 2), 2, []),
    ],
)
def test_each_engine_s_lookup_continues_the_match_that_it_takes(rule, sizes, text, k, expected):
    index = LookupIndex(*sizes, rule)
    index.extend(list(text))
    assert index.lookup(k) == expected
