"""An answer → drawings of speed: against k, by acceptance and cost, predicted against measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.formula import speedup
from draftbench.planner.recommendation import Configuration, Evaluation, Recommendation
from draftbench.records import SELF
from draftbench.report.charts.look import Look, legend, name_of, points, reach
from draftbench.report.plots import FAINT, HEIGHT, INK, Drawing, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.contour import QuadContourSet

BREAK_EVEN_AND_ABOVE = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)
# Room that the name of such a line takes, in parts of the axes.
_TALL, _WIDE = 0.07, 0.13


def glance(answer: Recommendation) -> list[Drawing]:
    """Every candidate at its best k, one line each, beside plain decoding."""
    cells = [
        (c, e) for c in answer.by_candidate if (e := c.speedup_expected or c.speedup_predicted)
    ]
    if not cells:
        return []
    measured = sum(cell.speedup_measured is not None for cell, _ in cells)
    return [
        Drawing(
            name="speedup-by-candidate",
            title="Every draft at its best k",
            sample=f"{answer.requests} requests; {measured} of {len(cells)} drafts also decoded",
            note="Filled: expected, predicted for all requests and corrected by measurement. "
            "Hollow: predicted alone. Bars: 95 % over requests. In the grey, left of the dashed "
            "line, speculation is slower than plain decoding.",
            draw=partial(_glance, cells, Look(answer), answer.min_speedup),
            height=0.9 + 0.38 * len(cells),
        )
    ]


def _glance(
    cells: Sequence[tuple[Evaluation, Estimate]], look: Look, asked: float, ax: Axes
) -> None:
    for line, (cell, e) in enumerate(cells):
        name = name_of(cell)
        colour = look.colour(name)
        fill = colour if cell.speedup_measured and cell.speedup_expected else "none"
        mark = look.marker(name)
        ax.errorbar(e.value, line, xerr=reach(e), fmt=mark, color=colour, mfc=fill, capsize=2.5)
        # In a column beside the axes, where no bar and no line gets to.
        place = ("axes fraction", "data")
        ax.annotate(f"{e.value:.2f}×", (1.02, line), xycoords=place, va="center")
    ends = [1.0, asked, *(end for _, e in cells for end in (e.low, e.high))]
    span = max(ends) - min(ends)
    left, right = min(ends) - 0.05 * span, max(ends) + 0.05 * span
    ax.axvspan(left, 1, color=FAINT, alpha=0.25, lw=0)
    ax.axvline(1, color=INK, ls=(0, (4, 3)), lw=0.9)
    if asked != 1:
        ax.axvline(asked, color=INK, ls=":", lw=1.2)
    names = [f"{label(name_of(cell))}, k = {cell.k}" for cell, _ in cells]
    ax.set_yticks(range(len(cells)), names)
    ax.set(xlabel="decode speed-up S (×)", xlim=(left, right), ylim=(len(cells) - 0.5, -0.5))
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")


def speed_by_k(answer: Recommendation) -> list[Drawing]:
    """One drawing per draft, its quantizations in it, all on one scale."""
    known = [c for c in answer.evaluations if c.speedup_predicted or c.speedup_measured]
    estimates = [e for c in known for e in (c.speedup_predicted, c.speedup_measured) if e]
    if not estimates:
        return []
    limits = min(0.95, min(e.low for e in estimates)), max(1.05, *(e.high for e in estimates))
    found = []
    for at, draft in enumerate(dict.fromkeys(c.draft for c in answer.by_candidate)):
        cells = [c for c in known if c.draft == draft]
        if not cells:
            continue
        measured = sum(c.speedup_measured is not None for c in cells)
        found.append(
            Drawing(
                name=f"speedup-by-k-{at + 1}",
                title=f"Speed-up against k: {draft}",
                sample=f"predicted on {answer.requests} requests, {_cells(measured)}",
                note="Line and band: predicted, 95 % over requests. Points: measured. "
                "Below the dashed line speculation slows decoding down.",
                draw=partial(_speed, cells, Look(answer), limits, answer.choice),
            )
        )
    return found


def _cells(measured: int) -> str:
    return f"{measured} points measured" if measured else "none measured"


def _speed(
    cells: Sequence[Evaluation],
    look: Look,
    limits: tuple[float, float],
    choice: Configuration | None,
    ax: Axes,
) -> None:
    quants = list(dict.fromkeys(c.quant for c in cells))
    shift = {quant: 0.09 * (at - (len(quants) - 1) / 2) for at, quant in enumerate(quants)}
    for quant in quants:
        own = [c for c in cells if c.quant == quant]
        name = name_of(own[0])
        colour, text = look.colour(name), "unquantized" if quant == "none" else quant
        line = [(c.k, c.speedup_predicted) for c in own if c.speedup_predicted]
        ks, curve = [k for k, _ in line], [e for _, e in line]
        ax.plot(ks, [e.value for e in curve], look.line(name), color=colour, label=label(text))
        low, high = [e.low for e in curve], [e.high for e in curve]
        ax.fill_between(ks, low, high, color=colour, alpha=0.15, lw=0)
        ran = [(c.k + shift[quant], c.speedup_measured) for c in own if c.speedup_measured]
        points(ax, ran, colour, look.marker(name))
    _mark_choice(ax, cells, choice, shift)
    ax.axhline(1, color=INK, ls=(0, (4, 3)), lw=0.9)
    pad = 0.06 * (limits[1] - limits[0])
    ax.set(xlabel="draft length k (tokens)", ylabel="decode speed-up S (×)")
    ks = sorted({c.k for c in cells})
    # Room for the word at the choice on either side of the first and the last k.
    beside = 0.2 + 0.06 * (ks[-1] - ks[0])
    ax.set(ylim=(limits[0] - pad, limits[1] + 3 * pad), xticks=ks)
    ax.set_xlim(ks[0] - beside, ks[-1] + beside)
    if len(quants) > 1:
        legend(ax)


def _mark_choice(
    ax: Axes, cells: Sequence[Evaluation], choice: Configuration | None, shift: Mapping[str, float]
) -> None:
    for cell in cells:
        known = [e for e in (cell.speedup_measured, cell.speedup_predicted) if e]
        if known and choice == cell.configuration:
            place = cell.k + (shift[cell.quant] if cell.speedup_measured else 0.0)
            ax.plot(place, known[0].value, "o", ms=14, mfc="none", mec=INK, mew=1.2)
            # Above bar, band and ring: nothing crosses the word.
            top = place, max(e.high for e in known)
            ax.annotate("choice", top, (0, 9), textcoords="offset points", ha="center")


def economy(answer: Recommendation) -> list[Drawing]:
    """α against c, over lines of equal speed-up by the closed form."""
    best = [c for c in answer.by_candidate if c.alpha and c.draft_cost_ratio and c.draft != SELF]
    if not best:
        return []
    largest = max(c.k for c in answer.evaluations)
    return [
        Drawing(
            name="alpha-against-cost",
            title="Acceptance against cost",
            sample=f"{answer.requests} requests; k up to {largest}",
            note="Grey lines: equal speed-up at the best k by the closed form of Leviathan et al. "
            "2023, which takes a verify pass for a single step; heavy is break-even, α = c. "
            "Up and left is better. Prompt lookup has no α; the control, self, has c = 1. Bars: "
            "95 %, of c over timing repeats.",
            draw=partial(_economy, best, Look(answer), largest),
            height=HEIGHT + 0.5,
        )
    ]


def _economy(cells: Sequence[Evaluation], look: Look, largest: int, ax: Axes) -> None:
    known = [cell.draft_cost_ratio for cell in cells if cell.draft_cost_ratio]
    # A bar far longer than its cost may leave the frame: it must not squeeze all the rest.
    right = max(0.3, *(min(1.15 * cost.high, 1.6 * cost.value) for cost in known))
    costs, rates = np.linspace(0, right, 90), np.linspace(0, 1, 101)
    field = np.array(
        [[max(speedup(a, k, c) for k in range(1, largest + 1)) for c in costs] for a in rates]
    )
    widths = [1.8, *[0.8] * (len(BREAK_EVEN_AND_ABOVE) - 1)]
    lines = ax.contour(costs, rates, field, BREAK_EVEN_AND_ABOVE, colors=FAINT, linewidths=widths)
    _name_levels(ax, lines, right)
    for cell in cells:
        alpha, cost, name = cell.alpha, cell.draft_cost_ratio, name_of(cell)
        assert alpha is not None
        assert cost is not None
        ax.errorbar(
            cost.value,
            alpha.value,
            xerr=reach(cost),
            yerr=reach(alpha),
            fmt=look.marker(name),
            color=look.colour(name),
            label=label(name),
            capsize=2,
        )
    ax.grid(visible=False)
    ax.set(xlabel="draft cost ratio c (target steps per draft token)", ylabel="acceptance rate α")
    ax.set(xlim=(0, right), ylim=(0, 1.03))
    legend(ax)


def _name_levels(ax: Axes, lines: QuadContourSet, right: float) -> None:
    """Each line's speed-up where it leaves the axes, on the right or above, so that no name stands
    on a candidate, however they lie; none where it would stand on the name of a smaller one.
    """
    last: dict[bool, float] = {}
    for level, parts in zip(lines.levels, lines.allsegs, strict=True):
        ends = [tuple(max(part, key=tuple)) for part in parts if len(part)]
        if not ends:
            continue
        cost, rate = max(ends)
        beside = cost > 0.999 * right
        # Above, a name ends where the axes do.
        place, room = (rate, _TALL) if beside else (min(cost / right, 1 - _WIDE / 2), _WIDE)
        if abs(place - last.get(beside, -1.0)) < room:
            continue
        last[beside] = place
        ax.annotate(
            f"{level:g}×",
            (1, rate) if beside else (place, 1),
            (4, 0) if beside else (0, 3),
            xycoords=("axes fraction", "data") if beside else "axes fraction",
            textcoords="offset points",
            ha="left" if beside else "center",
            va="center" if beside else "bottom",
            fontsize=8,
        )


def prediction(answer: Recommendation) -> list[Drawing]:
    """Predicted against measured speed-up on the measured requests."""
    cells = [c for c in answer.evaluations if c.speedup_measured and c.prediction_error is not None]
    if not cells:
        return []
    return [
        Drawing(
            name="prediction-against-measurement",
            title="Prediction against measurement",
            sample=f"{len(cells)} measured cells; both on the measured requests",
            note="On the line a prediction came true; the band is ± 10 %. Bars: 95 % over "
            "requests.",
            draw=partial(_prediction, cells, Look(answer)),
        )
    ]


def _prediction(cells: Sequence[Evaluation], look: Look, ax: Axes) -> None:
    ends = [1.0]
    for name in dict.fromkeys(map(name_of, cells)):
        for at, cell in enumerate(c for c in cells if name_of(c) == name):
            measured, error = cell.speedup_measured, cell.prediction_error
            assert measured is not None
            assert error is not None
            predicted = measured.value * (1 + error)
            ends += [measured.low, measured.high, predicted]
            ax.errorbar(
                predicted,
                measured.value,
                yerr=reach(measured),
                fmt=look.marker(name),
                color=look.colour(name),
                label=None if at else label(name),
                capsize=2.5,
            )
    span = np.array([0.95 * min(ends), 1.05 * max(ends)])
    ax.plot(span, span, color=INK, lw=0.9)
    ax.fill_between(span, 0.9 * span, 1.1 * span, color=FAINT, alpha=0.3, lw=0)
    ax.set(xlabel="predicted speed-up (×)", ylabel="measured speed-up (×)", xlim=span, ylim=span)
    legend(ax)
