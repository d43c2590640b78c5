"""`draftbench estimate`: the speed-up by the closed form, before anything is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftbench.cli.output import TextOutput
from draftbench.errors import UsageError
from draftbench.flags import draft_lengths, flag
from draftbench.report.text import Section

if TYPE_CHECKING:
    from draftbench.planner.formula import FormulaTable


def estimate(
    *,
    alpha: float = flag(..., "α: the acceptance rate, 0 to 1."),
    draft_cost: float = flag(..., "c: the time of a draft step divided by that of a target step."),
    verify_ratio: str = flag(
        "1",
        "v: the time of a target pass over k + 1 tokens divided by that over one token, for each "
        "of --k, the shortest first, or one for every k.",
        "V,…",
    ),
    k: tuple[int, ...] = flag("1-16", "The draft lengths, e.g. 1-10.", "K,…", parse=draft_lengths),
    output: TextOutput,
) -> int:
    """Predict the speed-up by formula, from an acceptance rate and a draft cost ratio.

    draftbench estimate --alpha 0.75 --draft-cost 0.05
    draftbench estimate --alpha .7 --draft-cost .1 --verify-ratio 1.1,1.3 --k 1-2
    """
    from draftbench.planner.formula import formula_table

    try:
        ratios = tuple(map(float, verify_ratio.split(",")))
    except ValueError as error:
        raise UsageError(
            f"--verify-ratio {verify_ratio}: not numbers between commas",
            hint="for example --verify-ratio 1.1,1.2,1.4",
        ) from error
    table = formula_table(alpha, draft_cost, k, ratios)
    output.show(table, [section(table)])
    return 0


def section(table: FormulaTable) -> Section:
    """The speed-up at every k, the best one first."""
    rows = [
        [
            "→" if row.k == table.best_k else "",
            str(row.k),
            *([] if table.verify_ratio else [f"{row.verify_ratio:g}"]),
            f"{row.tokens_per_round:.2f}",
            f"{row.speedup:.2f}",
            "–" if row.break_even_alpha is None else f"{row.break_even_alpha:.2f}",
        ]
        for row in table.rows
    ]
    given = f"α = {table.alpha:g}, c = {table.draft_cost_ratio:g}"
    if table.verify_ratio != 1:
        given += f", v = {table.verify_ratio:g}" if table.verify_ratio else ", v by k"
    none = "None of these k is" if table.faster_k else "Do not speculate: no k is"
    title = f"{none} faster than decoding without a draft ({given})"
    if table.best_k:
        title = (
            f"Best k = {table.best_k}: {table.best_speedup:.2f}× ({given}); k = {table.best_k} "
            f"breaks even at α = {table.best_break_even_alpha:.2f}"
        )
    notes = []
    # Not if both speed-ups look the same in print.
    if table.faster_speedup and f"{table.faster_speedup:.2f}" != f"{table.best_speedup:.2f}":
        notes.append(f"k = {table.faster_k} would be faster: {table.faster_speedup:.2f}×.")
    notes += [
        f"Estimated: {table.basis}.",
        "speed-up = (1 + α + … + α^k) / (k·c + v), with c per draft token.",
    ]
    if table.verify_ratio:
        notes.append(
            f"v = {table.verify_ratio:g} for every k. In fact it grows with k, most in mixtures of "
            "experts, so long drafts look better than they are: give a v for each k, "
            "--verify-ratio V,…"
        )
    ratios = [row.verify_ratio for row in table.rows]
    if ratios != sorted(ratios):
        notes.append("v falls as k grows, though a longer pass does more: is the shortest first?")
    v = [] if table.verify_ratio else ["v(k+1)"]
    return Section(title, ["", "k", *v, "tok/round", "speed-up ×", "break-even α"], rows, notes)
