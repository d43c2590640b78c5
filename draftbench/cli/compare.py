"""`draftbench compare`: two run folders → what changed. No model runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import read
from draftbench.cli.output import TextOutput, width


def compare(
    run_a: Annotated[Path, typer.Argument(help="The earlier run folder.", metavar="RUN_A")],
    run_b: Annotated[
        Path, typer.Argument(help="The run folder to compare with it.", metavar="RUN_B")
    ],
    output: TextOutput,
) -> int:
    """Show what differs between two runs: acceptance, costs and speed-up, paired by request, and
    every setting.

    draftbench compare results/runs/A results/runs/B
    draftbench compare results/runs/A results/runs/B --format json
    """
    from draftbench.gate.compare import compare_runs
    from draftbench.report.terminal.compare import render

    found = compare_runs((str(run_a), str(run_b)), read(run_a), read(run_b))
    output.write(render(found, output.style, width()))
    return 0
