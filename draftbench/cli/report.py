"""`draftbench report`: a run folder → a page, charts, or text. No model runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import (
    FORMATS,
    OUTPUT,
    Decision,
    OutputOption,
    RunArgument,
    among,
    decides,
    one_of,
)
from draftbench.cli.output import check_output, note, width, write_result


@decides
def report(
    run: RunArgument,
    decision: Decision,
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page.", metavar="FILE")
    ] = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Write every chart into this folder, as SVG and PNG.", metavar="FOLDER"),
    ] = None,
    output_format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Print the answer too, as a table, json, markdown or csv.",
            metavar="FORMAT",
            autocompletion=among(*FORMATS),
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    output: OutputOption = "-",
) -> int:
    """Show a run as one HTML page that explains itself, or as charts.

    draftbench report results/runs/RUN --html report.html
    draftbench report results/runs/RUN --plots charts
    """
    if output_format is not None:
        one_of("--format", output_format, FORMATS)
    check_output(html, output)
    from draftbench.planner.recommend import recommend as decide
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    observed = read_run(RunFolder(run))
    answer = decide(observed, decision.options(observed))
    if html is not None or plots is not None:
        from draftbench.report.charts import charts_of
        from draftbench.report.figures import figures_of
        from draftbench.report.html.page import page

        figures = figures_of(observed, answer)
        if html is not None:
            write_result(page(str(run), observed, answer, figures), html)
            note(f"wrote {html}")
        if plots is not None:
            for group in charts_of(answer, figures).values():
                for chart in group:
                    chart.save(plots)
            note(f"wrote charts to {plots}")
    if output_format is not None or (html is None and plots is None):
        from draftbench.report.terminal.recommendation import render

        write_result(render(answer, output_format or "table", width()), output)
    return 0
