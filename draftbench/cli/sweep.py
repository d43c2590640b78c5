"""`draftbench sweep`: flags → a run folder → its recommendation."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from draftbench.cli.config_file import ConfigArgument, config_text
from draftbench.cli.flags import (
    LARGEST_CONCURRENCY,
    TRUST,
    Rows,
    complete_devices,
    complete_levels,
    draft_lengths,
    drafts_flag,
    flag,
    in_built_in,
    in_measure,
    in_models,
    in_output,
    in_safety,
    in_traffic,
    level_name,
    level_names,
    number_range,
    numbers,
    one_of,
    require_measured,
    target_flag,
    traffic_flag,
)
from draftbench.cli.invocation import as_called, command
from draftbench.cli.output import QUIET, TEXT_FORMATS, Output, width, write_result
from draftbench.cli.serving import ServingFlags, refuse_with_engine, with_dtype, with_slots
from draftbench.cli.signals import how_to_resume, kept_in
from draftbench.errors import AuditError, UsageError
from draftbench.memory import LEVELS
from draftbench.records import DraftingMode, NGramSizes

if TYPE_CHECKING:
    from draftbench.planner.recommendation import Recommendation
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.run_folder.run import Run
    from draftbench.sweep import Prepared, SweepOptions


def _lookup(text: str) -> NGramSizes:
    shortest, longest = number_range("--ngram", text)
    return NGramSizes(longest, shortest)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"--temperature {text}: expected a number from 0", hint="0 is greedy")
    return value


def loads(text: str) -> tuple[int, ...]:
    """`4,1` → (1, 4)."""
    return tuple(sorted(numbers("--concurrency", LARGEST_CONCURRENCY, text)))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Flags that become the fields of `SweepOptions` of the same names."""

    quants: tuple[str, ...] = flag(
        ("none",),
        f"The quantization levels of the drafts: {', '.join(LEVELS)}.",
        "LEVEL,…",
        ("--quant",),
        parse=partial(level_names, "--quant"),
        many=True,
        autocompletion=complete_levels,
    )
    ks: tuple[int, ...] = flag(
        "1-8", "The draft lengths, e.g. 1-8 or 2,4,8.", "K,…", ("--k",), parse=draft_lengths
    )
    concurrency: tuple[int, ...] | None = flag(
        None,
        "The concurrency levels to measure, e.g. 1,4,16 (default: 1). With --arrivals one number: "
        "the most requests that a started server may run at once.",
        "N,…",
        ("--concurrency",),
        parse=loads,
    )

    responses: str = in_traffic(
        "target",
        "Where responses come from: target generates them; log takes the logged answers, which are "
        "scored first (built-in decoder only).",
        "SOURCE",
        among=("target", "log"),
    )
    samples: int = in_traffic(1, "How many responses the target writes to each request.", min=1)
    max_new_tokens: int | None = in_traffic(
        None, "The longest response in tokens (default: each request's limit).", min=2
    )
    temperature: float | None = in_traffic(
        None, "Replace the temperature of every request; 0 is greedy.", "X", parse=_temperature
    )

    dtype: str | None = in_models(
        None,
        "The type of unquantized weights: bfloat16 or float32; vLLM is started with it, too.",
        "TYPE",
        autocompletion=lambda incomplete: ["bfloat16", "float32"],
    )
    device: str | None = in_models(
        None,
        "Where models run: cpu, cuda, cuda:1, or auto, which spreads them over all GPUs (default: "
        "a GPU if there is one).",
        "DEVICE",
        autocompletion=complete_devices,
    )
    threads: int | None = in_models(
        None, "The number of CPU threads (default: OMP_NUM_THREADS, else one per core).", min=1
    )

    measure: str = in_measure(
        "best",
        "After replay, decode for real: at the best k, at all k's or at none; replay does not even "
        "time steps, for acceptance alone.",
        "HOW",
        among=("best", "all", "none", "replay"),
    )
    measure_requests: int = in_measure(
        30, "Decode this many of the requests for real; the others are only replayed.", min=1
    )
    mode: DraftingMode = in_measure(
        "greedy",
        "How drafts propose: greedy, sampled or sampled-temperature-only.",
        "MODE",
        among=tuple(DraftingMode),
        parse=DraftingMode,
    )
    controls: bool = in_measure(
        True, "Leave out prompt lookup and the target as its own draft.", show_default=False
    )
    lookup: NGramSizes = in_measure(
        "2-4",
        "The n-gram lengths that prompt lookup tries.",
        "N-N",
        ("--ngram",),
        parse=_lookup,
    )
    processes: int = in_built_in(
        1,
        "How many processes time and decode each candidate; restarts can differ by a few percent.",
        min=1,
    )
    target_quant: str = in_built_in(
        "none",
        "The quantization level of the target.",
        "LEVEL",
        parse=lambda text: level_name("--target-quant", text),
        autocompletion=complete_levels,
    )
    simulate_quant: bool = in_built_in(
        False, "Measure acceptance, but no speed, at levels without a fast kernel here."
    )
    one_layout: bool = in_built_in(
        False, "Hold weights only once on a CPU: less memory, slower passes over several tokens."
    )
    audit: bool = in_built_in(False, "Exit 1 if speculation changes what the target writes.")
    isolate: bool = in_built_in(
        False,
        "Run each candidate in a separate process, so that a crash costs only that one. Slower.",
    )

    candidate_timeout: float | None = in_safety(
        None, "How long one candidate, or one start of an engine, may take.", "SECONDS", min=1
    )


def sweep(
    *,
    context: typer.Context,
    config: ConfigArgument = None,
    target: str | None = target_flag(None),
    drafts: tuple[str, ...] | None = drafts_flag(
        "The draft models, separated by commas. Prompt lookup (ngram) runs, too.",
        default=None,
    ),
    traffic: str = traffic_flag(...),
    sample: int | None = flag(
        None, "Measure this many of the requests, picked by --seed (default: all).", min=1
    ),
    settings: Settings,
    serving: ServingFlags,
    out: Path | None = flag(
        None, "The run folder to write (default: results/runs/TIME).", "FOLDER"
    ),
    dry_run: bool = flag(False, "Show the grid, its time and its memory, without loading weights."),
    rows: Rows,
    trust_remote_code: bool = TRUST,
    allow_pickle: bool = in_safety(False, "Load pickled weights. A malicious file can run code."),
    output: Output,
    quiet: bool = QUIET,
    verbose: bool = in_output(False, "Print a line for every request.", names=("--verbose", "-v")),
    print_config: bool = in_output(
        False, "Print all settings as YAML, to be used as FILE.yaml, and stop."
    ),
) -> int:
    """Measure drafts on your traffic: acceptance at every k, costs, and the real speed-up.

    draftbench sweep --target ./big --drafts ./small,./tiny --traffic prod.jsonl
    draftbench sweep --target ./big --drafts ./small --quant none,int8,int4 \\
        --k 1-8 --traffic prod.jsonl --sample 48 --out results/runs/prod
    draftbench sweep --target ./big --drafts ngram --traffic suite:code --dry-run
    draftbench sweep --engine vllm --target org/big --drafts org/small,ngram \\
        --k 1-8 --concurrency 1,4,16 --traffic prod.jsonl
    draftbench sweep --server http://host:8000 \\
        --baseline-server http://host:8001 --traffic prod.jsonl
    draftbench sweep sweep.yaml --sample 32
    """
    if print_config:
        write_result(config_text(context))
        return 0
    if dry_run:
        one_of("--format of a --dry-run", output.style, TEXT_FORMATS)
    from draftbench.models.source import Trust
    from draftbench.report.answer import next_sweep
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.run_folder.folder import RunFolder
    from draftbench.sweep import SweepOptions, prepare

    watcher = TerminalWatcher(quiet=quiet, verbose=verbose)
    asked = serving.options()
    if asked is not None:
        refuse_with_engine(asked, settings, drafts or ())
        asked = with_dtype(asked, settings.dtype)
    needed = {
        "--target": (target, "the model you serve: its folder, .gguf file or hub id"),
        "--drafts": (drafts, "a smaller model of the target's family, or `ngram` (no model)"),
    }
    for name, (given, what) in needed.items():
        if not given and (asked is None or asked.server is None):
            raise UsageError(f"missing option {name}", hint=what)
    if asked is not None and asked.arrivals != "closed":
        asked = with_slots(asked, settings.concurrency)
        settings = replace(settings, concurrency=None)
    options = SweepOptions(
        target=target or "",
        drafts=drafts or (),
        traffic=rows.query(traffic, sample),
        trust=Trust(remote_code=trust_remote_code, pickle=allow_pickle),
        serving=asked,
        **vars(settings) | {"concurrency": settings.concurrency or (1,)},
    )
    if dry_run:
        from draftbench.cli.dry_run import dry_run_of
        from draftbench.report.terminal.dry_run import render

        with watcher:
            prepared = prepare(options, as_called(), watcher)
            describe(prepared, watcher)
        output.write(render(dry_run_of(prepared), output.style, width()))
        return 0
    out = out or Path("results/runs") / time.strftime("%Y%m%d-%H%M%S")
    code, answer = run_sweep(options, out, as_called(), watcher, output)
    again = next_sweep(answer, RunFolder(out).manifest, str(out))
    page = command("report", str(out), "--html", str(out / "report.html"))
    following = [f"{command()} {again}"] if again else []
    next_commands(watcher, *following, command("recommend", str(out), "--all"), page)
    return code


def run_sweep(
    options: SweepOptions, out: Path, called: str, watcher: TerminalWatcher, output: Output
) -> tuple[int, Recommendation]:
    """Measure, print the recommendation and what could not be measured completely; gives the exit
    code and the recommendation.
    """
    from draftbench.planner.recommend import recommend
    from draftbench.report.terminal.recommendation import render
    from draftbench.report.terminal.text import counted
    from draftbench.run_folder.run import read_run
    from draftbench.sweep import prepare, run

    with kept_in(out):
        with watcher:
            prepared = prepare(options, called, watcher)
            describe(prepared, watcher)
            watcher.expect(list(map(str, prepared.candidates)), options.ks)
            folder = run(prepared, out, watcher)
        # Models and prompts are not needed any more; they refer to each other, so only this frees
        # them.
        del prepared
        gc.collect()
        observed = read_run(folder)
        requests = len({trajectory.request for trajectory in observed.trajectories})
        candidates = counted(len(observed.candidates), "candidate")
        watcher.note(f"measured {candidates} on {counted(requests, 'request')}; kept in `{out}`\n")
        try:
            answer = recommend(require_measured(observed))
            output.write(render(answer, output.style, width()))
            if options.audit:
                watcher.note(_audited(observed))
        finally:
            # What the same command would try again: not a pair that cannot work.
            unfinished = [
                str(failure.candidate or "the server without a draft")
                for failure in observed.failures
                if failure.stage in ("measure", "serve")
            ] + [str(row.candidate or "the server without a draft") for row in observed.unanswered]
            if unfinished:
                limited = options.candidate_timeout is not None
                longer = "; what took too long needs a longer --candidate-timeout"
                watcher.note(
                    f"not completely measured: {', '.join(dict.fromkeys(unfinished))}"
                    f"{longer if limited else ''}; {how_to_resume(out)}"
                )
    return 1 if observed.failures or observed.unanswered else 0, answer


def _audited(observed: Run) -> str:
    """A sentence on whether the outputs at temperature 0 are the target's.

    Raises:
        AuditError: some differ where there is no near tie.
    """
    from draftbench.planner.output_check import audit

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


def describe(prepared: Prepared, watcher: TerminalWatcher) -> None:
    """Say how many requests the traffic has and which drafts are refused, before weights load."""
    from draftbench.planner.caveats import LOAD
    from draftbench.report.terminal.text import SCREEN_COLUMNS, paragraph

    load = prepared.manifest.environment.load
    if load is not None and load > LOAD:  # as a caveat of the answer says
        watcher.note(
            f"the machine is busy (load {load:.1f} per core): times will be noisy, acceptance will "
            "not"
        )
    facts = prepared.manifest.traffic
    merged = f"; duplicates merged: {facts.merged}" if facts.merged else ""
    watcher.note(f"{facts.requests} requests in {facts.rows} rows, read as {facts.form}{merged}")
    for reason, count in facts.dropped.items():
        watcher.note(f"{count} left out: {reason}")
    refused: dict[str, list[str]] = {}
    for failure in prepared.failures:
        refused.setdefault(failure.reason, []).append(str(failure.candidate))
    for reason, names in refused.items():
        watcher.note(paragraph(f"refused {', '.join(names)}: {reason}", SCREEN_COLUMNS))
    for draft, caveats in prepared.caveats.items():
        for caveat in caveats:
            watcher.note(paragraph(f"note on {draft}: {caveat}", SCREEN_COLUMNS))


def next_commands(watcher: TerminalWatcher, *commands: str) -> None:
    """Print the commands to run next, each on lines that can be pasted."""
    from draftbench.report.terminal.text import command_lines

    watcher.note("\n" + "\n".join(command_lines(commands)))
