"""One pass along a response: what a draft would have proposed, by hand and against stepping."""

import pytest
import torch

from draftbench.decoder.runner import HostClock
from draftbench.decoder.scripted_model import ScriptedRunner
from draftbench.measure.prompts import Prompt
from draftbench.measure.replay import replay_lookup, replay_model, stepping_disagreement
from draftbench.measure.trajectories import Given, ScoredResponse, generate, score
from draftbench.records import Candidate, DraftingMode, Request, Sampling, Trajectory

DRAFT = Candidate(draft="d")


def material(tokens, prompt=(0,), sampling=None):
    request = Request(id="r", source="log.jsonl:1", prompt="", sampling=sampling or Sampling())
    trajectory = Trajectory(
        request="r",
        sample=0,
        segment=None,
        weight=1.0,
        sampling=sampling or Sampling(),
        prompt_tokens=len(prompt),
        output_tokens=len(tokens),
        limit=len(tokens),
        finish="length",
        origin="target",
        margins=(1.0,) * len(tokens),
        argmax=(1,) * len(tokens),
        digest="",
    )
    return ScoredResponse(Prompt(request, prompt, len(tokens)), tokens, trajectory)


def one_replay(draft, target, scored, candidate, mode):
    ((record, private),) = replay_model(draft, target, [scored], candidate, mode)
    return record, private


def constant(*probabilities, context_length=64):
    logits = torch.tensor(probabilities).log()
    runner = ScriptedRunner(lambda tokens: logits, len(probabilities))
    runner.context_length = context_length
    return runner


def test_a_greedy_draft_is_accepted_where_it_would_have_said_the_same():
    q = constant(0.2, 0.5, 0.3)
    record, _ = one_replay(q, q, material((0, 1, 2, 1)), DRAFT, DraftingMode.GREEDY)
    assert record.accept == (1.0, 0.0, 1.0)
    assert record.confidence == (0.5, 0.5, 0.5)
    assert record.rank == (0, 1, 0)
    # ln .5 - ln .3
    assert record.margin == (0.511, 0.511, 0.511)
    assert record.overlap is None


def test_a_sampling_draft_is_accepted_by_the_ratio_of_probabilities():
    """p = (.5, .25, .25), q = (.2, .5, .3): a = .4, 1 and 1; Σ min(p, q) = .2 + .25 + .25."""
    p, q = constant(0.5, 0.25, 0.25), constant(0.2, 0.5, 0.3)
    given = material((0, 0, 1, 2), sampling=Sampling(temperature=1.0))
    record, _ = one_replay(q, p, given, DRAFT, DraftingMode.SAMPLED)
    assert record.accept == (0.4, 1.0, 1.0)
    assert record.overlap == (0.7, 0.7, 0.7)


def test_a_draft_samples_with_or_without_the_requests_filters():
    """top-k 1 leaves q no choice but token 1; without it q(1) = .5, while p(1) = 1 after top-k."""
    p, q = constant(0.25, 0.75), constant(0.5, 0.5001)
    given = material((0, 1), sampling=Sampling(temperature=1.0, top_k=1))
    filtered, _ = one_replay(q, p, given, DRAFT, DraftingMode.SAMPLED)
    bare, _ = one_replay(q, p, given, DRAFT, DraftingMode.SAMPLED_TEMPERATURE_ONLY)
    assert (filtered.accept, bare.accept) == ((1.0,), (0.5,))


@pytest.mark.parametrize("mode", list(DraftingMode))
def test_rows_that_only_the_draft_has_are_never_proposed(mode):
    """The decoder looks at the target's rows alone, and so does its replay: of (.1, .3, .6) are
    left (.25, .75), the target's own law.
    """
    p, q = constant(0.25, 0.75), constant(0.1, 0.3, 0.6)
    given = material((0, 1, 0), sampling=Sampling(temperature=1.0))
    record, _ = one_replay(q, p, given, DRAFT, mode)
    assert record.accept == ((1.0, 0.0) if mode is DraftingMode.GREEDY else (1.0, 1.0))


def test_a_token_that_the_draft_lacks_is_never_accepted():
    p, q = constant(0.2, 0.3, 0.5), constant(0.5, 0.5)
    given = material((0, 2, 0), sampling=Sampling(temperature=1.0))
    for mode in DraftingMode:
        assert one_replay(q, p, given, DRAFT, mode)[0].accept[0] == 0.0


def test_nothing_is_accepted_beyond_the_drafts_context():
    q = constant(0.2, 0.8, context_length=4)
    given = material((1, 1, 1, 1, 1, 1), prompt=(0, 0))
    record, _ = one_replay(q, constant(0.2, 0.8), given, DRAFT, DraftingMode.GREEDY)
    # 4 = 2 of prompt and 2 of the response: the tokens 1 and 2 can be drafted.
    assert record.draftable == 2
    assert record.accept == (1.0, 1.0, 0.0, 0.0, 0.0)
    assert len(record.rank) == len(record.margin) == len(record.confidence) == 5


def test_prompt_lookup_is_recorded_per_start_of_a_round():
    """Prompt 1 2 3 4, response 1 2 3 9: after 1 the pair (4, 1) is new; after 1 2 follow 3 4 1 2 of
    which 3 is right; after 1 2 3 follows 4, which is wrong.
    """
    response = material((1, 2, 3, 9), prompt=(1, 2, 3, 4))
    record = replay_lookup(response, Candidate(draft="ngram"), (2, 2), 3)
    assert record.proposed == (0, 3, 3)
    assert record.matched == (0, 1, 0)
    assert record.window == 3


def written(target, text, make_request):
    prompt = text.prompt(make_request(max_tokens=60), 64, 512)
    ((tokens, finish),) = generate([(prompt, 0)], target, text, HostClock())
    return score([Given(prompt, 0, tokens, finish, "target", "d")], target)[0]


def test_in_float32_stepping_agrees_with_the_single_pass(target, draft, text, make_request):
    response = written(target, text, make_request)
    assert stepping_disagreement(target, response) == 0.0
    assert stepping_disagreement(draft, response) == 0.0


def test_a_model_whose_tokens_depend_on_their_neighbours_is_found_out():
    """One that answers by the size of the pass: 1 when it reads one token, 0 when several."""

    class Fickle(ScriptedRunner):
        def forward(self, tokens, cache, **how):
            logits = super().forward(tokens, cache, **how)
            logits[:, 1] = 2.0 if len(tokens) == 1 else 0.0
            return logits

    runner = Fickle(lambda tokens: torch.ones(2), 2)
    assert stepping_disagreement(runner, material((0, 0, 0, 0, 0))) == 1.0
    assert stepping_disagreement(constant(0.5, 0.5), material((0,))) is None


def test_the_self_draft_is_accepted_everywhere(target, text, make_request):
    given = written(target, text, make_request)
    record, _ = one_replay(target, target, given, Candidate(draft="self"), DraftingMode.GREEDY)
    assert set(record.accept) == {1.0}
