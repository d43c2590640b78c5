"""`draftbench gate`: save a run as a baseline, or judge a run against one, with the verdict as exit
code.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftbench.cli.flags import (
    DECISION_FLAGS,
    LARGEST_K,
    OUTPUT,
    TEXT_FORMATS,
    Decision,
    OutputOption,
    PromptFieldOption,
    ResponseFieldOption,
    SegmentByOption,
    TextFormatOption,
    among,
    candidate_named,
    complete_traffic,
    decides,
    one_of,
)
from draftbench.cli.output import check_output, note, width, write_result
from draftbench.errors import IncomparableError, UsageError
from draftbench.memory import LEVELS

if TYPE_CHECKING:
    from draftbench.gate.baseline import Baseline
    from draftbench.gate.ci import Outcome
    from draftbench.gate.result import GateResult
    from draftbench.run_folder.run import Run

MEASURING = "Measuring a new run (with --target)"
INCONCLUSIVE = ("report", "pass", "fail")
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
    "save": ("--save FILE RUN", {"save", "run"}, {"candidate", "k", *DECISION_FLAGS}),
    "target": (
        "--baseline FILE --target MODEL --draft MODEL --traffic SOURCE",
        {"baseline", "target", "draft", "traffic"},
        _MEASURING | _VERDICT,
    ),
    "baseline": ("--baseline FILE RUN", {"baseline", "run"}, {"candidate", *_VERDICT}),
    "old": ("--old RUN --new RUN", {"old", "new"}, {"candidate", "k", *_VERDICT}),
}


@decides
def gate(
    context: typer.Context,
    decision: Decision,
    run: Annotated[
        Path | None, typer.Argument(help="The run folder to save or to judge.", metavar="RUN")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Save RUN as a baseline in this file.", metavar="FILE")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Judge RUN against this baseline.", metavar="FILE")
    ] = None,
    old: Annotated[
        Path | None, typer.Option(help="Judge --new against this run folder.", metavar="RUN")
    ] = None,
    new: Annotated[
        Path | None, typer.Option(help="The run folder to judge against --old.", metavar="RUN")
    ] = None,
    max_drop: Annotated[
        list[str] | None,
        typer.Option(
            help="How much a metric may fall, e.g. mean_accepted_length:2% of the baseline's "
            "value, or alpha:0.02 in its own unit. Repeatable.",
            metavar="METRIC:VALUE",
        ),
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(
            help="The candidate, DRAFT[:QUANT] (default: to save the recommended one, to judge "
            "the baseline's).",
            metavar="NAME",
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k",
            min=1,
            max=LARGEST_K,
            help="The draft length (default: the candidate's best).",
            metavar="K",
        ),
    ] = None,
    inconclusive: Annotated[
        str,
        typer.Option(
            help="What to exit as when the sample is too small: report (3), pass (0) or fail (1).",
            metavar="HOW",
            autocompletion=among(*INCONCLUSIVE),
        ),
    ] = "report",
    exit_zero: Annotated[
        bool, typer.Option(help="Exit 0 whatever the verdict; errors stay errors.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="Measure this target now instead of reading a run.",
            metavar="MODEL",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(help="The draft to measure.", metavar="MODEL", rich_help_panel=MEASURING),
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(
            help="The quantization level of the draft (default: the baseline's).",
            metavar="LEVEL",
            autocompletion=among(*LEVELS),
            rich_help_panel=MEASURING,
        ),
    ] = None,
    traffic: Annotated[
        str | None,
        typer.Option(
            help="The requests: a log file, suite:NAME or hf:DATASET.",
            metavar="SOURCE",
            autocompletion=complete_traffic,
            rich_help_panel=MEASURING,
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many requests to take before looking for the baseline's (default: all).",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Which requests --sample takes.", rich_help_panel=MEASURING)
    ] = 0,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Replace the temperature of every request, as the baseline's sweep did.",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    segment_by: SegmentByOption = None,
    prompt_field: PromptFieldOption = None,
    response_field: ResponseFieldOption = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The number of CPU threads (default: the baseline's).",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run folder to write (default: results/runs/gate-TIME).",
            metavar="FOLDER",
            rich_help_panel=MEASURING,
        ),
    ] = None,
    junit: Annotated[
        Path | None,
        typer.Option(help="Write JUnit XML to this file.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None,
    annotations: Annotated[
        str | None,
        typer.Option(
            help="Print annotations to stderr, for github.",
            metavar="github",
            autocompletion=among("github"),
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            help="Append the verdict to this file, as a line of JSON.",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    output_format: TextFormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Fail a CI job when acceptance regresses. Exits 0: pass, 1: fail, 3: the sample is too small
    to tell, 4: the baseline measured something else.

    draftbench gate --save baselines/prod.json results/runs/RUN
    draftbench gate --baseline baselines/prod.json results/runs/RUN
    draftbench gate --baseline baselines/prod.json \\
        --target ./big --draft ./small --traffic prod.jsonl
    draftbench gate --old results/runs/A --new results/runs/B
    """
    given = {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) and source.name != "DEFAULT"
    }
    way = _way(given)
    one_of("--inconclusive", inconclusive, INCONCLUSIVE)
    one_of("--format", output_format, TEXT_FORMATS)
    if annotations is not None:
        one_of("--annotations", annotations, ("github",))
    check_output(output, junit)
    if way == "save":
        assert run
        assert save
        save_baseline(run, save, candidate, k, decision)
        return 0
    from draftbench.gate.baseline import read_baseline
    from draftbench.gate.judge import judge
    from draftbench.gate.limits import TIMED, limits_of

    limits = limits_of(max_drop or ())
    places = Places(output_format, output, junit, annotations, history)
    try:
        if way == "old":
            assert old
            assert new
            first = baseline_of(read(old), old, candidate, k)
            second = successor(read(new), new, candidate, first)
        elif way == "baseline":
            assert run
            assert baseline
            first = read_baseline(baseline)
            second = successor(read(run), run, candidate, first)
        else:
            assert baseline
            assert target
            assert draft
            assert traffic
            from draftbench.cli.gate_measure import Job, measure

            first = read_baseline(baseline)
            timed = any(limit.metric in TIMED for limit in limits)
            fields = (segment_by, prompt_field, response_field)
            asked = (traffic, sample, seed)
            job = Job(target, draft, quant, temperature, threads, asked, fields, timed)
            folder, measured = measure(first, job, out)
            second = baseline_of(read(folder), folder, measured, first.question.k)
        result = judge(first, second, limits)
    except IncomparableError as error:
        to_ci(error, places)
        raise
    publish(result, places)
    if exit_zero:
        return 0
    if result.exit_code == 3 and inconclusive != "report":
        return 0 if inconclusive == "pass" else 1
    return result.exit_code


def _way(given: set[str]) -> str:
    """Which of the four ways these flags call for.

    Raises:
        UsageError: flags that cannot be combined, or one that is missing; names them.
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
        names = ", ".join(sorted(map(_flag, others)))
        raise UsageError(f"{_flag(flag)} cannot be combined with {names}", hint=hint)
    missing = needed - given
    if missing:
        names = ", ".join(sorted(map(_flag, missing)))
        raise UsageError(f"missing: {names}", hint=hint)
    return way


def _flag(parameter: str) -> str:
    names = {"run": "RUN", "output_format": "--format"}
    return names.get(parameter, f"--{parameter.replace('_', '-')}")


def read(folder: Path) -> Run:
    """A run folder."""
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    return read_run(RunFolder(folder))


def save_baseline(
    folder: Path, file: Path, candidate: str | None, k: int | None, decision: Decision
) -> None:
    """Write the baseline of a run: of what it recommends by these flags, or of a candidate."""
    from draftbench.gate.baseline import write_baseline

    baseline = baseline_of(read(folder), folder, candidate, k, decision)
    write_baseline(baseline, file)
    note(
        f"saved {baseline.candidate} at k = {baseline.question.k} on {len(baseline.requests)} "
        f"requests to {file}"
    )
    for fault in baseline.faults:
        note(f"suspected fault in this baseline: {fault.message}")


def baseline_of(
    run: Run,
    folder: Path,
    name: str | None,
    k: int | None,
    decision: Decision | None = None,
) -> Baseline:
    """A run reduced to one candidate at one k, by default what it recommends."""
    from draftbench.gate.pin import make_baseline
    from draftbench.planner.recommend import recommend
    from draftbench.run_folder.folder import RunFolder

    texts = RunFolder(folder).private_texts()
    candidate = None if name is None else candidate_named(run, name)
    if candidate is None or k is None:
        answer = recommend(run, decision.options(run) if decision else None)
        if candidate is None:
            first = answer.choice or answer.leader
            candidate, best = (first.candidate, first.k) if first else (None, None)
        else:
            ks = [e.k for e in answer.evaluations if e.candidate == candidate and e.best]
            best = ks[0] if ks else None
        k = k or best
        if candidate is None or k is None:
            raise UsageError(
                f"no k of `{name}` is known to be best" if name else "this run has no best draft",
                hint="name one with --candidate and --k",
            )
    return make_baseline(run, candidate, k, texts)


def successor(run: Run, folder: Path, name: str | None, first: Baseline) -> Baseline:
    """The run at the baseline's k, for the named candidate or the baseline's own.

    Raises:
        IncomparableError: the run did not measure the baseline's candidate.
    """
    known = list(map(str, run.candidates))
    if name is None and first.candidate not in known:
        raise IncomparableError(
            f"the baseline is of `{first.candidate}`, which this run did not measure",
            hint=f"its candidates are {', '.join(known) or 'none'}; name the successor with "
            "--candidate, or gate a run of the same draft and level",
        )
    return baseline_of(run, folder, name or first.candidate, first.question.k)


@dataclass(frozen=True)
class Places:
    """Where a verdict goes: format and file of the result, and the files that CI reads."""

    style: str
    output: str
    junit: Path | None
    annotations: str | None
    history: Path | None


def publish(result: GateResult, places: Places) -> None:
    """The verdict where the user looks, and where CI systems do."""
    from draftbench.gate import ci
    from draftbench.records import to_json
    from draftbench.report.terminal.verdict import text

    if places.style == "json":
        shown = to_json(result)
    elif places.style == "markdown":
        shown = ci.to_markdown(result)
    else:
        shown = text(result, width())
    # Before the verdict is shown: a file that cannot be written leaves no answer behind.
    if places.history is not None:
        ci.append_to_history(places.history, result, _now())
    to_ci(result, places)
    write_result(shown.rstrip("\n"), places.output)


def to_ci(outcome: Outcome, places: Places) -> None:
    """A verdict, or a baseline that cannot be compared, where CI systems look."""
    from draftbench.gate import ci

    if places.junit is not None:
        write_result(ci.to_junit(outcome, _now()), places.junit)
    if places.annotations is not None:
        for line in ci.to_github(outcome):
            note(line)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a") as stream:
                stream.write(ci.to_markdown(outcome) + "\n")
        except OSError as failed:  # a summary that is lost must not hide the verdict
            note(f"cannot write the summary to `{summary}`: {failed.strerror}")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
