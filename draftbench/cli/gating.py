"""`draftbench gate`: pin a baseline, or compare a run with one, and leave with the verdict as exit
code.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from draftbench.cli.values import (
    OutputOption,
    ThreadsOption,
    check_output,
    one_of,
)
from draftbench.cli.verdicts import exit_code, publish, recorded
from draftbench.errors import RunFolderError, UsageError

if TYPE_CHECKING:
    from draftbench.gate.baseline import Baseline
    from draftbench.records import Candidate
    from draftbench.store.observed import Observed


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
    quant: Annotated[str, typer.Option(help="Its quantization level.")] = "none",
    traffic: Annotated[
        str | None, typer.Option(help="The traffic to measure on with --target.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="As in the sweep that made the baseline.")
    ] = None,
    seed: Annotated[int, typer.Option(help="As in the sweep that made the baseline.")] = 0,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="As in the sweep that made the baseline.")
    ] = None,
    threads: ThreadsOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder of --target (default: results/runs/gate-TIME).")
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Option(help="DRAFT[:QUANT] (default: the recommended one; the baseline's own)."),
    ] = None,
    k: Annotated[int | None, typer.Option("--k", min=1, help="Draft length to save at.")] = None,
    max_drop: Annotated[
        list[str] | None,
        typer.Option(help="METRIC:VALUE[%], e.g. mean_accepted_length:2%; repeatable."),
    ] = None,
    inconclusive: Annotated[
        str, typer.Option(help="What an inconclusive verdict exits as: report (3), pass or fail.")
    ] = "report",
    exit_zero: Annotated[bool, typer.Option(help="Report only: exit 0 whatever is found.")] = False,
    junit: Annotated[Path | None, typer.Option(help="Write JUnit XML here.")] = None,
    annotations: Annotated[
        str | None, typer.Option(help="Print annotations for `github` or `gitlab`.")
    ] = None,
    history: Annotated[
        Path | None, typer.Option(help="Append the verdict to this file; show the last ten.")
    ] = None,
    history_plot: Annotated[
        Path | None, typer.Option(help="Draw --history to this SVG file, with a PNG beside it.")
    ] = None,
    output_format: Annotated[
        str, typer.Option("--format", help="table, json or markdown.")
    ] = "table",
    output: OutputOption = "-",
) -> int:
    """Fail a CI job when acceptance got worse; say "inconclusive" when the sample cannot tell.

    draftbench gate --save results/baselines/prod.json results/runs/RUN
    draftbench gate --baseline results/baselines/prod.json results/runs/RUN
    draftbench gate --baseline prod.json --target ./target --draft ./draft --traffic prod.jsonl
    draftbench gate --old results/runs/A --new results/runs/B --max-drop alpha:0.02
    """
    one_of("--inconclusive", inconclusive, ["report", "pass", "fail"])
    one_of("--format", output_format, ["table", "json", "markdown"])
    if annotations is not None:
        one_of("--annotations", annotations, ["github", "gitlab"])
    _require(history_plot is None or history is not None, "gate … --history FILE --history-plot F")
    for file in (output, *(str(f) for f in (junit, history_plot) if f is not None)):
        check_output(file)
    if save is not None:
        alone = baseline is None and old is None and new is None
        _require(run is not None and alone, "gate --save FILE RUN")
        assert run is not None
        return _save(run, save, candidate, k)
    if target is not None:
        _require(
            None not in (baseline, draft, traffic) and run is None,
            "gate --baseline FILE --target T --draft D --traffic FILE",
        )
        assert baseline is not None
        assert draft is not None
        assert traffic is not None
        job = _Job(target, draft, quant, temperature, threads, (traffic, sample, seed))
        run, candidate = _measure(baseline, job, out)
    else:
        only_with_target = (draft, traffic, sample, temperature, threads, out)
        _require(
            only_with_target == (None,) * 6 and (quant, seed) == ("none", 0),
            "gate --baseline FILE --target T --draft D --traffic FILE",
        )
    pair = _pair(run, baseline, (old, new), candidate, k)
    from draftbench.gate.comparison import compare
    from draftbench.gate.limits import limits_of

    result = compare(pair.old, pair.new, limits_of(max_drop or ()))
    past = ""
    if history is not None:
        result, past = recorded(result, history, history_plot)
    publish(result, past, output_format, output, junit=junit, annotations=annotations)
    return exit_code(result, inconclusive, exit_zero=exit_zero)


@dataclass(frozen=True)
class _Job:
    """What to measure when there is no run yet; `traffic` is source, sample and seed."""

    target: str
    draft: str
    quant: str
    temperature: float | None
    threads: int | None
    traffic: tuple[str, int | None, int]


def _measure(file: Path, job: _Job, out: Path | None) -> tuple[Path, str]:
    """Replay one draft as the baseline asks; the run folder and the candidate's name."""
    from rich.console import Console

    from draftbench.gate.baseline import read_baseline
    from draftbench.records import DraftingMode
    from draftbench.report.progress import TerminalWatcher
    from draftbench.store.key import request_key
    from draftbench.sweep import SweepOptions, prepare, run
    from draftbench.traffic import TrafficQuery

    asked = read_baseline(file).question
    source, sample, seed = job.traffic
    query = TrafficQuery(source, sample, seed, None, None, None, False, request_key())
    options = SweepOptions(
        target=job.target,
        drafts=(job.draft,),
        traffic=query,
        ks=tuple(range(1, asked.k + 1)),
        quants=(job.quant,),
        mode=DraftingMode(asked.mode),
        responses=asked.responses,
        samples=asked.samples,
        max_new_tokens=asked.max_new_tokens,
        temperature=job.temperature,
        measure="none",
        controls=False,
        threads=job.threads,
    )
    out = out or Path("results/runs") / time.strftime("gate-%Y%m%d-%H%M%S")
    with TerminalWatcher(Console(stderr=True), quiet=False) as watcher:
        prepared = prepare(options, "draftbench gate", watcher)
        run(prepared, out, watcher)
    return out, str(prepared.candidates[0])


@dataclass(frozen=True)
class _Pair:
    old: Baseline
    new: Baseline


def _require(condition: bool, usage: str) -> None:
    if not condition:
        raise UsageError(
            "these flags do not go together, or one is missing",
            hint=f"`draftbench {usage}`; see `draftbench gate --help`",
        )


def _read(path: Path) -> Observed:
    from draftbench.store.folder import RunFolder
    from draftbench.store.observed import read_run

    return read_run(RunFolder(path))


def _save(run: Path, file: Path, candidate: str | None, k: int | None) -> int:
    from draftbench.gate.baseline import write_baseline

    pinned = _pinned(_read(run), candidate, k)
    write_baseline(pinned, file)
    typer.echo(
        f"saved {pinned.candidate} at k = {pinned.question.k} on {len(pinned.requests)} requests "
        f"to {file}",
        err=True,
    )
    return 0


def _pair(
    run: Path | None,
    baseline: Path | None,
    runs: tuple[Path | None, Path | None],
    candidate: str | None,
    k: int | None,
) -> _Pair:
    """Both sides at the same k: a file against a run, or a run against a run."""
    from draftbench.gate.baseline import read_baseline

    old, new = runs
    if baseline is not None:
        alone = old is None and new is None and k is None
        _require(run is not None and alone, "gate --baseline FILE RUN")
        assert run is not None
        pinned = read_baseline(baseline)
        other = _pinned(_read(run), candidate or pinned.candidate, pinned.question.k)
        return _Pair(pinned, other)
    _require(run is None and old is not None and new is not None, "gate --old RUN --new RUN")
    assert old is not None
    assert new is not None
    first = _pinned(_read(old), candidate, k)
    return _Pair(first, _pinned(_read(new), candidate or first.candidate, first.question.k))


def _pinned(observed: Observed, candidate: str | None, k: int | None) -> Baseline:
    """A run reduced to one candidate at one k; by default what the run recommends."""
    from draftbench.gate.pinning import make_baseline
    from draftbench.plan.recommend import recommend
    from draftbench.records import Candidate

    if candidate is not None and k is not None:
        return make_baseline(observed, _named(observed, candidate), k)
    answer = recommend(observed)
    if candidate is None:
        best = answer.choice or answer.leader
        if best is None:
            raise UsageError(
                "this run recommends no candidate", hint="name one with --candidate and --k"
            )
        return make_baseline(observed, Candidate(draft=best.draft, quant=best.quant), k or best.k)
    named = _named(observed, candidate)
    cells = [c for c in answer.candidates if (c.draft, c.quant) == (named.draft, named.quant)]
    chosen = next((c.k for c in cells if c.best), None)
    if chosen is None:
        raise UsageError(f"no k of `{candidate}` is known to be best", hint="give one with --k")
    return make_baseline(observed, named, chosen)


def _named(observed: Observed, text: str) -> Candidate:
    for candidate in observed.candidates:
        if str(candidate) == text:
            return candidate
    known = ", ".join(map(str, observed.candidates)) or "none"
    raise RunFolderError(
        f"the run has no candidate `{text}`", hint=f"its candidates are: {known}; use --candidate"
    )
