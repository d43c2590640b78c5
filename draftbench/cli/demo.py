"""`draftbench demo`: sweep, recommend and gate on models that ship with the package, offline."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from draftbench.cli.flags import candidate_named, read, traffic_query
from draftbench.cli.gate import checked
from draftbench.cli.invocation import command
from draftbench.cli.output import QUIET, Output, width, write_result
from draftbench.cli.sweep import next_commands, run_sweep
from draftbench.flags import flag
from draftbench.gate.judge import judge
from draftbench.gate.make_baseline import make_baseline
from draftbench.gate.words import other_checks

if TYPE_CHECKING:
    from draftbench.gate.baseline import Baseline

WORSE, BETTER, FOREIGN, HEAD, BLOCK = "draft", "distilled", "foreign", "head", "block"
_SHOWN = ("tokens_per_round", "alpha")  # of what the gate judges
_MODELS = "one target and five drafts, all of which ship with draftbench"


def demo(
    *,
    out: Path | None = flag(
        None, "The run folder to write (default: results/runs/demo-TIME).", "FOLDER"
    ),
    threads: int = flag(1, "The number of CPU threads; small models need no more.", min=1),
    quiet: bool = QUIET,
) -> int:
    """Show a sweep, its recommendation and the gate on small models, offline, in a minute or two.

    draftbench demo
    """
    from draftbench.cli.progress import TerminalWatcher
    from draftbench.sweep.options import SweepOptions

    models = Path(str(files("draftbench"))) / "embedded"
    options = SweepOptions(
        target=str(models / "target"),
        drafts=(
            *(str(models / name) for name in (WORSE, BETTER, FOREIGN)),
            f"eagle3:{models / HEAD}",
            f"dflash:{models / BLOCK}",
        ),
        traffic=traffic_query("suite:completion"),
        ks=(1, 2, 3, 4),
        max_new_tokens=56,
        temperature=0.0,
        measure_requests=12,
        threads=threads,
    )
    out = out or Path("results/runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    watcher = TerminalWatcher(quiet=quiet)
    watcher.note(_MODELS)
    code, answer = run_sweep(options, out, "draftbench demo", watcher, Output())
    if code != 0:
        return code
    served = next(e for e in answer.by_candidate if e.draft in (WORSE, BETTER))
    other = BETTER if served.draft == WORSE else WORSE
    run, name = read(out), str(out)
    kept, new = (
        make_baseline(run, candidate_named(run, draft), served.k) for draft in (served.draft, other)
    )
    title = f"Now the gate, on the two draft models `{WORSE}` and `{BETTER}` at k = {served.k}:"
    write_result("\n".join(["", title, *_judged(kept, new), *_judged(new, kept)]))
    next_commands(
        watcher,
        command("recommend", name, "--all"),
        command("report", name, "--html", str(out / "report.html")),
    )
    own = ("--target", "./target", "--drafts", "./draft", "--traffic", "prod.jsonl")
    watcher.note(f"Now your own models, as folders or hub ids:\n  {command('sweep', *own)}")
    return 0


def _judged(old: Baseline, new: Baseline) -> list[str]:
    """The gate's verdict on one draft replacing another, over all requests; `gate` also shows
    segments.
    """
    result = judge(old, new)
    replaced = f"`{new.candidate}` replaces `{old.candidate}`"
    title = f"{result.verdict} (exit code {result.exit_code}): {replaced}"
    shown = [check for check in result.pooled if check.metric in _SHOWN]
    others = [words for _, _, words in other_checks(result)]
    return [checked(title, shown, others).text(width()), ""]
