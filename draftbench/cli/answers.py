"""`draftbench recommend` and `draftbench suites`: what is known → text. No model runs here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftbench.cli.values import (
    FORMATS,
    FormatOption,
    OutputOption,
    one_of,
    width,
    write_result,
)
from draftbench.errors import UsageError

if TYPE_CHECKING:
    from draftbench.store.observed import Observed

RunArgument = Annotated[Path, typer.Argument(help="A run folder that `sweep` made.", metavar="RUN")]


def recommend(
    run: RunArgument,
    min_speedup: Annotated[
        float, typer.Option(min=0.0, help="Least speed-up that is worth speculating for.")
    ] = 1.0,
    output_format: FormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Say whether to speculate, with which draft, quantization and k, and how sure that is.

    draftbench recommend results/runs/RUN
    draftbench recommend results/runs/RUN --format json | jq .choice
    """
    from draftbench.store.folder import RunFolder
    from draftbench.store.observed import read_run

    one_of("--format", output_format, FORMATS)
    return show_recommendation(read_run(RunFolder(run)), output_format, output, min_speedup)


def show_recommendation(
    observed: Observed, output_format: str, output: str, min_speedup: float = 1.0
) -> int:
    from draftbench.plan.recommend import recommend as decide
    from draftbench.report.recommendation import render

    if not observed.candidates:
        raise UsageError(
            "no candidate was measured in this run", hint="look at its failures, then sweep again"
        )
    write_result(
        render(decide(observed, min_speedup=min_speedup), observed, output_format, width()), output
    )
    return 0


def suites() -> int:
    """List the built-in traffic suites."""
    from draftbench.report.text import paragraph
    from draftbench.traffic import suites as built_in

    for suite in built_in():
        typer.echo(f"suite:{suite.name}  {suite.title}, {suite.requests} requests")
        typer.echo(paragraph(suite.description, width(), "    ").replace("      ", "    "))
    return 0
