"""`draftbench export`: a run's recommendation → the configuration of a serving engine."""

from __future__ import annotations

from typing import Annotated

import typer

from draftbench.cli.completing import engines
from draftbench.cli.flags import OutputOption, check_output, write_result
from draftbench.cli.recommend import (
    CostsOption,
    RunArgument,
    candidate_named,
    concurrencies,
    cost_source,
)


def export(
    run: RunArgument,
    engine: Annotated[
        str,
        typer.Option(
            help="vllm, sglang, llamacpp, tensorrt-llm or transformers.", autocompletion=engines
        ),
    ],
    engine_version: Annotated[
        str | None,
        typer.Option(help="For example 0.26; llamacpp: before-rename or after-rename."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The target's name for the engine (default: the run's).")
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="The draft's name for the engine (default: the run's).")
    ] = None,
    min_speedup: Annotated[
        float, typer.Option(min=0.0, help="Least speed-up that is worth speculating for.")
    ] = 1.0,
    concurrency: Annotated[
        str | None,
        typer.Option(help="Requests at once to answer for, e.g. 1,8,32 (default: the run's)."),
    ] = None,
    costs: CostsOption = None,
    candidate: Annotated[
        str | None,
        typer.Option(help="Export DRAFT[:QUANT] at its best k (default: what the run recommends)."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Export what ranked first, recommended or not.")
    ] = False,
    output: OutputOption = "-",
) -> int:
    """Print the configuration with which an engine serves what a run recommends, with the draft
    lengths by load where the run has several and the engine takes them. With --costs it is that of
    `draftbench recommend` with the same --costs.

    draftbench export results/runs/RUN --engine vllm --draft org/small
    draftbench export results/runs/RUN --engine vllm --costs vllm.yaml
    draftbench export results/runs/RUN --engine llamacpp
    """
    from draftbench.export.configurations import configure
    from draftbench.export.setting import setting_of
    from draftbench.planner.options import DecisionOptions
    from draftbench.planner.recommend import recommend
    from draftbench.report.terminal.text import plain
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    check_output(output)
    observed = read_run(RunFolder(run))
    rows = () if concurrency is None else concurrencies(concurrency)
    source = cost_source(costs, observed)
    options = DecisionOptions(min_speedup=min_speedup, concurrency=rows, costs=source)
    answer = recommend(observed, options)
    wanted = None if candidate is None else candidate_named(observed, candidate)
    setting = setting_of(
        answer, observed, candidate=wanted, target=target, draft=draft, force=force
    )
    configuration = configure(setting, engine, engine_version)
    for note in (*configuration.notes, *(source.caveats if source else ())):
        typer.echo(f"note: {plain(note)}", err=True)
    write_result(configuration.text, output)
    return 0
