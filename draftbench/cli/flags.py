"""Turns declared flags into typer's parameters, and does what several commands need with them."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import MISSING, Field, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from draftbench.cli.output import note
from draftbench.errors import UsageError, did_you_mean
from draftbench.flags import flag, flag_name, flags_of, in_decision, number, one_of, path
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

# Types of flags that nothing parses, by their names in annotations.
_KINDS = {kind.__name__: kind for kind in (bool, int, float, str, Path)}


def with_flags(command: Callable[..., int]) -> Callable[..., int]:
    """The command as typer calls it: every flag is a parameter, every value is parsed.

    A parameter typed as a record receives the record, made from its flags' values; one typed
    `Annotated[dict[str, Any], Record]` receives the values as a dict.

    The returned command raises a UsageError for a value that a flag does not allow.
    """
    flags: dict[str, Field[Any]] = {}
    groups: dict[str, tuple[type[Any], Callable[..., Any]]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind, declared = parameter.annotation, parameter.default
        group = next((each for each in (kind, *get_args(kind)[1:]) if is_dataclass(each)), None)
        if isinstance(group, type):
            groups[parameter.name] = (group, group if group is kind else dict)
            for each in flags_of(group):
                flags[each.name] = each
                parameters.append(_parameter(each.name, each, each.type))
        elif isinstance(declared, Field):
            flags[parameter.name] = declared
            parameters.append(_parameter(parameter.name, declared, kind))
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def called(**values: Any) -> int:
        for name, declared in flags.items():
            values[name] = _parsed(name, declared, values[name])
        for name, (group, made) in groups.items():
            values[name] = made(**{each.name: values.pop(each.name) for each in flags_of(group)})
        return command(**values)

    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


def _parameter(name: str, declared: Field[Any], kind: Any) -> inspect.Parameter:
    """A flag as a parameter for typer, of type str if `_parsed` parses it."""
    about = declared.metadata
    default = about["default"]
    if about["many"]:
        kind = list[str]
    elif about["parse"] or about["among"]:
        kind = str
    elif isinstance(kind, str):  # as a record's annotations are
        kind = _KINDS[kind.removesuffix(" | None")]
    shown = dict(about["option"])
    if number_kind := next((n for n in (int, float) if n in (kind, *get_args(kind))), None):
        limits = shown.pop("min", -math.inf), shown.pop("max", math.inf)
        known = (flag_name(declared, name), number_kind, *limits)
        # Not typer's own types, whose errors are in the words of a library.
        shown["parser"] = lambda text: number(*known, text)
        shown["metavar"] = shown["metavar"] or ("N" if number_kind is int else "X")
    elif Path in (kind, *get_args(kind)):
        shown["parser"] = lambda text: path(flag_name(declared, name), text)
        shown["metavar"] = shown["metavar"] or "PATH"
    option = typer.Option(*about["names"], **shown)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is ... else default,
        annotation=Annotated[kind | None if default is None else kind, option],
    )


def _parsed(name: str, declared: Field[Any], value: Any) -> Any:
    among, parse = declared.metadata["among"], declared.metadata["parse"]
    if value is None:
        return None if declared.default is MISSING else declared.default
    if among:
        one_of(flag_name(declared, name), value, among)
    return parse(value) if parse else value


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
        hint="run the same sweep again: it resumes, or says what is wrong",
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
