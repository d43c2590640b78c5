"""The command line: parse → call one function → render → exit code.

stdout carries the result, stderr everything else. Exit codes: 0 done, 1 the answer is no, 2 usage or input, 3 inconclusive,
4 incomparable, 70 internal error, 130 interrupted. Imports of what a command needs are in the command, so that help and the offline
commands start without torch.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

import draftbench
from draftbench.errors import DraftbenchError, InterruptedRunError, UsageError

if TYPE_CHECKING:
    from draftbench.store.observed import Observed
    from draftbench.sweep import Prepared, SweepOptions

app = typer.Typer(
    name="draftbench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Pick the draft model for speculative decoding, and prove the pick.",
)

RunArgument = Annotated[Path, typer.Argument(help="A run folder that `sweep` made.", metavar="RUN")]
FormatOption = Annotated[str, typer.Option("--format", help="table, json, markdown or csv.")]
OutputOption = Annotated[
    str, typer.Option("--output", "-o", help="Write the result to a file instead of stdout (`-`).")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Only the result and errors.")]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, help="CPU threads (default: one per core).")
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. Nothing but this function turns an error into words."""
    error_console = Console(stderr=True)
    try:
        code = app(args=list(sys.argv[1:] if arguments is None else arguments), standalone_mode=False)
        return code if isinstance(code, int) else 0
    except DraftbenchError as error:
        return _report(error_console, error.message, error.hint, error.exit_code)
    except typer.TyperException as error:
        hint = "`draftbench --help` lists commands, `draftbench COMMAND --help` its flags"
        return _report(error_console, error.format_message(), hint, 2)
    except (typer.Abort, KeyboardInterrupt):
        hint = "what is done is kept; the same command goes on"
        return _report(error_console, "interrupted", hint, 130)
    except BrokenPipeError:
        return 0
    # The last resort of the design: an unexpected error must not read as "the gate found a regression".
    except Exception as error:
        hint = "this is a fault of draftbench; please report it with the command that showed it"
        return _report(error_console, f"internal error ({type(error).__name__})", hint, 70)


def _report(console: Console, message: str, hint: str, code: int) -> int:
    from draftbench.report.text import plain

    options = {"markup": False, "highlight": False, "soft_wrap": True}
    console.print(f"error: {plain(message)}", style="red", **options)  # type: ignore[arg-type]
    console.print(f"\nhint: {plain(hint)}", style="cyan", **options)  # type: ignore[arg-type]
    return code


def _version(value: bool) -> None:
    if value:
        typer.echo(f"draftbench {draftbench.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Pick the draft model for speculative decoding, and prove the pick.

    draftbench sweep --target ./target --drafts ./draft --traffic prod.jsonl
    draftbench recommend results/runs/RUN
    draftbench gate --baseline results/baselines/prod.json results/runs/RUN
    """


@app.command()
def sweep(
    target: Annotated[str, typer.Option(help="Directory, .gguf file or hub id of the target.")],
    traffic: Annotated[
        str, typer.Option(help="Request log, `suite:NAME`, or `hf:DATASET[/CONFIG][:SPLIT]`.")
    ],
    drafts: Annotated[
        list[str] | None,
        typer.Option(help="A draft model; repeatable. `ngram` is prompt lookup, `self` the control."),
    ] = None,
    quant: Annotated[
        str, typer.Option(help="Quantization levels of the drafts: none, fp8, int8, int4.")
    ] = "none",
    target_quant: Annotated[str, typer.Option(help="Quantization level of the target.")] = "none",
    k: Annotated[str, typer.Option("--k", help="Draft lengths, e.g. 1-8 or 2,4,8.")] = "1-8",
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
        str, typer.Option(help="Decode with a watch at the best k (best), all k (all), or not (none).")
    ] = "best",
    measure_requests: Annotated[
        int, typer.Option(min=1, help="Requests that are decoded with a watch.")
    ] = 24,
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
    dry_run: Annotated[bool, typer.Option(help="Print the grid; load no weights.")] = False,
    output_format: FormatOption = "table",
    output: OutputOption = "-",
    quiet: QuietOption = False,
) -> int:
    """Measure drafts on real traffic: acceptance at every k, costs, wall-clock speed-up.

    draftbench sweep --target ./qwen1.5 --drafts ./qwen0.5 --quant none,int4 --traffic prod.jsonl
    draftbench sweep --target ./target --drafts ngram --traffic suite:code --k 1-4 --dry-run
    """
    from draftbench.models.source import Trust
    from draftbench.records import DraftingMode
    from draftbench.store.key import request_key
    from draftbench.sweep import SweepOptions
    from draftbench.traffic import TrafficQuery

    shortest, longest = _range("--ngram", ngram)
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
        ks=_lengths(k),
        quants=tuple(dict.fromkeys(quant.split(","))),
        target_quant=target_quant,
        dtype=dtype,
        device=device,
        simulate_quant=simulate_quant,
        mode=DraftingMode(_one_of("--mode", mode, [m.value for m in DraftingMode])),
        lookup=(longest, shortest),
        responses=_one_of("--responses", responses, ["target", "log"]),
        samples=samples,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        measure=_one_of("--measure", measure, ["best", "all", "none"]),
        measure_requests=measure_requests,
        controls=controls,
        threads=threads,
        trust=Trust(remote_code=trust_remote_code, pickle=allow_pickle),
    )
    _one_of("--format", output_format, ["table", "json", "markdown", "csv"])
    out = out or Path("results/runs") / time.strftime("%Y%m%d-%H%M%S")
    command = shlex.join(["draftbench", *sys.argv[1:]])
    return _sweep(options, out, command, dry_run=dry_run, rendering=(output_format, output, quiet))


def _sweep(
    options: SweepOptions, out: Path, command: str, *, dry_run: bool, rendering: tuple[str, str, bool]
) -> int:
    """Prepare, run, and show the recommendation that the run gives."""
    from draftbench.report.dry_run import grid_text
    from draftbench.report.progress import TerminalWatcher
    from draftbench.store.observed import read_run
    from draftbench.sweep import prepare, run

    output_format, output, quiet = rendering
    _check_output(output)
    console = Console(stderr=True)
    with TerminalWatcher(console, quiet=quiet) as watcher:
        prepared = prepare(options, command, watcher)
        _tell_preparation(prepared, watcher.note)
        if dry_run:
            typer.echo(grid_text(prepared.manifest, prepared.candidates, prepared.prompt_tokens))
            return 0
        try:
            folder = run(prepared, out, watcher)
        except KeyboardInterrupt as error:
            raise InterruptedRunError(
                "interrupted", hint=f"what is done is kept in `{out}`; repeat with `--out {out}`"
            ) from error
    observed = read_run(folder)
    code = _show_recommendation(observed, output_format, output)
    if not quiet:
        console.print(f"\nnext: draftbench recommend {out}", markup=False, highlight=False)
    return 1 if observed.failures and code == 0 else code


def _tell_preparation(prepared: Prepared, note: object) -> None:
    """Say what the traffic became and which drafts are out before anything is loaded."""
    assert callable(note)
    facts = prepared.manifest.traffic
    note(f"{facts.requests} requests of {facts.rows} rows ({facts.form}), {facts.merged} merged")
    for reason, count in facts.dropped.items():
        note(f"left out, {reason}: {count}")
    for failure in prepared.failures:
        note(f"refused {failure.draft}: {failure.reason}")
    for draft, caveats in prepared.caveats.items():
        for caveat in caveats:
            note(f"note on {draft}: {caveat}")


@app.command()
def recommend(
    run: RunArgument,
    min_speedup: Annotated[
        float, typer.Option(min=0.0, help="Least speed-up that is worth speculating for.")
    ] = 1.0,
    output_format: FormatOption = "table",
    output: OutputOption = "-",
) -> int:
    """Say whether to speculate, with which draft, quantization and k, and how sure that is.

    draftbench recommend results/runs/RUN
    draftbench recommend results/runs/RUN --format json | jq .choice
    """
    from draftbench.store.folder import RunFolder
    from draftbench.store.observed import read_run

    _one_of("--format", output_format, ["table", "json", "markdown", "csv"])
    return _show_recommendation(read_run(RunFolder(run)), output_format, output, min_speedup)


def _show_recommendation(
    observed: Observed, output_format: str, output: str, min_speedup: float = 1.0
) -> int:
    from draftbench.plan.recommend import recommend as decide
    from draftbench.report.recommendation import render

    if not observed.candidates:
        raise UsageError(
            "no candidate was measured in this run", hint="look at its failures, then sweep again"
        )
    width = Console().width if sys.stdout.isatty() else 100
    _write(render(decide(observed, min_speedup=min_speedup), observed, output_format, width), output)
    return 0


@app.command()
def suites() -> int:
    """List the built-in traffic suites."""
    from draftbench.report.text import columns
    from draftbench.traffic import suites as built_in

    rows = [(s.name, str(s.requests), s.title, s.description) for s in built_in()]
    typer.echo(columns(("suite", "requests", "title", "what it holds"), rows))
    return 0


def _lengths(text: str) -> tuple[int, ...]:
    """`1-8`, `2,4` or a mixture → sorted draft lengths."""
    found: set[int] = set()
    for part in text.split(","):
        low, high = _range("--k", part)
        if not 1 <= low <= high <= 64:
            raise UsageError(f"--k {text}: draft lengths run from 1 to 64", hint="for example 1-8")
        found.update(range(low, high + 1))
    return tuple(sorted(found))


def _range(flag: str, text: str) -> tuple[int, int]:
    low, dash, high = text.partition("-")
    try:
        first, last = int(low), int(high if dash else low)
    except ValueError:
        raise UsageError(f"{flag} {text} is not a number or a range", hint="for example 2-4") from None
    if not 1 <= first <= last:
        raise UsageError(f"{flag} {text} is not a rising range from 1", hint="for example 2-4")
    return first, last


def _one_of(flag: str, value: str, allowed: list[str]) -> str:
    import difflib

    if value in allowed:
        return value
    near = difflib.get_close_matches(value, allowed, 1)
    hint = f"did you mean `{near[0]}`?" if near else "one of " + ", ".join(allowed)
    raise UsageError(f"{flag} cannot be `{value}`", hint=hint)


def _check_output(output: str) -> None:
    """A path that cannot be written fails now, not after the sweep."""
    if output == "-":
        return
    parent = Path(output).parent
    if not parent.is_dir() or Path(output).is_dir():
        raise UsageError(f"cannot write to `{output}`", hint="the folder must exist")


def _write(text: str, output: str) -> None:
    if output == "-":
        typer.echo(text)
        return
    _check_output(output)
    try:
        Path(output).write_text(text + "\n")
    except OSError as error:
        raise UsageError(f"cannot write to `{output}`: {error.strerror}", hint="check it") from error


def entry() -> NoReturn:
    """The console script."""
    sys.exit(main())
