"""`draftbench gate`: save a run as a baseline, or judge a run against one, with the verdict as exit
code.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

import typer

from draftbench.cli.flags import (
    COSTS,
    RunArgument,
    candidate_named,
    read,
    require_measured,
    with_costs,
)
from draftbench.cli.output import TextOutput, check_output, note, width, write_result
from draftbench.errors import IncomparableError, UsageError
from draftbench.flags import LARGEST_K, flag, in_output
from draftbench.gate import ci
from draftbench.gate.baseline import Baseline, read_baseline, write_baseline
from draftbench.gate.ci import Outcome, difference, number, other_checks
from draftbench.gate.judge import judge
from draftbench.gate.limits import default_limits, limits_of
from draftbench.gate.make_baseline import make_baseline
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.notes import SAME_RUN
from draftbench.gate.pair_requests import refusal
from draftbench.gate.result import Check, FigureValue, GateResult
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration
from draftbench.records import Candidate, to_json
from draftbench.report.text import Section, counted, render_sections
from draftbench.run_folder.folder import PrivateText, RunFolder
from draftbench.run_folder.key import VARIABLE, key_file, key_id, request_key
from draftbench.run_folder.run import Run

_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔"}


@dataclass(frozen=True, kw_only=True)
class ForCI:
    """Flags for what the gate writes for a CI system, besides the verdict on stdout."""

    junit: Path | None = in_output(None, "Write JUnit XML to this file.", "FILE")
    annotations: str | None = in_output(
        None, "Print annotations for this CI system to stderr.", "github", among=("github",)
    )

    def publish(self, outcome: Outcome) -> None:
        """Write a verdict, or that a baseline cannot be compared, where CI systems look."""

        if self.junit is not None:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            write_result(ci.to_junit(outcome, now), self.junit)
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


def _names(*groups: type[DecisionOptions | ForCI | TextOutput]) -> set[str]:
    return {field.name for group in groups for field in fields(group)}


_VERDICT = {"max_drop", "inconclusive", "exit_zero", "force"} | _names(ForCI, TextOutput)
# The three ways to call the gate: its usage, the flags that it needs, and those that it may have.
_WAYS = {
    "save": (
        "--save FILE RUN",
        {"save"},
        {"run", "candidate", "k", "force"} | _names(DecisionOptions),
    ),
    "baseline": ("--baseline FILE RUN", {"baseline"}, {"run", "candidate"} | _VERDICT),
    "old": ("--old RUN --new RUN", {"old", "new"}, {"candidate", "k"} | _VERDICT),
}


def gate(
    *,
    context: typer.Context,
    run: RunArgument = None,
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
    force: bool = in_output(False, "Replace a file that draftbench did not write."),
    options: DecisionOptions,
    costs: Path | None = COSTS,
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
        check_output(file, force)
    if save:
        observed = read(run)
        if None in (candidate, k):
            options = with_costs(options, costs, observed)
        saved = baseline_of(observed, candidate, k, options)
        save_baseline(saved, save)
        if options.costs:
            note(f"note: {options.costs.caveats[0]}")
        if not os.environ.get(VARIABLE) and saved.question.key_id == key_id(request_key()):
            note(
                f"note: to use this baseline on another machine, such as in CI, set {VARIABLE} "
                f"there to `hex:` followed by the content of {key_file()}: both need the same key"
            )
        return 0

    limits_of(max_drop or (), ())  # a misspelt limit is refused before anything is read
    try:
        if old and new:
            first = baseline_of(read(old), candidate, k)
            second = _successor(new, candidate, first)
        else:
            assert baseline
            first = read_baseline(baseline)
            second = _successor(run, candidate, first)
        defaults = default_limits(first.alpha, first.question.k)
        result = judge(first, second, limits_of(max_drop or (), defaults))
    except IncomparableError as error:
        for_ci.publish(error)
        raise
    # Before the verdict is printed, so that a file that cannot be written is an error, not a
    # verdict.
    for_ci.publish(result)
    output.write(render(result, output.style, width()))
    if exit_zero:
        return 0
    if result.exit_code == 3 and inconclusive != "report":
        return 0 if inconclusive == "pass" else 1
    return result.exit_code


def _check_together(context: typer.Context) -> None:
    """Refuse flags that cannot be combined, and name missing ones."""
    given = {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) and source.name != "DEFAULT"
    }
    way = next((way for way in _WAYS if way in given), "old" if "new" in given else None)
    if way is None:
        raise UsageError(
            "say what to do with the run: save it as a baseline, or judge it against one",
            hint="`draftbench gate --save FILE RUN`, then `draftbench gate --baseline FILE RUN`",
        )
    usage, needed, allowed = _WAYS[way]
    hint = f"`draftbench gate {usage}`; see `draftbench gate --help`"
    others, missing = given - needed - allowed, needed - given
    if others:
        raise UsageError(f"--{way} cannot be combined with {_written(others)}", hint=hint)
    if missing:
        raise UsageError(f"missing: {_written(missing)}", hint=hint)


def _written(parameters: set[str]) -> str:
    """The flags of parameters, as a user writes them."""
    others = {"run": "RUN", "style": "--format"}
    flags = (others.get(name, f"--{name.replace('_', '-')}") for name in parameters)
    return ", ".join(sorted(flags))


def save_baseline(baseline: Baseline, file: Path) -> None:
    """Write a baseline, and name the suspected faults of its run on stderr."""
    write_baseline(baseline, file)
    note(
        f"saved {baseline.candidate} at k = {baseline.question.k} on "
        f"{counted(len(baseline.requests), 'request')} to {file}"
    )
    for fault in baseline.faults:
        note(f"suspected fault in this baseline: {fault.message}; {fault.advice}")


def baseline_of(
    run: Run,
    name: str | None,
    k: int | None,
    options: DecisionOptions | None = None,
    concurrency: int | None = None,
) -> Baseline:
    """What one candidate did at one k and one load. Default: the recommended configuration.

    Raises:
        UsageError: the run recommends nothing, or did not measure it at the given --concurrency.
    """
    candidate = None if name is None else candidate_named(run, name)
    chosen = options.concurrency if options else ()
    if chosen:
        concurrency = chosen[0]
    if candidate is None or k is None:
        picked = _picked(run, candidate, options or DecisionOptions())
        candidate, k = picked.candidate, k or picked.k
        if options is not None:
            concurrency = picked.concurrency
    assert run.path  # `read` sets it
    texts = RunFolder(run.path).records(PrivateText)
    baseline = make_baseline(run, candidate, k, texts, concurrency)
    served = baseline.question.concurrency
    if chosen and served not in (None, concurrency):
        measured = sorted(
            {r.concurrency for r in run.decodes if (r.candidate, r.k) == (candidate, k)}
        )
        raise UsageError(
            f"{candidate} at k = {k} was not measured at concurrency {concurrency}",
            hint=f"it was at {', '.join(map(str, measured))}: give one of these with --concurrency",
        )
    timed = baseline.concurrency
    if chosen and served is None and baseline.processes and timed != concurrency:
        note(f"note: times in this baseline are at concurrency {timed}, not {concurrency}")
    return baseline


def _picked(run: Run, candidate: Candidate | None, options: DecisionOptions) -> Configuration:
    """What the run recommends, or a candidate at its best k (on an engine, the best served one); if
    no speed is known, the only configuration that the server drafts with.
    """
    answer = recommend(require_measured(run), options)
    if answer.decision == "inconclusive":
        note(f"note: `{run.path}` is inconclusive: the draft that ranks first may not be the best")
    elif answer.provisional:
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
            f"the best k of `{candidate}` is unknown"
            if candidate
            else "this run has no best draft",
            hint="name one with --candidate and --k",
        )
    return picked


def _successor(folder: Path | None, name: str | None, first: Baseline) -> Baseline:
    """The run to judge: the named candidate, or the baseline's.

    Raises:
        IncomparableError: the run did not measure the baseline's candidate.
    """
    run = read(folder)
    measured = list(map(str, run.candidates))
    if name is not None or first.candidate in measured:
        return _at_same(first, run, name or first.candidate)
    another = first
    for each in measured:  # any draft shows which other settings differ
        with suppress(UsageError):
            another = _at_same(first, run, each)
            break
    refused = refusal(first, another, measured=measured)
    assert refused
    raise refused


def _at_same(first: Baseline, run: Run, name: str) -> Baseline:
    """What a candidate did at the baseline's k and load, or at the nearest that was served."""
    k, judged = first.question.k, candidate_named(run, name)
    served = {row.k for row in run.decodes if row.candidate == judged}
    served |= {row.k for row in run.unanswered if row.candidate == judged}
    if k not in served and not any(replay.candidate == judged for replay in run.replays):
        k = max(served, default=k)
    return baseline_of(run, name, k, concurrency=first.concurrency)


def render(outcome: Outcome, style: str, width: int) -> str:
    """A verdict as table, json or markdown (every check with every figure); a refusal as table or
    markdown.
    """
    if isinstance(outcome, IncomparableError):
        refused = Section("⛔ draftbench gate: incomparable", notes=[outcome.message, outcome.hint])
        return render_sections([refused], style, width)
    if style == "json":
        return to_json(outcome)
    return render_sections(_sections(outcome, everything=style == "markdown"), style, width)


def _sections(result: GateResult, *, everything: bool) -> Iterator[Section]:
    marked = f"{_MARKS[result.verdict]} draftbench gate: {result.verdict}"
    if SAME_RUN in result.notes:  # its checks say nothing
        yield Section(f"{marked if everything else result.verdict.upper()}: {SAME_RUN}.")
        return
    names = f"{result.new} against the baseline {result.old}"
    basis = f"{counted(result.requests, 'paired request')}, k = {result.k}, {result.mode} drafting"
    if everything:
        yield Section(marked, notes=[names, basis])
    else:
        yield Section(f"{result.verdict.upper()}: {names}", notes=[basis])
    others = [words for _, _, words in other_checks(result)]
    yield checked("All requests", result.pooled, others, everything=everything)
    if result.segments:
        failing = [check for check in result.segments if check.verdict is Verdict.FAIL]
        open_ones = sum(check.verdict is Verdict.INCONCLUSIVE for check in result.segments)
        counts = f"{len(result.segments)} checks, {len(failing)} fail, {open_ones} inconclusive"
        title = f"By segment: {counts}"
        shown = result.segments if everything else failing
        yield replace(checked(title, shown, everything=everything), folded=not failing)
    if result.notes:
        yield Section("Notes", notes=result.notes)
    if result.changes:
        rows = [(change.fact, change.old, change.new) for change in result.changes]
        yield Section("Changes", ["changed", "baseline", "this run"], rows)


def checked(
    title: str, checks: Sequence[Check], notes: Sequence[str] = (), *, everything: bool = False
) -> Section:
    """Checks with their limits and verdicts; with `everything` also each run's interval and the
    smallest drop that would be detected.
    """
    rows = []
    for check in checks:
        seen, improved = check.smallest_detectable_drop, " (improved)" if check.improved else ""
        row = {
            "segment": check.segment,
            "metric": check.metric,
            "before": _value(check.old, ends=everything),
            "now": _value(check.new, ends=everything),
            "change": difference(check),
            "limit": check.amount(check.limit.value),
            "detects drops from": None if seen is None else check.amount(seen),
            "verdict": f"{check.verdict}{improved}",
        }
        if check.segment is None:
            del row["segment"]
        if everything:
            row["verdict"] = f"{_MARKS[check.verdict]} {row['verdict']}"
        else:
            del row["detects drops from"]
        rows.append(row)
    head = list(rows[0]) if rows else []
    table = [list(row.values()) for row in rows]
    return Section(title, head, table, notes, names=2 if "segment" in head else 1)


def _value(figure: FigureValue, *, ends: bool) -> str:
    if not ends or figure.low is None or figure.high is None:
        return number(figure.value)
    return f"{number(figure.value)} [{number(figure.low)}, {number(figure.high)}]"
