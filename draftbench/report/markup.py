"""Text → HTML and SVG that is safe by construction: whatever is not markup already is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from draftbench.report.terminal.text import plain

_VOID = ("meta", "br")


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
    """Children side by side."""
    parts = (c if isinstance(c, Html) else escape(plain(c)) for c in children if c is not None)
    return Html("".join(parts))
