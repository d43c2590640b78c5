"""`draftbench recommend`: a run's observations → the decision. No model runs here."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftbench.cli.completing import among
from draftbench.cli.flags import (
    FORMATS,
    FormatOption,
    OutputOption,
    one_of,
    size_of,
    width,
    write_result,
)
from draftbench.errors import RunFolderError, UsageError

if TYPE_CHECKING:
    from draftbench.planner.recommendation import Recommendation
    from draftbench.planner.sources import CostSource
    from draftbench.records import Candidate
    from draftbench.run_folder.run import Run

RunArgument = Annotated[Path, typer.Argument(help="A run folder that `sweep` made.", metavar="RUN")]
CostsOption = Annotated[
    Path | None,
    typer.Option(help="Another run, or a YAML file of an engine's step times.", metavar="PATH"),
]
OBJECTIVES = ["speedup", "latency", "throughput", "cost"]


def recommend(
    run: RunArgument,
    min_speedup: Annotated[
        float, typer.Option(min=0.0, help="Least speed-up that is worth speculating for.")
    ] = 1.0,
    concurrency: Annotated[
        str | None,
        typer.Option(help="Active decoding rows to answer for, e.g. 1,8,32 (default: the run's)."),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="speedup (after the first token), latency (prefills included), or throughput and "
            "cost, which choose among --concurrency too.",
            autocompletion=among(*OBJECTIVES),
        ),
    ] = "speedup",
    price_per_hour: Annotated[
        float | None, typer.Option(help="Of the machine, for tokens per dollar.")
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option(help="Target, draft and caches together, e.g. 20GB.")
    ] = None,
    max_p99_ratio: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Most that the p99 of a request's time per output token may grow to."
        ),
    ] = None,
    costs: CostsOption = None,
    output_format: FormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Say whether to speculate, with which draft, quantization and k, and how sure that is.

    Costs are this run's, or with --costs those of another run (same drafts by name) or of an
    engine, from a file of seconds for all rows together: `engine`, and under `batches`, by number
    of rows, `tokens_per_second` or `target_step_s`, `verify: {tokens: seconds}` and
    `drafts: {NAME: {step_s: seconds}}`.

    draftbench recommend results/runs/RUN
    draftbench recommend results/runs/RUN --concurrency 1,8,32 --max-memory 20GB
    draftbench recommend results/runs/RUN --costs vllm.yaml
    draftbench recommend results/runs/RUN --format json | jq .choice
    """
    from draftbench.planner.options import DecisionOptions
    from draftbench.planner.recommend import recommend as decide
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    one_of("--format", output_format, FORMATS)
    one_of("--objective", objective, OBJECTIVES)
    observed = measured(read_run(RunFolder(run)))
    options = DecisionOptions(
        min_speedup=min_speedup,
        objective=objective,  # type: ignore[arg-type]
        max_memory=None if max_memory is None else size_of("--max-memory", max_memory),
        max_p99_ratio=max_p99_ratio,
        concurrency=() if concurrency is None else concurrencies(concurrency),
        price_per_hour=price_per_hour,
        costs=cost_source(costs, observed),
    )
    return _show(decide(observed, options), output_format, output)


def show_recommendation(
    observed: Run, output_format: str, output: str, min_speedup: float = 1.0
) -> int:
    """Decide and write."""
    from draftbench.planner.options import DecisionOptions
    from draftbench.planner.recommend import recommend as decide

    answer = decide(measured(observed), DecisionOptions(min_speedup=min_speedup))
    return _show(answer, output_format, output)


def concurrencies(text: str) -> tuple[int, ...]:
    """`1,8,32` → numbers of rows in the order given."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(
            f"--concurrency {text} is no list of numbers from 1", hint="for example 1,8,32"
        )
    return tuple(dict.fromkeys(int(part) for part in parts))


def measured(observed: Run) -> Run:
    """The same, if anything was measured in it.

    Raises:
        UsageError: nothing was.
    """
    if not observed.candidates:
        raise UsageError(
            "no candidate was measured in this run", hint="look at its failures, then sweep again"
        )
    return observed


def candidate_named(observed: Run, name: str) -> Candidate:
    """The candidate that `--candidate` names.

    Raises:
        RunFolderError: the run has none of that name.
    """
    known = {str(candidate): candidate for candidate in observed.candidates}
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, 1)
    meant = f"did you mean `{near[0]}`? " if near else ""
    raise RunFolderError(
        f"the run has no candidate `{name}`",
        hint=f"{meant}its candidates are {', '.join(known) or 'none'}",
    )


def cost_source(path: Path | None, observed: Run) -> CostSource | None:
    """What `--costs` names: costs to put beside a run's acceptance in place of its own.

    Raises:
        UsageError: no costs of any draft of this run.
    """
    if path is None:
        return None
    from draftbench.planner.engine_costs import read_engine_costs
    from draftbench.planner.sources import costs_of_run
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    if path.is_dir():
        return costs_of_run(read_run(RunFolder(path)), observed, f"`{path}`")
    return read_engine_costs(path, observed.candidates)


def _show(answer: Recommendation, output_format: str, output: str) -> int:
    from draftbench.report.terminal.recommendation import render

    write_result(render(answer, output_format, width()), output)
    return 0
