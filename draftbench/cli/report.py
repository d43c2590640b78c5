"""`draftbench report`: run folders → a page, plots, or text. No model runs here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftbench.cli.completing import among
from draftbench.cli.flags import FORMATS, OutputOption, check_output, one_of, width, write_result
from draftbench.errors import UsageError

if TYPE_CHECKING:
    from draftbench.report.page.sections import Run


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN")],
    html: Annotated[
        Path | None, typer.Option(help="Write one self-contained HTML page here.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Write every plot into this folder, as PNG and SVG.")
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
    """Show runs as a page that explains itself, and as plots.

    draftbench report results/runs/RUN --html report.html
    draftbench report results/runs/A results/runs/B --html both.html --plots plots
    """
    if output_format is not None:
        one_of("--format", output_format, FORMATS)
    if html is not None:
        check_output(str(html))
    from draftbench.report.page import examine, page
    from draftbench.report.several import render_runs
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.observed import read_run

    examined = []
    for run in runs:
        observed = read_run(RunFolder(run))
        if not observed.candidates:
            raise UsageError(
                f"no candidate was measured in `{run}`",
                hint="look at its failures, then sweep again",
            )
        examined.append(examine(str(run), observed, min_speedup))
    if html is not None:
        write_result(page(examined), str(html))
        typer.echo(f"wrote {html}", err=True)
    if plots is not None:
        _save(examined, plots)
        typer.echo(f"wrote plots to {plots}", err=True)
    if output_format is not None or (html is None and plots is None):
        write_result(render_runs(examined, output_format or "table", width()), output)
    return 0


def _save(runs: Sequence[Run], plots: Path) -> None:
    """The plots of one run in `plots`; those of several in a folder each, beside what compares."""
    from draftbench.report.charts.across import across
    from draftbench.report.plots import save

    for at, run in enumerate(runs, 1):
        # Folders of the same name in different places must not overwrite each other.
        folder = plots / f"{at}-{Path(run.name).name}" if len(runs) > 1 else plots
        for drawing in (d for group in run.drawings.values() for d in group):
            save(drawing, folder)
    for drawing in across([(Path(run.name).name, run.answer) for run in runs]):
        save(drawing, plots)
