"""Strings for a terminal: control characters out, columns aligned, figures with the digits they
deserve.
"""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.acceptance.intervals import Estimate
from draftbench.safe_files import markdown_escaped


def plain(text: str) -> str:
    """Without control characters: what came from a file must not move the cursor or set colours."""
    return "".join(c if c == "\n" or unicodedata.category(c)[0] != "C" else "�" for c in text)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns two spaces apart; numbers align right."""
    table = [list(map(plain, head)), *[list(map(plain, row)) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    numeric = [all(_is_number(row[i]) for row in table[1:]) for i in range(len(head))]
    lines = []
    for row in table:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return bool(cell) and (cell[0].isdigit() or cell[0] in "+-−–") and cell != "-"


def figure(estimate: Estimate | None) -> str:
    """A figure with half of its interval, in hundredths, or tenths where that is too fine."""
    if estimate is None:
        return "–"
    half = (estimate.high - estimate.low) / 2
    digits = 1 if half >= 1 else 2
    return f"{estimate.value:.{digits}f} ±{half:.{digits}f}"


def times(estimate: Estimate) -> str:
    """A speed-up with its interval's two ends."""
    return f"{estimate.value:.2f}× ({estimate.low:.2f}–{estimate.high:.2f})"


def paragraph(text: str, width: int, indent: str) -> str:
    """Wrapped to the terminal; continued lines are indented further."""
    return textwrap.fill(
        plain(text), max(width, 40), initial_indent=indent, subsequent_indent=indent + "  "
    )


def duration(seconds: float) -> str:
    """Seconds as 12 s, 3:05 min or 1:02 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


@dataclass(frozen=True)
class Section:
    """A title, a table (none where `rows` is empty) and sentences below it."""

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()

    def text(self, width: int) -> str:
        """Aligned columns; sentences are wrapped at `width` columns."""
        table = [columns(self.head, self.rows).lstrip("\n")] if self.rows else []
        notes = [paragraph(note, width, "  ") for note in self.notes]
        return "\n".join([plain(self.title), *table, *notes])

    def markdown(self) -> str:
        """A heading, a table and a list."""
        lines = [f"### {markdown_escaped(self.title)}"]
        if self.rows:
            table = [self.head, ["---"] * len(self.head), *self.rows]
            lines += ["", *("| " + " | ".join(map(markdown_escaped, row)) + " |" for row in table)]
        if self.notes:
            lines += ["", *(f"- {markdown_escaped(note)}" for note in self.notes)]
        return "\n".join(lines)
