"""`draftbench gate`: save a run as a baseline, or judge a run against one, with the verdict as exit
code.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import fields, replace
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
from draftbench.cli.output import TextOutput, check_output, note, rendered, width, write_result
from draftbench.errors import IncomparableError, UsageError
from draftbench.flags import LARGEST_K, flag, in_output
from draftbench.gate import ci
from draftbench.gate.baseline import Baseline, read_baseline, write_baseline
from draftbench.gate.ci import Outcome
from draftbench.gate.judge import judge
from draftbench.gate.make_baseline import choose, make_baseline, successor
from draftbench.gate.metrics import default_limits, limits_of
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.result import Check, FigureValue
from draftbench.gate.words import SAME_RUN, difference, number, other_checks
from draftbench.planner.options import DecisionOptions
from draftbench.records import Decode
from draftbench.report.text import Section, counted, filled, render_sections
from draftbench.run_folder.key import VARIABLE, key_file, key_id, request_key
from draftbench.run_folder.run import Run

_MARKS = {Verdict.PASS: "✅", Verdict.FAIL: "❌", Verdict.INCONCLUSIVE: "❔"}


# Flags of one way to call the gate that make no sense in the other.
_SAVING = {"save", "k"} | {field.name for field in fields(DecisionOptions)}
_JUDGING = {"baseline", "max_drop", "inconclusive", "exit_zero", "junit", "annotations"} | {
    field.name for field in fields(TextOutput)
}


def gate(
    *,
    context: typer.Context,
    run: RunArgument = None,
    save: Path | None = flag(None, "Save RUN as a baseline in this file.", "FILE"),
    baseline: Path | None = flag(
        None, "Judge RUN against this baseline, or against an earlier run folder.", "FILE"
    ),
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
    junit: Path | None = in_output(None, "Write JUnit XML to this file.", "FILE"),
    annotations: str | None = in_output(
        None, "Print annotations for this CI system to stderr.", "github", among=("github",)
    ),
    output: TextOutput,
) -> int:
    """Fail a CI job when acceptance regresses. Exits 0: pass, 1: fail, 3: the sample is too small
    to tell, 4: the baseline measured something else.

    draftbench gate --save baselines/prod.json results/runs/RUN
    draftbench gate --baseline baselines/prod.json results/runs/RUN
    draftbench gate --baseline results/runs/A results/runs/B
    """
    if not (save or baseline):
        raise UsageError(
            "say what to do with the run: save it as a baseline, or judge it against one",
            hint="`draftbench gate --save FILE RUN`, then `draftbench gate --baseline FILE RUN`",
        )
    way, others = ("save", _JUDGING) if save else ("baseline", _SAVING)
    clashing = sorted(
        f"--{'format' if name == 'style' else name.replace('_', '-')}"
        for name in others & context.params.keys()
        if (source := context.get_parameter_source(name)) and source.name != "DEFAULT"
    )
    if clashing:
        raise UsageError(
            f"--{way} cannot be combined with {', '.join(clashing)}",
            hint=f"`draftbench gate --{way} FILE RUN`; see `draftbench gate --help`",
        )
    for file in filter(None, (save, junit)):
        check_output(file, force)
    if save:
        observed = read(run)
        options = with_costs(options, costs, observed)
        saved = _kept(observed, candidate, k, options)
        write_baseline(saved, save)
        requests = counted(len(saved.requests), "request")
        note(f"saved {saved.candidate} at k = {saved.question.k} on {requests} to {save}")
        for fault in saved.faults:
            note(f"suspected fault in this baseline: {fault.message}; {fault.advice}")
        if options.costs and None in (candidate, k):
            note(f"note: {options.costs.caveats[0]}")
        if not os.environ.get(VARIABLE) and saved.question.key_id == key_id(request_key()):
            note(
                f"note: to use this baseline on another machine, such as in CI, set {VARIABLE} "
                f"there to `hex:` followed by the content of {key_file()}: both need the same key"
            )
        return 0

    assert baseline
    limits_of(max_drop or (), ())  # a misspelt limit is refused before anything is read
    if baseline.is_dir():
        first = _kept(read(baseline), candidate, None, DecisionOptions())
    else:
        first = read_baseline(baseline)
    outcome: Outcome
    try:
        later = read(run)
        named = candidate_named(later, candidate) if candidate else None
        defaults = default_limits(first.alpha, first.question.k)
        outcome = judge(first, successor(later, named, first), limits_of(max_drop or (), defaults))
    except IncomparableError as error:
        outcome = error
    # Where CI systems look; before the verdict is printed, so that a file that cannot be written is
    # an error, not a verdict.
    if junit is not None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_result(ci.to_junit(outcome, now), junit)
    if annotations is not None:
        for line in ci.to_github(outcome):
            note(line)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(summary).open("a") as stream:
                stream.write(render(outcome, "markdown", width()) + "\n\n")
        except OSError as failed:  # the verdict is printed even if its summary is lost
            note(f"cannot write the summary to `{summary}`: {failed.strerror}")
    if isinstance(outcome, IncomparableError):
        raise outcome
    output.write(render(outcome, output.style, width()))
    if outcome.verdict is Verdict.FAIL and outcome.new in map(_drafted_by, later.decodes):
        folder = shlex.quote(str(later.path))
        note(f"`draftbench audit {folder}` says why, if the engine or the draft changed")
    if exit_zero:
        return 0
    if outcome.exit_code == 3 and inconclusive != "report":
        return 0 if inconclusive == "pass" else 1
    return outcome.exit_code


def _drafted_by(row: Decode) -> str:
    return str(row.candidate)


def _kept(run: Run, name: str | None, k: int | None, options: DecisionOptions) -> Baseline:
    """The baseline of a run, with notes on what was not named."""
    candidate = candidate_named(run, name) if name else None
    chosen, remarks = choose(require_measured(run), candidate, k, options)
    for remark in remarks:
        note(f"note: {remark}")
    found = make_baseline(run, chosen.candidate, chosen.k, concurrency=chosen.concurrency)
    asked, timed = options.concurrency, found.concurrency
    if asked and found.processes and timed != asked[0]:
        note(f"note: times in this baseline are at concurrency {timed}, not {asked[0]}")
    return found


def render(outcome: Outcome, style: str, width: int) -> str:
    """A verdict as table, json or markdown (every check with every figure); a refusal as table or
    markdown.
    """
    if isinstance(outcome, IncomparableError):
        refused = Section("⛔ draftbench gate: incomparable", notes=[outcome.message, outcome.hint])
        return render_sections([refused], style, width)
    everything = style == "markdown"
    marked = f"{_MARKS[outcome.verdict]} draftbench gate: {outcome.verdict}"
    title = marked if everything else outcome.verdict.upper()
    if SAME_RUN in outcome.notes:  # its checks say nothing
        return rendered(outcome, [Section(f"{title}: {SAME_RUN}.")], style, width)
    names = f"{outcome.new} against the baseline {outcome.old}"
    basis = f"{counted(outcome.requests, 'paired request')}, k = {outcome.k}"
    basis += f", {outcome.mode} drafting"
    others = [words for _, _, words in other_checks(outcome)]
    sections = [
        Section(title, notes=[names, basis])
        if everything
        else Section(f"{title}: {names}", notes=[basis]),
        checked("All requests", outcome.pooled, others, everything=everything),
    ]
    if outcome.segments:
        failing = [check for check in outcome.segments if check.verdict is Verdict.FAIL]
        open_ones = sum(check.verdict is Verdict.INCONCLUSIVE for check in outcome.segments)
        counts = f"{len(outcome.segments)} checks, {len(failing)} fail, {open_ones} inconclusive"
        shown = outcome.segments if everything else failing
        by_segment = checked(f"By segment: {counts}", shown, everything=everything)
        sections.append(replace(by_segment, folded=not failing))
    sections.append(Section("Notes", notes=outcome.notes))
    changes = [(change.fact, change.old, change.new) for change in outcome.changes]
    sections.append(Section("Changes", ["changed", "baseline", "this run"], changes))
    # The title alone of segments says enough.
    return rendered(outcome, [*sections[:-2], *filled(sections[-2:])], style, width)


def checked(
    title: str, checks: Sequence[Check], notes: Sequence[str] = (), *, everything: bool = False
) -> Section:
    """Checks with their limits and verdicts; with `everything` also each run's interval and the
    smallest drop that would be detected.
    """
    rows = []
    for check in checks:
        improved = " (improved)" if check.improved else ""
        row = {
            "segment": check.segment,
            "metric": check.metric,
            "before": _value(check.old, ends=everything),
            "now": _value(check.new, ends=everything),
            "change": difference(check),
            "limit": check.limit.amount(check.limit.value),
            "detects drops from": check.detects,
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
