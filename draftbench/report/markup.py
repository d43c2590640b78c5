"""Text, figures and tables → HTML and SVG in which everything that is not `Html` already is
escaped.

Every figure has its full value and interval in attributes; only what is shown is rounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from draftbench.acceptance.intervals import Estimate
from draftbench.report.terminal.text import Cell, Section, numeric, printable, shown

_VOID = ("meta", "br", "wbr")
# Longest piece of code that fits on a line of a phone.
_UNBROKEN = 30
_BREAKS = re.compile(r"(?<=[:/])(?=\w)")
_INTERVAL = re.compile(r"(\([\d.]+–[\d.]+\))")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def element(name: str, /, *children: str | None, **attributes: str | None) -> Html:
    """`<name attributes>children</name>`; text is escaped, `Html` kept, None left out.

    Attribute names are written `class_` and `data_k`; an attribute of None is left out.
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{words}>")
    return Html(f"<{name}{words}>{together(children)}</{name}>")


def together(children: Iterable[str | None]) -> Html:
    parts = (c if isinstance(c, Html) else escape(printable(c)) for c in children if c is not None)
    return Html("".join(parts))


def coded(text: str) -> Html:
    """A sentence with everything in backticks, and every flag, as code; flags are not broken at
    their hyphens.
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _flags_coded(text)
    kinds = ["flag" if _FLAG.match(part) and len(part) <= _UNBROKEN else None for part in parts]
    return together(
        element("code", part, class_=kind) if at % 2 else _flags_coded(part)
        for at, (part, kind) in enumerate(zip(parts, kinds, strict=True))
    )


def _flags_coded(text: str) -> Html:
    parts = _FLAG.split(text)
    return together(
        element("code", part, class_="flag") if at % 2 else part for at, part in enumerate(parts)
    )


def items(lines: Iterable[str]) -> Html:
    return element("ul", *(element("li", coded(line)) for line in lines))


def folded(title: str, *parts: str | None) -> Html:
    """Parts that are shown after a click on the title."""
    return element("details", element("summary", title), *parts)


def table(of: Section) -> Html:
    """A table that scrolls sideways if it is wider than the page. Words are aligned left and may
    break after `:` and `/`, numbers are aligned right; the row with an arrow is highlighted
    instead.
    """
    arrows = all(row[0] in ("→", "") for row in of.rows)
    head = of.head[1:] if arrows else of.head
    rows = [row[1:] if arrows else row for row in of.rows]
    columns = zip(*rows, strict=True)
    kinds = [None if numeric(map(shown, column)) else "word" for column in columns]
    top = [
        element("th", name, scope="col", class_=kind)
        for name, kind in zip(head, kinds, strict=True)
    ]
    body = []
    for row, whole in zip(rows, of.rows, strict=True):
        cells = [
            element("td", _breaking(_cell(cell)) if kind else _cell(cell), class_=kind)
            for cell, kind in zip(row, kinds, strict=True)
        ]
        body.append(element("tr", *cells, class_="chosen" if whole[0] == "→" else None))
    inner = [element("thead", element("tr", *top)), element("tbody", *body)]
    region = {"class_": "table", "role": "region", "tabindex": "0", "aria_label": ", ".join(head)}
    return element("div", element("table", *inner), **region)


def _breaking(words: str) -> Html:
    if isinstance(words, Html):
        return words
    first, *rest = _BREAKS.split(words)
    return together([first, *(part for each in rest for part in (element("wbr"), each))])


def _cell(cell: Cell) -> str:
    figure, mark = cell if isinstance(cell, tuple) else (cell, "")
    if not isinstance(figure, Estimate):
        parts = _INTERVAL.split(shown(figure))  # every second part is an interval
        small = [element("small", part) if at % 2 else part for at, part in enumerate(parts)]
        return together(small) if len(parts) > 1 else parts[0]
    rounded = "<0.01" if 0 < figure.value < 0.005 else f"{figure.value:.2f}"
    interval = element("small", f"{figure.low:.2f}–{figure.high:.2f}")
    return together([data(figure, f"{rounded}{mark.strip()}"), " ", interval])


def data(estimate: Estimate, words: str) -> Html:
    """A figure as text, with all its digits and its interval."""
    exact = {"data_low": repr(estimate.low), "data_high": repr(estimate.high)}
    return element("data", words, value=repr(estimate.value), **exact)
