"""Text, figures and tables → HTML and SVG that are safe by construction: whatever is not markup
already is escaped.

Every figure carries its full value and interval in attributes, rounded only for the eye.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

from draftbench.acceptance.intervals import Estimate
from draftbench.report.terminal.text import Cell, Section, numeric, plain, shown

_VOID = ("meta", "br", "wbr")
# So long a piece of code fits on a line of a phone.
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
        f' {key.rstrip("_").replace("_", "-")}="{escape(plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Html(f"<{name}{words}>")
    return Html(f"<{name}{words}>{together(children)}</{name}>")


def together(children: Iterable[str | None]) -> Html:
    parts = (c if isinstance(c, Html) else escape(plain(c)) for c in children if c is not None)
    return Html("".join(parts))


def coded(text: str) -> Html:
    """A sentence with what stands in backticks and every flag as code; a flag, with its value where
    it has one, is not broken at its hyphens.
    """
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _flags_coded(text)
    return together(
        element("code", part, class_=_flag(part)) if at % 2 else _flags_coded(part)
        for at, part in enumerate(parts)
    )


def _flag(code: str) -> str | None:
    return "flag" if _FLAG.match(code) and len(code) <= _UNBROKEN else None


def _flags_coded(text: str) -> Html:
    parts = _FLAG.split(text)
    return together(
        element("code", part, class_="flag") if at % 2 else part for at, part in enumerate(parts)
    )


def items(lines: Iterable[str]) -> Html:
    return element("ul", *(element("li", coded(line)) for line in lines))


def folded(title: str, *parts: str | None) -> Html:
    """Parts that a click on the title unfolds."""
    return element("details", element("summary", title), *parts)


def table(of: Section) -> Html:
    """A table that scrolls sideways by itself where it is wider than the page; words stand left,
    numbers right, and names may break behind `:` and `/`. A column of arrows becomes a mark of its
    rows.
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
        parts = _INTERVAL.split(shown(figure))
        return together(map(_small, parts)) if len(parts) > 1 else parts[0]
    rounded = "<0.01" if 0 < figure.value < 0.005 else f"{figure.value:.2f}"
    interval = element("small", f"{figure.low:.2f}–{figure.high:.2f}")
    return together([data(figure, f"{rounded}{mark.strip()}"), " ", interval])


def _small(part: str) -> str:
    return element("small", part) if _INTERVAL.fullmatch(part) else part


def data(estimate: Estimate, words: str) -> Html:
    """A figure as text, with all its digits and its interval."""
    exact = {"data_low": repr(estimate.low), "data_high": repr(estimate.high)}
    return element("data", words, value=repr(estimate.value), **exact)
