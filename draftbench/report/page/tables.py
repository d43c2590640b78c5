"""Figures → HTML tables. Every number carries its full value and interval in attributes, rounded
only for the eye.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from draftbench.acceptance.intervals import Estimate
from draftbench.memory import format_size
from draftbench.planner.recommendation import Configuration, Evaluation, Recommendation
from draftbench.report.markup import Html, element, together
from draftbench.report.terminal.recommendation import FIGURES

UNKNOWN = "–"


def number(estimate: Estimate | None, unit: str = "") -> Html:
    """A figure with the ends of its interval behind it; a dash for unknown."""
    if estimate is None:
        return Html(UNKNOWN)
    exact = {"data_low": repr(estimate.low), "data_high": repr(estimate.high)}
    short = "<0.01" if 0 < estimate.value < 0.005 else f"{estimate.value:.2f}"
    value = element("data", short + unit, value=repr(estimate.value), **exact)
    return together([value, " ", element("small", f"{estimate.low:.2f}–{estimate.high:.2f}")])


def size(size_in_bytes: int | None) -> Html:
    """Bytes in the unit that fits."""
    if size_in_bytes is None:
        return Html(UNKNOWN)
    return element("data", format_size(size_in_bytes), value=str(size_in_bytes))


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1, *, cards: bool = False
) -> Html:
    """A plain table; the first `words` columns are text, the others numbers. On a phone its rows
    may stand as `cards`.
    """

    def cells(tag: str, row: Sequence[str], labels: Sequence[str | None]) -> Html:
        return together(
            element(tag, cell, class_="word" if at < words else None, data_label=label)
            for at, (cell, label) in enumerate(zip(row, labels, strict=True))
        )

    bare = [None] * len(head)
    labels = head if cards else bare
    body = element("tbody", *(element("tr", cells("td", row, labels)) for row in rows))
    top = element("thead", element("tr", cells("th", head, bare)))
    whole = element("table", top, body, class_="cards" if cards else None)
    return element("div", whole, class_="table")


def candidates(answer: Recommendation) -> Html:
    """One row per candidate at its best k, the choice first and marked; cards on a phone."""
    columns = _columns()
    head = together(element("th", name, class_=kind) for name, kind, _ in columns)
    rows = []
    for cell in answer.by_candidate:
        body = together(
            element("td", show(cell), data_label=name, class_=kind) for name, kind, show in columns
        )
        rows.append(element("tr", body, class_="chosen" if _is(answer.choice, cell) else None))
    inner = [element("thead", element("tr", head)), element("tbody", *rows)]
    return element("div", element("table", *inner, class_="cards"), class_="table")


def every_cell(answer: Recommendation) -> Html:
    """All figures of all candidates at all k, as `recommend --format json` has them."""
    head = ["draft", "quantization", "k", *(_words(name) for name in FIGURES)]
    rows = []
    for cell in answer.evaluations:
        own = {"data_draft": cell.draft, "data_quant": cell.quant, "data_k": str(cell.k)}
        words = [element("td", text, class_="word") for text in (cell.draft, cell.quant)]
        figures = [element("td", number(getattr(cell, name)), data_figure=name) for name in FIGURES]
        rows.append(element("tr", *words, element("td", str(cell.k)), *figures, **own))
    top = element("tr", *(element("th", name) for name in head))
    inner = [element("thead", top), element("tbody", *rows)]
    return element("div", element("table", *inner, class_="every"), class_="table")


def _columns() -> list[tuple[str, str | None, Callable[[Evaluation], str]]]:
    """Heading, class and content of each column."""
    return [
        ("draft", "word", lambda c: str(c.candidate)),
        ("k", None, lambda c: str(c.k)),
        ("acceptance rate α", None, lambda c: number(c.alpha)),
        ("accepted length τ", None, lambda c: number(c.mean_accepted_length)),
        ("cost ratio c", None, lambda c: number(c.draft_cost_ratio)),
        ("predicted speed-up", None, lambda c: number(c.speedup_predicted, "×")),
        ("measured speed-up", None, lambda c: number(c.speedup_measured, "×")),
        ("expected speed-up", None, lambda c: number(c.speedup_expected, "×")),
        ("memory", None, lambda c: size(c.memory_bytes)),
        ("why not", "word why", lambda c: c.reason or element("b", "the choice", class_="mark")),
    ]


def _is(pick: Configuration | None, cell: Evaluation) -> bool:
    return pick == cell.configuration


def _words(name: str) -> str:
    return name.replace("_", " ").replace("speedup", "speed-up")
