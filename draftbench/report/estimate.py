"""Estimates → a table for people, Markdown, JSON and CSV, each saying that nothing was measured.

Renders and computes nothing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from draftbench.plan.cards import Card
from draftbench.plan.formula import Table
from draftbench.plan.roofline import Load, Pairing
from draftbench.report.sections import Section
from draftbench.report.text import memory

CLOSED_FORM = "closed form, positions alike (Leviathan et al. 2023); not measured"
ROOFLINE = "estimated: bytes over bandwidth or operations over peak; not measured"


def render_table(table: Table, style: str, width: int) -> str:
    """The closed form as table, json, markdown or csv."""
    if style == "json":
        return _json({"basis": CLOSED_FORM, **msgspec.to_builtins(table)})
    if style == "csv":
        return _csv([{"basis": CLOSED_FORM, **msgspec.to_builtins(row)} for row in table.rows])
    head = ["", "k", "tokens/round", "speed-up ×", "break-even α", "operations ×", "with 1+c ×"]
    rows = [
        [
            "→" if row.k == table.best_k else "",
            str(row.k),
            f"{row.tokens_per_round:.2f}",
            f"{row.speedup:.2f}",
            _number(row.break_even_alpha, "{:.2f}"),
            f"{row.operations_factor:.2f}",
            f"{row.speedup_if_cost_were_the_whole_pass:.2f}",
        ]
        for row in table.rows
    ]
    return _written(Section(_title(table), head, rows, _table_notes(table)), style, width)


def _title(table: Table) -> str:
    given = f"α = {table.alpha:g}, c = {table.draft_cost_ratio:g}"
    if table.verify_ratio != 1:
        given += f", v = {table.verify_ratio:g}"
    if table.overhead:
        given += f", o = {table.overhead:g}"
    return f"{given}: {CLOSED_FORM}"


def _table_notes(table: Table) -> list[str]:
    best = f"Best k = {table.best_k}: {table.best_speedup:.2f}×."
    notes = [best if table.best_k else "No k is faster than plain decoding: do not speculate."]
    row = table.misleading
    if row.speedup_if_cost_were_the_whole_pass > row.speedup:
        notes.append(
            "The form that divides by 1 + c rises with every k and promises "
            f"{row.speedup_if_cost_were_the_whole_pass:.2f}× at k = {row.k}; "
            f"each of the {row.k} draft steps costs c, so it is {row.speedup:.2f}×."
        )
    notes.append(
        "speed-up = (1 + α + … + α^k) / (k·c + v + o), with c per draft token; the operations "
        "factor takes c for the draft's share of operations too."
    )
    return notes


def render_roofline(
    found: Sequence[Pairing], card: Card, load: Load, style: str, width: int
) -> str:
    """The roofline of every pair of precisions as table, json, markdown or csv."""
    if style == "json":
        facts = {"basis": ROOFLINE, "card": msgspec.to_builtins(card)}
        load_facts = {"batch": load.batch, "context": load.context}
        return _json({**facts, **load_facts, "pairings": msgspec.to_builtins(list(found))})
    if style == "csv":
        return _csv([{"basis": ROOFLINE, "card": card.title, **_flat(pair)} for pair in found])
    last = max(found[0].verify_ratio)
    head = ["target", "draft", "memory", "fits", "c", f"v({last + 1})", "target step", "draft step"]
    rows = [
        [
            f"{pair.target_bits} bit",
            f"{pair.draft_bits} bit",
            memory(int(pair.memory_bytes)),
            "yes" if pair.fits else "no",
            _number(pair.draft_cost_ratio, "{:.1%}"),
            _number(pair.verify_ratio[last], "{:.2f}"),
            _number(_milliseconds(pair.target_step_seconds), "{:.3g} ms"),
            _number(_milliseconds(pair.draft_step_seconds), "{:.3g} ms"),
        ]
        for pair in found
    ]
    sequences = "sequence" if load.batch == 1 else "sequences"
    title = f"{card.title}, {load.batch} {sequences} of {load.context} tokens: {ROOFLINE}"
    return _written(Section(title, head, rows, _roofline_notes(found, card)), style, width)


def _roofline_notes(found: Sequence[Pairing], card: Card) -> list[str]:
    notes = [_fitting({pair.target_bits: pair.target_fits for pair in found})]
    if card.bandwidth is None or card.operations is None:
        notes.append(f"Times are unknown: not all numbers of {card.title} are verified.")
    notes.append(
        "Memory is weights and both caches, without activations and the engine's own. Launches and "
        "sampling cost small models most, so a real c lies above this one."
    )
    notes.append(f"Card: {card.source}.")
    return notes


def _fitting(fits: dict[int, bool]) -> str:
    """At which precisions the target has room for itself."""
    yes = [str(bits) for bits, holds in fits.items() if holds]
    no = [str(bits) for bits, holds in fits.items() if not holds]
    if not no:
        return f"The target alone fits at {_listed(yes)} bits."
    fitting = f"it fits at {_listed(yes)}" if yes else "no precision here makes it fit"
    return f"The target alone does not fit this card at {_listed(no)} bits; {fitting}."


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _flat(pair: Pairing) -> dict[str, Any]:
    fields = msgspec.to_builtins(pair)
    ratios = fields.pop("verify_ratio")
    return {**fields, **{f"verify_ratio_{k}": ratio for k, ratio in ratios.items()}}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else form.format(value)


def _written(section: Section, style: str, width: int) -> str:
    return section.markdown() if style == "markdown" else section.text(width)


def _json(fields: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(fields), indent=2).decode()


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue().rstrip("\n")
