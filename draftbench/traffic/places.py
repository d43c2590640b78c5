"""Reach a value in a raw row, however a log keeps it: nested, as JSON text, under columns whose
names are paths, or as OpenTelemetry's lists of typed attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


def at(row: Any, path: str) -> Any:
    """The value at a dotted path, where names may hold dots; the row itself at no path.

    Where only columns begin with the path (`request.model`, `request.messages`) it is the object
    that they spell.
    """
    row = decoded(row)
    if not path or not isinstance(row, dict):
        return None if path else row
    if path in row:
        return row[path]
    for head, rest in splits(path):
        if head in row and (found := at(row[head], rest)) is not None:
            return found
    if "." not in "".join(row):  # most rows: spare them the search
        return None
    start = f"{path}."
    columns = {name[len(start) :]: row[name] for name in row if name.startswith(start)}
    return columns or None


def splits(path: str) -> Iterator[tuple[str, str]]:
    """A path cut at each of its dots, the first one first."""
    return ((path[:i], path[i + 1 :]) for i, letter in enumerate(path) if letter == ".")


def decoded(value: Any) -> Any:
    """The object or list that a text holds as JSON, also encoded twice, or that a list holds as
    typed attributes; anything else as it is."""
    if not isinstance(value, str | list):
        return value
    held = value
    while isinstance(held, str) and held.lstrip()[:1] in ("{", "[", '"'):
        try:
            held = msgspec.json.decode(held)
        except (ValueError, RecursionError):
            return value
    if isinstance(held, list) and held and all(map(_is_attribute, held)):
        return _untyped({"kvlistValue": {"values": held}})
    return held if isinstance(held, dict | list) else value


def _is_attribute(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"key", "value"}


def _untyped(value: Any) -> Any:
    """A typed value as a plain one; whole numbers stay text."""
    match value:
        case {"kvlistValue": {"values": list(pairs)}} if all(map(_is_attribute, pairs)):
            return {str(pair["key"]): _untyped(pair["value"]) for pair in pairs}
        case {"arrayValue": {"values": list(values)}}:
            return [_untyped(part) for part in values]
        case {"stringValue": it} | {"intValue": it} | {"doubleValue": it} | {"boolValue": it}:
            return it
    return None
