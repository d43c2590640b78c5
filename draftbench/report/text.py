"""Sections (a title, a table, sentences) as text for a terminal and as Markdown, and how figures,
names and commands are written in both.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from draftbench.acceptance.intervals import Estimate
from draftbench.safe_files import markdown_escaped, without_controls

SCREEN_LINES, SCREEN_COLUMNS = 25, 88
# Lines of sentences stay readable, however wide the terminal is.
_NARROWEST, _WIDEST = 40, 100
# A text cell is not wrapped to less than this.
_NARROWEST_CELL = 24

# A dash alone is an unknown figure; a flag begins with a dash and is a word.
_NUMBER = re.compile(r"[+−-]?\d|–")
SHELL_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")

# A text; a figure; a figure to be shown with both ends of its interval and a mark; None: unknown.
TableCell = str | Estimate | tuple[Estimate, str] | None


@dataclass(frozen=True)
class Section:
    """A title, a table (none if `rows` is empty), sentences below it, and lines of code, which are
    not wrapped. The first `names` columns say what a row is; `folded` is its table in Markdown.
    """

    title: str
    head: Sequence[str] = ()
    rows: Sequence[Sequence[TableCell]] = ()
    notes: Sequence[str] = ()
    code: Sequence[str] = ()
    names: int = 1
    folded: bool = False

    def text(self, width: int) -> str:
        """At most `width` columns, as far as words allow: sentences wrapped, tables split."""
        tables = self._tables(width) if self.rows else ()
        notes = [paragraph(note, width, "  ") for note in self.notes]
        return "\n".join([printable(self.title), *tables, *notes, *self._code_block()])

    def _tables(self, width: int) -> Iterator[str]:
        """The table; if it is too wide, with its widest text wrapped, or else as several tables
        that begin with the names of the rows.
        """
        too_wide = _width(text := columns(self.head, self.rows)) - width
        if too_wide <= 0:
            yield text
            return
        every = list(zip(self.head, *self.rows, strict=True))
        texts = [[] if numeric(map(shown, cells[1:])) else map(shown, cells) for cells in every]
        widths = [max((len(text) for text in cells if " " in text), default=0) for cells in texts]
        widest = widths.index(max(widths))
        room = widths[widest] - too_wide
        if room >= _NARROWEST_CELL:
            wrapped: list[Sequence[TableCell]] = []
            for row in self.rows:
                before, after = row[:widest], row[widest + 1 :]
                lines = textwrap.wrap(shown(row[widest]), room, break_long_words=False) or [""]
                wrapped.append([*before, lines[0], *after])
                wrapped += [[*[""] * len(before), line, *[""] * len(after)] for line in lines[1:]]
            text = columns(self.head, wrapped)
            if _width(text) <= width:
                yield text
                return
        names, part = every[: self.names], list[Sequence[TableCell]]()
        for cells in every[self.names :]:
            if part and _width(_by_column([*names, *part, cells])) > width:
                yield _by_column([*names, *part])
                part = []
            part.append(cells)
        yield _by_column([*names, *part])

    def markdown(self) -> str:
        """A heading, a table, a list and a block of code."""
        lines = [f"### {markdown_escaped(self.title)}"]
        if self.rows:
            table = markdown_table(self.head, self.rows)
            if self.folded:
                table = (
                    f"<details><summary>{len(self.rows)} rows</summary>\n\n{table}\n\n</details>"
                )
            lines += ["", table]
        if self.notes:
            lines += ["", *(f"- {markdown_escaped(note)}" for note in self.notes)]
        if self.code:
            lines += ["", "```text", *self._code_block(), "```"]
        return "\n".join(lines)

    def _code_block(self) -> list[str]:
        # Indented, since a line of a chat template must not end a block of Markdown.
        return [printable(f"    {line}") for line in self.code]


def render_sections(sections: Iterable[Section], style: str, width: int, rest: str = "") -> str:
    """Sections as markdown or as a table; with `rest`, the flag that shows everything, the table is
    cut to one screen.
    """
    if style == "markdown":
        return "\n\n".join(section.markdown() for section in sections)
    if not rest:
        return "\n\n".join(section.text(width) for section in sections)
    lines = render_sections(sections, style, min(width, SCREEN_COLUMNS)).split("\n")
    if len(lines) > SCREEN_LINES:
        last = SCREEN_LINES - 1
        begun = last
        while lines[begun].startswith("    "):
            begun -= 1
        if lines[begun].startswith("  "):  # a sentence stands whole or not at all
            last = begun
        lines = [*lines[:last], f"… {len(lines) - last} more lines: {rest}"]
    return "\n".join(lines)


def filled(sections: Iterable[Section]) -> list[Section]:
    """The sections that have more than a title."""
    return [section for section in sections if section.rows or section.notes]


def known_columns(
    head: Sequence[str], rows: Sequence[Sequence[TableCell]]
) -> tuple[list[str], list[list[TableCell]]]:
    """Head and rows without the columns in which nothing is known."""
    known = [at for at, _ in enumerate(head) if any(row[at] is not None for row in rows)]
    return [head[at] for at in known], [[row[at] for at in known] for row in rows]


def command_lines(commands: Iterable[str], width: int = SCREEN_COLUMNS) -> list[str]:
    """Commands below `next:`, each on lines that can be pasted."""
    lines: list[str] = []
    for command in commands:
        lines += continued(command, "     " if lines else "next:", width, "       ")
    return lines


def continued(command: str, label: str, width: int, indent: str = "   ") -> list[str]:
    """A command after its label, broken between words, but not in quotes; each line but the last
    ends in a backslash, so that it can be pasted.
    """
    lines, line = [], label
    for word in SHELL_WORD.findall(command):
        if len(f"{line} {word} \\") > width and line not in (label, indent):
            lines.append(f"{line} \\")
            line = indent
        line += f" {word}"
    return [*lines, line]


def printable(text: str) -> str:
    """Text without control characters: a file's text must not move the cursor or set colours."""
    return without_controls(text, lines=True)


def columns(head: Sequence[str], rows: Sequence[Sequence[TableCell]]) -> str:
    """Columns two spaces apart, numbers aligned right, all else left; no line for an empty head."""
    table = [[printable(shown(cell)).replace("\n", " ") for cell in row] for row in (head, *rows)]
    aligned = []
    for cells in zip(*table, strict=True):
        width = max(map(len, cells))
        align = str.rjust if numeric(cells[1:]) else str.ljust
        aligned.append([align(cell, width) for cell in cells])
    lines = ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]
    return "\n".join(lines if any(head) else lines[1:])


def _by_column(cells: Iterable[Sequence[TableCell]]) -> str:
    """A table of columns, each with its head first."""
    head, *rows = zip(*cells, strict=True)
    return columns(list(map(shown, head)), rows)


def _width(text: str) -> int:
    return max(map(len, text.split("\n")))


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[TableCell]]) -> str:
    table = [head, ["---"] * len(head), *rows]
    return "\n".join(
        f"| {' | '.join(markdown_escaped(shown(cell)) for cell in row)} |" for row in table
    )


def numeric(cells: Iterable[str]) -> bool:
    """Whether a column has only numbers, so that it is aligned right."""
    return all(_NUMBER.match(cell) for cell in cells if cell)


def paragraph(text: str, width: int, indent: str = "") -> str:
    """Text wrapped to the terminal; all lines but the first are indented by two more."""
    return textwrap.fill(
        printable(text),
        max(_NARROWEST, min(width, _WIDEST)),
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )


def sentence(text: str) -> str:
    """A text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def shortened(text: str, width: int) -> str:
    """At most `width` characters: a longer text loses its middle, the least telling part of a
    model's name.
    """
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def counted(count: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def parameters(count: int) -> str:
    """`494 M`, `7.62 B`, `1.03 T`: in the largest unit of which three digits show one or more."""
    units = (("T", 1e12), ("B", 1e9), ("M", 1e6))
    name, unit = next((each for each in units if count >= 0.9995 * each[1]), units[-1])
    return f"{count / unit:.3g} {name}"


def shown(cell: TableCell) -> str:
    """A cell as text: a figure ± half of its interval, in tenths if that is 1 or more, else in
    hundredths; with both ends where `±` would visibly misrepresent the interval.
    """
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, tuple):
        return f"{with_ends(cell[0])} {cell[1]}" if cell[1] else with_ends(cell[0])
    half = (cell.high - cell.low) / 2
    # One side is three times as long as the other, or `±` would reach below 0 or over 1.
    off = abs(cell.value + half - cell.high)
    crosses = cell.value - half < 0 <= cell.low or cell.high <= 1 < cell.value + half
    if (off > half / 2 and off > 0.02) or (crosses and off > 0.005):
        return with_ends(cell)
    digits = 1 if half >= 1 else 2
    return f"{cell.value:.{digits}f} ±{half:.{digits}f}"


def with_ends(figure: Estimate, sign: str = "") -> str:
    """A figure with both ends of its interval."""
    return f"{figure.value:.2f}{sign} ({figure.low:.2f}–{figure.high:.2f})"


def signed(change: Estimate | None) -> str:
    """A difference with both ends of its interval."""
    if change is None:
        return "–"
    return f"{change.value:+.3f} ({change.low:+.3f} to {change.high:+.3f})"


def rounded(value: float | None) -> str:
    """Three digits, or all that are before the point."""
    if value is None:
        return "–"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def milliseconds(seconds: float | None) -> str:
    """Three digits of milliseconds."""
    return rounded(None if seconds is None else 1000 * seconds)


def duration(seconds: float | None) -> str:
    """Seconds in two digits and the largest unit: no estimate is finer."""
    if seconds is None:
        return "–"
    for unit, scale in (("h", 3600), ("min", 60)):
        if seconds >= scale:
            return f"{seconds / scale:.2g} {unit}"
    return f"{seconds:.0f} s"


# What a spreadsheet would take for a formula (OWASP, CSV injection).
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_text(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """CSV with empty cells for what is unknown; texts that a spreadsheet would take for a formula
    begin with an apostrophe.
    """

    def cell(value: Any) -> Any:
        # Some programs read over blanks, and wide forms of a sign as the sign.
        told = unicodedata.normalize("NFKC", value) if isinstance(value, str) else ""
        return f"'{value}" if told.lstrip(" ").startswith(_FORMULA) else value

    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([map(cell, row) for row in (head, *rows)])
    return stream.getvalue().rstrip("\n")


def ends(estimate: Estimate | None) -> list[float | None]:
    """A figure as three cells of CSV: its value and the ends of its interval."""
    return [None] * 3 if estimate is None else [estimate.value, estimate.low, estimate.high]
