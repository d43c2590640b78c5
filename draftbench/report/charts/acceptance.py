"""Acceptance: how far into a round drafts survive, and what a round yields at each k."""

from __future__ import annotations

from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF
from draftbench.report.charts.chart import Chart, Table, first_drawn, series_of
from draftbench.report.charts.plot import (
    SERIES,
    Plot,
    counts_axis,
    room_for,
    shares_axis,
    values_axis,
)
from draftbench.report.figures import Figures


def survival(figures: Figures, answer: Recommendation) -> list[Chart]:
    """The share of rounds that accept their first i tokens, a line per candidate."""
    series = series_of(answer)
    known = {
        name: values for name, values in figures.survival.items() if any(values) and name != SELF
    }
    if not known:
        return []
    k = max(map(len, known.values()))
    places = counts_axis("draft position i", range(1, k + 1))
    drawn, names = list(known)[:SERIES], []
    shares = shares_axis("rounds that accept their first i tokens")
    plot = Plot(places, shares, room=room_for(drawn))
    for at, name in enumerate(drawn):
        shift = 0.08 * (at - (len(drawn) - 1) / 2)
        points = [(i + shift, e) for i, e in enumerate(known[name], 1) if e is not None]
        plot.line([(x, e.value) for x, e in points], series[name])
        for x, e in points:
            plot.point(x, e, series[name])
        names.append((points[-1][1].value, name, series[name]))
    plot.names(names)
    head = ("candidate", *(f"i = {i}" for i in range(1, k + 1)))
    rows = [[name, *values, *[None] * (k - len(values))] for name, values in known.items()]
    return [
        Chart(
            name="survival-by-position",
            title="Acceptance by draft position",
            caption=f"Replay of {answer.requests} requests at k = {k}; lines are 95 % intervals. "
            "An even decline is normal; a drop to 0 at one position means a broken draft."
            + first_drawn(len(known)),
            plot=plot,
            table=Table(head, rows),
        )
    ]


def tokens_by_k(answer: Recommendation) -> list[Chart]:
    """Tokens per round at every k, a line per candidate."""
    series, names = series_of(answer), []
    known = {
        str(first.candidate): [
            (each.k, each.tokens_per_round)
            for each in answer.evaluations
            if each.candidate == first.candidate and each.tokens_per_round
        ]
        for first in answer.by_candidate
        if first.draft != SELF
    }
    known = {name: curve for name, curve in known.items() if curve}
    ks = sorted({k for curve in known.values() for k, _ in curve})
    if not ks:
        return []
    drawn = list(known)[:SERIES]
    ends = [1.0, *(e.high for name in drawn for _, e in known[name])]
    scale = values_axis("tokens per round", ends)
    plot = Plot(counts_axis("draft length k (tokens)", ks), scale, room=room_for(drawn))
    for name in drawn:
        curve = known[name]
        plot.band([(float(k), e) for k, e in curve], series[name])
        plot.line([(float(k), e.value) for k, e in curve], series[name])
        names.append((curve[-1][1].value, name, series[name]))
    plot.names(names)
    by_name = {name: dict(curve) for name, curve in known.items()}
    head = ("candidate", *(f"k = {k}" for k in ks))
    return [
        Chart(
            name="tokens-per-round-by-k",
            title="Tokens per round by k",
            caption="1 means the draft never helps, k + 1 that it is always right. Bands are 95 % "
            f"intervals over {answer.requests} requests." + first_drawn(len(known)),
            plot=plot,
            table=Table(head, [[name, *map(c.get, ks)] for name, c in by_name.items()]),
        )
    ]
