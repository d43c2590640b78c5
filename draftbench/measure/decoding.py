"""Timed decoding runs of a candidate, interleaved with the baseline: request by request where one
row decodes, by turns of a few rounds where several do.

k = 0 is the baseline: another k, not another code path. Each shape runs once before anything is
timed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from draftbench.decoder.drafters import Drafter
from draftbench.decoder.runner import Response, Task
from draftbench.decoder.speculate import Batch, decode, decode_all
from draftbench.measure.candidate import Bench, LoadedCandidate
from draftbench.measure.trajectories import ScoredResponse, task_of
from draftbench.records import NEAR_TIE_MARGIN, Decode
from draftbench.run_folder.folder import Key

WARM_TOKENS = 12
# One k is decoded for so long before the next one has its turn: a machine's speed changes from one
# second to the next, and in the first round of a small model its weights are not in the cache.
SECONDS_A_TURN = 0.3
# How often each row of a batch is filled, at least.
FILLS = 3


def decode_requests(
    loaded: LoadedCandidate,
    bench: Bench,
    responses: Sequence[ScoredResponse],
    ks: Sequence[int],
    batch: int,
    done: Collection[Key] = (),
) -> Iterator[list[Decode]]:
    """The baseline and each k on some requests. For one row a list per request, without those that
    are done; for several a list per k, of which all or none are worth something.
    """
    every = (0, *ks)
    once = [_Turn(response, turn=turn) for turn, response in enumerate(responses)]
    left = [one for one in once if one.response.key not in done]
    if batch == 1:
        yield from _request_by_request(loaded, bench, left, every)
    elif left:
        repeats = range(repeats_of(len(once), batch))
        often = [replace(one, repeat=repeat) for repeat in repeats for one in once]
        yield from _side_by_side(loaded, bench, often, every, batch)


def repeats_of(requests: int, batch: int) -> int:
    """How often each of so many requests is decoded: rows are only refilled, and a batch is only
    full, while requests are waiting.
    """
    return 1 if batch == 1 else -(-FILLS * batch // requests)


@dataclass(frozen=True)
class _Turn:
    """A response that is decoded again; `repeat` counts how often it was before, `turn` is its
    place among all that are.
    """

    response: ScoredResponse
    repeat: int = 0
    turn: int = 0

    def task(self, bench: Bench) -> Task:
        return task_of(self.response.prompt, self.response.trajectory.sample, bench.text)


def _drafter(loaded: LoadedCandidate, bench: Bench, k: int) -> Drafter | None:
    return loaded.drafter(bench) if k > 0 else None


def _request_by_request(
    loaded: LoadedCandidate, bench: Bench, runs: Sequence[_Turn], ks: Sequence[int]
) -> Iterator[list[Decode]]:
    """One row: every k once for each request, in an order that turns by one with every request. One
    list per request: only together can its runs be compared.
    """
    for number, one in enumerate(runs):
        at = one.turn % len(ks)
        task = one.task(bench)
        if number == 0:
            _warm(loaded, bench, [task], ks, rows=1)
        rows = []
        for k in (*ks[at:], *ks[:at]):
            bench.between(0)
            response = decode(task, bench.target, _drafter(loaded, bench, k), k, bench.clock)
            rows.append(_record(loaded, bench, k, one, response, 1))
        yield rows
        bench.between(1)


def _side_by_side(
    loaded: LoadedCandidate, bench: Bench, runs: Sequence[_Turn], ks: Sequence[int], rows: int
) -> Iterator[list[Decode]]:
    """`rows` rows: every k decodes all requests, for a moment of each k in turn. One list per k,
    when all are done: a response at any k is a finished unit.
    """
    tasks = [one.task(bench) for one in runs]
    _warm(loaded, bench, tasks[:rows], ks, rows)
    batches = [
        Batch(tasks, bench.target, _drafter(loaded, bench, k), k, bench.clock, rows) for k in ks
    ]
    left, done, every = list(batches), 0, len(ks) * len(runs)
    while left:
        # The one that is furthest from its end, so that all end together.
        batch = min(left, key=lambda batch: batch.done_tokens)
        if not _take_turn(batch):
            left.remove(batch)
        finished = sum(map(_finished, batches))
        # Who is done is kept first, however late it is.
        if finished < every:
            bench.between(finished - done)
            done = finished
    for k, batch in zip(ks, batches, strict=True):
        decoded = zip(runs, batch.responses, strict=True)
        yield [_record(loaded, bench, k, one, response, rows) for one, response in decoded]
    bench.between(every - done)


def _take_turn(batch: Batch) -> bool:
    """Rounds of one batch until its turn is over; whether any are left."""
    batch.pause()
    start = batch.clock.mark()
    while batch.advance():
        if batch.clock.seconds(start, batch.clock.mark()) > SECONDS_A_TURN:
            return True
    return False


def _finished(batch: Batch) -> int:
    """Responses that are neither waiting nor in a row."""
    active = sum(row is not None for row in batch.rows)
    return len(batch.responses) - len(batch.waiting) - active


def _warm(
    loaded: LoadedCandidate, bench: Bench, tasks: Sequence[Task], ks: Sequence[int], rows: int
) -> None:
    """Run every shape once, untimed."""
    for k in ks:
        short = [replace(task, limit=min(task.limit, WARM_TOKENS + k)) for task in tasks]
        decode_all(short, bench.target, _drafter(loaded, bench, k), k, bench.clock, rows)


def _record(
    loaded: LoadedCandidate, bench: Bench, k: int, one: _Turn, response: Response, batch: int
) -> Decode:
    trajectory = one.response.trajectory
    difference = _first_difference(response.tokens, one.response.tokens)
    if trajectory.sampling.temperature > 0:
        difference = None
    tie = None
    if difference is not None:
        beyond = difference >= len(trajectory.margins)
        tie = not beyond and trajectory.margins[difference] <= NEAR_TIE_MARGIN[bench.dtype]
    return Decode(
        request=trajectory.request,
        sample=trajectory.sample,
        candidate=loaded.candidate if k > 0 else None,
        k=k,
        mode=bench.mode,
        repeat=one.repeat,
        proposed=tuple(response.proposed),
        accepted=tuple(response.accepted),
        cut=tuple(response.cut),
        draft_seconds=_to_tenth_of_microsecond(response.draft_seconds),
        verify_seconds=_to_tenth_of_microsecond(response.verify_seconds),
        prefill_seconds=response.prefill_seconds,
        draft_prefill_seconds=response.draft_prefill_seconds,
        decode_seconds=response.decode_seconds,
        output_tokens=len(response.tokens),
        digest=bench.digest(tuple(response.tokens)),
        first_difference=difference,
        tie=tie,
        block=str(loaded.candidate),
        batch=batch,
        process=bench.process,
        active=() if batch == 1 else tuple(response.active),
    )


def _to_tenth_of_microsecond(seconds: list[float]) -> tuple[float, ...]:
    """Clocks do not tell more, and a run folder is kept for long."""
    return tuple(round(value, 7) for value in seconds)


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))
