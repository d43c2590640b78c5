"""Cells of the grid → timed decoding runs, interleaved with the baseline: request by request where
one row decodes, by turns of a few rounds where several do.

Each shape runs once before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from draftbench.decoder.drafters import Drafter
from draftbench.decoder.runner import Clock, Response, Runner, Task
from draftbench.decoder.speculate import Batch, decode, decode_all
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.trajectories import task_of
from draftbench.records import Candidate, Decode, DraftingMode, Trajectory

WARM_TOKENS = 12
# One cell goes on for so long before the next one has its turn: a machine's speed changes from one
# second to the next, and in the first round of a small model its weights are not in the cache.
SECONDS_A_TURN = 0.3
MakeDrafter = Callable[["Cell"], Drafter]
Digest = Callable[[tuple[int, ...]], str]
# Called between two timed pieces of work with how many units were finished since the last call. It
# may raise: then the work ends, and what was not yielded is not kept.
Between = Callable[[int], None]


@dataclass(frozen=True)
class Cell:
    """One point of the grid to measure; `candidate` None with k = 0 is the baseline."""

    candidate: Candidate | None
    k: int
    mode: DraftingMode
    stop_below: float | None = None


@dataclass(frozen=True)
class Bench:
    """What a decoding run needs besides its cell."""

    target: Runner
    text: TextSide
    make_drafter: MakeDrafter
    clock: Clock
    process: str
    block: str
    tie_margin: float
    digest: Digest
    between: Between = lambda done: None


@dataclass(frozen=True)
class Chosen:
    """A response of the target that is decoded again; `repeat` counts how often it was before,
    `turn` is its place among all that are.
    """

    prompt: Prompt
    trajectory: Trajectory
    tokens: tuple[int, ...]
    repeat: int = 0
    turn: int = 0


def run_in_turn(
    bench: Bench, chosen: Sequence[Chosen], cells: Sequence[Cell]
) -> Iterator[list[Decode]]:
    """One row: every cell once for each request, in an order that turns by one with every request.
    One list per request: only together can its runs be compared.
    """
    for number, one in enumerate(chosen):
        at = one.turn % len(cells)
        task = task_of(one.prompt, one.trajectory.sample, bench.text)
        if number == 0:
            _warm(bench, [task], cells, rows=1)
        rows = []
        for cell in (*cells[at:], *cells[:at]):
            bench.between(0)
            drafter = bench.make_drafter(cell) if cell.k > 0 else None
            response = decode(task, bench.target, drafter, cell.k, bench.clock)
            rows.append(_record(bench, cell, one, response, 1))
        yield rows
        bench.between(1)


def run_together(
    bench: Bench, chosen: Sequence[Chosen], cells: Sequence[Cell], rows: int
) -> Iterator[list[Decode]]:
    """`rows` rows: every cell decodes all requests, for a moment of each cell in turn. One list per
    cell, when all are done: a response of any cell is a finished unit.
    """
    tasks = [task_of(one.prompt, one.trajectory.sample, bench.text) for one in chosen]
    _warm(bench, tasks[:rows], cells, rows)
    batches = []
    for cell in cells:
        drafter = bench.make_drafter(cell) if cell.k > 0 else None
        batches.append(Batch(tasks, bench.target, drafter, cell.k, bench.clock, rows))
    left, done, every = list(batches), 0, len(cells) * len(chosen)
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
    for cell, batch in zip(cells, batches, strict=True):
        decoded = zip(chosen, batch.responses, strict=True)
        yield [_record(bench, cell, one, response, rows) for one, response in decoded]
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


def _warm(bench: Bench, tasks: Sequence[Task], cells: Sequence[Cell], rows: int) -> None:
    """Run every shape once, untimed."""
    for cell in cells:
        short = [replace(task, limit=min(task.limit, WARM_TOKENS + cell.k)) for task in tasks]
        drafter = bench.make_drafter(cell) if cell.k > 0 else None
        decode_all(short, bench.target, drafter, cell.k, bench.clock, rows)


def _record(bench: Bench, cell: Cell, one: Chosen, response: Response, batch: int) -> Decode:
    trajectory = one.trajectory
    difference = _first_difference(tuple(response.tokens), one.tokens)
    if trajectory.sampling.temperature > 0:
        difference = None
    tie = None
    if difference is not None:
        beyond = difference >= len(trajectory.margins)
        tie = not beyond and trajectory.margins[difference] <= bench.tie_margin
    return Decode(
        request=trajectory.request,
        sample=trajectory.sample,
        candidate=cell.candidate,
        k=cell.k,
        mode=cell.mode,
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
        block=bench.block,
        batch=batch,
        process=bench.process,
        active=() if batch == 1 else tuple(response.active),
        stop_below=cell.stop_below,
    )


def _to_tenth_of_microsecond(seconds: list[float]) -> tuple[float, ...]:
    """Clocks do not tell more, and a run folder is kept for long."""
    return tuple(round(value, 7) for value in seconds)


def _first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))
