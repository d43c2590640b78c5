"""Figures of a run → drawings of acceptance: along a round, along a response, by segment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from draftbench.acceptance.breakdown import THIRDS
from draftbench.acceptance.intervals import Estimate
from draftbench.plan.recommendation import Recommendation
from draftbench.report.charts.look import Look, legend, points
from draftbench.report.figures import AcceptedLengths, ByGroup, Figures
from draftbench.report.plots import HEIGHT, PALETTE, WIDTH, Drawing, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# More lines than colours cannot be told apart: the best of the report's table are drawn.
MOST = len(PALETTE)


def positions(figures: Figures, answer: Recommendation) -> list[Drawing]:
    """Survival and hazard by draft position."""
    if not figures.positions:
        return []
    k, look = figures.positions[0].k, Look(answer)
    sample = f"replay of {answer.requests} requests at k = {k}{_part(len(figures.positions))}"
    texts = (
        (
            "survival",
            "survival s (share of rounds)",
            "Share of rounds whose first i draft tokens were all accepted.",
        ),
        (
            "hazard",
            "hazard h (share accepted)",
            "Of the tokens tried at position i, those accepted. Flat: position does not matter. "
            "A fall to 0 at one position is a broken draft.",
        ),
    )
    return [
        Drawing(
            name=f"{what}-by-position",
            title=f"{what.capitalize()} by draft position",
            sample=sample,
            note=note,
            draw=partial(
                _along,
                [(p.candidate, getattr(p, what)) for p in figures.positions[:MOST]],
                look,
                axis,
                range(1, k + 1),
            ),
        )
        for what, axis, note in texts
    ]


def thirds(figures: Figures, answer: Recommendation) -> list[Drawing]:
    """α by third of the response."""
    if not figures.breakdowns:
        return []
    rows = []
    for name, found in list(figures.breakdowns.items())[:MOST]:
        groups = {g.name: g.alpha for g in found.groups if g.by == "third"}
        rows.append((name, [groups.get(third) for third in THIRDS]))
    return [
        Drawing(
            name="alpha-by-third",
            title="Acceptance along the response",
            sample=f"{answer.requests} requests, each response cut in three"
            + _part(len(figures.breakdowns)),
            note="Low at the start: prompt or chat template mismatch. Falling towards the end: the "
            "draft loses the thread.",
            draw=partial(_along, rows, Look(answer), "acceptance rate α", THIRDS),
        )
    ]


def _part(candidates: int) -> str:
    """What the sample says where not every candidate is drawn."""
    return "" if candidates <= MOST else f"; the first {MOST} of {candidates} candidates"


def _along(
    rows: Sequence[tuple[str, Sequence[Estimate | None]]],
    look: Look,
    axis: str,
    ticks: Sequence[object],
    ax: Axes,
) -> None:
    """Lines with error bars over a few places, side by side so that the bars do not hide."""
    step = 0.06
    for at, (name, values) in enumerate(rows):
        shift = (at - (len(rows) - 1) / 2) * step
        known = [(place + shift, e) for place, e in enumerate(values) if e is not None]
        xs, ys = [x for x, _ in known], [e.value for _, e in known]
        ax.plot(xs, ys, look.line(name), color=look.colour(name), lw=1, alpha=0.7)
        points(ax, known, look.colour(name), look.marker(name), label(name))
    ax.set_xticks(range(len(ticks)), list(map(str, ticks)))
    numbered = isinstance(ticks, range)
    ax.set(xlabel="draft position i" if numbered else "third of the response", ylabel=axis)
    ax.set_ylim(0, 1.05)
    legend(ax)


def lengths(found: AcceptedLengths | None) -> list[Drawing]:
    """How many draft tokens a round accepts."""
    if found is None:
        return []
    counted = (
        f"{found.rounds_counted:.0f} rounds counted in runs"
        if found.rounds_counted is not None
        else "not measured"
    )
    return [
        Drawing(
            name="accepted-lengths",
            title=f"Accepted tokens per round: {found.candidate}, k = {found.k}",
            sample=f"{found.rounds:.0f} rounds expected from replay, {counted}",
            note="The two kinds of bars should agree: replay is what the prediction rests on.",
            draw=partial(_lengths, found),
        )
    ]


def _lengths(found: AcceptedLengths, ax: Axes) -> None:
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
    ax.grid(visible=False, axis="x")


def by_group(found: ByGroup | None) -> list[Drawing]:
    """Heat maps of α and of tokens per round, groups of requests × candidates."""
    if found is None:
        return []
    rated = [at for at, row in enumerate(found.alpha) if any(e is not None for e in row)]
    maps = (
        ("alpha", f"Acceptance rate α by {found.by}", found.alpha, rated),
        (
            "tokens",
            f"Tokens per round by {found.by}, k = {found.k}",
            found.tokens_per_round,
            list(range(len(found.candidates))),
        ),
    )
    # A column needs room for its name, a row for its figure.
    tall, wide = 1.1 + 0.36 * len(found.groups), max(WIDTH, 1.6 + 0.6 * len(found.candidates))
    return [
        Drawing(
            name=f"{what}-by-{found.by}",
            title=title,
            sample=f"{sum(found.requests)} requests in {len(found.groups)} groups",
            note="n: requests; darker is more. Compare within a column; few requests make a cell "
            "uncertain.",
            draw=partial(_heat, found, [table[at] for at in rows], rows),
            width=wide,
            height=max(tall, HEIGHT * 0.8),
        )
        for what, title, table, rows in maps
        if rows
    ]


def _heat(
    found: ByGroup,
    table: Sequence[Sequence[Estimate | None]],
    candidates: Sequence[int],
    ax: Axes,
) -> None:
    known = [e.value for row in table for e in row if e is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    for column, row in enumerate(table):
        for line, estimate in enumerate(row):
            if estimate is not None:
                share = (estimate.value - low) / (high - low) if high > low else 0.5
                ax.bar(column, 0.94, 0.96, line - 0.47, color=PALETTE[0], alpha=0.06 + 0.44 * share)
            text = "–" if estimate is None else f"{estimate.value:.2f}"
            ax.text(column, line, text, ha="center", va="center")
    names = [label(found.candidates[at]) for at in candidates]
    rows = [
        f"{label(group)} (n = {n})" for group, n in zip(found.groups, found.requests, strict=True)
    ]
    ax.set_xticks(range(len(names)), names)
    if len(names) > 3:
        for name in ax.get_xticklabels():
            name.set(rotation=35, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
