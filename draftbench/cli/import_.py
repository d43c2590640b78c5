"""`draftbench import`: acceptance figures that other tools recorded → each with its definition."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.output import TextOutput, width

Files = Annotated[
    list[Path],
    typer.Argument(metavar="FILE…", help="A result file, or two scrapes of /metrics."),
]


def import_(*, files: Files, output: TextOutput) -> int:
    """Explain the acceptance figures that another tool recorded: each with its definition, with an
    interval where the file has single requests, and with what the file cannot tell.

    draftbench import bench.json
    draftbench import before.txt after.txt
    draftbench import profile_export.jsonl --format json
    """
    from draftbench.engines.imported import read_figures
    from draftbench.report.terminal.imported import render

    output.write(render(read_figures(files), output.style, width()))
    return 0
