"""An answer → drawings of speed: against k, by acceptance and cost, predicted against measured."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from draftbench.plan.formula import speedup
from draftbench.plan.recommendation import CellFigures, Pick, Recommendation
from draftbench.report.charts.look import Look, legend, name_of, points, reach
from draftbench.report.plots import FAINT, HEIGHT, INK, Drawing, label
from draftbench.report.recommendation import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BREAK_EVEN_AND_ABOVE = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0)


def speed_by_k(answer: Recommendation) -> list[Drawing]:
    """One drawing per draft, its quantizations in it, all on one scale."""
    known = [c for c in answer.candidates if c.speedup_predicted or c.speedup_measured]
    estimates = [e for c in known for e in (c.speedup_predicted, c.speedup_measured) if e]
    if not estimates:
        return []
    limits = min(0.95, min(e.low for e in estimates)), max(1.05, *(e.high for e in estimates))
    found = []
    for at, draft in enumerate(dict.fromkeys(c.draft for c in shown(answer))):
        cells = [c for c in known if c.draft == draft]
        if not cells:
            continue
        measured = sum(c.speedup_measured is not None for c in cells)
        found.append(
            Drawing(
                name=f"speedup-by-k-{at + 1}",
                title=f"Speed-up against k: {draft}",
                sample=f"predicted on {answer.requests} requests, {measured} cells measured",
                note="Line and band: predicted, 95 % over requests. Points: measured. "
                "Below the dashed line speculation slows decoding down.",
                draw=partial(_speed, cells, Look(answer), limits, answer.choice),
            )
        )
    return found


def _speed(
    cells: Sequence[CellFigures],
    look: Look,
    limits: tuple[float, float],
    choice: Pick | None,
    ax: Axes,
) -> None:
    for quant in dict.fromkeys(c.quant for c in cells):
        own = [c for c in cells if c.quant == quant]
        name = name_of(own[0])
        colour, text = look.colour(name), "unquantized" if quant == "none" else quant
        line = [(c.k, c.speedup_predicted) for c in own if c.speedup_predicted]
        ks, curve = [k for k, _ in line], [e for _, e in line]
        ax.plot(ks, [e.value for e in curve], look.line(name), color=colour, label=label(text))
        low, high = [e.low for e in curve], [e.high for e in curve]
        ax.fill_between(ks, low, high, color=colour, alpha=0.15, lw=0)
        ran = [(float(c.k), c.speedup_measured) for c in own if c.speedup_measured]
        points(ax, ran, colour, look.marker(name))
    _mark_choice(ax, cells, choice)
    ax.axhline(1, color=INK, ls=(0, (4, 3)), lw=0.9)
    pad = 0.06 * (limits[1] - limits[0])
    ax.set(xlabel="draft length k (tokens)", ylabel="decode speed-up S (×)")
    ax.set(ylim=(limits[0] - pad, limits[1] + pad), xticks=sorted({c.k for c in cells}))
    if len({c.quant for c in cells}) > 1:
        legend(ax)


def _mark_choice(ax: Axes, cells: Sequence[CellFigures], choice: Pick | None) -> None:
    for cell in cells:
        best = cell.speedup_measured or cell.speedup_predicted
        if best and choice == Pick(draft=cell.draft, quant=cell.quant, k=cell.k):
            ax.plot(cell.k, best.value, "o", ms=14, mfc="none", mec=INK, mew=1.2)
            ax.annotate(
                "choice", (cell.k, best.value), (0, 11), textcoords="offset points", ha="center"
            )


def economy(answer: Recommendation) -> list[Drawing]:
    """α against c, over lines of equal speed-up by the closed form."""
    best = [c for c in shown(answer) if c.alpha and c.draft_cost_ratio]
    if not best:
        return []
    largest = max(c.k for c in answer.candidates)
    return [
        Drawing(
            name="alpha-against-cost",
            title="Acceptance against cost",
            sample=f"{answer.requests} requests; k up to {largest}",
            note="Grey lines: equal speed-up at the best k by the closed form of Leviathan et al. "
            "2023, which takes a verify pass for a single step; heavy is break-even, α = c. "
            "Up and left is better. Prompt lookup has no α.",
            draw=partial(_economy, best, Look(answer), largest),
            height=HEIGHT + 0.5,
        )
    ]


def _economy(cells: Sequence[CellFigures], look: Look, largest: int, ax: Axes) -> None:
    right = max(0.3, *(1.15 * c.draft_cost_ratio.high for c in cells if c.draft_cost_ratio))
    costs, rates = np.linspace(0, right, 90), np.linspace(0, 1, 101)
    field = np.array(
        [[max(speedup(a, k, c) for k in range(1, largest + 1)) for c in costs] for a in rates]
    )
    widths = [1.8, *[0.8] * (len(BREAK_EVEN_AND_ABOVE) - 1)]
    lines = ax.contour(costs, rates, field, BREAK_EVEN_AND_ABOVE, colors=FAINT, linewidths=widths)
    ax.clabel(lines, fmt=lambda level: f"{level:g}×", fontsize=8, colors=INK)
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


def prediction(answer: Recommendation) -> list[Drawing]:
    """Predicted against measured speed-up on the measured requests."""
    cells = [c for c in answer.candidates if c.speedup_measured and c.prediction_error is not None]
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


def _prediction(cells: Sequence[CellFigures], look: Look, ax: Axes) -> None:
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
