"""`draftbench acceptance`: every figure of acceptance that a run's replays give."""

from __future__ import annotations

from draftbench.cli.flags import RunArgument, candidate_named, read, require_measured
from draftbench.cli.output import Output
from draftbench.cli.output import width as columns
from draftbench.errors import UsageError
from draftbench.flags import draft_lengths, flag


def acceptance(
    *,
    run: RunArgument,
    candidate: list[str] | None = flag(
        None,
        "Show this candidate, DRAFT[:QUANT]. Repeat the flag to compare the first with the others "
        "(default: all).",
        "NAME",
    ),
    k: tuple[int, ...] | None = flag(
        None, "The draft lengths, e.g. 1-16 (default: those swept).", "K,…", parse=draft_lengths
    ),
    width: float = flag(
        0.02, "Say how many requests would give each figure to within ± this share.", "SHARE"
    ),
    everything: bool = flag(
        False, "Show every definition, position and draft tree.", names=("--all",)
    ),
    output: Output,
) -> int:
    """Show how often drafts are accepted, on one screen; --all shows every definition and position.

    draftbench acceptance results/runs/RUN
    draftbench acceptance results/runs/RUN --all --k 1-16
    draftbench acceptance results/runs/RUN --candidate small:int4 --candidate tiny
    """
    from draftbench.acceptance.summary import acceptance_report
    from draftbench.report.terminal.acceptance import render

    if not 0 < width < 1:
        raise UsageError(
            f"--width {width:g}: expected a share between 0 and 1", hint="for example 0.02 for ±2%"
        )
    observed = read(run)
    ks = k or observed.manifest.question.ks
    names = map(str, require_measured(observed).candidates)
    chosen = [candidate_named(observed, name) for name in dict.fromkeys(candidate or names)]
    whole = everything or output.style in ("json", "csv")
    report = acceptance_report(observed, chosen, ks, width, everything=whole)
    output.write(render(report, output.style, columns(), everything=everything))
    return 0
