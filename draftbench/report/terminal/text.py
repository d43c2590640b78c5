"""A section (a title, a table, sentences) as text for a terminal and as Markdown; figures and words
as both write them.
"""

from __future__ import annotations

import csv
import io
import re
import shlex
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from draftbench.acceptance.intervals import Estimate
from draftbench.safe_files import markdown_escaped, without_controls

SCREEN_LINES, SCREEN_COLUMNS = 25, 88
# Sentences are no longer than can be read, however wide the terminal is.
_NARROWEST, _WIDEST = 40, 100

# A dash alone is an unknown figure; a flag begins with a dash and is a word.
_NUMBER = re.compile(r"[+−-]?\d|–")
_SHELL_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")

# Text; a figure; one with the ends of its interval and a mark, which may be empty; None is unknown.
Cell = str | Estimate | tuple[Estimate, str] | None


@dataclass(frozen=True)
class Section:
    """A title, a table (none where `rows` is empty), sentences below it, and lines of code that are
    neither wrapped nor read as Markdown.
    """

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[Cell]] = ()
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


def render_sections(sections: Iterable[Section], style: str, width: int, rest: str = "") -> str:
    """Sections as markdown or as a table: of one screen where `rest` names the flag for more."""
    if style == "markdown":
        return "\n\n".join(section.markdown() for section in sections)
    if not rest:
        return "\n\n".join(section.text(width) for section in sections)
    lines = render_sections(sections, style, min(width, SCREEN_COLUMNS)).split("\n")
    if len(lines) > SCREEN_LINES:
        left_out = len(lines) - SCREEN_LINES + 1
        lines = [*lines[: SCREEN_LINES - 1], f"… {left_out} more lines: {rest}"]
    return "\n".join(lines)


def command_lines(commands: Iterable[str], width: int = SCREEN_COLUMNS) -> list[str]:
    """A command a line, so that each can be pasted; a long one is continued behind a backslash."""
    lines: list[str] = []
    for command in commands:
        lines += continued(
            shlex.join(shlex.split(command)), "     " if lines else "next:", width, "       "
        )
    return lines


def continued(command: str, label: str, width: int, indent: str = "   ") -> list[str]:
    """A command behind its label, broken between its words, each line but the last ending in a
    backslash, so that it can be pasted; what stands in quotes is one word.
    """
    lines, line = [], label
    for word in _SHELL_WORD.findall(command):
        if len(f"{line} {word} \\") > width and line not in (label, indent):
            lines.append(f"{line} \\")
            line = indent
        line += f" {word}"
    return [*lines, line]


def plain(text: str) -> str:
    """Without control characters: what came from a file must not move the cursor or set colours."""
    return without_controls(text, lines=True)


def columns(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns two spaces apart, aligned left, those of numbers right; no line for an empty head."""
    table = [[plain(shown(cell)).replace("\n", " ") for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    right = [numeric(column[1:]) for column in zip(*table, strict=True)]
    lines = []
    for row in table if any(head) else table[1:]:
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    table = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(markdown_escaped(shown(cell)) for cell in row)} |" for row in table
    )


def numeric(cells: Iterable[str]) -> bool:
    """Whether a column holds numbers, so that it is aligned right."""
    return all(_NUMBER.match(cell) for cell in cells)


def paragraph(text: str, width: int, indent: str = "") -> str:
    """Wrapped to the terminal; continued lines are indented further."""
    return textwrap.fill(
        plain(text),
        max(_NARROWEST, min(width, _WIDEST)),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def shortened(text: str, width: int) -> str:
    """At most `width` characters; the middle of a longer text becomes `…`, for the ends of a
    model's name tell more.
    """
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def counted(count: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def parameters(count: int) -> str:
    """`494 M`, `7.62 B`."""
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def shown(cell: Cell) -> str:
    """A figure ± half of its interval, in hundredths (tenths where the interval is wide), or with
    both ends of a lopsided one.
    """
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, tuple):
        return f"{with_ends(cell[0])} {cell[1]}" if cell[1] else with_ends(cell[0])
    half = (cell.high - cell.low) / 2
    if _lopsided(cell, half):
        return with_ends(cell)
    digits = 1 if half >= 1 else 2
    return f"{cell.value:.{digits}f} ±{half:.{digits}f}"


def with_ends(figure: Estimate, sign: str = "") -> str:
    """A figure with both ends of its interval."""
    return f"{figure.value:.2f}{sign} ({figure.low:.2f}–{figure.high:.2f})"


def _lopsided(figure: Estimate, half: float) -> bool:
    """Whether one side of the interval is three times as long as the other, or ± half of it would
    reach below 0 or over 1 and the interval does not; not where the difference is hardly seen.
    """
    off = abs(figure.value + half - figure.high)
    crosses = figure.value - half < 0 <= figure.low or figure.high <= 1 < figure.value + half
    return (off > half / 2 and off > 0.02) or (crosses and off > 0.005)


def rounded(value: float | None) -> str:
    """Three digits, more where they stand before the point."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def milliseconds(seconds: float | None) -> str:
    """Three digits of milliseconds."""
    return rounded(None if seconds is None else 1000 * seconds)


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with empty cells for what is unknown."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([head, *rows])
    return stream.getvalue().rstrip("\n")


def ends(estimate: Estimate | None) -> list[float | None]:
    """A figure as three cells of CSV: its value and the ends of its interval."""
    return [None] * 3 if estimate is None else [estimate.value, estimate.low, estimate.high]
