"""`draftbench estimate`: the speed-up by the closed form, before anything is measured."""

from __future__ import annotations

from draftbench.cli.output import TextOutput, width
from draftbench.flags import draft_lengths, flag


def estimate(
    *,
    alpha: float = flag(..., "α: the acceptance rate, 0 to 1."),
    draft_cost: float = flag(..., "c: the time of a draft step divided by that of a target step."),
    verify_ratio: float = flag(
        1.0, "v: the time of a target pass over k + 1 tokens divided by that over one token."
    ),
    k: tuple[int, ...] = flag("1-16", "The draft lengths, e.g. 1-10.", "K,…", parse=draft_lengths),
    output: TextOutput,
) -> int:
    """Predict the speed-up by formula, from an acceptance rate and a draft cost ratio.

    draftbench estimate --alpha 0.75 --draft-cost 0.05
    draftbench estimate --alpha 0.75 --draft-cost 0.05 --verify-ratio 1.1 --k 1-10
    """
    from draftbench.planner.formula import formula_table
    from draftbench.report.terminal.estimate import render

    output.write(
        render(formula_table(alpha, draft_cost, k, verify=verify_ratio), output.style, width())
    )
    return 0
