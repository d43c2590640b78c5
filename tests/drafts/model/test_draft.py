"""One pass along a response: what a draft would have proposed, by hand and against stepping."""

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from draftbench.acceptance.rounds import expected_rounds
from draftbench.decoder.scripted_model import ScriptedRunner, markov
from draftbench.decoder.translated import TranslatedRunner
from draftbench.drafts.laws import law_of
from draftbench.drafts.model.draft import replay_model, stepping_disagreement
from draftbench.errors import ModelError
from draftbench.measure.replay import ServedTarget
from draftbench.records import Candidate, DraftingMode, Sampling

DRAFT = Candidate(draft="d")
SAMPLED, GREEDY = Sampling(temperature=1.0), DraftingMode.GREEDY


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


# How sure a draft is that token t + 1 of eight follows token t, and 0 the last.
SURE = (0.9005, 0.8005, 0.5005, 0.9005, 0.9505, 0.4005, 0.9005, 0.7005)
CUT = (0.9, 0.8, 0.5, 0.9, 0.95, 0.4, 0.9, 0.7)


def circle(**how):
    others = (1 - torch.tensor(SURE)) / 7
    table = others[:, None].repeat(1, 8)
    table[range(8), [*range(1, 8), 0]] = torch.tensor(SURE)
    return ScriptedRunner(markov(table.log()), 8, **how)


@pytest.mark.parametrize(
    ("limit", "context", "lengths"),
    [
        # After 0 1 2 it drafts 3, where the response has 6; after 6 it drafts 7, which is the end.
        (20, 64, (3, 3)),
        # A round drafts up to position limit - 2, since one more token follows: 4 after the 3.
        (6, 64, (1, 0)),
        (7, 64, (2, 1)),
        # A context of 1 + 5 tokens: it drafts up to position 5.
        (20, 6, (2, 1)),
        (20, 5, (1, 0)),
        # Position 4 is out of its reach, and so is what follows the end.
        (20, 4, (0, 0)),
    ],
)
def test_a_draft_goes_on_after_its_wrong_tokens_and_after_the_end(make, limit, context, lengths):
    draft = circle(context_length=context)
    response = make.unscored((0, 1, 2, 6, 7), prompt=(7,), limit=limit)
    (record,) = replay_model(draft, ServedTarget(64), [response], DRAFT, GREEDY, 3)
    assert record.accept == (1.0, 1.0, 0.0, 1.0 if context > 4 else 0.0)
    along = (0.9, 0.8, 0.5, 0.9 if context > 4 else 0.0)
    assert record.confidence == record.confidence_of_ten == along
    after_wrong, after_end = CUT[3:6], (CUT[7], *CUT[:2])
    assert record.off_path.lengths == lengths
    wanted = (*after_wrong[: lengths[0]], *after_end[: lengths[1]])
    assert record.off_path.of_all == record.off_path.of_ten == wanted


def test_a_response_whose_last_token_is_wrong_has_nothing_after_its_end(make):
    (record,) = replay_model(
        circle(), ServedTarget(64), [make.unscored((0, 1, 5), limit=9)], DRAFT, GREEDY, 2
    )
    assert (record.accept, record.off_path.lengths) == ((1.0, 0.0), (2, 0))
    assert record.off_path.of_all == CUT[2:4]


def test_responses_side_by_side_are_left_one_by_one(make):
    """Of other lengths, with other places to leave them, and one that the draft cannot read."""
    texts = [
        ((0, 1, 2, 6, 7), (7,)),
        ((3,), (1, 2)),
        ((0, 4, 1, 5, 2, 2), (7, 7)),
        ((1, 2), (0,) * 9),
    ]
    group = [make.unscored(tokens, prompt=prompt, limit=9) for tokens, prompt in texts]
    draft = circle(context_length=8)
    together = replay_model(draft, ServedTarget(64), group, DRAFT, GREEDY, 3)
    assert together == [
        replay_model(draft, ServedTarget(64), [each], DRAFT, GREEDY, 3)[0] for each in group
    ]
    assert [record.off_path.lengths for record in together] == [
        (3, 3),
        (0,),
        (3, 3, 3, 2, 1, 0),
        (0,),
    ]


def test_only_greedy_drafting_is_followed_off_the_path_and_only_if_that_is_asked(make):
    q = make.constant(0.2, 0.5, 0.3)
    greedy, drawn = (make.unscored((0, 0, 1), sampling=how) for how in (Sampling(), SAMPLED))
    sampled = DraftingMode.SAMPLED
    one, other = replay_model(q, q, [greedy, drawn], DRAFT, sampled, 2)
    assert (one.off_path.lengths, other.off_path) == ((0, 0), None)
    assert one.confidence_of_ten == other.confidence_of_ten == (0.5, 0.5)
    (unasked,) = replay_model(q, q, [greedy], DRAFT, GREEDY)
    assert (unasked.off_path, unasked.confidence_of_ten) == (None, ())


def test_logits_off_the_path_that_are_no_numbers_stop_the_measurement(make):
    """After token 3, which no response has, the model is broken."""
    sound = circle().script
    broken = ScriptedRunner(lambda read: sound(read) * (float("nan") if read[-1] == 3 else 1), 8)
    response = make.unscored((0, 1, 2, 6, 7), limit=9)
    with pytest.raises(ModelError, match="NaN"):
        replay_model(broken, ServedTarget(64), [response], DRAFT, GREEDY, 2)


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
