"""`draftbench estimate`: the speed-up by the closed form, before anything is measured."""

from __future__ import annotations

from functools import partial

from draftbench.cli.output import TextOutput, width
from draftbench.errors import UsageError
from draftbench.flags import draft_lengths, flag


def _ratios(name: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(
            f"{name} {text}: not numbers between commas", hint=f"for example {name} 1.1,1.2,1.4"
        ) from error


def estimate(
    *,
    alpha: float = flag(..., "α: the acceptance rate, 0 to 1."),
    draft_cost: float = flag(..., "c: the time of a draft step divided by that of a target step."),
    verify_ratio: tuple[float, ...] = flag(
        "1",
        "v: the time of a target pass over k + 1 tokens divided by that over one token, for each "
        "of --k, the shortest first, or one for every k.",
        "V,…",
        parse=partial(_ratios, "--verify-ratio"),
    ),
    k: tuple[int, ...] = flag("1-16", "The draft lengths, e.g. 1-10.", "K,…", parse=draft_lengths),
    output: TextOutput,
) -> int:
    """Predict the speed-up by formula, from an acceptance rate and a draft cost ratio.

    draftbench estimate --alpha 0.75 --draft-cost 0.05
    draftbench estimate --alpha .7 --draft-cost .1 --verify-ratio 1.1,1.3 --k 1-2
    """
    from draftbench.planner.formula import formula_table
    from draftbench.report.terminal.estimate import render

    table = formula_table(alpha, draft_cost, k, verify_ratio)
    output.write(render(table, output.style, width()))
    return 0
