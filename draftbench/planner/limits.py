"""A cell against the limits of the user → which it breaks, and by how much, in words."""

from __future__ import annotations

import msgspec

from draftbench.memory import format_size
from draftbench.planner.choice import Cell
from draftbench.planner.latency import tail_ratio
from draftbench.planner.memory import memory_plan
from draftbench.planner.options import DecisionOptions
from draftbench.records import Candidate
from draftbench.run_folder.run import Run


def broken(cell: Cell, limits: DecisionOptions, observed: Run) -> tuple[str, ...]:
    """The limits that a cell does not keep, or cannot be shown to keep."""
    found = []
    if limits.max_memory is not None:
        found.append(_memory(cell, limits.max_memory, observed))
    if limits.max_p99_ratio is not None:
        found.append(_tail(cell, limits.max_p99_ratio))
    return tuple(text for text in found if text)


def memory_needed(observed: Run, candidate: Candidate, concurrency: int) -> float | None:
    """Bytes of target and draft at a concurrency, the traffic's longest context and largest k; None
    without the facts of both.
    """
    plan = memory_plan(observed, candidate, 0.0)
    if plan is None:
        return None
    return msgspec.structs.replace(plan, concurrency=concurrency).bytes_needed


def _memory(cell: Cell, limit: float, observed: Run) -> str | None:
    needed = memory_needed(observed, cell.entrant.candidate, cell.entrant.batch)
    if needed is None:
        return "its memory is unknown, so it cannot be shown to keep --max-memory"
    if needed <= limit:
        return None
    return (
        f"it needs {format_size(needed)} with its target, {needed / limit - 1:.0%} over "
        f"--max-memory ({format_size(limit)})"
    )


def _tail(cell: Cell, limit: float) -> str | None:
    found = tail_ratio(cell)
    if found is None:
        return "its latency is unknown, so it cannot be shown to keep --max-p99-ratio"
    ratio, of = found
    if ratio <= limit:
        return None
    return (
        f"a request's time per output token grows to {ratio:.2f} times that of plain decoding "
        f"({of}), {ratio / limit - 1:.0%} over --max-p99-ratio ({limit:g})"
    )
