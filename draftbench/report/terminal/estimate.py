"""The output of `draftbench estimate`."""

from __future__ import annotations

from itertools import pairwise

import msgspec

from draftbench.planner.formula import FormulaTable
from draftbench.records import to_json
from draftbench.report.terminal.text import Section, render_sections

BASIS = "closed form, positions alike (Leviathan et al. 2023); not measured"


def render(table: FormulaTable, style: str, width: int) -> str:
    """The table as table, json or markdown."""
    if style == "json":
        return to_json({"basis": BASIS, **msgspec.to_builtins(table)})
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
    given += (
        ""
        if table.verify_ratio == 1
        else f", v = {table.verify_ratio:g}"
        if table.verify_ratio
        else ", v by k"
    )
    none = "None of these k is" if table.faster_k else "Do not speculate: no k is"
    title = f"{none} faster than decoding without a draft ({given})"
    if table.best_k:
        title = (
            f"Best k = {table.best_k}: {table.best_speedup:.2f}× ({given}); k = {table.best_k} "
            f"pays from α = {table.best_break_even_alpha:.2f} on"
        )
    notes = []
    # Not where both speed-ups are the same in print.
    if table.faster_speedup and f"{table.faster_speedup:.2f}" != f"{table.best_speedup:.2f}":
        notes.append(f"k = {table.faster_k} would be faster: {table.faster_speedup:.2f}×.")
    notes += [
        f"Estimated: {BASIS}.",
        "speed-up = (1 + α + … + α^k) / (k·c + v), with c per draft token.",
    ]
    if table.verify_ratio:
        notes.append(
            f"v = {table.verify_ratio:g} for every k. It grows with k, most in mixtures of "
            "experts, so that long drafts look better than they are: give it for each, "
            "--verify-ratio V,…"
        )
    notes += [
        f"v falls from {short.verify_ratio:g} at k = {short.k} to {long.verify_ratio:g} at k = "
        f"{long.k}, though the longer pass does more: see whether the shortest k comes first, or "
        "whether timing was disturbed."
        for short, long in pairwise(table.rows)
        if long.verify_ratio < short.verify_ratio
    ][:1]
    v = [] if table.verify_ratio else ["v(k+1)"]
    head = ["", "k", *v, "tok/round", "speed-up ×", "break-even α"]
    section = Section(title, head, rows, notes)
    return render_sections([section], style, width)
