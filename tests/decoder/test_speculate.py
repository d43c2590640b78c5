"""The speculative loop on scripted models: same output as plain decoding, same rounds as replay
predicts, exact times.
"""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import scenes
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedClock, TimedRunner

from draftbench.acceptance.rounds import expected_rounds
from draftbench.decoder import attention
from draftbench.decoder.runner import DecodeTask, HostClock
from draftbench.decoder.sampling import Uniforms
from draftbench.decoder.scripted_model import markov
from draftbench.decoder.speculate import Batch, decode, decode_all
from draftbench.drafts.laws import law_of
from draftbench.drafts.lookup.draft import LookupDrafter, replay_lookup
from draftbench.drafts.lookup.index import LookupIndex
from draftbench.drafts.model.draft import replay_model
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.drafts.stopping import STOP_RULES
from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, DraftingMode, Request, Sampling, StopRule
from tests.decoder.operations import Operations
from tests.decoder.test_runners import LLAMA, random_model, runner_of

VOCABULARY, END = 6, 5
GREEDY = DraftingMode.GREEDY
SAMPLINGS = [Sampling(), Sampling(temperature=1.0), Sampling(temperature=0.7, top_p=0.8)]
DRAFT = Candidate(draft="d")

seeds, noises, draft_lengths = st.integers(0, 10_000), st.floats(0.0, 3.0), st.integers(1, 16)
sometimes = settings(max_examples=60)


def pair(seed: int, noise: float) -> tuple[TimedRunner, TimedRunner]:
    """A Markov target and a draft that is the target with noise on its logits, on one clock."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(VOCABULARY, VOCABULARY, generator=generator) * 1.5
    table[:, END] -= 1.0
    other = table + noise * torch.randn(VOCABULARY, VOCABULARY, generator=generator)
    clock = ScriptedClock()
    target = TimedRunner(markov(table), VOCABULARY, clock=clock)
    return target, TimedRunner(markov(other), VOCABULARY, clock=clock, a_pass=0.25)


def following(*order: int) -> TimedRunner:
    """A model that continues token i with `order[i]`."""
    table = torch.full((VOCABULARY, VOCABULARY), -9.0)
    table[range(VOCABULARY), order] = 0.0
    return TimedRunner(markov(table), VOCABULARY)


def twos() -> TimedRunner:
    return following(*[2] * VOCABULARY)


def task(limit: int, sampling: Sampling = SAMPLINGS[0], sample: int = 0) -> DecodeTask:
    uniforms = Uniforms("request", sample, limit + 1)
    return DecodeTask([0, 1], limit, sampling, uniforms, lambda output: output[-1] == END)


def endless(prompt: list[int], limit: int) -> DecodeTask:
    return DecodeTask(prompt, limit, Sampling(), Uniforms("r", 0, limit + 1), lambda output: False)


def drafter(draft: TimedRunner, mode: DraftingMode = GREEDY) -> ModelDrafter:
    return ModelDrafter(draft, mode)


def alone(work: DecodeTask, target: TimedRunner, proposer=None, k: int = 0, stop=None):
    return decode(work, target, proposer, k, target.clock, stop)


def rounds_of(response):
    return response.proposed, response.accepted, response.cut


def scored(response, work: DecodeTask) -> ScoredResponse:
    limits = {"limit": work.limit, "finish": response.finish, "sampling": work.sampling}
    trajectory = scenes.trajectory("r", len(response.tokens), prompt_tokens=2, **limits)
    request = Request(id="r", source="log.jsonl:1", prompt="", sampling=work.sampling)
    return ScoredResponse(Prompt(request, (0, 1), work.limit), response.tokens, trajectory)


def assert_predicted(trajectory, record, k, response):
    rounds = expected_rounds([law_of(trajectory, record)], k)
    assert rounds.target_passes[0] == pytest.approx(len(response.proposed))
    found = rounds.proposed[0], rounds.accepted[0], rounds.cut[0]
    assert found == pytest.approx(tuple(map(sum, rounds_of(response))))


@sometimes
@given(seeds, noises, draft_lengths, st.integers(1, 40), st.sampled_from(SAMPLINGS))
def test_greedy_drafting_leaves_the_output_unchanged_and_replay_predicts_its_rounds(
    seed, noise, k, limit, how
):
    target, draft = pair(seed, noise)
    work = task(limit, how, sample=seed)
    plain, fast = alone(work, target), alone(work, target, drafter(draft), k)
    assert (fast.tokens, fast.finish) == (plain.tokens, plain.finish)
    if len(plain.tokens) > 1:
        response = scored(plain, work)
        (record,) = replay_model(draft, target, [response], DRAFT, GREEDY)
        assert_predicted(response.trajectory, record, k, fast)


@sometimes
@given(seeds, draft_lengths, st.integers(2, 40))
def test_lookup_replay_predicts_every_round_of_the_decoder(seed, k, limit):
    target, _ = pair(seed, 0.0)
    work = task(limit)
    plain, fast = alone(work, target), alone(work, target, LookupDrafter(3, 1, "cpu"), k)
    assert fast.tokens == plain.tokens
    if len(plain.tokens) > 1:
        response = scored(plain, work)
        record = replay_lookup(response, Candidate(draft="ngram"), LookupIndex(3, 1), 16)
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
    ran, predicted, runs = 0, 0.0, 500
    for sample in range(runs):
        work = task(12, Sampling(temperature=1.0, top_p=0.85), sample)
        plain = alone(work, target)
        ran += sum(alone(work, target, drafter(draft, mode), 3).accepted)
        if len(plain.tokens) > 1:
            response = scored(plain, work)
            (record,) = replay_model(draft, target, [response], DRAFT, mode)
            predicted += expected_rounds([law_of(response.trajectory, record)], 3).accepted[0]
    assert abs(ran - predicted) / runs < 0.8
    assert ran > 0


def test_nothing_is_drafted_past_the_limit():
    target = twos()
    # y0 by the prefill; 4 accepted + 1; with 6 of 6 tokens out nothing is left.
    response = alone(task(6), target, drafter(target), 4)
    assert (response.tokens, response.proposed) == ([2] * 6, [4])
    assert rounds_of(alone(task(4), target, drafter(target), 4)) == ([2], [2], [0])


def test_proposals_after_an_accepted_end_are_cut():
    """0 1 | 2 3 END …: the draft proposes 3 END 0 1, of which two stand and two are cut."""
    target = following(1, 2, 3, END, 0, 0)
    response = alone(task(20), target, drafter(target), 4)
    assert (response.tokens, response.finish) == ([2, 3, END], "stop")
    assert rounds_of(response) == ([4], [2], [2])


def test_times_are_those_of_the_passes():
    """Self-agreeing draft, k = 3, limit 9: two full rounds of 3 · 0.25 s drafting and one 1 s pass
    each.
    """
    target = twos()
    draft = TimedRunner(target.script, VOCABULARY, clock=target.clock, a_pass=0.25)
    response = alone(task(9), target, drafter(draft), 3)
    assert response.draft_seconds == [0.75, 0.75]
    assert response.verify_seconds == [1.0, 1.0]
    assert (response.prefill_seconds, response.draft_prefill_seconds) == (1.0, 0.25)
    assert response.decode_seconds == 3.5


def test_rounds_take_all_of_the_time_from_the_first_to_the_last():
    """Of a clock that counts its marks: two are the prefill's, and the third begins the rounds."""
    marks = iter(range(100))
    clock = SimpleNamespace(mark=lambda: next(marks), seconds=lambda start, end: end - start)
    response = decode(task(5), twos(), None, 0, clock)
    assert response.decode_seconds == next(marks) - 3


def test_a_draft_stops_where_its_context_ends():
    target, draft = pair(1, 0.0)
    draft.context_length = 5
    response = alone(endless([0, 1], 10), target, drafter(draft), 4)
    assert len(response.tokens) == 10
    # Context 5 = 2 of prompt + 3 outputs read: tokens 1 … 3 can be drafted, then plain steps
    # follow.
    assert sum(response.proposed) == 3
    assert response.proposed[-1] == 0


def test_each_purpose_has_its_own_uniforms():
    """p = (.4 .35 .25), q = (.1 .8 .1): the prefill draws 0 with .3; the draft draws 1 with .6; .5
    rejects it (.5 · .8 > .35); the residual (.3 0 .15) gives 2 with .9; the last plain step 0.
    """
    law = torch.tensor([0.4, 0.35, 0.25]).log(), torch.tensor([0.1, 0.8, 0.1]).log()
    target, draft = (TimedRunner(lambda tokens, row=row: row, 3) for row in law)
    numbers = {"target": 0.3, "draft": 0.6, "accept": 0.5, "residual": 0.9}
    uniforms = SimpleNamespace(stream=lambda purpose: np.full(4, numbers[purpose]))
    work = DecodeTask([0], 3, Sampling(temperature=1.0), uniforms, lambda output: False)
    response = alone(work, target, ModelDrafter(draft, DraftingMode.SAMPLED), 1)
    assert response.tokens == [0, 2, 0]
    assert (response.proposed, response.accepted) == ([1, 0], [0, 0])


@sometimes
@given(
    seed=seeds,
    noise=noises,
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
    for work, response in zip(tasks, together, strict=True):
        expected = alone(work, target, fresh(), k)
        assert (response.tokens, response.finish) == (expected.tokens, expected.finish)
        assert rounds_of(response) == rounds_of(expected)
        assert max(response.active, default=1) <= min(rows, len(tasks))


def test_a_finished_row_takes_the_next_task_at_once():
    """Limits 2, 5 and 4 in two rows, plain steps: the first ends after one round, the third has its
    place in the next one.
    """
    target = twos()
    tasks = [task(limit) for limit in (2, 5, 4)]
    first, second, third = decode_all(tasks, target, None, 0, target.clock, rows=2)
    assert (first.active, second.active, third.active) == ([2], [2, 2, 2, 2], [2, 2, 2])
    # A round is one pass of one second for both rows; the third's prompt is nobody's round.
    assert (first.decode_seconds, second.decode_seconds, third.decode_seconds) == (1.0, 4.0, 3.0)


def test_rows_without_a_match_ride_along():
    """Prompt lookup in one row, nothing to copy in the other: one pass of 1 + 1 and 1 tokens."""
    target = twos()
    target.a_token = 0.25
    tasks = [endless([2, 2, 2], 4), endless([0, 1], 4)]
    found, plain = decode_all(tasks, target, LookupDrafter(2, 2, "cpu"), 2, target.clock, 2)
    assert (found.proposed, plain.proposed[0]) == ([1, 0], 0)
    assert found.verify_seconds[0] == plain.verify_seconds[0] == 1.75


# How often the host reads a value of the device: on a GPU it waits for all work each time. All of
# them end in a copy to the host.
READS = ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
ARGMAX, DRAWN = Sampling(), Sampling(temperature=1.0, top_k=50, top_p=0.9)


@pytest.fixture(scope="module")
def runner():
    return runner_of(random_model(LLAMA["llama"]))


@pytest.fixture
def reads(monkeypatch):
    """The reads since the last `clear()`, by name, of passes as a GPU computes them."""
    monkeypatch.setattr(attention, "CACHED", ())
    seen = Counter()

    def counted(name, original):
        def read(tensor, *rest):
            seen[name] += 1
            return original(tensor, *rest)

        return read

    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, counted(name, getattr(torch.Tensor, name)))
    return seen


def batch_of(runner, drafter, rows, samplings):
    tasks = []
    for row in range(rows):
        how, uniforms = samplings[row % len(samplings)], Uniforms(str(row), 0, 13)
        tasks.append(DecodeTask([3 + row, 5, 7], 12, how, uniforms, lambda output: False))
    return Batch(tasks, runner, drafter, 4, HostClock(), rows)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("mode", list(DraftingMode))
@pytest.mark.parametrize(
    "samplings", [[ARGMAX], [DRAWN], [ARGMAX, DRAWN]], ids=["greedy", "sampled", "both"]
)
def test_a_round_reads_the_device_once_and_drafting_never(
    monkeypatch, runner, reads, rows, mode, samplings
):
    drafting = []
    propose = ModelDrafter.propose

    def watched(self, *asked):
        before = reads.total()
        proposals = propose(self, *asked)
        drafting.append(reads.total() - before)
        return proposals

    monkeypatch.setattr(ModelDrafter, "propose", watched)
    batch = batch_of(runner, ModelDrafter(runner, mode), rows, samplings)
    batch.advance()  # the prompts, and a round
    for _ in range(2):
        reads.clear()
        batch.advance()
        assert reads == {"tolist": 1}
    assert drafting == [0, 0, 0]


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("kind", list(STOP_RULES))
def test_with_a_rule_a_round_reads_the_device_once_more_a_step(runner, reads, rows, kind):
    """Nothing ever stops: of four steps the last is looked at only where that decides anything."""
    batch = batch_of(runner, ModelDrafter(runner, DraftingMode.SAMPLED), rows, [ARGMAX, DRAWN])
    batch.stop = StopRule(kind=kind, threshold=0.0)
    batch.advance()
    reads.clear()
    batch.advance()
    assert reads == {"tolist": 1 + (4 if kind == "before" else 3)}


@pytest.mark.parametrize("samplings", [[ARGMAX], [DRAWN]], ids=["greedy", "sampled"])
def test_sixteen_rows_are_sampled_in_about_as_many_launches_as_one(runner, samplings):
    launches = {}
    for rows in (1, 16):
        batch = batch_of(runner, ModelDrafter(runner, DraftingMode.SAMPLED), rows, samplings)
        batch.advance()
        with Operations() as operations:
            batch.advance()
        launches[rows] = len(operations.launched)
    # Rows of a CPU take a mask, which one row does without; row by row it would be several times.
    assert launches[16] < 1.5 * launches[1]


def test_prompt_lookup_reads_nothing_of_the_device(runner, reads):
    batch = batch_of(runner, LookupDrafter(3, 1, "cpu"), 2, [ARGMAX])
    batch.advance()
    reads.clear()
    batch.advance()
    assert reads == {"tolist": 1}
