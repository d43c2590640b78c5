"""`draftbench sweep`: flags → a run folder → its recommendation."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftbench.cli.config_file import ConfigArgument, config_text
from draftbench.cli.flags import require_measured, traffic_flag, traffic_query
from draftbench.cli.invocation import as_called, command
from draftbench.cli.output import QUIET, TEXT_FORMATS, Output, width, write_result
from draftbench.cli.signals import how_to_resume, resumable
from draftbench.engines.secrets import kept_in
from draftbench.errors import AuditError, ModelError
from draftbench.flags import drafts_flag, flag, in_output, in_traffic, numbers, one_of, target_flag
from draftbench.hub import Trust, refuse_missing
from draftbench.run_folder.folder import MANIFEST, PRIVATE, RunFolder, hides_values
from draftbench.sweep.options import ServingOptions, SweepOptions, check_options
from draftbench.traffic import TrafficQuery

if TYPE_CHECKING:
    from draftbench.cli.progress import TerminalWatcher
    from draftbench.planner.recommendation import Audit, Recommendation
    from draftbench.run_folder.run import Run
    from draftbench.sweep.prepared import Prepared


_LARGEST_MEASURED = 256


def sweep(
    *,
    context: typer.Context,
    config: ConfigArgument = None,
    target: str | None = target_flag(None, "--server"),
    drafts: tuple[str, ...] | None = drafts_flag(
        "The drafts, separated by commas: models, eagle3:HEAD, dflash:HEAD, dspark:HEAD, mtp, "
        "suffix, ngram+DRAFT. ngram (prompt lookup) is added.",
        default=None,
    ),
    traffic: str = traffic_flag(...),
    sample: int | None = flag(
        None, "Measure this many of the requests, picked by --seed (default: all).", min=1
    ),
    given: Annotated[dict[str, Any], SweepOptions],
    concurrency: tuple[int, ...] | None = flag(
        None,
        "The concurrencies to measure, e.g. 1,4,16 (default: 1). With --arrivals one number: "
        "the most requests that a started server may run at once.",
        "N,…",
        parse=partial(numbers, "--concurrency", _LARGEST_MEASURED),
    ),
    serving: ServingOptions,
    out: Path | None = flag(
        None, "The run folder to write (default: results/runs/TIME).", "FOLDER"
    ),
    dry_run: bool = flag(False, "Show the grid, its time and its memory, without loading weights."),
    seed: int = in_traffic(0, "The seed of --sample and of --arrivals poisson."),
    reading: Annotated[dict[str, Any], TrafficQuery],
    trust: Trust,
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
    options = SweepOptions(
        target or "",
        drafts or (),
        traffic_query(traffic, sample, seed=seed, **reading),
        concurrency=tuple(sorted(concurrency or (1,))) if serving.arrivals == "closed" else (1,),
        trust=trust,
        serving=serving.resolved(concurrency, given["dtype"]) if serving.named else None,
        **given,
    )
    check_options(options, serving)
    if options.serving is None:
        refuse_missing(options.target)  # before libraries load
    out = out or Path("results/runs") / time.strftime("%Y%m%d-%H%M%S")
    RunFolder.check_place(out)  # before traffic is read
    from draftbench.cli.progress import TerminalWatcher
    from draftbench.report.answer import next_sweep
    from draftbench.sweep import prepare

    watcher = TerminalWatcher(quiet=quiet, verbose=verbose)
    if dry_run:
        from draftbench.cli.dry_run import dry_run_of, sections

        with watcher:
            prepared = prepare(options, as_called(), watcher)
            describe(prepared, watcher)
        plan = dry_run_of(prepared)
        output.show(plan, sections(plan))
        return 0
    settings = config_text(context, ("out", "output"))
    code, answer = run_sweep(options, out, as_called(), watcher, output, settings)
    again = next_sweep(answer, RunFolder(out).manifest, str(out))
    page = command("report", str(out), "--html", str(out / "report.html"))
    following = [f"{command()} {again}"] if again else []
    next_commands(watcher, *following, command("recommend", str(out), "--all"), page)
    return code


def run_sweep(
    options: SweepOptions,
    out: Path,
    called: str,
    watcher: TerminalWatcher,
    output: Output,
    settings: str = "",
) -> tuple[int, Recommendation]:
    """Measure, then print the recommendation and what could not be measured completely. Returns the
    exit code and the recommendation. `settings` are kept where the run's command hides some.
    """
    from draftbench.cli.recommend import render
    from draftbench.planner.recommend import recommend
    from draftbench.report.text import counted
    from draftbench.run_folder.run import read_run
    from draftbench.sweep import prepare
    from draftbench.sweep.estimates import stages_to_come
    from draftbench.sweep.measure import measure_sweep

    begun = (out / MANIFEST).exists()
    redacted = begun and not (out / PRIVATE).exists()
    said = nullcontext() if redacted else kept_in(out / PRIVATE / "servers" / "said.log")
    if begun and options.threads is None and options.serving is None:
        # What is resumed keeps its number, which may depend on how busy the machine was.
        options = replace(options, threads=RunFolder(out).manifest.environment.threads)
    with resumable(out / MANIFEST), said:
        with watcher:
            prepared = prepare(options, called, watcher)
            if hides_values(prepared.manifest.command):
                prepared = replace(prepared, settings=settings)
            describe(prepared, watcher)
            # How fast an engine reads its weights is unknown here.
            watcher.expect(
                list(map(str, prepared.candidates)),
                options.ks,
                stages_to_come(prepared),
                in_seconds=prepared.servers is None,
                at_most=options.until == "settled",
            )
            folder = measure_sweep(prepared, out, watcher)
        # Models and prompts are no longer needed; they refer to each other, so only this frees
        # them.
        del prepared
        gc.collect()
        observed = read_run(folder)
        requests = len({trajectory.request for trajectory in observed.trajectories})
        candidates = counted(len(observed.candidates), "candidate")
        watcher.note(f"`{out}` holds {candidates} on {counted(requests, 'request')}\n")
        try:
            answer = recommend(require_measured(observed))
            output.write(render(answer, output.style, width()))
            if options.serving is None and (sentence := _settled(observed, answer, options)):
                watcher.note(f"\n{sentence}")
            if options.lossless:
                watcher.note(_same_texts(answer.audit))
        finally:
            unfinished = [
                str(failure.candidate or "the server without a draft")
                for failure in observed.failures
                if failure.tried_again
            ] + [str(row.candidate or "the server without a draft") for row in observed.unanswered]
            if unfinished:
                limited = options.candidate_timeout is not None
                longer = "; what took too long needs a longer --candidate-timeout"
                watcher.note(
                    f"not completely measured: {', '.join(dict.fromkeys(unfinished))}"
                    f"{longer if limited else ''}; {how_to_resume(out)}"
                )
    return 1 if observed.failures or observed.unanswered else 0, answer


def _settled(observed: Run, answer: Recommendation, options: SweepOptions) -> str | None:
    """A sentence on how many requests settled the answer; None where it took all of them."""
    from draftbench.planner.what_to_measure import settled_after
    from draftbench.run_folder.run import WAVE

    ended = observed.manifest.effort.settled_after
    after, every = ended or settled_after(observed), observed.manifest.traffic.requests
    if after is None:
        few = f"--until settled first looks after {WAVE}"
        why = few if every <= WAVE else "no fewer settled the answer"
        needed = f"all {every} requests were measured: {why}"
        return needed if options.until == "settled" else None
    rest = "the others were left out" if ended else "--until settled leaves the others out"
    settled = f"settled after {after} of {every} requests"
    if answer.decision == "inconclusive":
        settled = (
            f"inconclusive after {after} of {every} requests; the others would not change that"
        )
    return f"{settled}; {rest}"


def _same_texts(checked: Audit | None) -> str:
    """A sentence on whether the outputs at temperature 0 are the target's.

    Raises:
        AuditError: some differ without a near tie.
    """
    if checked is None:
        return "texts: nothing was decoded at temperature 0; add `--temperature 0`"
    sentence = (
        f"of {checked.requests} outputs at temperature 0, {checked.identical} are identical to the "
        f"target's, {checked.near_ties} differ only at near ties, {checked.faults} unexplained"
    )
    if checked.faults:
        raise AuditError(
            f"speculation changes the output: {sentence}",
            hint="suspect the decoder or a kernel; --dtype float32 shows which",
        )
    return f"texts: {sentence}"


def describe(prepared: Prepared, watcher: TerminalWatcher) -> None:
    """Say before weights load what was read from the traffic, which drafts are refused, and what is
    certain of the others.
    """
    from draftbench.cli.traffic import traffic_lines
    from draftbench.drafts.check import reads_as_much
    from draftbench.drafts.kinds import kind_drafting
    from draftbench.planner.caveat_kinds import LOAD_AVERAGE
    from draftbench.report.text import SCREEN_COLUMNS, paragraph
    from draftbench.run_folder.run import WAVE
    from draftbench.sweep.estimates import wave_sizes

    load = prepared.manifest.environment.load
    if load is not None and load > LOAD_AVERAGE:  # a caveat of the answer says so too
        watcher.note(
            f"the machine is busy (load {load:.1f} per core): timings will be noisy; acceptance is "
            "unaffected"
        )
    for line in traffic_lines(prepared.traffic):
        watcher.note(line)
    asked = prepared.options.traffic.sample
    if asked is not None and prepared.traffic.requests < asked:
        watcher.note(f"--sample {asked} asks for more requests than the traffic has: all are taken")
    if prepared.options.until == "settled" and len(wave_sizes(prepared)) == 1:
        watcher.note(
            f"--until settled changes nothing: the answer is first looked at after {WAVE} requests"
        )
    refused: dict[str, list[str]] = {}
    for failure in prepared.failures:
        refused.setdefault(failure.reason, []).append(str(failure.candidate))
    for reason, names in refused.items():
        watcher.note(paragraph(f"refused {', '.join(names)}: {reason}", SCREEN_COLUMNS))
    for draft, caveats in prepared.caveats.items():
        known = list(caveats)
        if kind_drafting(draft).is_model:
            levels = prepared.options.quants
            with suppress(ModelError):  # an engine may serve what cannot be counted here
                sized = prepared.target, prepared.drafts[draft], prepared.build
                known = [*reads_as_much(*sized, levels), *known]
        for caveat in known:
            watcher.note(paragraph(f"note on {draft}: {caveat}", SCREEN_COLUMNS))


def next_commands(watcher: TerminalWatcher, *commands: str) -> None:
    """Print the commands to run next, each on lines that can be pasted."""
    from draftbench.report.text import command_lines

    watcher.note("\n" + "\n".join(command_lines(commands)))
