"""Figures, tables and sentences as text for a terminal, Markdown, JSON or CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from draftbench.acceptance.intervals import Estimate
from draftbench.safe_files import markdown_escaped, without_controls

SCREEN_LINES, SCREEN_COLUMNS = 25, 88

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def plain(text: str) -> str:
    """Without control characters: what came from a file must not move the cursor or set colours."""
    return without_controls(text, lines=True)


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns two spaces apart, aligned left, those of numbers right; no line for an empty head."""
    table = [[plain(cell).replace("\n", " ") for cell in row] for row in (head, *rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    numeric = [all(_is_number(row[i]) for row in table[1:]) for i in range(len(head))]
    lines = []
    for row in table if any(head) else table[1:]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return bool(cell) and (cell[0].isdigit() or cell[0] in "+-−–") and cell != "-"


def paragraph(text: str, width: int, indent: str = "") -> str:
    """Wrapped to the terminal; continued lines are indented further."""
    return textwrap.fill(
        plain(text), max(width, 40), initial_indent=indent, subsequent_indent=indent + "  "
    )


def shortened(text: str, width: int) -> str:
    """At most `width` characters; the middle of a longer text becomes `…`, for the ends of a
    model's name tell more.
    """
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def clipped(text: str, more: str) -> str:
    """At most one screen of lines; the last one says how many are left out and where they are."""
    lines = text.split("\n")
    if len(lines) <= SCREEN_LINES:
        return text
    left_out = len(lines) - SCREEN_LINES + 1
    return "\n".join([*lines[: SCREEN_LINES - 1], f"… {left_out} more lines: {more}"])


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a, b and c`."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def counted(count: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def ranges(numbers: Iterable[int]) -> str:
    """Rising numbers with runs of three or more drawn together: `1–4, 8`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(words)


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


def duration(seconds: float) -> str:
    """Seconds as 12 s, 3:05 min or 1:02 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with empty cells for what is unknown."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([head, *rows])
    return stream.getvalue().rstrip("\n")


@dataclass(frozen=True)
class Section:
    """A title, a table (none where `rows` is empty), sentences below it, and lines of code that are
    neither wrapped nor read as Markdown.
    """

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    code: Sequence[str] = ()

    def text(self, width: int) -> str:
        """Aligned columns; sentences are wrapped at `width` columns."""
        table = [columns(self.head, self.rows)] if self.rows else []
        notes = [paragraph(note, width, "  ") for note in self.notes]
        return "\n".join([plain(self.title), *table, *notes, *self._code_block()])

    def markdown(self) -> str:
        """A heading, a table, a list and a block of code."""
        lines = [f"### {markdown_escaped(self.title)}"]
        if self.rows:
            lines += ["", markdown_table(self.head, self.rows)]
        if self.notes:
            lines += ["", *(f"- {markdown_escaped(note)}" for note in self.notes)]
        if self.code:
            lines += ["", "```text", *self._code_block(), "```"]
        return "\n".join(lines)

    def _code_block(self) -> list[str]:
        # Indented so far no line of a chat template can end the block.
        return [plain(f"    {line}") for line in self.code]


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of escaped cells."""
    table = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(markdown_escaped, row)) + " |" for row in table)
