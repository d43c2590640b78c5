"""`draftbench compare`: two run folders → what changed. No model runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import OutputOption, check_output, one_of, width, write_result


def compare(
    run_a: Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN_A")],
    run_b: Annotated[Path, typer.Argument(help="The one to compare it with.", metavar="RUN_B")],
    output_format: Annotated[
        str, typer.Option("--format", help="table, json or markdown.")
    ] = "table",
    output: OutputOption = "-",
) -> int:
    """Say how two runs differ: acceptance, costs and speed-up paired by request, and all settings.

    draftbench compare results/runs/A results/runs/B
    draftbench compare results/runs/A results/runs/B --format json
    """
    from draftbench.gate.compare import compare_runs
    from draftbench.report.terminal.compare import render
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    one_of("--format", output_format, ["table", "json", "markdown"])
    check_output(output)
    a, b = (read_run(RunFolder(run)) for run in (run_a, run_b))
    found = compare_runs((str(run_a), str(run_b)), a, b)
    write_result(render(found, output_format, width()), output)
    return 0
