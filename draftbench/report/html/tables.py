"""Figures, tables and charts → HTML. Every figure carries its full value and interval in
attributes, rounded only for the eye.
"""

from __future__ import annotations

from draftbench.acceptance.intervals import Estimate
from draftbench.report.charts.chart import Cell, Chart, Table
from draftbench.report.markup import Html, element, together


def number(estimate: Estimate, unit: str = "") -> Html:
    """A figure and the ends of its interval."""
    exact = {"data_low": repr(estimate.low), "data_high": repr(estimate.high)}
    shown = "<0.01" if 0 < estimate.value < 0.005 else f"{estimate.value:.2f}"
    value = element("data", shown + unit, value=repr(estimate.value), **exact)
    return together([value, " ", element("small", f"{estimate.low:.2f}–{estimate.high:.2f}")])


def table(of: Table) -> Html:
    """A table that scrolls sideways by itself where it is wider than the page."""
    kinds = ["word" if at < of.words else None for at in range(len(of.head))]
    head = [
        element("th", name, scope="col", class_=kind)
        for name, kind in zip(of.head, kinds, strict=True)
    ]
    rows = []
    for at, row in enumerate(of.rows):
        cells = [
            element("td", _cell(cell), class_=kind) for cell, kind in zip(row, kinds, strict=True)
        ]
        rows.append(element("tr", *cells, class_="chosen" if at == of.chosen else None))
    inner = [element("thead", element("tr", *head)), element("tbody", *rows)]
    return element(
        "div",
        element("table", *inner),
        class_="table",
        role="region",
        tabindex="0",
        aria_label=", ".join(of.head),
    )


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    return number(cell) if isinstance(cell, Estimate) else cell


def figure(chart: Chart) -> Html:
    """A chart with its title, its caption and, where it is long, its table folded below."""
    below = folded("The numbers", table(chart.table)) if chart.folded else None
    return element(
        "figure",
        element("h3", chart.title),
        chart.plot.svg(f"{chart.title}. {chart.caption}"),
        element("figcaption", chart.caption),
        below,
    )


def coded(text: str) -> Html:
    """A sentence with what stands in backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return together([text])
    return together(element("code", part) if at % 2 else part for at, part in enumerate(parts))


def folded(title: str, *parts: Html) -> Html:
    """What is read when it is asked for."""
    return element("details", element("summary", title), *parts)
