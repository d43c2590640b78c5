"""Segments: what a round yields in each part of the traffic, by segment and by temperature."""

from __future__ import annotations

from collections.abc import Sequence

from draftbench.planner.recommendation import Recommendation
from draftbench.report.charts.chart import Chart, Table, first_drawn, series_of
from draftbench.report.charts.plot import SERIES, Plot, rows_axis, short, values_axis
from draftbench.report.figures import Figures, Part


def by_group(figures: Figures, answer: Recommendation) -> list[Chart]:
    """A chart per grouping that splits the traffic: segment, temperature."""
    return [
        _chart(by, [part for part in figures.parts if part.by == by], figures.k, answer)
        for by in dict.fromkeys(part.by for part in figures.parts)
    ]


def _chart(by: str, parts: Sequence[Part], k: int, answer: Recommendation) -> Chart:
    series = series_of(answer)
    groups = list(dict.fromkeys(part.name for part in parts))
    candidates = list(dict.fromkeys(part.candidate for part in parts))
    drafts = candidates[:SERIES]
    drawn = [(p, e) for p in parts if p.candidate in drafts and (e := p.tokens_per_round)]
    ends = [1.0, *(end for _, e in drawn for end in (e.low, e.high))]
    counts = {part.name: part.requests for part in parts}
    rows = rows_axis([f"{short(group)} ({counts[group]})" for group in groups])
    tall = 14.0 + 12.0 * len(drafts)
    scale = values_axis(f"tokens per round at k = {k}", ends)
    plot = Plot(scale, rows, height=44.0 + tall * len(groups), upright=True)
    for part, tokens in drawn:
        line = drafts.index(part.candidate) - (len(drafts) - 1) / 2
        place = -groups.index(part.name) - 12 * line / tall
        plot.bar(tokens, place, series[part.candidate])
    if len(drafts) > 1:
        plot.key([(draft, series[draft]) for draft in drafts])
    head = (by, "requests", "candidate", "α", f"tokens per round, k = {k}")
    table = [[p.name, str(p.requests), p.candidate, p.alpha, p.tokens_per_round] for p in parts]
    return Chart(
        name=f"tokens-per-round-by-{by}",
        title=f"Tokens per round by {by}{'' if len(drafts) > 1 else f': {drafts[0]}'}",
        caption="In parentheses the requests. Lines are 95 % intervals over the requests of a "
        "group; a group of one request has none." + first_drawn(len(candidates)),
        plot=plot,
        table=Table(head, table, words=3),
    )
