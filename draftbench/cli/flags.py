"""Flags that several commands share, and what the commands do with their values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftbench.cli.output import note
from draftbench.errors import UsageError, did_you_mean
from draftbench.flags import flag, in_decision
from draftbench.planner.options import DecisionOptions

if TYPE_CHECKING:
    from draftbench.records import Candidate
    from draftbench.run_folder.run import Run
    from draftbench.traffic import TrafficQuery

RunArgument = Annotated[
    Path | None,
    typer.Argument(
        help="A run folder made by `sweep` (default: the newest in results/runs).", metavar="RUN"
    ),
]
COSTS = in_decision(
    None, "Use the step times of another run, or of an engine from a YAML file.", "PATH"
)


def traffic_flag(
    default: Any, help: str = "The requests: a log file, suite:NAME or hf:DATASET."
) -> Any:
    """A flag for a source of requests."""
    return flag(default, help, "SOURCE", autocompletion=_complete_traffic)


def _complete_traffic(incomplete: str) -> list[str]:
    """Suites after `su`; until then the shell completes file names."""
    from draftbench.traffic.suites import suite_names

    suites = [f"suite:{name}" for name in suite_names()]
    return suites if incomplete.startswith("su") else []


def traffic_query(source: str, sample: int | None = None, **reading: Any) -> TrafficQuery:
    """The requests to read from a source: `sample` of them, or all."""
    from draftbench.run_folder.key import request_key
    from draftbench.traffic import TrafficQuery

    return TrafficQuery(source, request_key(), sample, **reading)


def read(folder: Path | None) -> Run:
    """Read a run folder; by default the newest, which is then named on stderr."""
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    if folder is None:
        from draftbench.cli.runs import newest

        folder = newest()
        note(f"the newest run: {folder}")
    return read_run(RunFolder(folder))


def require_measured(run: Run) -> Run:
    """The run, if any candidate was measured.

    Raises:
        UsageError: no candidate was measured.
    """
    if run.candidates:
        return run
    failed = [f"{each.candidate or 'the target'}: {each.reason}" for each in run.failures]
    raise UsageError(
        f"no candidate was measured in this run{f' ({failed[0]})' if failed else ''}",
        hint="wait if it is still being swept; else run the same sweep again, which resumes",
    )


def candidate_named(run: Run, name: str) -> Candidate:
    """The candidate that `--candidate` names.

    Raises:
        UsageError: the run has none of that name.
    """
    candidates = {str(candidate): candidate for candidate in run.candidates}
    if name in candidates:
        return candidates[name]
    hint = did_you_mean(name, candidates, f"its candidates are {', '.join(candidates) or 'none'}")
    raise UsageError(f"the run has no candidate `{name}`", hint=hint)


def with_costs(options: DecisionOptions, costs: Path | None, run: Run) -> DecisionOptions:
    """The options, with the step times that `--costs` has for this run's candidates.

    Raises:
        UsageError: nothing was measured, an option does not fit the run, or `--costs` has no times
            for any of its drafts.
    """
    from draftbench.planner.cost_sources import costs_of_run, read_engine_costs

    require_measured(run)
    if costs is not None:
        source = (
            costs_of_run(read(costs), run, f"`{costs}`")
            if costs.is_dir()
            else read_engine_costs(costs, run.candidates)
        )
        options = replace(options, costs=source)
    arrivals = run.manifest.question.arrivals
    if options.concurrency and arrivals != "closed" and costs is None:
        raise UsageError(
            f"--concurrency cannot be chosen for a run with --arrivals {arrivals}",
            hint="leave it out; a sweep without --arrivals measures at each --concurrency",
        )
    if options.slo is not None and not run.served:
        raise UsageError(
            "--slo needs requests that a serving engine answered, and this run has none",
            hint="the built-in decoder knows no queueing; sweep with --engine or --server",
        )
    return options
