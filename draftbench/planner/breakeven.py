"""How much acceptance may fall before speculation only breaks even.

The figure is λ, one factor on every a_j (capped at 1), at which S = 1 through the recursion of
rounds: not through the closed form, whose α is alike at every position. Where the cell was
measured, S keeps the ratio to its prediction that measuring showed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from draftbench.acceptance.rounds import PositionLaw
from draftbench.planner.choice import Cell
from draftbench.planner.predict import forecast
from draftbench.planner.recommendation import BreakEven

_PRECISION = 1e-3


def break_even(cell: Cell) -> BreakEven | None:
    """The break-even of a cell's decode speed-up, to a thousandth.

    None for prompt lookup, whose acceptance has no law per position, and at unknown speed.
    """
    laws = [law for law in cell.entrant.laws if isinstance(law, PositionLaw)]
    judged = cell.judged.value if cell.judged else None
    predicted = cell.predicted.value if cell.predicted else None
    if len(laws) < len(cell.entrant.laws) or not judged or not predicted:
        return None

    def pays(scaling: float) -> bool:
        entrant = cell.entrant.accepting(_scaled(laws, scaling))
        sample = forecast(entrant, cell.k).speedup()
        value = sample.value if sample else None
        return value is not None and value * judged / predicted >= 1

    low, high = 0.0, 1.0
    if judged < 1:
        positive = [float(a) for law in laws for a in law.accept if a > 0]
        low, high = 1.0, 1 / min(positive, default=1.0)
        if not pays(high):
            return BreakEven(scaling=None, margin=None)
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return BreakEven(scaling=high, margin=1 - high)


def _scaled(laws: Sequence[PositionLaw], scaling: float) -> list[PositionLaw]:
    return [replace(law, accept=np.minimum(1.0, scaling * law.accept)) for law in laws]
