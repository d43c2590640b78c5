"""Decoded cells → how far their rounds and speed-ups were from what their timed passes say.

A cell that was never decoded is predicted from its passes alone: what the decoded ones were off by
like that is the doubt in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.rounds import Floats, counted_rounds
from draftbench.planner.choice import Cell, Kind
from draftbench.planner.passes import context_of, pass_seconds, plain_seconds
from draftbench.planner.predict import forecast
from draftbench.planner.steady import steady
from draftbench.records import Decode, Trajectory


def prediction_error(cell: Cell) -> float | None:
    """Predicted over measured speed-up less 1, on the requests that were measured."""
    if cell.measured is None:
        return None
    return _error(cell.forecast.speedup(only=cell.measured.keys), cell.measured.speedup)


def passes_only_error(cell: Cell, by: Kind = "judged") -> float | None:
    """The same of the prediction that the cell would have, had nothing been decoded.

    Args:
        by: `whole` is of the speed-up with both prefills.
    """
    if cell.measured is None:
        return None
    bare = forecast(replace(cell.entrant, overheads={}), cell.k)
    keys = cell.measured.keys
    if by == "whole":
        return _error(bare.end_to_end(only=keys), cell.measured.end_to_end)
    return _error(bare.speedup(only=keys), cell.measured.speedup)


def round_overhead(cell: Cell) -> float | None:
    """Measured seconds of rounds over those of their passes; None where either is unknown."""
    if cell.measured is None or cell.entrant.costs is None:
        return None
    rows, context = _steadily(cell.measured.runs)
    rounds, batch = counted_rounds(rows), cell.entrant.batch
    return _over(rows, pass_seconds(cell.entrant.costs, rounds, context, batch))


def plain_overhead(cell: Cell) -> float | None:
    """The same of the plain steps that were decoded beside them."""
    if cell.measured is None or cell.entrant.costs is None:
        return None
    rows, context = _steadily(cell.measured.baseline)
    steps = np.array([len(row.verify_seconds) for row in rows])
    return _over(rows, plain_seconds(cell.entrant.costs, steps, context))


def _steadily(runs: Sequence[tuple[Trajectory, Decode]]) -> tuple[list[Decode], Floats]:
    """The steady rounds of runs, and the context of each."""
    steadily = [(t, row) for t, run in runs if (row := steady(run)) is not None]
    return [row for _, row in steadily], np.array([context_of(t) for t, _ in steadily])


def _over(rows: Sequence[Decode], passes: Floats) -> float | None:
    expected = float(passes.sum())
    return sum(row.decode_seconds for row in rows) / expected if expected else None


def _error(predicted: Sample | None, measured: Sample | None) -> float | None:
    if predicted is None or measured is None or not predicted.value or not measured.value:
        return None
    return predicted.value / measured.value - 1
