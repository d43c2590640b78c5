"""`draftbench compare`: run folders → what differs. No model runs here."""

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
    more: Annotated[
        list[Path] | None,
        typer.Argument(help="More runs, to list the answers of all.", metavar="RUN"),
    ] = None,
    *,
    output: TextOutput,
) -> int:
    """Show what differs between two runs: acceptance, costs and speed-up, paired by request, and
    every setting. Of three or more runs, list their answers side by side.

    draftbench compare results/runs/A results/runs/B
    draftbench compare results/runs/A results/runs/B --format json
    draftbench compare results/runs/built-in results/runs/vllm results/runs/llama
    """
    from draftbench.gate.compare import compare_runs
    from draftbench.gate.side_by_side import side_by_side
    from draftbench.report.terminal.compare import render, render_answers

    if more:
        paths = [run_a, run_b, *more]
        answers = side_by_side([*map(str, paths)], [*map(read, paths)])
        output.write(render_answers(answers, output.style, width()))
        return 0
    found = compare_runs((str(run_a), str(run_b)), read(run_a), read(run_b))
    output.write(render(found, output.style, width()))
    return 0
