"""Several answers → text: what `recommend` prints of each, in one table, list or document."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

import msgspec

from draftbench.report.page.sections import Run
from draftbench.report.terminal.recommendation import render
from draftbench.report.terminal.text import plain


def render_runs(runs: Sequence[Run], style: str, width: int) -> str:
    """One run as `recommend` renders it. Several: JSON as a list and CSV as one table, both with a
    `run` in front; text and Markdown under headings.
    """
    texts = [render(run.answer, run.observed, style, width) for run in runs]
    if len(runs) == 1:
        return texts[0]
    if style == "json":
        answers = [
            {"run": run.name, **msgspec.json.decode(text)}
            for run, text in zip(runs, texts, strict=True)
        ]
        return msgspec.json.format(msgspec.json.encode(answers), indent=2).decode()
    if style == "csv":
        return _one_table([run.name for run in runs], texts)
    heading = "# {}\n\n{}" if style == "markdown" else "{}\n\n{}"
    named = zip(runs, texts, strict=True)
    return "\n\n\n".join(heading.format(plain(run.name), text) for run, text in named)


def _one_table(names: Sequence[str], texts: Sequence[str]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    for at, (name, text) in enumerate(zip(names, texts, strict=True)):
        head, *rows = csv.reader(io.StringIO(text))
        if at == 0:
            writer.writerow(["run", *head])
        writer.writerows([name, *row] for row in rows)
    return stream.getvalue().rstrip("\n")
