"""`draftbench recommend`: a run folder → the decision. No model runs here."""

from __future__ import annotations

from typing import Annotated

import typer

from draftbench.cli.flags import (
    FORMATS,
    OUTPUT,
    Decision,
    FormatOption,
    OutputOption,
    RunArgument,
    decides,
    one_of,
)
from draftbench.cli.invocation import command
from draftbench.cli.output import check_output, width, write_result


@decides
def recommend(
    run: RunArgument,
    decision: Decision,
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Also print every speed-up, loads, latency, checks and caveats.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    output_format: FormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Decide whether to speculate, with which draft, quantization and k, and say how sure that is.

    draftbench recommend results/runs/RUN
    draftbench recommend results/runs/RUN --all
    draftbench recommend results/runs/RUN --concurrency 1,8,32 --max-memory 20GB
    draftbench recommend results/runs/RUN --costs vllm.yaml
    draftbench recommend results/runs/RUN --format json | jq .choice
    """
    from draftbench.planner.recommend import recommend as decide
    from draftbench.report.terminal.recommendation import render
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    one_of("--format", output_format, FORMATS)
    check_output(output)
    observed = read_run(RunFolder(run))
    answer = decide(observed, decision.options(observed))
    more = () if everything else (command("recommend", str(run), "--all"),)
    following = (*more, command("report", str(run), "--html", "report.html"))
    text = render(answer, output_format, width(), everything=everything, commands=following)
    write_result(text, output)
    return 0
