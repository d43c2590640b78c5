"""Figures of a run → drawings of acceptance by segment and temperature, and along a response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from draftbench.acceptance.breakdown import THIRDS
from draftbench.acceptance.intervals import Estimate
from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF
from draftbench.report.charts.look import MOST, Look, along, part, reach
from draftbench.report.figures import ByGroup, Crossed, Figures
from draftbench.report.plots import HEIGHT, INK, PALETTE, WIDTH, Drawing, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Table = Sequence[Sequence[Estimate | None]]


def crossed(found: Crossed | None) -> list[Drawing]:
    """Heat map of one candidate's α, segments × temperatures."""
    if found is None:
        return []
    requests = sum(n for row in found.requests for n in row)
    return [
        Drawing(
            name="alpha-by-segment-and-temperature",
            title=f"Acceptance rate α: {found.candidate}",
            sample=f"{requests} requests; n: of each cell",
            note="The stronger the colour, the more is accepted. A row that fades to the right: "
            "sampling costs that segment its draft. –: under two requests there is no interval, "
            "and so no figure.",
            draw=partial(_crossed, found),
            width=max(WIDTH, 1.4 + 0.7 * len(found.temperatures)),
            height=max(1.0 + 0.42 * len(found.segments), HEIGHT * 0.8),
        )
    ]


def _crossed(found: Crossed, ax: Axes) -> None:
    def words(row: int, column: int) -> str:
        return f"\n(n = {found.requests[row][column]})"

    _heat(found.alpha, words, ax)
    _name(ax, [f"{t:g}" for t in found.temperatures], [label(s) for s in found.segments])
    ax.set_xlabel("sampling temperature")


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
            note="n: requests. The stronger the colour, the more; compare within a column. Few "
            "requests make a cell uncertain.",
            draw=partial(_groups, found, table, rows),
            width=wide,
            height=max(tall, HEIGHT * 0.8),
        )
        for what, title, table, rows in maps
        if rows
    ]


def _groups(found: ByGroup, table: Table, candidates: Sequence[int], ax: Axes) -> None:
    _heat(list(zip(*(table[at] for at in candidates), strict=True)), lambda *_: "", ax)
    rows = [
        f"{label(group)} (n = {n})" for group, n in zip(found.groups, found.requests, strict=True)
    ]
    _name(ax, [label(found.candidates[at]) for at in candidates], rows)
    if len(candidates) > 3:
        for name in ax.get_xticklabels():
            name.set(rotation=35, ha="right", rotation_mode="anchor")


def _heat(table: Table, words: Callable[[int, int], str], ax: Axes) -> None:
    """Figures on tiles [rows][columns], stronger where larger; `words` stand below a figure."""
    known = [e.value for row in table for e in row if e is not None]
    low, high = min(known, default=0.0), max(known, default=1.0)
    for line, row in enumerate(table):
        for column, estimate in enumerate(row):
            if estimate is not None:
                share = (estimate.value - low) / (high - low) if high > low else 0.5
                ax.bar(column, 0.94, 0.96, line - 0.47, color=PALETTE[0], alpha=0.06 + 0.44 * share)
            text = "–" if estimate is None else f"{estimate.value:.2f}"
            ax.text(column, line, text + words(line, column), ha="center", va="center")


def _name(ax: Axes, columns: Sequence[str], rows: Sequence[str]) -> None:
    ax.set_xticks(range(len(columns)), columns)
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def response(figures: Figures, answer: Recommendation) -> list[Drawing]:
    """α by third of the response, and in which tenth of it the rejected tokens stand."""
    if not figures.breakdowns:
        return []
    rows = []
    for name, found in list(figures.breakdowns.items())[:MOST]:
        groups = {g.name: g.alpha for g in found.groups if g.by == "third"}
        rows.append((name, [groups.get(third) for third in THIRDS]))
    drawn = Drawing(
        name="alpha-by-third",
        title="Acceptance along the response",
        sample=f"{answer.requests} requests, each response cut in three"
        + part(len(figures.breakdowns)),
        note="What a clear rise or fall means stands beside. Bars: 95 % over requests.",
        draw=partial(
            along, rows, Look(answer), THIRDS, ("third of the response", "acceptance rate α")
        ),
    )
    return [drawn, *_rejections(figures, answer)]


def _rejections(figures: Figures, answer: Recommendation) -> list[Drawing]:
    """Of the first model draft of the table that has any."""
    for name, found in figures.breakdowns.items():
        if name == SELF:
            continue
        known = [(at, e) for at, e in enumerate(found.rejections) if e is not None]
        if known:
            return [
                Drawing(
                    name="rejections-by-tenth",
                    title=f"Where rejections fall: {name}",
                    sample=f"{answer.requests} requests, each response cut in ten",
                    note="Share of all rejected tokens that stand in each tenth of the response. "
                    "Dashed: if position did not matter. Bars: 95 % over requests.",
                    draw=partial(_tenths, known),
                )
            ]
    return []


def _tenths(known: Sequence[tuple[int, Estimate]], ax: Axes) -> None:
    for at, share in known:
        ax.bar(at + 0.5, share.value, 0.84, color=PALETTE[0], alpha=0.45, lw=0)
        ax.errorbar(at + 0.5, share.value, yerr=reach(share), color=PALETTE[0], capsize=2.5)
    ax.axhline(0.1, color=INK, ls=(0, (4, 3)), lw=0.9)
    ax.set_xticks([0, 2.5, 5, 7.5, 10], ["start", "25 %", "50 %", "75 %", "end"])
    ax.set(xlabel="place in the response", ylabel="share of rejected tokens", xlim=(0, 10))
    ax.set_ylim(bottom=0)
    ax.grid(visible=False, axis="x")
