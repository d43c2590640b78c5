"""Titles, tables and sentences → text for a terminal or Markdown for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.report.text import columns, escaped, paragraph, plain


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
        lines = [f"### {escaped(self.title)}"]
        if self.rows:
            table = [self.head, ["---"] * len(self.head), *self.rows]
            lines += ["", *("| " + " | ".join(map(escaped, row)) + " |" for row in table)]
        if self.notes:
            lines += ["", *(f"- {escaped(note)}" for note in self.notes)]
        return "\n".join(lines)
