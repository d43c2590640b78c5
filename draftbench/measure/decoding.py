"""Cells of the grid → timed decoding runs, interleaved with the baseline request by request.

The order of the cells turns with every request, so that none always runs first. Each shape runs
once before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from draftbench.decode.clock import Clock
from draftbench.decode.drafters import Drafter
from draftbench.decode.loop import Response, Task, decode
from draftbench.decode.runner import Runner
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.trajectories import task_of
from draftbench.records import Candidate, Decode, DraftingMode, Trajectory

WARM_TOKENS = 12
MakeDrafter = Callable[[Task], Drafter]
Digest = Callable[[tuple[int, ...]], str]


@dataclass(frozen=True)
class Cell:
    """One point of the grid to measure; `candidate` None with k = 0 is the baseline."""

    candidate: Candidate | None
    k: int
    mode: DraftingMode
    repeat: int


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


def warm(bench: Bench, prompt: Prompt, cells: list[Cell]) -> None:
    """Run every shape once, untimed."""
    task = task_of(prompt, 0, bench.text)
    for cell in cells:
        short = replace(task, limit=min(task.limit, WARM_TOKENS + cell.k))
        decode(short, bench.target, bench.make_drafter(short), cell.k, bench.clock)


def run_cells(
    bench: Bench, prompt: Prompt, trajectory: Trajectory, tokens: tuple[int, ...], cells: list[Cell]
) -> Iterator[Decode]:
    """Decode one request once per cell."""
    task = task_of(prompt, trajectory.sample, bench.text)
    for cell in cells:
        drafter = bench.make_drafter(task) if cell.k > 0 else None
        response = decode(task, bench.target, drafter, cell.k, bench.clock)
        yield _record(bench, cell, trajectory, tokens, response)


def _record(
    bench: Bench, cell: Cell, trajectory: Trajectory, tokens: tuple[int, ...], response: Response
) -> Decode:
    difference = _first_difference(tuple(response.tokens), tokens)
    if trajectory.sampling.temperature > 0:
        difference = None
    tie = None
    if difference is not None:
        beyond = difference >= len(trajectory.margins)
        tie = not beyond and trajectory.margins[difference] <= bench.tie_margin
    return Decode(
        request=trajectory.request,
        sample=trajectory.sample,
        draft=cell.candidate.draft if cell.candidate else None,
        quant=cell.candidate.quant if cell.candidate else "none",
        k=cell.k,
        mode=cell.mode,
        repeat=cell.repeat,
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
        batch=1,
        process=bench.process,
    )


def _to_tenth_of_microsecond(seconds: list[float]) -> tuple[float, ...]:
    """Clocks do not tell more, and a run folder is kept for long."""
    return tuple(round(value, 7) for value in seconds)


def _first_difference(one: tuple[int, ...], other: tuple[int, ...]) -> int | None:
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))
