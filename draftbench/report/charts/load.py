"""An answer → drawings of what more active rows do: speed-up falls, tokens per second rise."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from draftbench.planner.recommendation import LoadLevel, Recommendation
from draftbench.report.charts.look import legend, points
from draftbench.report.plots import FAINT, INK, PALETTE, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def concurrency(answer: Recommendation) -> list[Drawing]:
    """Speed-up and throughput of each level's leader against the number of active rows."""
    levels = sorted(answer.levels, key=lambda level: level.concurrency)
    known = [level for level in levels if level.speedup_expected is not None]
    if len(known) < 2:
        return []
    sample = f"{len(known)} levels, {answer.requests} requests"
    drawn = [
        Drawing(
            name="speedup-by-concurrency",
            title="Speed-up against concurrency",
            sample=sample,
            note="The leader of each level, at its k. Line and bars: expected, 95 % over requests; "
            "hollow: measured. Below the dashed line speculation slows decoding down.",
            draw=partial(_speedups, known, answer.crossover),
        )
    ]
    rates = [x for x in known if x.tokens_per_second and x.tokens_per_second_plain]
    if len(rates) > 1:
        drawn.append(
            Drawing(
                name="throughput-by-concurrency",
                title="Throughput against concurrency",
                sample=sample,
                note="Tokens per second of all rows while they decode, by the costs. Where the "
                "lines meet, speculation stops paying.",
                draw=partial(_rates, rates),
            )
        )
    return drawn


def _speedups(levels: Sequence[LoadLevel], crossover: int | None, ax: Axes) -> None:
    expected = [(float(x.concurrency), e) for x in levels if (e := x.speedup_expected)]
    measured = [(float(x.concurrency), e) for x in levels if (e := x.speedup_measured)]
    ax.plot([x for x, _ in expected], [e.value for _, e in expected], color=PALETTE[0], lw=1.0)
    points(ax, expected, PALETTE[0], "o", "expected")
    ax.plot(
        [x for x, _ in measured],
        [e.value for _, e in measured],
        "s",
        ms=8,
        mfc="none",
        color=PALETTE[1],
        label="measured",
    )
    for level, (x, e) in zip(levels, expected, strict=True):
        if level.leader is not None:
            words = f"k = {level.leader.k}"
            ax.annotate(words, (x, e.high), (0, 7), textcoords="offset points", ha="center")
    ax.axhline(1, color=INK, ls=(0, (4, 3)), lw=0.9)
    if crossover:
        ax.axvline(crossover, color=FAINT, lw=1.2)
        ax.annotate(
            f"pays up to {crossover}",
            (crossover, 1.0),
            (5, 0),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
        )
    ends = [1.0, *(e.low for _, e in expected), *(e.high for _, e in expected)]
    pad = 0.12 * (max(ends) - min(ends) + 0.1)
    ax.set(ylabel="decode speed-up S (×)", ylim=(min(ends) - pad, max(ends) + 2 * pad))
    _rows(ax, [x.concurrency for x in levels])
    legend(ax)


def _rates(levels: Sequence[LoadLevel], ax: Axes) -> None:
    rows = [level.concurrency for level in levels]
    plain = [level.tokens_per_second_plain or 0.0 for level in levels]
    fast = [level.tokens_per_second or 0.0 for level in levels]
    ax.plot(rows, plain, "o--", color=PALETTE[6], label="without speculation")
    ax.plot(rows, fast, "s-", color=PALETTE[0], label="with speculation")
    ax.set(ylabel="tokens per second, all rows", ylim=(0, 1.08 * max(*plain, *fast)))
    _rows(ax, rows)
    legend(ax)


def _rows(ax: Axes, rows: Sequence[int]) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xticks(rows, [str(row) for row in rows])
    ax.set_xlim(rows[0] / 1.4, rows[-1] * 1.4)
    ax.minorticks_off()
    ax.set_xlabel("active decoding rows (concurrency)")
