"""`draftbench import`: what other tools recorded of a speculating server, by our definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.output import TextOutput, width

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE…", help="A record, or /metrics before and after.")
]


def import_(*, files: Files, output: TextOutput) -> int:
    """Say what another tool's record of a speculating server means: each figure by its definition,
    with an interval where there are requests, and what such a record cannot know.

    draftbench import bench.json
    draftbench import before.txt after.txt
    draftbench import profile_export.jsonl --format json
    """
    from draftbench.engines.imported import read_figures
    from draftbench.report.terminal.imported import render

    output.write(render(read_figures(files), output.style, width()))
    return 0
