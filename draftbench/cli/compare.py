"""`draftbench compare`: run folders → what differs. No model runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftbench.cli.flags import read
from draftbench.cli.output import TextOutput, width
from draftbench.flags import flag


def compare(
    run_a: Annotated[Path, typer.Argument(help="The earlier run folder.", metavar="RUN_A")],
    run_b: Annotated[
        Path, typer.Argument(help="The run folder to compare with it.", metavar="RUN_B")
    ],
    more: Annotated[
        list[Path] | None,
        typer.Argument(help="More runs, to list the answers of all.", metavar="RUN"),
    ] = None,
    *,
    everything: bool = flag(
        False, "Show every figure and what differs in each setting.", names=("--all",)
    ),
    output: TextOutput,
) -> int:
    """Show what differs between two runs: acceptance, costs and speed-up, paired by request, and
    every setting. Of runs that cannot be paired, and of three or more, list the answers.

    draftbench compare results/runs/A results/runs/B
    draftbench compare results/runs/A results/runs/B --format json
    draftbench compare results/runs/built-in results/runs/vllm results/runs/llama
    """
    from draftbench.gate.compare import compare_runs, side_by_side, why_unpaired
    from draftbench.report.terminal.compare import render, render_answers

    names = [str(path) for path in (run_a, run_b, *(more or ()))]
    runs = [read(Path(name)) for name in names]
    # JSON holds everything that two runs differ in.
    if more or (output.style != "json" and why_unpaired(*runs)):
        output.write(
            render_answers(side_by_side(names, runs), output.style, width(), everything=everything)
        )
    else:
        comparison = compare_runs((names[0], names[1]), runs[0], runs[1])
        output.write(render(comparison, output.style, width(), everything=everything))
    return 0
