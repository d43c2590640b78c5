"""Estimates → a table for people, Markdown, JSON and CSV, each saying that nothing was measured.

Renders and computes nothing.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import msgspec

from draftbench.memory import format_size
from draftbench.planner.formula import Table
from draftbench.planner.roofline import Load, Pairing, Practice, Roofline
from draftbench.report.terminal.text import Section

CLOSED_FORM = "closed form, positions alike (Leviathan et al. 2023); not measured"
ROOFLINE = "estimated: bytes over bandwidth or operations over peak; not measured"
MEMORY_NOTE = (
    "Counted are weights, both caches at 16 bits and the logits of a verification pass; other "
    "activations and the engine's own memory are unknown here and come off too."
)


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
    return f"{given}, in closed form"


def _table_notes(table: Table) -> list[str]:
    notes = ["No k is faster than plain decoding: do not speculate."]
    if table.best_k:
        best = f"Best k = {table.best_k}: {table.best_speedup:.2f}×"
        notes = [f"{best}; there it breaks even at α = {table.best_break_even_alpha:.2f}."]
    row = table.misleading
    if row.speedup_if_cost_were_the_whole_pass > row.speedup:
        notes.append(
            "The form that divides by 1 + c rises with every k and promises "
            f"{row.speedup_if_cost_were_the_whole_pass:.2f}× at k = {row.k}; "
            f"each of the {row.k} draft steps costs c, so it is {row.speedup:.2f}×."
        )
    notes.append(f"Estimated: {CLOSED_FORM}.")
    notes.append(
        "speed-up = (1 + α + … + α^k) / (k·c + v + o), with c per draft token; the operations "
        "factor takes c for the draft's share of operations too."
    )
    return notes


def render_roofline(estimate: Roofline, style: str, width: int) -> str:
    """The roofline of every pair of precisions as table, json, markdown or csv."""
    found, card, load = estimate.found, estimate.card, estimate.load
    if style == "json":
        facts = {"basis": ROOFLINE, "card": msgspec.to_builtins(card)}
        reported = msgspec.to_builtins(estimate.practice)
        rest = {"practice": reported, "pairings": msgspec.to_builtins(list(found))}
        return _json({**facts, **msgspec.to_builtins(load), **rest})
    if style == "csv":
        return _csv([{"basis": ROOFLINE, "card": card.title, **_flat(pair)} for pair in found])
    sections = (_times(estimate), _memory(found, load))
    written = [_written(section, style, width) for section in sections]
    return "\n\n".join(written)


def _times(estimate: Roofline) -> Section:
    found, card, load = estimate.found, estimate.card, estimate.load
    last = max(found[0].verify_ratio)
    ratios = ["c, estimated", f"v({last + 1}), estimated"]
    head = ["target", "draft", "memory", "fits", *ratios, "target step", "draft step"]
    rows = [
        [
            f"{pair.target_bits} bit",
            f"{pair.draft_bits} bit",
            format_size(int(pair.memory_bytes)),
            "yes" if pair.fits else "no",
            _number(pair.draft_cost_ratio, "{:.1%}"),
            _number(pair.verify_ratio[last], "{:.2f}"),
            _number(_milliseconds(pair.target_step_seconds), "{:.3g} ms"),
            _number(_milliseconds(pair.draft_step_seconds), "{:.3g} ms"),
        ]
        for pair in found
    ]
    title = f"{card.title}, {_sequences(load.batch)} of {load.context} tokens: {ROOFLINE}"
    notes = []
    if card.bandwidth is None or card.operations is None:
        notes.append(f"Times are unknown: not all numbers of {card.title} are verified.")
    notes.append(
        "Launches and sampling, which a roofline leaves out, cost small models most: a real c lies "
        "above this one."
    )
    notes += _gap(estimate.practice, found[0])
    notes.append(f"Card: {card.source}.")
    return Section(title, head, rows, notes)


def _gap(practice: Practice | None, widest: Pairing) -> list[str]:
    """How far what is reported of such a pair lies above its roofline."""
    cost = widest.draft_cost_ratio
    if practice is None or cost is None:
        return []
    reported = f"about {practice.low:.0%}"
    times = f"{practice.low / cost:.1f}"
    if practice.high > practice.low:
        reported = f"{practice.low:.0%} to {practice.high:.0%}"
        times += f" to {practice.high / cost:.1f}"
    return [
        f"Practice reports a c of {reported} for {practice.pair}, {times} times the roofline's "
        f"{cost:.1%} at 16 bits. Nothing here is fitted to close that gap."
    ]


def _memory(found: Sequence[Pairing], load: Load) -> Section:
    """What each pair of precisions leaves, without and with the draft."""
    head = ["target", "draft", "weights", "cache a token", f"sequences of {load.context}"]
    head.append(f"max-model-len at {load.batch}")
    rows = [
        [
            f"{pair.target_bits} bit",
            f"{pair.draft_bits} bit",
            _sum(pair.memory.target_weight_bytes, pair.memory.draft_weight_bytes),
            _sum(pair.memory.target_cache_bytes_per_token, pair.memory.draft_cache_bytes_per_token),
            f"{pair.memory.sequences_alone} → {pair.memory.sequences}",
            f"{pair.memory.max_model_len_alone} → {pair.memory.max_model_len}",
        ]
        for pair in found
    ]
    usable = format_size(int(found[0].memory.device_bytes))
    title = f"Memory: {usable}, {load.memory_share:.0%} of the card; without → with the draft"
    return Section(title, head, rows, [*_fitting(found), *_taken(found), MEMORY_NOTE])


def _fitting(found: Sequence[Pairing]) -> list[str]:
    """At which precisions the target has room for itself, and the pair for both."""
    alone = {pair.target_bits: pair.target_fits for pair in found}
    yes = [str(bits) for bits, holds in alone.items() if holds]
    no = [str(bits) for bits, holds in alone.items() if not holds]
    if not no:
        notes = [f"The target alone fits at {_listed(yes)} bits."]
    else:
        fitting = f"it fits at {_listed(yes)}" if yes else "no precision here makes it fit"
        notes = [f"The target alone does not fit this card at {_listed(no)} bits; {fitting}."]
    pairs = [f"{pair.target_bits} with {pair.draft_bits}" for pair in found if pair.fits]
    if len(pairs) < len(found) and yes:
        which = f"at {_listed(pairs)} bits only" if pairs else "at no precision here"
        notes.append(f"Target and draft together fit {which}.")
    return notes


def _taken(found: Sequence[Pairing]) -> list[str]:
    """What the draft takes from the target's cache, at the widest precisions that fit."""
    widest = next((pair for pair in found if pair.fits), None)
    if widest is None or widest.memory.sequences is None:
        return []
    plan = widest.memory
    return [
        f"At {widest.target_bits} bits with a draft of {widest.draft_bits}, the draft takes "
        f"{format_size(int(plan.draft_weight_bytes))} of weights and "
        f"{format_size(int(plan.draft_cache_bytes_per_token))} a token: room for {plan.sequences} "
        f"sequences of {plan.context} tokens instead of {plan.sequences_alone}; {plan.concurrency} "
        f"at once may have a max-model-len of {plan.max_model_len} instead of "
        f"{plan.max_model_len_alone}."
    ]


def _sequences(count: int) -> str:
    return f"{count} sequence" if count == 1 else f"{count} sequences"


def _sum(own: float, other: float) -> str:
    return f"{format_size(int(own))} + {format_size(int(other))}"


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _flat(pair: Pairing) -> dict[str, Any]:
    fields = msgspec.to_builtins(pair)
    ratios, room = fields.pop("verify_ratio"), fields.pop("memory")
    return {**fields, **{f"verify_ratio_{k}": ratio for k, ratio in ratios.items()}, **room}


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
