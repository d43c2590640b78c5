"""`draftbench demo`: the main job on the models that ship with the package: sweep, recommend, gate,
without a network.
"""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from draftbench.cli.flags import QuietOption
from draftbench.cli.gate import gate
from draftbench.cli.invocation import command
from draftbench.cli.output import write_result
from draftbench.cli.sweep import next_commands, run_sweep

if TYPE_CHECKING:
    from draftbench.sweep import SweepOptions

DEMO_TRAFFIC = "suite:completion"


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Run folder (default: results/runs/demo-TIME).")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads: these models are small.")] = 1,
    quiet: QuietOption = False,
) -> int:
    """Sweep, recommend and gate on small embedded models, in minutes and without a network.

    draftbench demo
    """
    from draftbench.report.terminal.progress import TerminalWatcher

    out = out or Path("results/runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    watcher = TerminalWatcher(Console(stderr=True), quiet=quiet)
    code = run_sweep(_options(threads), out, "draftbench demo", watcher, ("table", "-"))
    if code not in (0, 1):
        return code
    baseline = out / "baseline.json"
    write_result("\nPinned as a baseline and judged against itself:\n", "-")
    code = gate(run=out, save=baseline) or gate(run=out, baseline=baseline)
    run, page, pinned = str(out), str(out / "report.html"), str(baseline)
    next_commands(
        watcher,
        command("recommend", run, "--all"),
        command("report", run, "--html", page),
        command("gate", "--baseline", pinned, run),
    )
    return code


def _options(threads: int) -> SweepOptions:
    """Three drafts of the embedded target, one of which cannot draft for it."""
    from draftbench.records import DraftingMode
    from draftbench.run_folder.key import request_key
    from draftbench.sweep import SweepOptions
    from draftbench.traffic import TrafficQuery

    models = Path(str(files("draftbench"))) / "embedded"
    query = TrafficQuery(
        source=DEMO_TRAFFIC,
        sample=None,
        seed=0,
        segment_by=None,
        prompt_field=None,
        response_field=None,
        skip_bad=False,
        key=request_key(),
    )
    return SweepOptions(
        target=str(models / "target"),
        drafts=tuple(str(models / name) for name in ("draft", "distilled", "foreign")),
        traffic=query,
        ks=(1, 2, 3, 4, 5, 6),
        quants=("none",),
        mode=DraftingMode.GREEDY,
        max_new_tokens=80,
        temperature=0.0,
        measure_requests=24,
        threads=threads,
    )
