"""Decoding runs of a scripted pair: which cells run, in which order, and what is recorded."""

from dataclasses import dataclass, replace

import pytest
import torch

from draftbench.decoder.scripted_model import ScriptedClock, ScriptedRunner, markov
from draftbench.measure.candidate import Bench, LoadedCandidate
from draftbench.measure.decoding import decode_requests
from draftbench.measure.prompts import Prompt
from draftbench.measure.step_costs import grid_for
from draftbench.measure.trajectories import Given, score
from draftbench.records import Candidate, DraftingMode, Sampling

DRAFT = Candidate(draft="small")
# After token t comes t + 1 of five; the draft believes so too, except that after 3 comes 0.
NEXT, WRONG = [1, 2, 3, 4, 0], [1, 2, 3, 0, 0]


@dataclass(frozen=True)
class NoEnd:
    """A text side whose responses end by their limit alone."""

    def ends(self, output, stop):
        return False


def chain(following, clock, seconds):
    table = torch.full((5, 5), -9.0)
    for token, after in enumerate(following):
        table[token, after] = 0.0
    return ScriptedRunner(markov(table), 5, clock, seconds)


@pytest.fixture
def bench():
    clock = ScriptedClock()
    return Bench(
        target=chain(NEXT, clock, 1.0),
        text=NoEnd(),
        mode=DraftingMode.GREEDY,
        ks=(2, 4),
        lookup=(2, 1),
        dtype="float32",
        clock=clock,
        process="process",
        digest=lambda tokens: "-".join(map(str, tokens)),
    )


@pytest.fixture
def loaded(bench):
    return LoadedCandidate(DRAFT, chain(WRONG, bench.clock, 0.25))


@pytest.fixture
def material_of(make_request, bench):
    def material(names, tokens=(1, 2, 3, 4, 0, 1), sampling=None):
        made = []
        for name in names:
            request = make_request(id=name, sampling=sampling or Sampling())
            prompt = Prompt(request, [0], len(tokens))
            digest = bench.digest(tokens)
            given = Given(prompt, 0, tokens, "length", "target", digest)
            made += score([given], bench.target)
        return made

    return material


def test_the_baseline_and_every_k_run_request_by_request_in_a_turning_order(
    bench, loaded, material_of
):
    requests = decode_requests(loaded, bench, material_of("abcd"), (2, 4), 1)
    assert [[(row.request, row.k) for row in rows] for rows in requests] == [
        [("a", 0), ("a", 2), ("a", 4)],
        [("b", 2), ("b", 4), ("b", 0)],
        [("c", 4), ("c", 0), ("c", 2)],
        [("d", 0), ("d", 2), ("d", 4)],
    ]


def test_without_requests_nothing_runs(bench, loaded):
    before = bench.clock.now
    assert list(decode_requests(loaded, bench, [], (2,), 1)) == []
    assert bench.clock.now == before


def test_a_row_holds_the_rounds_and_their_seconds(bench, loaded, material_of):
    r"""1 | 2 3 4 0 1: from 1 the draft proposes 2 3 0 0 of which two stand and 4 follows; the last
    round may propose one token, 0, and is followed by 1.
    """
    ((plain, fast),) = decode_requests(loaded, bench, material_of("a"), (4,), 1)
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


def test_an_output_that_leaves_the_response_is_a_tie_or_not(bench, loaded, material_of):
    """The response says 0 at position 2 where the target's own next token is 3 by 9 logits."""
    ((row, _),) = decode_requests(loaded, bench, material_of("a", (1, 2, 0, 1)), (2,), 1)
    assert (row.first_difference, row.tie) == (2, False)
    table = torch.zeros(5, 5)
    table[2, 3], table[2, 0] = 0.0005, 0.0001
    table[0, 1] = table[1, 2] = table[3, 4] = table[4, 0] = 1.0
    bench.target.script = markov(table)
    ((row, _),) = decode_requests(loaded, bench, material_of("a", (1, 2, 0, 1)), (2,), 1)
    assert (row.first_difference, row.tie) == (2, True)


def test_a_sampled_output_is_not_compared_with_the_response(bench, loaded, material_of):
    material = material_of("a", (1, 2, 0, 1), Sampling(temperature=0.1))
    (rows,) = decode_requests(loaded, bench, material, (2,), 1)
    assert {row.first_difference for row in rows} == {None}


def test_shapes_run_once_before_anything_is_timed(bench, loaded, material_of):
    requests = decode_requests(loaded, bench, material_of("a"), (2,), 1)
    before = bench.clock.now
    rows = next(requests)
    timed = sum(
        row.prefill_seconds + (row.draft_prefill_seconds or 0.0) + row.decode_seconds
        for row in rows
    )
    # The warm runs' seconds are on the clock beside those of the rows.
    assert bench.clock.now - before > timed


class TiringClock(ScriptedClock):
    """A machine that becomes slower and slower: after 50 of its seconds it takes twice as long."""

    def __setattr__(self, name, value):
        before = self.__dict__.get(name, 0.0)
        super().__setattr__(name, before + (value - before) * (1 + before / 50))


def test_a_machine_that_slows_down_slows_the_cells_of_a_batch_alike(bench, material_of):
    clock = TiringClock()
    tiring = replace(bench, clock=clock, target=chain(NEXT, clock, 1.0))
    loaded = LoadedCandidate(DRAFT, chain(NEXT, clock, 0.25))
    cells = list(decode_requests(loaded, tiring, material_of("abcdefgh"), (2,), 2))
    # In the order of time, as each takes longer than the one before; rows share them.
    plain, fast = (sorted({s for row in rows for s in row.verify_seconds}) for rows in cells)
    assert fast[-1] > 1.5 * fast[0]
    assert sum(plain) / len(plain) == pytest.approx(sum(fast) / len(fast), rel=0.1)


def test_costs_are_timed_where_the_traffic_is():
    """Prompts of 1, 3 and 9 tokens, responses of 4: contexts from the shortest middle, 1 + 2, over
    the median, 3 + 2, to the longest end, 9 + 4.
    """
    spans = [(9, 4), (1, 4), (3, 4)]
    grid = grid_for(spans, (0, 1), ks=(2, 4), room=100, batch=1)
    assert (grid.contexts, grid.prompts, grid.largest_k) == ((3, 5, 13), (1, 3, 9), 4)
    # A context of 15 leaves room for 10 tokens before the 4 + 1 of the largest pass.
    assert grid_for(spans, (0, 1), ks=(2, 4), room=15, batch=1).contexts == (3, 5, 10)
    several = grid_for(spans, (0, 1), ks=(2, 4), room=100, batch=8)
    assert (several.contexts, several.prompts, several.batch) == ((3, 13), (), 8)


class OutOfTimeError(Exception):
    """What a sweep raises between two turns."""


def test_between_two_turns_of_a_batch_the_finished_responses_are_told(bench, loaded, material_of):
    """Six requests, each once in two rows, plainly and at k = 2. A round of a second is a turn."""
    told = []
    watched = replace(bench, between=told.append)
    cells = list(decode_requests(loaded, watched, material_of("abcdef"), (2,), 2))
    assert sum(told) == sum(map(len, cells)) == 2 * 6
    # Of two rows no more than two end in a turn; what is told last ended with the last of them.
    assert max(told) <= 2
    assert len(told) > 12


def test_of_a_batch_that_is_stopped_between_two_turns_nothing_is_there_to_keep(
    bench, loaded, material_of
):
    turns = []

    def stopped(done):
        turns.append(done)
        if len(turns) == 5:
            raise OutOfTimeError

    cells = decode_requests(loaded, replace(bench, between=stopped), material_of("ab"), (2,), 2)
    with pytest.raises(OutOfTimeError):
        next(cells)


def test_a_batch_that_is_done_is_kept_however_late_it_is(bench, loaded, material_of):
    told, found = [], []

    def late(done):
        told.append(done)
        if sum(told) == 2 * 6:
            raise OutOfTimeError

    cells = decode_requests(loaded, replace(bench, between=late), material_of("abcdef"), (2,), 2)
    with pytest.raises(OutOfTimeError):
        found.extend([row.k for row in rows] for rows in cells)
    assert found == [[0] * 6, [2] * 6]


def test_one_row_looks_at_the_time_before_every_cell_and_drops_the_request_that_it_is_at(
    bench, loaded, material_of
):
    told = []

    def stopped(done):
        told.append(done)
        if len(told) == 6:
            raise OutOfTimeError

    cells = decode_requests(loaded, replace(bench, between=stopped), material_of("ab"), (2, 4), 1)
    kept = next(cells)
    with pytest.raises(OutOfTimeError):
        next(cells)
    assert [row.request for row in kept] == ["a", "a", "a"]
    # Three cells of the first request, the request, and the second one's first two cells.
    assert told == [0, 0, 0, 1, 0, 0]
