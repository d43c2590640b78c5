"""Decoded cells → how far their rounds and speed-ups were from what their timed passes say.

A cell that was never decoded is predicted from its passes alone: what the decoded ones were off by
like that is the doubt in it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.rounds import counted_rounds
from draftbench.plan.choice import Cell, Kind
from draftbench.plan.passes import context_of, pass_seconds
from draftbench.plan.predict import forecast
from draftbench.plan.steady import steady


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
    steadily = [(t, row) for t, run in cell.measured.runs if (row := steady(run)) is not None]
    context = np.array([context_of(trajectory) for trajectory, _ in steadily])
    rows = [row for _, row in steadily]
    rounds, batch = counted_rounds(rows), cell.entrant.batch
    passes = float(pass_seconds(cell.entrant.costs, rounds, context, batch).sum())
    return sum(row.decode_seconds for row in rows) / passes if passes else None


def _error(predicted: Sample | None, measured: Sample | None) -> float | None:
    if predicted is None or measured is None or not predicted.value or not measured.value:
        return None
    return predicted.value / measured.value - 1
