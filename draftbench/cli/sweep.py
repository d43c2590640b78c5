"""`draftbench sweep`: flags → options → a run folder → its recommendation."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftbench.cli import planned
from draftbench.cli.completing import among, devices, levels
from draftbench.cli.config_file import ConfigArgument, PrintConfigOption, config_text
from draftbench.cli.flags import (
    FORMATS,
    FormatOption,
    OutputOption,
    PromptFieldOption,
    QuietOption,
    ResponseFieldOption,
    SegmentByOption,
    TargetOption,
    ThreadsOption,
    TrafficOption,
    VerboseOption,
    batch_sizes,
    check_output,
    confidences,
    draft_lengths,
    level_name,
    level_names,
    model_names,
    number_range,
    one_of,
    write_result,
)
from draftbench.cli.invocation import as_called, command
from draftbench.cli.measuring import run_sweep, tell_next
from draftbench.errors import UsageError
from draftbench.memory import LEVELS

ANSWERS = ["target", "log"]
MODES = ["greedy", "sampled", "sampled-temperature-only"]


def sweep(
    context: typer.Context,
    target: TargetOption,
    traffic: TrafficOption,
    config: ConfigArgument = None,
    drafts: Annotated[
        list[str] | None,
        typer.Option(
            help="Draft models, with commas or the flag repeated. `ngram` is prompt lookup, "
            "`self` the control.",
            metavar="MODEL,…",
        ),
    ] = None,
    quant: Annotated[
        str,
        typer.Option(
            help="Quantization levels of the drafts: none, fp8, int8, int4.",
            metavar="LEVEL,…",
            autocompletion=levels,
        ),
    ] = "none",
    target_quant: Annotated[
        str,
        typer.Option(help="Quantization level of the target.", autocompletion=among(*LEVELS)),
    ] = "none",
    k: Annotated[str, typer.Option("--k", help="Draft lengths, e.g. 1-8 or 2,4,8.")] = "1-8",
    batch: Annotated[
        str, typer.Option("--batch", help="Responses that decode together, e.g. 1,4,16.")
    ] = "1",
    mode: Annotated[
        str,
        typer.Option(
            help="greedy, sampled or sampled-temperature-only drafting.",
            autocompletion=among(*MODES),
        ),
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
        str,
        typer.Option(
            help="target: it answers itself; log: score the logged answers.",
            autocompletion=among(*ANSWERS),
        ),
    ] = "target",
    measure: Annotated[
        str,
        typer.Option(
            help="Decode with a watch at the best k (best), all k (all), or not (none); or time "
            "nothing at all (replay).",
            autocompletion=among(*planned.DECODED_KS),
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
    segment_by: SegmentByOption = None,
    prompt_field: PromptFieldOption = None,
    response_field: ResponseFieldOption = None,
    skip_bad: Annotated[bool, typer.Option(help="Count bad rows instead of stopping.")] = False,
    simulate_quant: Annotated[
        bool, typer.Option(help="Measure levels without a kernel here for acceptance only.")
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(help="bfloat16 or float32.", autocompletion=among("bfloat16", "float32")),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda, cuda:1, or auto, which spreads the models over all GPUs.",
            autocompletion=devices,
        ),
    ] = None,
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

    draftbench sweep --target ./big --drafts ./small,./tiny --traffic prod.jsonl
    draftbench sweep --target ./big --drafts ./small --quant none,int8,int4 \\
        --k 1-8 --traffic prod.jsonl --sample 48 --out results/runs/prod
    draftbench sweep --target ./big --drafts ngram --traffic suite:code --dry-run
    draftbench sweep sweep.yaml --sample 32
    """
    if print_config:
        write_result(config_text(context), "-")
        return 0
    # What is misspelt is found before the seconds that importing torch takes.
    if temperature is not None and not math.isfinite(temperature):
        raise UsageError("--temperature must be a finite number", hint="0 is greedy")
    shortest, longest = number_range("--ngram", ngram)
    ks, batches, thresholds = draft_lengths(k), batch_sizes(batch), confidences(stop_below)
    names, quants = model_names("--drafts", drafts or ()), level_names("--quant", quant)
    level_name("--target-quant", target_quant)
    one_of("--mode", mode, MODES)
    one_of("--responses", responses, ANSWERS)
    one_of("--measure", measure, list(planned.DECODED_KS))
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
        batches=batches,
        quants=quants,
        target_quant=target_quant,
        dtype=dtype,
        device=device,
        simulate_quant=simulate_quant,
        mode=DraftingMode(mode),
        lookup=(longest, shortest),
        responses=responses,
        samples=samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        measure=measure,
        measure_requests=measure_requests,
        stop_below=thresholds,
        controls=controls,
        threads=threads,
        cell_timeout=cell_timeout,
        isolate=isolate,
        audit=audit,
        trust=Trust(remote_code=trust_remote_code, pickle=allow_pickle),
    )
    out = out or Path("results/runs") / time.strftime("%Y%m%d-%H%M%S")
    watcher = TerminalWatcher(Console(stderr=True), quiet=quiet, verbose=verbose)
    rendering = output_format, output
    if dry_run:
        return planned.dry_run(options, as_called(), watcher, rendering)
    code = run_sweep(options, out, as_called(), watcher, rendering)
    tell_next(watcher, command("recommend", str(out)))
    return code
