"""Records of schema 1 and 2 in today's layout."""

from __future__ import annotations

from typing import Any

# Fields that no figure needs any more.
_GONE = {
    "replay": ("kinds",),
    "decode": ("stop_below",),
    "failure": ("request",),
    "machinestate": ("jump", "megahertz"),
}


def upgraded(line: dict[str, Any]) -> dict[str, Any] | None:
    """A record as it is read from JSON: a draft and its level were two strings. None for a decoding
    run whose draft stopped when it was unsure: no figure is made of such runs any more.
    """
    kind = str(line.get("kind", "drafted"))
    if kind == "decode" and line.get("stop_below") is not None:
        return None
    gone = _GONE.get(kind, ()) if isinstance(kind, str) else ()
    record = {name: value for name, value in line.items() if name not in gone}
    if "draft" in record:
        draft, quant = record.pop("draft"), record.pop("quant", "none")
        record["candidate"] = None if draft is None else {"draft": draft, "quant": quant}
        if kind == "modelfacts":
            record["quant"] = quant
    return record
