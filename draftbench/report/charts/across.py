"""Several runs' answers → one drawing of each draft's speed-up, run by run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.recommendation import CellFigures, Recommendation
from draftbench.report.charts.look import legend, name_of, reach
from draftbench.report.plots import INK, MARKERS, PALETTE, Drawing, label
from draftbench.report.terminal.recommendation import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Answers = Sequence[tuple[str, Recommendation]]


def by_candidate(answers: Answers) -> dict[str, list[CellFigures | None]]:
    """Each candidate's best cell in each run, by name; None in a run that has no such candidate."""
    found: dict[str, list[CellFigures | None]] = {}
    for at, (_, answer) in enumerate(answers):
        for cell in shown(answer):
            found.setdefault(name_of(cell), [None] * len(answers))[at] = cell
    return found


def across(answers: Answers) -> list[Drawing]:
    """Expected speed-ups, which are predictions where a run measured nothing; empty for one run."""
    rows = by_candidate(answers)
    known = [c for cells in rows.values() for c in cells if c and _speed(c)]
    if len(answers) < 2 or not known:
        return []
    requests = ", ".join(f"{at}: {answer.requests}" for at, (_, answer) in enumerate(answers, 1))
    return [
        Drawing(
            name="speedup-by-run",
            title="Each draft at its best k, run by run",
            sample=f"requests by run: {requests}",
            note="Filled: expected, predicted and corrected by measurement. Hollow: predicted "
            "alone. Bars: 95 % over requests. The dashed line is plain decoding of the same run; "
            "drafts are matched by name.",
            draw=partial(_across, rows, [name for name, _ in answers]),
            height=1.2 + (0.2 + 0.13 * len(answers)) * len(rows),
        )
    ]


def _across(rows: dict[str, list[CellFigures | None]], names: Sequence[str], ax: Axes) -> None:
    for at, name in enumerate(names):
        colour, marker = PALETTE[at % len(PALETTE)], MARKERS[at % len(MARKERS)]
        ax.plot([], [], marker, color=colour, label=label(f"{at + 1}: {name}"))
        shift = 0.6 * ((at + 0.5) / len(names) - 0.5)
        for line, cells in enumerate(rows.values()):
            cell = cells[at]
            speed = _speed(cell) if cell else None
            if cell is not None and speed is not None:
                ax.errorbar(
                    speed.value,
                    line + shift,
                    xerr=reach(speed),
                    fmt=marker,
                    color=colour,
                    mfc=colour if cell.speedup_measured else "none",
                    capsize=2.5,
                )
    ax.axvline(1, color=INK, ls=(0, (4, 3)), lw=0.9)
    ax.set_yticks(range(len(rows)), [label(name) for name in rows])
    ax.set(xlabel="decode speed-up S (×)", ylim=(len(rows) - 0.5, -0.5))
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    legend(ax)


def _speed(cell: CellFigures) -> Estimate | None:
    return cell.speedup_expected or cell.speedup_predicted
