"""`draftbench sweep`: flags → a run folder → its recommendation."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from draftbench.cli.config_file import ConfigArgument, PrintConfigOption, config_text
from draftbench.cli.flags import (
    DRAFTS,
    FORMATS,
    MEASURE,
    MODELS,
    MODES,
    OUTPUT,
    SAFETY,
    TEXT_FORMATS,
    TRAFFIC,
    FormatOption,
    OutputOption,
    PromptFieldOption,
    QuietOption,
    ResponseFieldOption,
    SegmentByOption,
    TargetOption,
    ThreadsOption,
    TrafficOption,
    TrustOption,
    among,
    complete_levels,
    draft_lengths,
    level_name,
    level_names,
    model_names,
    number_range,
    one_of,
    require_measured,
    swept_concurrencies,
)
from draftbench.cli.invocation import as_called, command
from draftbench.cli.output import check_output, note, width, write_result
from draftbench.cli.signals import how_to_resume, kept_in
from draftbench.errors import AuditError, UsageError
from draftbench.memory import LEVELS

if TYPE_CHECKING:
    from draftbench.records import Observation
    from draftbench.report.terminal.dry_run import Plan
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import Run
    from draftbench.sweep import Prepared, SweepOptions

ANSWERS = ("target", "log")
# What --measure asks for, and at how many k's a candidate is then decoded at most.
DECODED_KS = {"best": 3, "all": 64, "none": 0, "replay": 0}
_TIME_LIMIT = "--cell-timeout"


def _devices(incomplete: str) -> list[str]:
    """The kinds, and the cards of this machine by number."""
    cards = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*"))
    return ["cpu", "cuda", "auto", *(f"cuda:{card}" for card in cards)]


def sweep(
    context: typer.Context,
    target: TargetOption,
    traffic: TrafficOption,
    config: ConfigArgument = None,
    drafts: Annotated[list[str] | None, DRAFTS] = None,
    quant: Annotated[
        list[str] | None,
        typer.Option(
            help="The quantization levels of the drafts: none, fp8, int8, int4 (default: none).",
            metavar="LEVEL,…",
            autocompletion=complete_levels,
        ),
    ] = None,
    k: Annotated[
        str, typer.Option("--k", help="The draft lengths, e.g. 1-8 or 2,4,8.", metavar="K,…")
    ] = "1-8",
    concurrency: Annotated[
        str,
        typer.Option(help="How many requests decode together, e.g. 1,4,16.", metavar="N,…"),
    ] = "1",
    batch: Annotated[str | None, typer.Option("--batch", hidden=True)] = None,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="How many requests to measure (default: all of them)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run folder to write (default: results/runs/TIME).", metavar="FOLDER"
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show the work, its time and its memory; load no weights."),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Which requests --sample takes.", rich_help_panel=TRAFFIC)
    ] = 0,
    segment_by: SegmentByOption = None,
    prompt_field: PromptFieldOption = None,
    response_field: ResponseFieldOption = None,
    skip_bad: Annotated[
        bool,
        typer.Option(
            help="Count rows that cannot be read instead of stopping at the first.",
            rich_help_panel=TRAFFIC,
        ),
    ] = False,
    responses: Annotated[
        str,
        typer.Option(
            help="Where responses come from: target generates them; log scores the logged answers.",
            metavar="SOURCE",
            autocompletion=among(*ANSWERS),
            rich_help_panel=TRAFFIC,
        ),
    ] = "target",
    samples: Annotated[
        int,
        typer.Option(
            min=1, help="How many responses to generate per request.", rich_help_panel=TRAFFIC
        ),
    ] = 1,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="The longest response (default: the request's limit).",
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Replace the temperature of every request; 0 is greedy.",
            rich_help_panel=TRAFFIC,
        ),
    ] = None,
    target_quant: Annotated[
        str,
        typer.Option(
            help="The quantization level of the target.",
            metavar="LEVEL",
            autocompletion=among(*LEVELS),
            rich_help_panel=MODELS,
        ),
    ] = "none",
    simulate_quant: Annotated[
        bool,
        typer.Option(
            help="Measure acceptance, but no speed, at levels without a fast kernel here.",
            rich_help_panel=MODELS,
        ),
    ] = False,
    one_layout: Annotated[
        bool,
        typer.Option(
            "--one-layout",
            help="Hold weights once on a CPU: less memory, slower passes over several tokens.",
            rich_help_panel=MODELS,
        ),
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="The type of unquantized weights: bfloat16 or float32.",
            metavar="TYPE",
            autocompletion=among("bfloat16", "float32"),
            rich_help_panel=MODELS,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda, cuda:1, or auto, which spreads the models over all GPUs.",
            metavar="DEVICE",
            autocompletion=_devices,
            rich_help_panel=MODELS,
        ),
    ] = None,
    threads: ThreadsOption = None,
    measure: Annotated[
        str,
        typer.Option(
            help="How much to decode for real: the best k's, all k's, none, or replay, which "
            "times nothing at all.",
            metavar="HOW",
            autocompletion=among(*DECODED_KS),
            rich_help_panel=MEASURE,
        ),
    ] = "best",
    measure_requests: Annotated[
        int,
        typer.Option(min=1, help="How many requests to decode for real.", rich_help_panel=MEASURE),
    ] = 30,
    mode: Annotated[
        str,
        typer.Option(
            help="How drafts propose: greedy, sampled or sampled-temperature-only.",
            metavar="MODE",
            autocompletion=among(*MODES),
            rich_help_panel=MEASURE,
        ),
    ] = "greedy",
    controls: Annotated[
        bool,
        typer.Option(
            help="Do not add prompt lookup and the target as its own draft.",
            show_default=False,
            rich_help_panel=MEASURE,
        ),
    ] = True,
    ngram: Annotated[
        str,
        typer.Option(
            help="The lengths of n-grams that prompt lookup tries.",
            metavar="N-N",
            rich_help_panel=MEASURE,
        ),
    ] = "2-4",
    audit: Annotated[
        bool,
        typer.Option(
            help="Exit 1 if speculation changes what the target writes.", rich_help_panel=MEASURE
        ),
    ] = False,
    cell_timeout: Annotated[
        float | None,
        typer.Option(
            min=1.0, help="The time limit per candidate, in seconds.", rich_help_panel=SAFETY
        ),
    ] = None,
    isolate: Annotated[
        bool,
        typer.Option(
            help="Run each candidate in a process of its own, so that a crash costs only that "
            "one. Slower.",
            rich_help_panel=SAFETY,
        ),
    ] = False,
    trust_remote_code: TrustOption = False,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            help="Load pickled weights. A malicious file can run code.", rich_help_panel=SAFETY
        ),
    ] = False,
    output_format: FormatOption = "table",
    output: OutputOption = "-",
    quiet: QuietOption = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print a line for every request.", rich_help_panel=OUTPUT
        ),
    ] = False,
    print_config: PrintConfigOption = False,
) -> int:
    """Measure drafts on your traffic: acceptance at every k, costs, and the real speed-up.

    draftbench sweep --target ./big --drafts ./small,./tiny --traffic prod.jsonl
    draftbench sweep --target ./big --drafts ./small --quant none,int8,int4 \\
        --k 1-8 --traffic prod.jsonl --sample 48 --out results/runs/prod
    draftbench sweep --target ./big --drafts ngram --traffic suite:code --dry-run
    draftbench sweep sweep.yaml --sample 32
    """
    if print_config:
        write_result(config_text(context), "-")
        return 0
    if batch is not None:
        note("note: --batch is now called --concurrency")
        concurrency = batch
    # Mistakes are found before the seconds that importing torch takes.
    if temperature is not None and not math.isfinite(temperature):
        raise UsageError(f"--temperature {temperature}: expected a number", hint="0 is greedy")
    shortest, longest = number_range("--ngram", ngram)
    ks, together = draft_lengths(k), swept_concurrencies(concurrency)
    names, quants = model_names("--drafts", drafts or ()), level_names("--quant", quant or ["none"])
    level_name("--target-quant", target_quant)
    one_of("--mode", mode, MODES)
    one_of("--responses", responses, ANSWERS)
    one_of("--measure", measure, tuple(DECODED_KS))
    if dry_run:
        one_of("--format of a --dry-run", output_format, TEXT_FORMATS)
    one_of("--format", output_format, FORMATS)
    check_output(output)
    from draftbench.models.source import Trust
    from draftbench.records import DraftingMode
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.run_folder.key import request_key
    from draftbench.sweep import SweepOptions
    from draftbench.traffic import TrafficQuery

    query = TrafficQuery(
        source=traffic,
        sample=sample,
        seed=seed,
        segment_by=segment_by,
        prompt_field=prompt_field,
        response_field=response_field,
        skip_bad=skip_bad,
        key=request_key(),
    )
    options = SweepOptions(
        target=target,
        drafts=names,
        traffic=query,
        ks=ks,
        batches=together,
        quants=quants,
        target_quant=target_quant,
        dtype=dtype,
        device=device,
        simulate_quant=simulate_quant,
        one_layout=one_layout,
        mode=DraftingMode(mode),
        lookup=(longest, shortest),
        responses=responses,
        samples=samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        measure=measure,
        measure_requests=measure_requests,
        controls=controls,
        threads=threads,
        cell_timeout=cell_timeout,
        isolate=isolate,
        audit=audit,
        trust=Trust(remote_code=trust_remote_code, pickle=allow_pickle),
    )
    out = out or Path("results/runs") / time.strftime("%Y%m%d-%H%M%S")
    watcher = TerminalWatcher(Console(stderr=True), quiet=quiet, verbose=verbose)
    if dry_run:
        return _dry_run(options, watcher, output_format, output)
    code = run_sweep(options, out, as_called(), watcher, (output_format, output))
    page = command("report", str(out), "--html", str(out / "report.html"))
    next_commands(watcher, command("recommend", str(out), "--all"), page)
    return code


def run_sweep(
    options: SweepOptions,
    out: Path,
    called: str,
    watcher: TerminalWatcher,
    rendering: tuple[str, str],
) -> int:
    """Measure, print the recommendation, and say what could not be measured completely."""
    from draftbench.planner.recommend import recommend
    from draftbench.report.terminal.recommendation import render
    from draftbench.report.terminal.text import counted
    from draftbench.run_folder.run import read_run

    output_format, output = rendering
    with kept_in(out):
        with watcher:
            folder = _measured(options, out, called, watcher)
        # The models' modules refer to each other: without this they stay in memory meanwhile.
        gc.collect()
        observed = read_run(folder)
        requests = len({trajectory.request for trajectory in observed.trajectories})
        candidates = counted(len(observed.candidates), "candidate")
        watcher.note(f"measured {candidates} on {counted(requests, 'request')}; kept in `{out}`\n")
        try:
            answer = recommend(require_measured(observed))
            write_result(render(answer, output_format, width()), output)
            if options.audit:
                watcher.note(_audited(observed))
        finally:
            # What the same command tries again; a pair that cannot work is not.
            unfinished = {
                str(failure.candidate): failure.reason
                for failure in observed.failures
                if failure.candidate is not None and failure.stage == "measure"
            }
            if unfinished:
                # Where the time was too short the same limit would end it again.
                late = any(_TIME_LIMIT in reason for reason in unfinished.values())
                how = how_to_resume(out, _TIME_LIMIT if late else None)
                watcher.note(f"not completely measured: {', '.join(unfinished)}; {how}")
    return 1 if observed.failures else 0


def _measured(options: SweepOptions, out: Path, called: str, watcher: TerminalWatcher) -> RunFolder:
    """The run folder with everything measured; models and prompts are freed."""
    from draftbench.sweep import prepare, run

    prepared = prepare(options, called, watcher)
    describe(prepared, watcher.note)
    watcher.expect(list(map(str, prepared.candidates)), options.ks)
    watcher.kept(_measured_before(out))
    return run(prepared, out, watcher)


def _measured_before(out: Path) -> list[Observation]:
    """What an interrupted run kept in this folder, for the running figures."""
    from draftbench.errors import RunFolderError
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    try:
        run = read_run(RunFolder(out))
    except RunFolderError:  # nothing there, or something that the sweep itself will refuse
        return []
    return [*run.trajectories, *run.replays, *run.decodes]


def _audited(observed: Run) -> str:
    """Whether outputs at temperature 0 are the target's, in a sentence.

    Raises:
        AuditError: some differ where there is no near tie.
    """
    from draftbench.planner.measured import audit

    checked = audit(observed)
    if checked is None:
        return "audit: no request was decoded at temperature 0; `--temperature 0` makes all so"
    sentence = (
        f"of {checked.requests} outputs at temperature 0, {checked.identical} are identical to the "
        f"target's, {checked.near_ties} differ only at near ties, {checked.faults} unexplained"
    )
    if checked.faults:
        raise AuditError(
            f"speculation changes the output: {sentence}",
            hint="suspect the decoder or a kernel; --dtype float32 shows which",
        )
    return f"audit: {sentence}"


def describe(prepared: Prepared, note: Callable[[str], None]) -> None:
    """Say what the traffic became and which drafts are out, before anything is loaded."""
    describe_load(prepared, note)
    facts = prepared.manifest.traffic
    merged = f", {facts.merged} merged" if facts.merged else ""
    note(f"{facts.requests} requests of {facts.rows} rows ({facts.form}){merged}")
    for reason, count in facts.dropped.items():
        note(f"left out, {reason}: {count}")
    refused: dict[str, list[str]] = {}
    for failure in prepared.failures:
        refused.setdefault(failure.reason, []).append(str(failure.candidate))
    for reason, names in refused.items():
        note(f"refused {', '.join(names)}: {reason}")
    for draft, caveats in prepared.caveats.items():
        for caveat in caveats:
            note(f"note on {draft}: {caveat}")


def describe_load(prepared: Prepared, note: Callable[[str], None]) -> None:
    """Say when the machine is busy, as the caveats of the answer will."""
    from draftbench.planner.caveats import LOAD

    load = prepared.manifest.environment.load
    if load is not None and load > LOAD:
        note(
            f"the machine is busy, with a load of {load:.1f} for each core: times will be noisy, "
            "acceptance will not"
        )


def next_commands(watcher: TerminalWatcher, *commands: str) -> None:
    """What to look at next, one command a line, so that each can be pasted."""
    watcher.note("\nnext: " + "\n      ".join(commands))


def _dry_run(
    options: SweepOptions, watcher: TerminalWatcher, output_format: str, output: str
) -> int:
    """Say what the sweep would do; load no weights and leave nothing behind."""
    from draftbench.report.terminal.dry_run import dry_run, render
    from draftbench.sweep import prepare

    with watcher:
        prepared = prepare(options, as_called(), watcher)
        describe(prepared, watcher.note)
    planned = dry_run(prepared.manifest, _plan(prepared))
    write_result(render(planned, output_format, width()), output)
    return 0


def _plan(prepared: Prepared) -> Plan:
    """The work of a sweep, with its models counted from their configurations."""
    from draftbench.measure.teacher import TOKENS_AT_ONCE
    from draftbench.measure.trajectories import GROUP
    from draftbench.models.check import check_models, memory_here
    from draftbench.report.terminal.dry_run import Plan

    drafts, dtype = list(prepared.drafts.values()), prepared.build.dtype
    checked = check_models(prepared.target, drafts, memory_here(), dtype=dtype)
    sheets = {name: pair.draft for name, pair in zip(prepared.drafts, checked.pairs, strict=True)}
    options = prepared.options
    longest = max(map(sum, prepared.prompt_tokens))
    cells = min(DECODED_KS[options.measure], len(options.ks))
    return Plan(
        candidates=prepared.candidates,
        prompts=prepared.prompt_tokens,
        target=checked.target,
        sheets=sheets,
        scored_together=min(GROUP * longest, max(TOKENS_AT_ONCE, longest)),
        decoded=min(options.measure_requests, len(prepared.prompts)) if cells else 0,
        cells=cells,
        timed=options.measure != "replay",
    )
