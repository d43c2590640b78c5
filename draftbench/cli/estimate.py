"""`draftbench estimate`: what the closed form promises, before anything is measured."""

from __future__ import annotations

from typing import Annotated

import typer

from draftbench.cli.flags import (
    TEXT_FORMATS,
    OutputOption,
    TextFormatOption,
    draft_lengths,
    one_of,
)
from draftbench.cli.output import check_output, width, write_result


def estimate(
    alpha: Annotated[float, typer.Option(help="Acceptance rate, 0 to 1.")],
    draft_cost: Annotated[
        float, typer.Option(help="c: time of one draft step over one target step.")
    ],
    verify_ratio: Annotated[
        float, typer.Option(help="v: time of a target pass over k+1 tokens over one of one token.")
    ] = 1.0,
    k: Annotated[str, typer.Option("--k", help="Draft lengths, for example 1-10.")] = "1-16",
    output_format: TextFormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Say what the closed form promises for an acceptance rate and a draft cost ratio.

    draftbench estimate --alpha 0.75 --draft-cost 0.05
    draftbench estimate --alpha 0.75 --draft-cost 0.05 --verify-ratio 1.1 --k 1-10
    """
    from draftbench.planner.formula import table
    from draftbench.report.terminal.estimate import render

    one_of("--format", output_format, TEXT_FORMATS)
    check_output(output)
    found = table(alpha, draft_cost, draft_lengths(k), verify=verify_ratio)
    write_result(render(found, output_format, width()), output)
    return 0
