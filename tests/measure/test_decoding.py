"""Decoding runs of a scripted pair: which cells run, in which order, and what is recorded."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from scenes import lengths
from scripted import ScriptedClock, TimedRunner

from draftbench.decoder.runner import HostClock
from draftbench.decoder.scripted_model import markov
from draftbench.decoder.speculate import decode, decode_all
from draftbench.drafts.lookup.draft import LookupDrafter
from draftbench.drafts.model.draft import ModelDraft
from draftbench.drafts.model.drafter import ModelDrafter
from draftbench.measure.candidate import LoadedCandidate, MeasurementContext
from draftbench.measure.decoding import decode_requests
from draftbench.measure.prompts import Prompt
from draftbench.measure.trajectories import score, task_of
from draftbench.records import Candidate, DraftingMode, DraftLength, NGramSizes, Sampling, StopRule

DRAFT = Candidate(draft="small")
# After token t comes t + 1 of five; the draft believes so too, except that after 3 comes 0.
NEXT, WRONG = [1, 2, 3, 4, 0], [1, 2, 3, 0, 0]


def chain(following, clock, seconds):
    table = torch.full((5, 5), -9.0)
    for token, after in enumerate(following):
        table[token, after] = 0.0
    return TimedRunner(markov(table), 5, clock=clock, a_pass=seconds)


@pytest.fixture
def measurement():
    clock = ScriptedClock()
    return MeasurementContext(
        target=chain(NEXT, clock, 1.0),
        text=SimpleNamespace(ends=lambda output, stop: False),  # responses end by their limit
        mode=DraftingMode.GREEDY,
        ks=(2, 4),
        lookup=NGramSizes(2, 1),
        dtype="float32",
        clock=clock,
        process="process",
        digest=lambda tokens: "-".join(map(str, tokens)),
    )


def candidate(runner, measurement):
    draft = ModelDraft(runner, measurement.target, measurement.mode)
    return LoadedCandidate(DRAFT, draft, measurement)


@pytest.fixture
def loaded(measurement):
    return candidate(chain(WRONG, measurement.clock, 0.25), measurement)


@pytest.fixture
def responses(make, measurement):
    """One response a letter, scored by the target."""

    def responses(names, tokens=(1, 2, 3, 4, 0, 1), sampling=None):
        requests = [make.request(id=name, sampling=sampling or Sampling()) for name in names]
        asked = [(Prompt(request, [0], len(tokens)), 0) for request in requests]
        outputs = [(tokens, "length")] * len(asked)
        return score(asked, outputs, measurement.target, "target", measurement.digest)

    return responses


def test_the_baseline_and_every_k_run_request_by_request_in_a_turning_order(
    measurement, loaded, responses
):
    every = responses("abcd")
    order = [
        [("a", 0), ("a", 2), ("a", 4)],
        [("b", 2), ("b", 4), ("b", 0)],
        [("c", 4), ("c", 0), ("c", 2)],
        [("d", 0), ("d", 2), ("d", 4)],
    ]

    def cells(done):
        lists = decode_requests(loaded, every, lengths(2, 4), 1, done)
        return [[(row.request, row.k) for row in rows] for rows in lists]

    assert cells(done=()) == order
    assert cells(done={("b", 0)}) == [order[0], *order[2:]]
    before = measurement.clock.now
    assert cells(done={response.key for response in every}) == []
    assert measurement.clock.now == before


def test_a_row_holds_the_rounds_and_their_seconds(measurement, loaded, responses):
    r"""1 | 2 3 4 0 1: from 1 the draft proposes 2 3 0 0 of which two stand and 4 follows; the last
    round may propose one token, 0, and is followed by 1.
    """
    ((plain, fast),) = decode_requests(loaded, responses("a"), lengths(4), 1)
    assert (fast.proposed, fast.accepted, fast.cut) == ((4, 1), (2, 1), (0, 0))
    assert fast.draft_seconds == (1.0, 0.25)
    assert fast.verify_seconds == (1.0, 1.0)
    assert (fast.prefill_seconds, fast.draft_prefill_seconds) == (1.0, 0.25)
    assert fast.decode_seconds == 3.25
    assert (plain.decode_seconds, plain.draft_prefill_seconds) == (5.0, None)
    assert (plain.candidate, plain.k) == (None, 0)
    assert (fast.candidate, fast.k) == (DRAFT, 4)
    assert plain.block == fast.block == "small"
    assert plain.digest == fast.digest == "1-2-3-4-0-1"
    assert plain.first_difference is fast.first_difference is None
    # Every shape ran once before, and its seconds are on the clock too.
    timed = (1.0 + 5.0) + (1.0 + 0.25 + 3.25)
    assert measurement.clock.now > 2 * timed


def test_a_rule_is_decoded_beside_the_ks_and_recorded_with_what_was_drafted_in_vain(
    loaded, responses
):
    """The draft is sure of what it says by 9 logits: .9995 among five tokens. With logits 9 times
    smaller it gives e / (e + 4) = .4046, and is unsure of every token.
    """
    before, after = (StopRule(kind=kind, threshold=0.5) for kind in ("before", "after"))
    asked = [DraftLength(4), DraftLength(4, before), DraftLength(4, after)]
    (rows,) = decode_requests(loaded, responses("a"), asked, 1)
    assert [(row.length, row.drafted) for row in rows] == [
        (length, ()) for length in (DraftLength(0), *asked)
    ]
    assert len({row.proposed for row in rows[1:]}) == 1
    script = loaded.draft.runner.script
    loaded.draft.runner.script = lambda tokens: script(tokens) / 9
    (rows,) = decode_requests(loaded, responses("a"), asked, 1)
    assert [(row.proposed, row.drafted) for row in rows[1:]] == [
        ((4, 1), ()),
        ((0,) * 5, (1, 1, 1, 1, 0)),
        ((1, 1, 1), ()),
    ]


def test_an_output_that_leaves_the_response_is_a_tie_or_not(measurement, loaded, responses):
    """The response says 0 at position 2 where the target's own next token is 3 by 9 logits."""
    ((row, _),) = decode_requests(loaded, responses("a", (1, 2, 0, 1)), lengths(2), 1)
    assert (row.first_difference, row.tie) == (2, False)
    table = torch.zeros(5, 5)
    table[2, 3], table[2, 0] = 0.0005, 0.0001
    table[0, 1] = table[1, 2] = table[3, 4] = table[4, 0] = 1.0
    measurement.target.script = markov(table)
    ((row, _),) = decode_requests(loaded, responses("a", (1, 2, 0, 1)), lengths(2), 1)
    assert (row.first_difference, row.tie) == (2, True)


def test_a_sampled_output_is_not_compared_with_the_response(measurement, loaded, responses):
    sampled = responses("a", (1, 2, 0, 1), Sampling(temperature=0.1))
    (rows,) = decode_requests(loaded, sampled, lengths(2), 1)
    assert {row.first_difference for row in rows} == {None}


class TiringClock(ScriptedClock):
    """A machine that becomes slower and slower: after 50 of its seconds it takes twice as long."""

    def __setattr__(self, name, value):
        before = self.__dict__.get(name, 0.0)
        super().__setattr__(name, before + (value - before) * (1 + before / 50))


def test_a_machine_that_slows_down_slows_the_cells_of_a_batch_alike(measurement, responses):
    clock = TiringClock()
    tiring = replace(measurement, clock=clock, target=chain(NEXT, clock, 1.0))
    loaded = candidate(chain(NEXT, clock, 0.25), tiring)
    (rows,) = decode_requests(loaded, responses("abcdefgh"), lengths(2), 2)
    # In the order of time, as each takes longer than the one before; rows share them.
    plain, fast = (
        sorted({s for row in rows if row.k == k for s in row.verify_seconds}) for k in (0, 2)
    )
    assert fast[-1] > 1.5 * fast[0]
    assert sum(plain) / len(plain) == pytest.approx(sum(fast) / len(fast), rel=0.1)


class OutOfTimeError(Exception):
    """What a sweep raises between two turns."""


@pytest.fixture
def watched(loaded):
    """The candidate with a list of what is called between its turns, and an error once that is
    enough.
    """

    def watched(enough=lambda calls: False):
        calls = []

        def between(done):
            calls.append(done)
            if enough(calls):
                raise OutOfTimeError

        return replace(loaded, measurement=replace(loaded.measurement, between=between)), calls

    return watched


def test_between_two_turns_of_a_batch_the_finished_responses_are_counted(responses, watched):
    """Six requests, each once in two rows, plainly and at k = 2. A round of a second is a turn."""
    loaded, calls = watched()
    cells = list(decode_requests(loaded, responses("abcdef"), lengths(2), 2))
    assert sum(calls) == sum(map(len, cells)) == 2 * 6
    # Of two rows no more than two end in a turn; what comes last ended with the last of them.
    assert max(calls) <= 2
    assert len(calls) > 12


def test_of_a_batch_that_is_stopped_between_two_turns_nothing_is_there_to_keep(responses, watched):
    loaded, _ = watched(lambda calls: len(calls) == 5)
    with pytest.raises(OutOfTimeError):
        next(decode_requests(loaded, responses("ab"), lengths(2), 2))


def test_a_batch_that_is_done_is_kept_however_late_it_is(responses, watched):
    loaded, _ = watched(lambda calls: sum(calls) == 2 * 6)
    cells = decode_requests(loaded, responses("abcdef"), lengths(2), 2)
    assert [row.k for row in next(cells)] == [0] * 6 + [2] * 6
    with pytest.raises(OutOfTimeError):
        next(cells)


def test_one_row_looks_at_the_time_before_every_cell_and_drops_the_request_that_it_is_at(
    responses, watched
):
    loaded, calls = watched(lambda calls: len(calls) == 6)
    cells = decode_requests(loaded, responses("ab"), lengths(2, 4), 1)
    assert [row.request for row in next(cells)] == ["a", "a", "a"]
    with pytest.raises(OutOfTimeError):
        next(cells)
    # Three cells of the first request, the request, and the second one's first two cells.
    assert calls == [0, 0, 0, 1, 0, 0]


def rounds(response):
    return response.tokens, response.finish, response.proposed, response.accepted, response.cut


@pytest.mark.parametrize(
    ("mode", "rows"), [(DraftingMode.GREEDY, 2), (DraftingMode.SAMPLED, 4), (None, 3)]
)
def test_rows_of_a_batch_decode_what_they_decode_alone(five_prompts, target, draft, mode, rows):
    """Real models in float32, at their own lengths and with their own acceptance."""
    text, prompts = five_prompts
    tasks = [task_of(prompt, sample, text) for prompt, sample in prompts]

    def drafter():
        if mode is None:
            return LookupDrafter(4, 2, "cpu")
        return ModelDrafter(draft, mode)

    together = decode_all(tasks, target, drafter(), 3, HostClock(), rows)
    alone = [decode(task, target, drafter(), 3, HostClock()) for task in tasks]
    assert list(map(rounds, together)) == list(map(rounds, alone))
    assert any(sum(r.accepted) < sum(r.proposed) for r in together)
