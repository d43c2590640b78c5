"""Figures of a run → drawings of acceptance along a round: by draft position, and how many tokens
a round accepts.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from draftbench.planner.recommendation import Recommendation
from draftbench.report.charts.look import MOST, Look, along, legend, part
from draftbench.report.figures import AcceptedLengths, Figures
from draftbench.report.plots import HEIGHT, PALETTE, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def positions(figures: Figures, answer: Recommendation) -> list[Drawing]:
    """Survival and hazard by draft position."""
    if not figures.positions:
        return []
    k, look = figures.positions[0].k, Look(answer)
    sample = f"replay of {answer.requests} requests at k = {k}{part(len(figures.positions))}"
    texts = (
        (
            "survival",
            "survival s (share of rounds)",
            "Share of rounds whose first i draft tokens were all accepted. Bars: 95 % over "
            "requests.",
        ),
        (
            "hazard",
            "hazard h (share accepted)",
            "Of the tokens tried at position i, those accepted. Flat: position does not matter. "
            "A fall to 0 at one position is a broken draft. Bars: 95 % over requests.",
        ),
    )
    return [
        Drawing(
            name=f"{what}-by-position",
            title=f"{what.capitalize()} by draft position",
            sample=sample,
            note=note,
            draw=partial(
                along,
                [(p.candidate, getattr(p, what)) for p in figures.positions[:MOST]],
                look,
                range(1, k + 1),
                ("draft position i (tokens into the round)", axis),
            ),
        )
        for what, axis, note in texts
    ]


def lengths(figures: Figures) -> list[Drawing]:
    """How many draft tokens a round accepts: a histogram per candidate, on one scale."""
    shown = figures.lengths[:MOST]
    highest = max((share for f in shown for share in (*f.expected, *(f.counted or ()))), default=0)
    return [
        Drawing(
            name=f"accepted-lengths-{at}",
            title=f"Accepted per round: {found.candidate}, k = {found.k}",
            sample=f"{found.rounds:.0f} rounds expected from replay, {_counted(found)}"
            + part(len(figures.lengths)),
            note=_reading(found),
            draw=partial(_lengths, found, highest),
            height=HEIGHT * 0.8,
        )
        for at, found in enumerate(shown, 1)
    ]


def _counted(found: AcceptedLengths) -> str:
    if found.rounds_counted is None:
        return "not measured"
    return f"{found.rounds_counted:.0f} counted in decoding runs"


def _reading(found: AcceptedLengths) -> str:
    ends = f"0: all refused. {found.k}: all accepted." if found.k > 1 else "0: refused."
    if found.counted is None:
        return f"{ends} Share of rounds, as replay expects it."
    return f"{ends} Filled: replay expects. Outlined: counted. The two should agree."


def _lengths(found: AcceptedLengths, highest: float, ax: Axes) -> None:
    places = np.arange(len(found.expected))
    both = found.counted is not None
    wide = 0.38 if both else 0.6
    left = places - wide / 2 if both else places
    ax.bar(left, found.expected, wide, color=PALETTE[0], label="replay")
    if found.counted is not None:
        ax.bar(
            places + wide / 2,
            found.counted,
            wide,
            fill=False,
            edgecolor=PALETTE[1],
            lw=1.6,
            label="measured",
        )
        legend(ax)
    ax.set(xlabel="draft tokens accepted in a round", ylabel="share of rounds", xticks=places)
    ax.set_ylim(0, 1.06 * highest)
    ax.grid(visible=False, axis="x")
