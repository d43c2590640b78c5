"""What the drawings of a report share: one look per candidate, points with error bars, a legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.recommendation import Configuration, Evaluation, Recommendation
from draftbench.report.plots import LINES, MARKERS, PALETTE, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# More lines than colours cannot be told apart: the best of the report's table are drawn.
MOST = len(PALETTE)


class Look:
    """One colour, marker and line per candidate, the same in every drawing; the choice first."""

    def __init__(self, answer: Recommendation) -> None:
        self._order = [name_of(cell) for cell in answer.by_candidate]

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


def name_of(cell: Evaluation | Configuration) -> str:
    return str(cell.candidate)


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


def part(candidates: int) -> str:
    """What the sample says where not every candidate is drawn."""
    return "" if candidates <= MOST else f"; the first {MOST} of {candidates} candidates"


def along(
    rows: Sequence[tuple[str, Sequence[Estimate | None]]],
    look: Look,
    ticks: Sequence[object],
    axes: tuple[str, str],
    ax: Axes,
) -> None:
    """Lines with error bars over a few places, side by side so that the bars do not hide."""
    step = min(0.12, 0.6 / max(len(rows), 1))
    for at, (name, values) in enumerate(rows):
        shift = (at - (len(rows) - 1) / 2) * step
        known = [(place + shift, e) for place, e in enumerate(values) if e is not None]
        xs, ys = [x for x, _ in known], [e.value for _, e in known]
        ax.plot(xs, ys, look.line(name), color=look.colour(name), lw=1, alpha=0.7)
        points(ax, known, look.colour(name), look.marker(name), label(name))
    ax.set_xticks(range(len(ticks)), list(map(str, ticks)))
    ax.set(xlabel=axes[0], ylabel=axes[1], ylim=(0, 1.05))
    legend(ax)
