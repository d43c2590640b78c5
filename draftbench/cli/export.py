"""`draftbench export`: a run's recommendation → the configuration of a serving engine."""

from __future__ import annotations

from typing import Annotated

import typer

from draftbench.cli.flags import Decision, OutputOption, RunArgument, candidate_named, decides
from draftbench.cli.output import check_output, note, write_result


def _engines(incomplete: str) -> list[str]:
    from draftbench.models.engine_rules import ENGINES

    return list(ENGINES)


@decides
def export(
    run: RunArgument,
    engine: Annotated[
        str,
        typer.Option(
            help="The engine: vllm, sglang, llamacpp, tensorrt-llm or transformers.",
            metavar="ENGINE",
            autocompletion=_engines,
        ),
    ],
    decision: Decision,
    engine_version: Annotated[
        str | None,
        typer.Option(
            help="The engine's version, e.g. 0.26; for llamacpp before-rename or after-rename.",
            metavar="VERSION",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="What the engine calls the target (default: as swept).", metavar="MODEL"),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="What the engine calls the draft (default: as swept).", metavar="MODEL"),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(
            help="Export this candidate, DRAFT[:QUANT], at its best k (default: the recommended "
            "one).",
            metavar="NAME",
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Export the candidate that ranks first even if it is not recommended."
        ),
    ] = False,
    output: OutputOption = "-",
) -> int:
    """Print the configuration with which an engine serves what the run recommends.

    draftbench export results/runs/RUN --engine vllm --draft org/small
    draftbench export results/runs/RUN --engine vllm --costs vllm.yaml
    draftbench export results/runs/RUN --engine llamacpp
    """
    from draftbench.export.configurations import configure, known_engine
    from draftbench.export.setting import setting_of
    from draftbench.planner.recommend import recommend
    from draftbench.report.terminal.text import plain
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    check_output(output)
    known_engine(engine)
    observed = read_run(RunFolder(run))
    options = decision.options(observed)
    answer = recommend(observed, options)
    wanted = None if candidate is None else candidate_named(observed, candidate)
    setting = setting_of(
        answer, observed, candidate=wanted, target=target, draft=draft, force=force
    )
    configuration = configure(setting, engine, engine_version)
    for remark in (*configuration.notes, *(options.costs.caveats if options.costs else ())):
        note(f"note: {plain(remark)}")
    write_result(configuration.text, output)
    return 0
