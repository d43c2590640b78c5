"""`draftbench sweep`: flags → options → a run folder → its recommendation."""

from __future__ import annotations

import math
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from draftbench.cli import planned
from draftbench.cli.answers import show_recommendation
from draftbench.cli.configuration import ConfigArgument, PrintConfigOption, config_text
from draftbench.cli.values import (
    FORMATS,
    FormatOption,
    OutputOption,
    QuietOption,
    ThreadsOption,
    VerboseOption,
    batch_sizes,
    check_output,
    confidences,
    draft_lengths,
    number_range,
    one_of,
)
from draftbench.errors import AuditError, InterruptedRunError, UsageError

if TYPE_CHECKING:
    from draftbench.records import Observation
    from draftbench.report.progress import TerminalWatcher
    from draftbench.store.observed import Observed
    from draftbench.sweep import SweepOptions


def sweep(
    context: typer.Context,
    target: Annotated[str, typer.Option(help="Directory, .gguf file or hub id of the target.")],
    traffic: Annotated[
        str, typer.Option(help="Request log, `suite:NAME`, or `hf:DATASET[/CONFIG][:SPLIT]`.")
    ],
    config: ConfigArgument = None,
    drafts: Annotated[
        list[str] | None,
        typer.Option(
            help="A draft model; repeatable. `ngram` is prompt lookup, `self` the control."
        ),
    ] = None,
    quant: Annotated[
        str, typer.Option(help="Quantization levels of the drafts: none, fp8, int8, int4.")
    ] = "none",
    target_quant: Annotated[str, typer.Option(help="Quantization level of the target.")] = "none",
    k: Annotated[str, typer.Option("--k", help="Draft lengths, e.g. 1-8 or 2,4,8.")] = "1-8",
    batch: Annotated[
        str, typer.Option("--batch", help="Responses that decode together, e.g. 1,4,16.")
    ] = "1",
    mode: Annotated[
        str, typer.Option(help="greedy, sampled or sampled-temperature-only drafting.")
    ] = "greedy",
    out: Annotated[
        Path | None, typer.Option(help="Run folder (default: results/runs/TIME).")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Requests to take, stratified by segment.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Which sample is taken.")] = 0,
    samples: Annotated[int, typer.Option(min=1, help="Responses per request.")] = 1,
    max_new_tokens: Annotated[
        int | None, typer.Option(min=2, help="Cut responses here (default: the request's limit).")
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="Override every request's temperature.")
    ] = None,
    responses: Annotated[
        str, typer.Option(help="target: it answers itself; log: score the logged answers.")
    ] = "target",
    measure: Annotated[
        str,
        typer.Option(
            help="Decode with a watch at the best k (best), all k (all), or not (none); or time "
            "nothing at all (replay)."
        ),
    ] = "best",
    measure_requests: Annotated[
        int, typer.Option(min=1, help="Requests that are decoded with a watch.")
    ] = 24,
    stop_below: Annotated[
        str | None,
        typer.Option(help="Decode also with drafts that stop when unsure: confidences, e.g. 0.4."),
    ] = None,
    controls: Annotated[
        bool, typer.Option(help="Add prompt lookup and the self-draft as controls.")
    ] = True,
    ngram: Annotated[str, typer.Option(help="Sizes of n-grams that prompt lookup tries.")] = "2-4",
    segment_by: Annotated[str | None, typer.Option(help="Field that holds the segment.")] = None,
    prompt_field: Annotated[str | None, typer.Option(help="Field that holds the prompt.")] = None,
    response_field: Annotated[
        str | None, typer.Option(help="Field that holds the logged answer.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option(help="Count bad rows instead of stopping.")] = False,
    simulate_quant: Annotated[
        bool, typer.Option(help="Measure levels without a kernel here for acceptance only.")
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float32.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, auto.")] = None,
    threads: ThreadsOption = None,
    trust_remote_code: Annotated[
        bool, typer.Option(help="Run Python code from the checkpoint. It can do anything you can.")
    ] = False,
    allow_pickle: Annotated[
        bool, typer.Option(help="Load pickled weights. A malicious file can run code.")
    ] = False,
    cell_timeout: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Give up on a candidate after so many seconds: between two steps of its work, "
            "with --isolate at once.",
        ),
    ] = None,
    isolate: Annotated[
        bool,
        typer.Option(
            help="Each candidate in its own process: a crash costs only that one. Slower."
        ),
    ] = False,
    audit: Annotated[
        bool, typer.Option(help="Fail where speculation changes what the target writes.")
    ] = False,
    dry_run: Annotated[bool, typer.Option(help="Print the grid; load no weights.")] = False,
    output_format: FormatOption = "table",
    output: OutputOption = "-",
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
    print_config: PrintConfigOption = False,
) -> int:
    """Measure drafts on real traffic: acceptance at every k, costs, wall-clock speed-up.

    draftbench sweep --target ./qwen1.5 --drafts ./qwen0.5 --quant none,int4 --traffic prod.jsonl
    draftbench sweep --target ./target --drafts ngram --traffic suite:code --k 1-4 --dry-run
    draftbench sweep sweep.yaml --sample 32
    """
    if print_config:
        typer.echo(config_text(context))
        return 0
    from draftbench.models.source import Trust
    from draftbench.records import DraftingMode
    from draftbench.report.progress import TerminalWatcher
    from draftbench.store.key import request_key
    from draftbench.sweep import SweepOptions
    from draftbench.traffic import TrafficQuery

    if temperature is not None and not math.isfinite(temperature):
        raise UsageError("--temperature must be a finite number", hint="0 is greedy")
    shortest, longest = number_range("--ngram", ngram)
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
        drafts=tuple(dict.fromkeys(drafts or ())),
        traffic=query,
        ks=draft_lengths(k),
        batches=batch_sizes(batch),
        quants=tuple(dict.fromkeys(quant.split(","))),
        target_quant=target_quant,
        dtype=dtype,
        device=device,
        simulate_quant=simulate_quant,
        mode=DraftingMode(one_of("--mode", mode, [m.value for m in DraftingMode])),
        lookup=(longest, shortest),
        responses=one_of("--responses", responses, ["target", "log"]),
        samples=samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        measure=one_of("--measure", measure, list(planned.DECODED_KS)),
        measure_requests=measure_requests,
        stop_below=confidences(stop_below),
        controls=controls,
        threads=threads,
        cell_timeout=cell_timeout,
        isolate=isolate,
        audit=audit,
        trust=Trust(remote_code=trust_remote_code, pickle=allow_pickle),
    )
    one_of("--format", output_format, FORMATS)
    out = out or Path("results/runs") / time.strftime("%Y%m%d-%H%M%S")
    command = shlex.join(["draftbench", *sys.argv[1:]])
    watcher = TerminalWatcher(Console(stderr=True), quiet=quiet, verbose=verbose)
    if dry_run:
        return planned.dry_run(options, command, watcher, output)
    return run_sweep(options, out, command, watcher, (output_format, output))


def run_sweep(
    options: SweepOptions,
    out: Path,
    command: str,
    watcher: TerminalWatcher,
    rendering: tuple[str, str],
) -> int:
    """Prepare, run, and show the recommendation that the run gives."""
    from draftbench.store.observed import read_run
    from draftbench.sweep import prepare, run

    output_format, output = rendering
    check_output(output)
    with watcher:
        prepared = prepare(options, command, watcher)
        planned.tell_preparation(prepared, watcher.note)
        watcher.expect(list(map(str, prepared.candidates)), options.ks)
        watcher.kept(_earlier(out))
        try:
            folder = run(prepared, out, watcher)
        except KeyboardInterrupt as error:
            raise InterruptedRunError(
                "interrupted", hint=f"what is done is kept in `{out}`; repeat with `--out {out}`"
            ) from error
    observed = read_run(folder)
    code = show_recommendation(observed, output_format, output)
    if not watcher.quiet:
        watcher.console.print(f"\nnext: draftbench recommend {out}", markup=False, highlight=False)
    if prepared.options.audit:
        watcher.note(_audited(observed))
    return 1 if observed.failures and code == 0 else code


def _audited(observed: Observed) -> str:
    """What the outputs at temperature 0 say of the decoder.

    Raises:
        AuditError: some are not the target's own, where it is no near tie.
    """
    from draftbench.plan.measured import audit

    found = audit(observed)
    if found is None:
        return "audit: no request at temperature 0 was decoded (`--temperature 0` makes all so)"
    said = (
        f"of {found.requests} requests decoded at temperature 0 {found.identical} are the target's "
        f"own output, {found.near_ties} left it at a near tie, {found.faults} elsewhere"
    )
    if found.faults:
        raise AuditError(
            f"speculation changes the output: {said}",
            hint="suspect the decoder or a kernel; float32 shows which",
        )
    return f"audit: {said}"


def _earlier(out: Path) -> list[Observation]:
    """What an interrupted run of this folder kept, for the running figures."""
    from draftbench.errors import RunFolderError
    from draftbench.store.folder import RunFolder
    from draftbench.store.observed import read_run

    try:
        found = read_run(RunFolder(out))
    except RunFolderError:  # nothing there, or something that the sweep itself will refuse
        return []
    return [*found.trajectories, *found.replays, *found.decodes]
