"""`draftbench report`: a run folder → a page, charts, or text. No model runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.completing import among
from draftbench.cli.flags import FORMATS, OutputOption, check_output, one_of, width, write_result
from draftbench.errors import UsageError


def report(
    run: Annotated[Path, typer.Argument(help="Run folder.", metavar="RUN")],
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page here.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Write every chart into this folder, as PNG and SVG.")
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Also as text: table, json, markdown or csv.",
            autocompletion=among(*FORMATS),
        ),
    ] = None,
    output: OutputOption = "-",
    min_speedup: Annotated[
        float, typer.Option(min=0.0, help="Least speed-up that is worth speculating for.")
    ] = 1.0,
) -> int:
    """Write a run as a self-contained page, as charts, or as text.

    draftbench report results/runs/RUN --html report.html
    draftbench report results/runs/RUN --html report.html --plots plots
    """
    if output_format is not None:
        one_of("--format", output_format, FORMATS)
    if html is not None:
        check_output(str(html))
    from draftbench.planner.options import DecisionOptions
    from draftbench.planner.recommend import recommend
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    observed = read_run(RunFolder(run))
    if not observed.candidates:
        raise UsageError(
            f"no candidate was measured in `{run}`",
            hint="look at its failures, then sweep again",
        )
    answer = recommend(observed, DecisionOptions(min_speedup=min_speedup))
    if html is not None or plots is not None:
        from draftbench.report.page import examine, page
        from draftbench.report.plots import save

        examined = examine(str(run), observed, answer)
        if html is not None:
            write_result(page(examined), str(html))
            typer.echo(f"wrote {html}", err=True)
        if plots is not None:
            for drawing in (d for group in examined.drawings.values() for d in group):
                save(drawing, plots)
            typer.echo(f"wrote charts to {plots}", err=True)
    if output_format is not None or (html is None and plots is None):
        from draftbench.report.terminal.recommendation import render

        write_result(render(answer, output_format or "table", width()), output)
    return 0
