"""One line of a run folder, already plain values or records: older layouts are upgraded to today's,
and what no sweep can have written is refused.

Types are checked by msgspec. What they cannot say is checked here: lists of one length, counts that
are not negative, numbers that stay numbers in sums. Without it a changed line would come out as a
crash or, worse, as a figure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

from draftbench.records import (
    CostPoint,
    Decode,
    LookupReplay,
    ModelFacts,
    Observation,
    Replay,
    Trajectory,
)

MOST = 1e15
"""Above any count of bytes or tokens and any seconds, and exact as a float."""

# Fields that records of schema 1 and 2 had and that no figure needs any more.
_GONE = {
    "replay": ("kinds",),
    "decode": ("stop_below",),
    "failure": ("request",),
    "machinestate": ("jump", "megahertz"),
}


def upgraded(line: dict[str, Any]) -> dict[str, Any] | None:
    """A record of schema 1 or 2, as it is read from JSON, in today's layout: a draft and its level
    were two strings. None for a decoding run whose draft stopped when it was unsure: no figure is
    made of such runs any more.
    """
    kind = line.get("kind", "drafted")
    if kind == "decode" and line.get("stop_below") is not None:
        return None
    record = {name: value for name, value in line.items() if name not in _GONE.get(kind, ())}
    if "draft" in record:
        draft, quant = record.pop("draft"), record.pop("quant", "none")
        record["candidate"] = None if draft is None else {"draft": draft, "quant": quant}
        if kind == "modelfacts":
            record["quant"] = quant
    return record


def objection(record: Observation) -> str | None:
    """What is impossible in an observation, with its field; None where nothing is."""
    for name in record.__struct_fields__:
        if not _counts(getattr(record, name)):
            return f"`{name}` is negative or too large"
    return next(_CHECKS.get(type(record), lambda _: iter(()))(record), None)


def _of_trajectory(record: Trajectory) -> Iterator[str]:
    yield from _lengths(record, record.output_tokens, "margins", "argmax")
    if not record.weight or not record.output_tokens:
        yield "`weight` or `output_tokens` is 0"
    if record.looping > record.output_tokens:
        yield "`looping` is more than the output"


def _of_replay(record: Replay) -> Iterator[str]:
    yield from _lengths(record, len(record.accept), "confidence", "margin", "rank")
    if record.overlap is not None:
        yield from _lengths(record, len(record.accept), "overlap")
    if max(record.accept, default=0.0) > 1:
        yield "`accept` holds a probability above 1"


def _of_lookup(record: LookupReplay) -> Iterator[str]:
    yield from _lengths(record, len(record.proposed), "matched")
    if max(record.proposed, default=0) > record.window:
        yield "`proposed` is more than the window"
    if any(m > p for m, p in zip(record.matched, record.proposed, strict=False)):
        yield "`matched` is more than was proposed"


def _of_decode(record: Decode) -> Iterator[str]:
    rounds = len(record.proposed)
    yield from _lengths(record, rounds, "accepted", "cut", "draft_seconds", "verify_seconds")
    if record.active:
        yield from _lengths(record, rounds, "active")
    if not record.batch or not record.output_tokens:
        yield "`batch` or `output_tokens` is 0"
    used = zip(record.proposed, record.accepted, record.cut, strict=False)
    if max(record.proposed, default=0) > record.k or max(record.active, default=0) > record.batch:
        yield "`proposed` is more than k, or `active` more than the batch"
    if any(accepted + cut > proposed for proposed, accepted, cut in used):
        yield "`accepted` and `cut` are more than was proposed"


def _of_cost(record: CostPoint) -> Iterator[str]:
    if not record.batch or min(record.seconds, default=0) <= 0:
        yield "`batch` or `seconds` holds a 0, or nothing"


def _of_facts(record: ModelFacts) -> Iterator[str]:
    if not record.context_length or not record.parameters:
        yield "`context_length` or `parameters` is 0"


_CHECKS: dict[type, Callable[[Any], Iterator[str]]] = {
    Trajectory: _of_trajectory,
    Replay: _of_replay,
    LookupReplay: _of_lookup,
    Decode: _of_decode,
    CostPoint: _of_cost,
    ModelFacts: _of_facts,
}


def _lengths(record: Observation, expected: int, *names: str) -> Iterator[str]:
    for name in names:
        value: Sized = getattr(record, name)
        if len(value) != expected:
            yield f"`{name}` has {len(value)} entries, not {expected}"


def _counts(value: Any) -> bool:
    """Whether all numbers in a field lie between 0 and what can be counted."""
    if isinstance(value, int | float):
        return 0 <= value <= MOST
    if isinstance(value, tuple | list) and value and isinstance(value[0], int | float):
        return min(value) >= 0 and max(value) <= MOST
    return True
