"""`draftbench compare`: two run folders → what changed. No model runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import TEXT_FORMATS, OutputOption, TextFormatOption, one_of
from draftbench.cli.output import check_output, width, write_result


def compare(
    run_a: Annotated[Path, typer.Argument(help="The earlier run folder.", metavar="RUN_A")],
    run_b: Annotated[
        Path, typer.Argument(help="The run folder to compare with it.", metavar="RUN_B")
    ],
    output_format: TextFormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Show what changed between two runs: acceptance, costs and speed-up paired by request, and all
    settings.

    draftbench compare results/runs/A results/runs/B
    draftbench compare results/runs/A results/runs/B --format json
    """
    from draftbench.gate.compare import compare_runs
    from draftbench.report.terminal.compare import render
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    one_of("--format", output_format, TEXT_FORMATS)
    check_output(output)
    a, b = (read_run(RunFolder(run)) for run in (run_a, run_b))
    found = compare_runs((str(run_a), str(run_b)), a, b)
    write_result(render(found, output_format, width()), output)
    return 0
