"""`draftbench demo`: the main job on the models that ship with the package: sweep, recommend, gate,
without a network.
"""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from draftbench.cli.gating import gate
from draftbench.cli.measuring import run_sweep
from draftbench.cli.values import QuietOption

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
    from draftbench.records import DraftingMode
    from draftbench.report.progress import TerminalWatcher
    from draftbench.store.key import request_key
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
    options = SweepOptions(
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
    out = out or Path("results/runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    watcher = TerminalWatcher(Console(stderr=True), quiet=quiet)
    code = run_sweep(options, out, "draftbench demo", watcher, ("table", "-"))
    if code not in (0, 1):
        return code
    baseline = out / "baseline.json"
    typer.echo("\nPinned as a baseline and judged against itself:\n")
    return gate(run=out, save=baseline) or gate(run=out, baseline=baseline)
