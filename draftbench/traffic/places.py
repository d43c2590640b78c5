"""Finds a value in a raw row, however a log keeps it: nested, as JSON text, in columns whose names
are paths, or in OpenTelemetry's lists of typed attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec


def at(row: Any, path: str) -> Any:
    """The value at a dotted path, where names may hold dots; the row itself for an empty path.

    If the path is only the beginning of columns (`request.model`, `request.messages`), the value is
    the object that these columns make.
    """
    row = decoded(row)
    if not path or not isinstance(row, dict):
        return None if path else row
    if path in row:
        return row[path]
    for head, rest in splits(path):
        if head in row and (value := at(row[head], rest)) is not None:
            return value
    if "." not in "".join(row):  # as in most rows
        return None
    start = f"{path}."
    columns = {name[len(start) :]: row[name] for name in row if name.startswith(start)}
    return columns or None


def splits(path: str) -> Iterator[tuple[str, str]]:
    """The two parts of a path at each of its dots, from the first dot on."""
    return ((path[:i], path[i + 1 :]) for i, letter in enumerate(path) if letter == ".")


def decoded(value: Any) -> Any:
    """The object or list that a text holds as JSON, possibly encoded twice, or that a list holds as
    typed attributes; anything else as it is.
    """
    if not isinstance(value, str | list):
        return value
    content = value
    while isinstance(content, str) and content.lstrip()[:1] in ("{", "[", '"'):
        try:
            content = msgspec.json.decode(content)
        except (ValueError, RecursionError):
            return value
    if isinstance(content, list) and content and all(map(_is_attribute, content)):
        return _untyped({"kvlistValue": {"values": content}})
    return content if isinstance(content, dict | list) else value


def _is_attribute(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"key", "value"}


def _untyped(value: Any) -> Any:
    """A typed value of OpenTelemetry as a plain one; whole numbers stay text."""
    match value:
        case {"kvlistValue": {"values": list(pairs)}} if all(map(_is_attribute, pairs)):
            return {str(pair["key"]): _untyped(pair["value"]) for pair in pairs}
        case {"arrayValue": {"values": list(values)}}:
            return [_untyped(part) for part in values]
        case {"stringValue": it} | {"intValue": it} | {"doubleValue": it} | {"boolValue": it}:
            return it
    return None
