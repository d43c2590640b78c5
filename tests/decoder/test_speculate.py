"""The speculative loop on scripted models: same output as plain decoding, same rounds as replay
predicts, exact times.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftbench.acceptance.rounds import expected_rounds, law_of
from draftbench.acceptance.stopping import stopped
from draftbench.decoder.drafters import LookupDrafter, LookupIndex, ModelDrafter
from draftbench.decoder.runner import Task
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.scripted_model import ScriptedClock, ScriptedRunner, markov
from draftbench.decoder.speculate import decode, decode_all
from draftbench.measure.prompts import Prompt
from draftbench.measure.replay import replay_lookup, replay_model
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, DraftingMode, Request, Sampling, Trajectory

VOCABULARY, END = 6, 5
GREEDY = DraftingMode.GREEDY


def pair(seed: int, noise: float) -> tuple[ScriptedRunner, ScriptedRunner]:
    """A Markov target and a draft that is the target with noise on its logits, on one clock."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(VOCABULARY, VOCABULARY, generator=generator) * 1.5
    table[:, END] -= 1.0
    other = table + noise * torch.randn(VOCABULARY, VOCABULARY, generator=generator)
    clock = ScriptedClock()
    target = ScriptedRunner(markov(table), VOCABULARY, clock, seconds_per_pass=1.0)
    return target, ScriptedRunner(markov(other), VOCABULARY, clock, seconds_per_pass=0.25)


def task(limit: int, sampling: Sampling, sample: int = 0) -> Task:
    uniforms = Uniforms("request", sample, limit + 1)
    return Task([0, 1], limit, sampling, uniforms, lambda output: output[-1] == END)


def drafter(draft: ScriptedRunner, mode: DraftingMode) -> ModelDrafter:
    return ModelDrafter(draft, mode, VOCABULARY)


def replayed(response, limit: int, sampling: Sampling) -> ScoredResponse:
    trajectory = Trajectory(
        request="r",
        sample=0,
        segment=None,
        weight=1.0,
        sampling=sampling,
        prompt_tokens=2,
        output_tokens=len(response.tokens),
        limit=limit,
        finish=response.finish,
        origin="target",
        margins=(),
        argmax=(),
        digest="",
    )
    request = Request(id="r", source="log.jsonl:1", prompt="", sampling=sampling)
    return ScoredResponse(Prompt(request, (0, 1), limit), response.tokens, trajectory)


def assert_predicted(trajectory, record, k, response):
    rounds = expected_rounds([law_of(trajectory, record)], k)
    assert rounds.rounds[0] + rounds.plain[0] == pytest.approx(len(response.proposed))
    assert rounds.proposed[0] == pytest.approx(sum(response.proposed))
    assert rounds.accepted[0] == pytest.approx(sum(response.accepted))
    assert rounds.cut[0] == pytest.approx(sum(response.cut))


def always(token: int):
    """A script that continues everything with this token."""
    table = torch.full((VOCABULARY, VOCABULARY), -9.0)
    table[:, token] = 0.0
    return markov(table)


SAMPLINGS = [Sampling(), Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.8)]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10_000),
    st.floats(0.0, 3.0),
    st.integers(1, 16),
    st.integers(1, 40),
    st.sampled_from(SAMPLINGS),
)
def test_greedy_drafting_leaves_the_output_unchanged_at_any_temperature(seed, noise, k, limit, how):
    target, draft = pair(seed, noise)
    work = task(limit, how, sample=seed)
    plain = decode(work, target, None, 0, target.clock)
    fast = decode(work, target, drafter(draft, GREEDY), k, target.clock)
    assert fast.tokens == plain.tokens
    assert fast.finish == plain.finish


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10_000),
    st.floats(0.0, 3.0),
    st.integers(1, 16),
    st.integers(2, 40),
    st.sampled_from(SAMPLINGS),
)
def test_replay_predicts_every_round_of_the_decoder(seed, noise, k, limit, how):
    target, draft = pair(seed, noise)
    work = task(limit, how, sample=seed)
    plain = decode(work, target, None, 0, target.clock)
    fast = decode(work, target, drafter(draft, GREEDY), k, target.clock)
    response = replayed(plain, limit, how)
    record = replay_model(draft, target, [response], Candidate(draft="d"), GREEDY)[0][0]
    if len(plain.tokens) < 2:
        return
    assert_predicted(response.trajectory, record, k, fast)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 16), st.integers(2, 40))
def test_lookup_replay_predicts_every_round_of_the_decoder(seed, k, limit):
    target, _ = pair(seed, 0.0)
    work = task(limit, Sampling())
    plain = decode(work, target, None, 0, target.clock)
    fast = decode(work, target, LookupDrafter(3, 1, "cpu"), k, target.clock)
    assert fast.tokens == plain.tokens
    if len(plain.tokens) < 2:
        return
    response = replayed(plain, limit, Sampling())
    record = replay_lookup(response, Candidate(draft="ngram"), (3, 1), 16)
    assert_predicted(response.trajectory, record, k, fast)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [DraftingMode.SAMPLED, DraftingMode.SAMPLED_TEMPERATURE_ONLY])
def test_sampled_acceptance_agrees_with_replay_in_expectation(mode):
    """Accepted tokens of 500 decoder runs against the recursion on 500 replays; p and q cut
    differently.

    Accepted tokens of a request lie in 0 … 11 and spread by about 2.5: the difference of the two
    means has a standard error near .13, so .8 is six of them.
    """
    target, draft = pair(11, 1.0)
    how = Sampling(temperature=1.0, top_p=0.85)
    ran, predicted, runs = 0, 0.0, 500
    for sample in range(runs):
        work = task(12, how, sample)
        plain = decode(work, target, None, 0, target.clock)
        ran += sum(decode(work, target, drafter(draft, mode), 3, target.clock).accepted)
        if len(plain.tokens) < 2:
            continue
        response = replayed(plain, 12, how)
        ((record, _),) = replay_model(draft, target, [response], Candidate(draft="d"), mode)
        predicted += expected_rounds([law_of(response.trajectory, record)], 3).accepted[0]
    assert abs(ran - predicted) / runs < 0.8
    assert ran > 0


def test_nothing_is_drafted_past_the_limit():
    target, _ = pair(0, 0.0)
    target.script = always(2)
    work = task(6, Sampling())
    response = decode(work, target, drafter(target, GREEDY), 4, target.clock)
    # y0 by the prefill; 4 accepted + 1; with 6 of 6 tokens out nothing is left.
    assert (response.tokens, response.proposed) == ([2] * 6, [4])
    shorter = task(4, Sampling())
    response = decode(shorter, target, drafter(target, GREEDY), 4, target.clock)
    assert (response.proposed, response.accepted, response.cut) == ([2], [2], [0])


def test_proposals_after_an_accepted_end_are_cut():
    """0 1 | 2 3 END …: the draft proposes 3 END 0 1, of which two stand and two are cut."""
    order = [1, 2, 3, END, 0, 0]
    table = torch.full((VOCABULARY, VOCABULARY), -9.0)
    for token, following in enumerate(order):
        table[token, following] = 0.0
    target = ScriptedRunner(markov(table), VOCABULARY)
    work = task(20, Sampling())
    response = decode(work, target, drafter(target, GREEDY), 4, target.clock)
    assert response.tokens == [2, 3, END]
    assert (response.proposed, response.accepted, response.cut) == ([4], [2], [2])
    assert response.finish == "stop"


def test_times_are_those_of_the_passes():
    """Self-agreeing draft, k = 3, limit 9: two full rounds of 3 · 0.25 s drafting and one 1 s pass
    each.
    """
    target, _ = pair(0, 0.0)
    target.script = always(2)
    draft = ScriptedRunner(always(2), VOCABULARY, target.clock, seconds_per_pass=0.25)
    work = task(9, Sampling())
    response = decode(work, target, drafter(draft, GREEDY), 3, target.clock)
    assert response.draft_seconds == [0.75, 0.75]
    assert response.verify_seconds == [1.0, 1.0]
    assert (response.prefill_seconds, response.draft_prefill_seconds) == (1.0, 0.25)
    assert response.decode_seconds == 3.5


def test_a_draft_stops_where_its_context_ends():
    target, draft = pair(1, 0.0)
    draft.context_length = 5
    work = Task([0, 1], 10, Sampling(), Uniforms("r", 0, 11), lambda output: False)
    response = decode(work, target, drafter(draft, GREEDY), 4, target.clock)
    assert len(response.tokens) == 10
    # Context 5 = 2 of prompt + 3 outputs read: tokens 1 … 3 can be drafted, then plain steps
    # follow.
    assert sum(response.proposed) == 3
    assert response.proposed[-1] == 0


def test_lookup_proposes_what_followed_the_most_recent_longest_match():
    index = LookupIndex(longest=2, shortest=1)
    index.extend([1, 2, 9, 1, 2, 7, 3, 1, 2])
    assert index.lookup(3) == [7, 3, 1]
    index.extend([4])
    assert index.lookup(3) == []


class _Scripted:
    """Uniforms by purpose, the same at every position."""

    def __init__(self, **numbers: float) -> None:
        self.numbers = numbers

    def stream(self, purpose: str) -> np.ndarray:
        return np.full(4, self.numbers[purpose])


def test_each_purpose_has_its_own_uniforms():
    """p = (.4 .35 .25), q = (.1 .8 .1): the prefill draws 0 with .3; the draft draws 1 with .6; .5
    rejects it (.5 · .8 > .35); the residual (.3 0 .15) gives 2 with .9; the last plain step 0.
    """
    law = torch.tensor([0.4, 0.35, 0.25]).log(), torch.tensor([0.1, 0.8, 0.1]).log()
    target, draft = (ScriptedRunner(lambda tokens, row=row: row, 3) for row in law)
    uniforms = _Scripted(target=0.3, draft=0.6, accept=0.5, residual=0.9)
    work = Task([0], 3, Sampling(temperature=1.0), uniforms, lambda output: False)
    proposer = ModelDrafter(draft, DraftingMode.SAMPLED, 3)
    response = decode(work, target, proposer, 1, target.clock)
    assert response.tokens == [0, 2, 0]
    assert (response.proposed, response.accepted) == ([1, 0], [0, 0])


def rounds(response):
    return response.tokens, response.finish, response.proposed, response.accepted, response.cut


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10_000),
    noise=st.floats(0.0, 3.0),
    k=st.integers(0, 6),
    rows=st.integers(2, 5),
    limits=st.lists(st.integers(1, 15), min_size=1, max_size=9),
    mode=st.sampled_from([*DraftingMode, None]),
)
def test_every_row_of_a_batch_decodes_as_it_would_alone(seed, noise, k, rows, limits, mode):
    """Requests of other temperatures and lengths beside it, refilled rows, drafts whose context
    ends: a response and its rounds are the same. Without a mode prompt lookup drafts.
    """
    target, draft = pair(seed, noise)
    draft.context_length = 12
    tasks = [task(limit, SAMPLINGS[at % 3], sample=at) for at, limit in enumerate(limits)]

    def fresh():
        return LookupDrafter(2, 1, "cpu") if mode is None else drafter(draft, mode)

    together = decode_all(tasks, target, fresh(), k, target.clock, rows)
    alone = [decode(work, target, fresh(), k, target.clock) for work in tasks]
    assert list(map(rounds, together)) == list(map(rounds, alone))
    assert all(max(r.active, default=1) <= min(rows, len(tasks)) for r in together)


def test_a_finished_row_takes_the_next_task_at_once():
    """Limits 2, 5 and 4 in two rows, plain steps: the first ends after one round, the third has its
    place in the next one.
    """
    target, _ = pair(0, 0.0)
    target.script = always(2)
    tasks = [task(limit, Sampling()) for limit in (2, 5, 4)]
    first, second, third = decode_all(tasks, target, None, 0, target.clock, rows=2)
    assert (first.active, second.active, third.active) == ([2], [2, 2, 2, 2], [2, 2, 2])
    # A round is one pass of one second for both rows; the third's prompt is nobody's round.
    assert (first.decode_seconds, second.decode_seconds, third.decode_seconds) == (1.0, 4.0, 3.0)


def test_rows_without_a_match_ride_along():
    """Prompt lookup in one row, nothing to copy in the other: one pass of 1 + 1 and 1 tokens."""
    target, _ = pair(0, 0.0)
    target.script, target.seconds_per_token = always(2), 0.25
    sure = Task([2, 2, 2], 4, Sampling(), Uniforms("a", 0, 5), lambda output: False)
    blind = Task([0, 1], 4, Sampling(), Uniforms("b", 0, 5), lambda output: False)
    found, plain = decode_all([sure, blind], target, LookupDrafter(2, 2, "cpu"), 2, target.clock, 2)
    assert (found.proposed, plain.proposed[0]) == ([1, 0], 0)
    assert found.verify_seconds[0] == plain.verify_seconds[0] == 1.75


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(2, 40), st.floats(0.15, 0.9))
def test_replay_predicts_the_rounds_of_a_draft_that_stops_when_unsure(seed, k, limit, threshold):
    """Rounds and, for a draft that is right, steps; after a wrong token it drafts on unseen."""
    target, draft = pair(seed, 1.0)
    work = task(limit, Sampling())
    plain = decode(work, target, None, 0, target.clock)
    stopping = ModelDrafter(draft, GREEDY, VOCABULARY, stop_below=threshold)
    fast = decode(work, target, stopping, k, target.clock)
    assert fast.tokens == plain.tokens
    response = replayed(plain, limit, Sampling())
    ((record, _),) = replay_model(draft, target, [response], Candidate(draft="d"), GREEDY)
    # A replay keeps three digits of a confidence.
    if len(plain.tokens) < 2 or any(abs(c - threshold) < 0.001 for c in record.confidence):
        return
    tokens, steps, _ = stopped([(response.trajectory, record)], k, threshold)
    assert tokens.value == pytest.approx((len(plain.tokens) - 1) / len(fast.proposed))
    # The pass that finds the draft unsure is a step too: at most one a round.
    assert steps.value <= sum(fast.proposed) / len(fast.proposed) + 1
