"""`draftbench demo`: sweep, recommend and gate on models that ship with the package, offline."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from draftbench.cli.flags import QuietOption
from draftbench.cli.gate import baseline_of, save_baseline
from draftbench.cli.invocation import command
from draftbench.cli.output import width, write_result
from draftbench.cli.sweep import next_commands, run_sweep

if TYPE_CHECKING:
    from draftbench.planner.recommendation import Evaluation, Recommendation
    from draftbench.run_folder.run import Run
    from draftbench.sweep import SweepOptions

# The second was trained on the target's own responses; the third has another vocabulary.
WORSE, BETTER, FOREIGN = "draft", "distilled", "foreign"
TRAFFIC = "suite:completion"


def demo(
    out: Annotated[
        Path | None,
        typer.Option(
            help="The run folder to write (default: results/runs/demo-TIME).", metavar="FOLDER"
        ),
    ] = None,
    threads: Annotated[
        int, typer.Option(min=1, help="The number of CPU threads; these models are small.")
    ] = 1,
    quiet: QuietOption = False,
) -> int:
    """Show a sweep, its recommendation and the gate on small models, in two minutes and offline.

    draftbench demo
    """
    from draftbench.planner.recommend import recommend
    from draftbench.report.terminal.progress import TerminalWatcher
    from draftbench.run_folder.folder import RunFolder
    from draftbench.run_folder.run import read_run

    out = out or Path("results/runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    watcher = TerminalWatcher(Console(stderr=True), quiet=quiet)
    code = run_sweep(_options(threads), out, "draftbench demo", watcher, ("table", "-"))
    if code not in (0, 1):  # 1: the foreign draft was refused, as it must be
        return code
    run = read_run(RunFolder(out))
    write_result("\n".join(["", *_why_not(recommend(run)), *_gated(run, out)]), "-")
    name = str(out)
    next_commands(
        watcher,
        command("recommend", name, "--all"),
        command("report", name, "--html", str(out / "report.html")),
        command("gate", "--baseline", str(out / "baseline.json"), name, "--candidate", WORSE),
    )
    return 0


def _why_not(answer: Recommendation) -> list[str]:
    """Why no model draft is faster on this machine, from its own figures; nothing where one is."""
    drafts = [
        evaluation
        for evaluation in answer.evaluations
        if evaluation.draft in (WORSE, BETTER) and evaluation.best
    ]
    if not drafts or any(_speedup(draft) >= 1 for draft in drafts):
        return []
    return ["Why no model draft pays off here:", *map(_too_slow, drafts), ""]


def _speedup(evaluation: Evaluation) -> float:
    speedup = evaluation.speedup_expected or evaluation.speedup_predicted
    return speedup.value if speedup else 1.0


def _too_slow(evaluation: Evaluation) -> str:
    """What a round costs against what it can bring, in a sentence."""
    from draftbench.planner.formula import speedup

    k, c, v = evaluation.k, evaluation.draft_cost_ratio, evaluation.verify_ratio
    if c is None or v is None:
        return f"  {evaluation.draft}: its costs are unknown"
    perfect = speedup(1.0, k, c.value, verify=v.value)
    return (
        f"  {evaluation.draft}, k = {k}: a draft step costs c = {c.value:.2f} target steps and "
        f"verifying v({k + 1}) = {v.value:.2f};\n    a draft that is always accepted would reach "
        f"{perfect:.2f}×, this one reaches {_speedup(evaluation):.2f}×"
    )


def _gated(run: Run, folder: Path) -> list[str]:
    """A gate that passes and one that fails: the better draft after the worse, and the reverse."""
    from draftbench.cli.flags import Decision
    from draftbench.gate.judge import judge
    from draftbench.gate.limits import limits_of
    from draftbench.report.terminal.verdict import text

    k = max(run.manifest.question.ks)
    sides = {name: baseline_of(run, folder, name, k) for name in (WORSE, BETTER)}
    save_baseline(folder, folder / "baseline.json", BETTER, k, Decision())
    lines = []
    for old, new in ((WORSE, BETTER), (BETTER, WORSE)):
        result = judge(sides[old], sides[new], limits_of(()))
        # The verdict and the figures over all requests; `gate` shows the segments too.
        verdict = "\n".join(text(result, width() - 2).split("\n\n")[:2])
        lines += [
            f"The gate, after `{new}` replaced `{old}` (exit code {result.exit_code}):",
            *(f"  {line}" for line in verdict.splitlines()),
            "",
        ]
    return lines


def _options(threads: int) -> SweepOptions:
    """Three drafts of the embedded target, one of which cannot draft for it."""
    from draftbench.records import DraftingMode
    from draftbench.run_folder.key import request_key
    from draftbench.sweep import SweepOptions
    from draftbench.traffic import TrafficQuery

    models = Path(str(files("draftbench"))) / "embedded"
    query = TrafficQuery(
        source=TRAFFIC,
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
        drafts=tuple(str(models / name) for name in (WORSE, BETTER, FOREIGN)),
        traffic=query,
        ks=(1, 2, 3, 4),
        mode=DraftingMode.GREEDY,
        max_new_tokens=56,
        temperature=0.0,
        measure_requests=12,
        threads=threads,
    )
