"""`draftbench estimate`: what the closed form promises, before anything is measured."""

from __future__ import annotations

from draftbench.cli.flags import draft_lengths, flag
from draftbench.cli.output import TextOutput, width


def estimate(
    *,
    alpha: float = flag(..., "Acceptance rate, 0 to 1."),
    draft_cost: float = flag(..., "c: time of one draft step over one target step."),
    verify_ratio: float = flag(
        1.0, "v: time of a target pass over k+1 tokens over one of one token."
    ),
    k: tuple[int, ...] = flag(
        "1-16", "Draft lengths, for example 1-10.", "K,…", parse=draft_lengths
    ),
    output: TextOutput,
) -> int:
    """Say what the closed form promises for an acceptance rate and a draft cost ratio.

    draftbench estimate --alpha 0.75 --draft-cost 0.05
    draftbench estimate --alpha 0.75 --draft-cost 0.05 --verify-ratio 1.1 --k 1-10
    """
    from draftbench.planner.formula import table
    from draftbench.report.terminal.estimate import render

    found = table(alpha, draft_cost, k, verify=verify_ratio)
    output.write(render(found, output.style, width()))
    return 0
