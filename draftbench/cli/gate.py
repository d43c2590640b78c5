"""`draftbench gate`: save a run as a baseline, or judge a run against one, with the verdict as exit
code.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftbench.cli.flags import (
    LARGEST_K,
    Decision,
    candidate_named,
    flag,
    in_output,
    read,
)
from draftbench.cli.output import TextOutput, check_output, note, width, write_result
from draftbench.errors import IncomparableError, UsageError
from draftbench.run_folder.key import VARIABLE, key_file, key_id, request_key

if TYPE_CHECKING:
    from draftbench.gate.baseline import Baseline
    from draftbench.gate.ci import Outcome
    from draftbench.planner.recommendation import Configuration
    from draftbench.records import Candidate
    from draftbench.run_folder.run import Run


@dataclass(frozen=True, kw_only=True)
class ForCI:
    """Flags for what the gate writes for a CI system, besides the verdict on stdout."""

    junit: Path | None = in_output(None, "Write JUnit XML to this file.", "FILE")
    annotations: str | None = in_output(
        None, "Print annotations for this CI system to stderr.", "github", among=("github",)
    )
    history: Path | None = in_output(
        None, "Append the verdict to this file as a line of JSON.", "FILE"
    )

    def publish(self, outcome: Outcome) -> None:
        """Write a verdict, or that a baseline cannot be compared, where CI systems look."""
        from draftbench.gate import ci
        from draftbench.report.terminal.gate import render

        if self.junit is not None:
            write_result(ci.to_junit(outcome, _now()), self.junit)
        if self.annotations is not None:
            for line in ci.to_github(outcome):
                note(line)
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            try:
                with Path(summary).open("a") as stream:
                    stream.write(render(outcome, "markdown", width()) + "\n\n")
            except OSError as failed:  # the verdict is printed even if its summary is lost
                note(f"cannot write the summary to `{summary}`: {failed.strerror}")


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _names(*groups: type[Decision | ForCI | TextOutput]) -> set[str]:
    return {field.name for group in groups for field in fields(group)}


_VERDICT = {"max_drop", "inconclusive", "exit_zero"} | _names(ForCI, TextOutput)
# The three ways to call the gate: its usage, the flags that it needs, and those that it may have.
_WAYS = {
    "save": ("--save FILE RUN", {"save", "run"}, {"candidate", "k", "force"} | _names(Decision)),
    "baseline": ("--baseline FILE RUN", {"baseline", "run"}, {"candidate"} | _VERDICT),
    "old": ("--old RUN --new RUN", {"old", "new"}, {"candidate", "k"} | _VERDICT),
}


def gate(
    *,
    context: typer.Context,
    run: Annotated[
        Path | None, typer.Argument(help="The run folder to save or to judge.", metavar="RUN")
    ] = None,
    save: Path | None = flag(None, "Save RUN as a baseline in this file.", "FILE"),
    baseline: Path | None = flag(None, "Judge RUN against this baseline.", "FILE"),
    old: Path | None = flag(None, "Judge --new against this run folder.", "RUN"),
    new: Path | None = flag(None, "The run folder to judge against --old.", "RUN"),
    max_drop: list[str] | None = flag(
        None,
        "How much a metric may fall, e.g. mean_accepted_length:2% of the baseline's value, or "
        "alpha:0.02 in its own unit. Repeatable.",
        "METRIC:VALUE",
    ),
    candidate: str | None = flag(
        None,
        "The candidate, DRAFT[:QUANT] (default: to save, the recommended one; to judge, the "
        "baseline's).",
        "NAME",
    ),
    k: int | None = flag(
        None, "The draft length (default: the candidate's best).", "K", min=1, max=LARGEST_K
    ),
    inconclusive: str = flag(
        "report",
        "The exit code where the sample is too small to tell: report (3), pass (0) or fail (1).",
        "HOW",
        among=("report", "pass", "fail"),
    ),
    exit_zero: bool = flag(False, "Exit 0 whatever the verdict; errors keep their exit codes."),
    decision: Decision,
    for_ci: ForCI,
    output: TextOutput,
) -> int:
    """Fail a CI job when acceptance regresses. Exits 0: pass, 1: fail, 3: the sample is too small
    to tell, 4: the baseline measured something else.

    draftbench gate --save baselines/prod.json results/runs/RUN
    draftbench gate --baseline baselines/prod.json results/runs/RUN
    draftbench gate --old results/runs/A --new results/runs/B
    """
    _check_together(context)
    for file in filter(None, (save, for_ci.junit)):
        check_output(file, output.force)
    if save and run:
        observed = read(run)
        saved = baseline_of(observed, candidate, k, decision)
        save_baseline(saved, save)
        if decision.costs is not None and None in (candidate, k):
            costs = decision.options(observed).costs
            note(f"note: {costs.caveats[0]}" if costs else "")
        if not os.environ.get(VARIABLE) and saved.question.key_id == key_id(request_key()):
            note(
                f"note: where this baseline is used on another machine, as in CI, set {VARIABLE} "
                f"to `hex:` and the content of {key_file()}: runs pair only under one key"
            )
        return 0
    from draftbench.gate.baseline import read_baseline
    from draftbench.gate.ci import append_to_history
    from draftbench.gate.judge import judge
    from draftbench.gate.limits import default_limits, limits_of
    from draftbench.report.terminal.gate import render

    limits_of(max_drop or (), ())  # a misspelt limit is refused before anything is read
    try:
        if old and new:
            first = baseline_of(read(old), candidate, k)
            second = _successor(new, candidate, first)
        else:
            assert baseline
            assert run
            first = read_baseline(baseline)
            second = _successor(run, candidate, first)
        defaults = default_limits(first.alpha, first.question.k)
        result = judge(first, second, limits_of(max_drop or (), defaults))
    except IncomparableError as error:
        for_ci.publish(error)
        raise
    # Before the verdict is printed, so that a file that cannot be written is an error, not a
    # verdict.
    if for_ci.history is not None:
        append_to_history(for_ci.history, result, _now())
    for_ci.publish(result)
    output.write(render(result, output.style, width()))
    if exit_zero:
        return 0
    if result.exit_code == 3 and inconclusive != "report":
        return 0 if inconclusive == "pass" else 1
    return result.exit_code


def _check_together(context: typer.Context) -> None:
    """Refuse flags that cannot be combined, or one that is missing, by name."""
    given = {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) and source.name != "DEFAULT"
    }
    way = next((way for way in ("save", "baseline") if way in given), "old")
    usage, needed, allowed = _WAYS[way]
    hint = f"`draftbench gate {usage}`; see `draftbench gate --help`"
    others, missing = given - needed - allowed, needed - given
    if others and way in given:
        raise UsageError(f"--{way} cannot be combined with {_written(others)}", hint=hint)
    if missing:
        raise UsageError(f"missing: {_written(missing)}", hint=hint)


def _written(parameters: set[str]) -> str:
    """The flags of parameters, as a user writes them."""
    others = {"run": "RUN", "style": "--format"}
    flags = (others.get(name, f"--{name.replace('_', '-')}") for name in parameters)
    return ", ".join(sorted(flags))


def save_baseline(baseline: Baseline, file: Path) -> None:
    """Write a baseline, and say on stderr which faults its run is suspected of."""
    from draftbench.gate.baseline import write_baseline

    write_baseline(baseline, file)
    note(
        f"saved {baseline.candidate} at k = {baseline.question.k} on {len(baseline.requests)} "
        f"requests to {file}"
    )
    for fault in baseline.faults:
        note(f"suspected fault in this baseline: {fault.message}; {fault.advice}")


def baseline_of(
    run: Run,
    name: str | None,
    k: int | None,
    decision: Decision | None = None,
    concurrency: int | None = None,
) -> Baseline:
    """What one candidate did at one k and one load. Default: the recommended configuration.

    Raises:
        UsageError: the run recommends nothing, or did not measure it at the `--concurrency` asked.
    """
    from draftbench.gate.pin import make_baseline
    from draftbench.run_folder.folder import PrivateText, RunFolder

    candidate = None if name is None else candidate_named(run, name)
    asked = decision and decision.concurrency
    if asked:
        concurrency = asked[0]
    if candidate is None or k is None:
        picked = _picked(run, candidate, decision or Decision())
        candidate, k = picked.candidate, k or picked.k
        if decision is not None:
            concurrency = picked.concurrency
    assert run.path  # `read` sets it
    texts = RunFolder(run.path).records(PrivateText)
    baseline = make_baseline(run, candidate, k, texts, concurrency)
    load, rows = baseline.question.concurrency, baseline.active_rows
    if asked and load not in (None, concurrency):
        loads = sorted({r.batch for r in run.decodes if (r.candidate, r.k) == (candidate, k)})
        raise UsageError(
            f"{candidate} at k = {k} was not measured with {concurrency} requests in flight",
            hint=f"it was with {', '.join(map(str, loads))}: give one of these with --concurrency",
        )
    if asked and load is None and baseline.processes and rows != concurrency:
        note(f"note: times in this baseline are at concurrency {rows}, not {concurrency}")
    return baseline


def _picked(run: Run, candidate: Candidate | None, decision: Decision) -> Configuration:
    """What the run recommends, or a candidate at its best k, of an engine at the best that was
    served; where no speed is known, the only configuration that the server drafts with.
    """
    from draftbench.planner.recommend import recommend

    answer = recommend(run, decision.options(run))
    if answer.provisional:
        note(f"note: the answer of `{run.path}` is provisional: {answer.provisional}")
    picked = answer.best_of(candidate) if candidate else answer.choice or answer.leader
    served = [each for each in answer.evaluations if each.requests_served]
    if picked is None and len(served) == 1 and candidate in (None, served[0].candidate):
        picked = served[0]
    own = {e.k: e for e in served if picked and e.candidate == picked.candidate}
    if picked and own and picked.k not in own and answer.costs_from is None:
        speeds = {k: speed.value if (speed := answer.ranked_by(e)) else 0.0 for k, e in own.items()}
        picked = own[max(own, key=lambda k: speeds[k])]
    if picked is None:
        raise UsageError(
            f"no k of `{candidate}` is known to be best"
            if candidate
            else "this run has no best draft",
            hint="name one with --candidate and --k",
        )
    return picked


def _successor(folder: Path, name: str | None, first: Baseline) -> Baseline:
    """The run to judge, at the baseline's k and load: the named candidate, or the baseline's.

    Raises:
        IncomparableError: the run did not measure the baseline's candidate, or not at its k.
    """
    run, k = read(folder), first.question.k
    measured = list(map(str, run.candidates))
    if name is None and first.candidate not in measured:
        raise IncomparableError(
            f"the baseline is of `{first.candidate}`, which this run did not measure",
            hint=f"its candidates are {', '.join(measured) or 'none'}; name the draft "
            "that replaces it with --candidate, or gate a run of the same draft and level",
        )
    name = name or first.candidate
    judged = candidate_named(run, name)
    served = {row.k for row in run.decodes if row.candidate == judged}
    served |= {row.k for row in run.unanswered if row.candidate == judged}
    if k not in served and not any(replay.candidate == judged for replay in run.replays):
        drafted = ", ".join(map(str, sorted(served))) or "nothing"
        raise IncomparableError(
            f"the baseline cannot be compared: k was {k}, the server drafts {drafted}",
            hint="start the server with the baseline's k, or save a new baseline",
        )
    load = first.question.concurrency or first.active_rows
    return baseline_of(run, name, k, concurrency=load)
