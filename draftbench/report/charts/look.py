"""What the drawings of a report share: one look per candidate, points with error bars, a legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftbench.acceptance.intervals import Estimate
from draftbench.plan.recommendation import CellFigures, Pick, Recommendation
from draftbench.records import Candidate
from draftbench.report.plots import LINES, MARKERS, PALETTE
from draftbench.report.recommendation import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class Look:
    """One colour, marker and line per candidate, the same in every drawing; the choice first."""

    def __init__(self, answer: Recommendation) -> None:
        self._order = [name_of(cell) for cell in shown(answer)]

    def _at(self, candidate: str) -> int:
        return self._order.index(candidate)

    def colour(self, candidate: str) -> str:
        return PALETTE[self._at(candidate) % len(PALETTE)]

    def marker(self, candidate: str) -> str:
        at = self._at(candidate)
        # Shifted once the colours repeat, so that the pair of both does not.
        return MARKERS[(at + at // len(PALETTE)) % len(MARKERS)]

    def line(self, candidate: str) -> str:
        return LINES[self._at(candidate) % len(LINES)]


def name_of(cell: CellFigures | Pick) -> str:
    return str(Candidate(draft=cell.draft, quant=cell.quant))


def reach(estimate: Estimate) -> list[list[float]]:
    """Error bars as matplotlib wants them: distances down and up."""
    below, above = estimate.value - estimate.low, estimate.high - estimate.value
    return [[max(below, 0.0)], [max(above, 0.0)]]


def points(
    ax: Axes,
    places: Sequence[tuple[float, Estimate]],
    colour: str,
    marker: str,
    text: str | None = None,
) -> None:
    for at, (x, e) in enumerate(places):
        shown_as = text if at == 0 else None
        ax.errorbar(
            x, e.value, yerr=reach(e), fmt=marker, color=colour, capsize=2.5, label=shown_as
        )


def legend(ax: Axes) -> None:
    """Below the axes, in as many columns as the names allow; the figure grows by its rows."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    _, labels = ax.get_legend_handles_labels()
    wide, tall = figure.get_size_inches()
    points_each = [5.5 * len(text) + 34 for text in labels]
    columns = len(labels)
    if sum(points_each) > 72 * wide:
        columns = max(int(72 * wide // max(points_each)), 1)
    figure.set_size_inches(wide, tall + 0.19 * (-(-len(labels) // columns) - 1))
    figure.legend(loc="outside lower left", ncols=columns, columnspacing=1.2)
