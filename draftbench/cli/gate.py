"""`draftbench gate`: pin a baseline, or compare a run with one, and leave with the verdict as exit
code.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftbench.cli import pinned
from draftbench.cli.flags import (
    TEXT_FORMATS,
    OutputOption,
    PromptFieldOption,
    ResponseFieldOption,
    SegmentByOption,
    TextFormatOption,
    among,
    complete_traffic,
    one_of,
)
from draftbench.cli.output import check_output
from draftbench.cli.verdicts import Places, exit_code, publish, refuse
from draftbench.errors import IncomparableError, UsageError
from draftbench.memory import LEVELS

if TYPE_CHECKING:
    from draftbench.gate.baseline import Baseline

INCONCLUSIVE = ["report", "pass", "fail"]
# The four ways to call it: usage, the flags it needs, and those that it may have besides.
_VERDICT = {
    *("max_drop", "inconclusive", "exit_zero", "junit", "annotations", "history"),
    *("output_format", "output"),
}
_MEASURING = {
    *("target", "draft", "quant", "traffic", "segment_by", "prompt_field", "response_field"),
    *("sample", "seed", "temperature", "threads", "out"),
}
_WAYS = {
    "save": ("--save FILE RUN", {"save", "run"}, {"candidate", "k"}),
    "target": (
        "--baseline FILE --target T --draft D --traffic FILE",
        {"baseline", "target", "draft", "traffic"},
        _MEASURING | _VERDICT,
    ),
    "baseline": ("--baseline FILE RUN", {"baseline", "run"}, {"candidate", *_VERDICT}),
    "old": ("--old RUN --new RUN", {"old", "new"}, {"candidate", "k", *_VERDICT}),
}
_DEFAULTS = {
    "seed": 0,
    "inconclusive": "report",
    "exit_zero": False,
    "output_format": "table",
    "output": "-",
}


def gate(
    run: Annotated[
        Path | None, typer.Argument(help="The run to save or to judge.", metavar="RUN")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the run's baseline to this file.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Judge the run against this baseline file.")
    ] = None,
    old: Annotated[Path | None, typer.Option(help="Judge --new against this run folder.")] = None,
    new: Annotated[Path | None, typer.Option(help="The run folder to judge.")] = None,
    target: Annotated[
        str | None, typer.Option(help="Measure this target instead of reading a RUN.")
    ] = None,
    draft: Annotated[str | None, typer.Option(help="The draft to measure with --target.")] = None,
    quant: Annotated[
        str | None,
        typer.Option(
            help="Its quantization level (default: the baseline's).", autocompletion=among(*LEVELS)
        ),
    ] = None,
    traffic: Annotated[
        str | None,
        typer.Option(
            help="The traffic to measure on with --target.", autocompletion=complete_traffic
        ),
    ] = None,
    segment_by: SegmentByOption = None,
    prompt_field: PromptFieldOption = None,
    response_field: ResponseFieldOption = None,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="As in the sweep (default: find the baseline's requests)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="As in the sweep, with --sample.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="As in the sweep that made the baseline.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads (default: the baseline's).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder of --target (default: results/runs/gate-TIME).")
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(help="DRAFT[:QUANT] (default: the recommended one; the baseline's own)."),
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", min=1, max=64, help="Draft length to save at.")
    ] = None,
    max_drop: Annotated[
        list[str] | None,
        typer.Option(
            help="METRIC:VALUE% of the baseline's value, or METRIC:VALUE in its own unit, e.g. "
            "mean_accepted_length:2% or alpha:0.02; repeatable."
        ),
    ] = None,
    inconclusive: Annotated[
        str,
        typer.Option(
            help="What an inconclusive verdict exits as: report (3), pass or fail.",
            autocompletion=among(*INCONCLUSIVE),
        ),
    ] = "report",
    exit_zero: Annotated[
        bool, typer.Option(help="Report only: exit 0 whatever the verdict; errors stay errors.")
    ] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
    annotations: Annotated[
        str | None,
        typer.Option(
            help="Print annotations for `github` to stderr.", autocompletion=among("github")
        ),
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="Append the verdict to this file, a line of JSON each.")
    ] = None,
    output_format: TextFormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Fail a CI job when acceptance got worse; say "inconclusive" when the sample cannot tell.

    draftbench gate --save results/baselines/prod.json results/runs/RUN
    draftbench gate --baseline results/baselines/prod.json results/runs/RUN
    draftbench gate --baseline results/baselines/prod.json \\
        --target ./big --draft ./small --traffic prod.jsonl
    draftbench gate --old results/runs/A --new results/runs/B
    """
    values = locals()  # before there is any other name: all flags
    way = _way(
        {name for name, value in values.items() if value not in (None, [], _DEFAULTS.get(name))}
    )
    one_of("--inconclusive", inconclusive, INCONCLUSIVE)
    one_of("--format", output_format, TEXT_FORMATS)
    if annotations is not None:
        one_of("--annotations", annotations, ["github"])
    for file in (output, *map(str, filter(None, (junit,)))):
        check_output(file)
    if way == "save":
        assert run is not None
        assert save is not None
        pinned.save(run, save, candidate, k)
        return 0
    from draftbench.gate.judge import judge
    from draftbench.gate.limits import TIMED, limits_of

    limits = limits_of(max_drop or ())
    places = Places(output_format, output, junit, annotations, history)
    try:
        if way == "target":
            assert baseline is not None
            assert target is not None
            assert draft is not None
            assert traffic is not None
            fields = (segment_by, prompt_field, response_field)
            timed = any(limit.metric in TIMED for limit in limits)
            source = (traffic, sample, seed)
            job = pinned.Job(target, draft, quant, temperature, threads, source, fields, timed)
            sides = _measured(baseline, job, out)
        else:
            sides = _pair(run, baseline, (old, new), candidate, k)
        result = judge(*sides, limits)
    except IncomparableError as error:
        refuse(error, places)
        raise
    publish(result, places)
    return exit_code(result, inconclusive, exit_zero=exit_zero)


def _way(given: set[str]) -> str:
    """Which of the four ways these flags call for.

    Raises:
        UsageError: flags that do not go together, or one that is missing; names them.
    """
    if "save" in given:
        way = flag = "save"
    elif given & _MEASURING:
        way = "target"
        flag = "target" if "target" in given else min(given & _MEASURING)
    else:
        way = flag = "baseline" if "baseline" in given else "old"
    usage, needed, allowed = _WAYS[way]
    hint = f"`draftbench gate {usage}`; see `draftbench gate --help`"
    others = given - needed - allowed
    if others and flag in given:
        names = ", ".join(sorted(map(_named, others)))
        raise UsageError(f"{_named(flag)} cannot be combined with {names}", hint=hint)
    missing = needed - given
    if missing:
        names = ", ".join(sorted(map(_named, missing)))
        raise UsageError(f"missing: {names}", hint=hint)
    return way


def _named(parameter: str) -> str:
    names = {"run": "RUN", "output_format": "--format"}
    return names.get(parameter, f"--{parameter.replace('_', '-')}")


def _measured(file: Path, job: pinned.Job, out: Path | None) -> tuple[Baseline, Baseline]:
    from draftbench.gate.baseline import read_baseline

    old = read_baseline(file)
    run, candidate = pinned.measure(old, job, out)
    return old, pinned.pin(run, candidate, old.question.k)


def _pair(
    run: Path | None,
    baseline: Path | None,
    runs: tuple[Path | None, Path | None],
    candidate: str | None,
    k: int | None,
) -> tuple[Baseline, Baseline]:
    """Both sides at the same k: a file against a run, or a run against a run."""
    from draftbench.gate.baseline import read_baseline

    old, new = runs
    if baseline is not None:
        assert run is not None
        first = read_baseline(baseline)
    else:
        assert old is not None
        assert new is not None
        first, run = pinned.pin(old, candidate, k), new
    if candidate is None:
        pinned.require(run, first.candidate)
    return first, pinned.pin(run, candidate or first.candidate, first.question.k)
