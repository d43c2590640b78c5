"""The gate's verdicts over time → a table for a terminal, and a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from draftbench.gate.history import MIN_CHAIN, MIN_RUNS, HistoryEntry, Trend, series, trends
from draftbench.gate.result import GateResult, Level
from draftbench.report.plots import PALETTE, Drawing, save
from draftbench.report.terminal.text import columns, paragraph, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

METRICS = ("alpha", "mean_accepted_length")
LAST = 10
_STRIP = 31


def text(entries: Sequence[HistoryEntry], result: GateResult, width: int) -> str:
    """The last verdicts on the newest one's question, per metric with intervals and the trend."""
    same = series(entries)
    shown = same[-LAST:]
    found = {trend.metric: trend for trend in trends(entries, result.pooled)}
    blocks = []
    for metric in METRICS:
        having = [(entry, entry.figures[metric]) for entry in shown if metric in entry.figures]
        if not having:
            continue
        low, high = _range([level for _, level in having])
        rows = [
            (_when(entry), str(entry.verdict), _figure(level), _strip(level, low, high))
            for entry, level in having
        ]
        table = columns(("when", "verdict", metric, f"{low:.3f} to {high:.3f}"), rows)
        blocks.append(f"{table}\n{paragraph(_words(found.get(metric)), width, '')}")
    head = f"History: the last {len(shown)} of {len(same)} verdicts on this question"
    return "\n\n".join([head, *blocks])


def draw(entries: Sequence[HistoryEntry], file: Path) -> None:
    """Write the series as SVG to `file`, and as PNG beside it.

    Raises:
        UsageError: the folder cannot be written.
    """
    same = series(entries)
    metrics = [metric for metric in METRICS if any(metric in entry.figures for entry in same)]
    drawing = Drawing(
        name=file.stem,
        title=f"Acceptance over time: {plain(same[-1].candidate)}",
        sample=f"{len(same)} verdicts on one question; bars are 95 % over requests",
        note="",
        draw=partial(_panels, same, metrics),
        height=1.0 + 1.5 * len(metrics),
    )
    save(drawing, file.parent)


def _panels(same: Sequence[HistoryEntry], metrics: Sequence[str], ax: Axes) -> None:
    figure = ax.get_figure(root=True)
    assert figure is not None
    ax.remove()
    panels = figure.subplots(len(metrics), 1, sharex=True, squeeze=False)[:, 0]
    for panel, metric in zip(panels, metrics, strict=True):
        for at, entry in enumerate(same):
            if metric not in entry.figures:
                continue
            level = entry.figures[metric]
            low, high = _ends(level)
            colour = PALETTE[0] if entry.verdict == "pass" else PALETTE[1]
            marker = "o" if entry.verdict == "pass" else "s"
            reach = [[max(level.value - low, 0.0)], [max(high - level.value, 0.0)]]
            panel.errorbar(at, level.value, yerr=reach, fmt=marker, color=colour, capsize=2.5)
        panel.set_ylabel(metric.replace("_", " "))
    ends = sorted({0, len(same) - 1})
    panels[-1].set_xticks(ends, [_when(same[at]) for at in ends])
    panels[-1].set_xlabel("verdicts, oldest to newest; squares did not pass")


def _words(trend: Trend | None) -> str:
    if trend is None:
        return f"trend: unknown, under {MIN_CHAIN} passing runs"
    if trend.drifting:
        return f"trend: slow drift, {trend}"
    if trend.total is None:
        return f"trend: unknown, under {MIN_RUNS} passing runs; {trend}"
    falling, rising = trend.total.high < 0, trend.total.low > 0
    word = "falling" if falling else "rising" if rising else "none that stands out"
    return f"trend: {word}, {trend}"


def _when(entry: HistoryEntry) -> str:
    return plain(entry.created)[:16].replace("T", " ")


def _ends(level: Level) -> tuple[float, float]:
    low, high = level.low, level.high
    return level.value if low is None else low, level.value if high is None else high


def _range(levels: Sequence[Level]) -> tuple[float, float]:
    ends = [_ends(level) for level in levels]
    return min(low for low, _ in ends), max(high for _, high in ends)


def _figure(level: Level) -> str:
    if level.low is None or level.high is None:
        return f"{level.value:.3f}"
    return f"{level.value:.3f} ±{(level.high - level.low) / 2:.3f}"


def _strip(level: Level, low: float, high: float) -> str:
    """The interval as a line and the figure as a dot, on the scale of all rows."""
    scale = (_STRIP - 1) / (high - low) if high > low else 0.0
    at = [round((x - low) * scale) for x in (*_ends(level), level.value)]
    line = " " * at[0] + "─" * (at[1] - at[0] + 1)
    return line[: at[2]] + "●" + line[at[2] + 1 :]
