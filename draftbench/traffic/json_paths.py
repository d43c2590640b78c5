"""Finds a value in a raw row, however the log stores it: nested, as JSON or a Python literal in a
text, or in columns named by paths.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

# Most characters of a Python literal: parsing one takes a hundred times its size in memory.
_MOST_LITERAL = 1 << 20
_TRUNCATED = "Input data was truncated"  # msgspec's words
_HALF = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")  # of a character, as JSON writes it
_SIDE_BY_SIDE = re.compile(r"""["']\s+["']""")


def at(row: Any, path: str) -> Any:
    """The value at a dotted path, whose names may contain dots; the row itself for an empty path.

    If columns only begin with the path (`request.model`, `request.messages`), the value is the
    object that they form, or the list if they are numbered (`messages.0.role`).
    """
    if not isinstance(row, dict):
        row = unpacked(row)
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
    heads = {name.partition(".")[0] for name in columns}
    if columns and all(head.isdecimal() and head.isascii() for head in heads):
        return [at(columns, head) for head in sorted(heads, key=lambda head: (len(head), head))]
    return columns or None


def by_head(paths: Iterable[str]) -> dict[str, list[str]]:
    """Paths by the name with which they begin, for `at_each`."""
    heads: dict[str, list[str]] = {}
    for path in paths:
        heads.setdefault(path.partition(".")[0], []).append(path)
    return heads


def at_each(row: Any, paths: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """What stands in an object at those of the paths, sorted by `by_head`, where anything does."""
    names = [name for name in row if isinstance(name, str)] if isinstance(row, dict) else ()
    heads = dict.fromkeys(name.partition(".")[0] for name in names)
    places = (path for head in heads if head in paths for path in paths[head])
    return {path: value for path in places if (value := at(row, path)) is not None}


@lru_cache(1024)
def splits(path: str) -> tuple[tuple[str, str], ...]:
    """A path split in two at each of its dots in turn."""
    return tuple((path[:i], path[i + 1 :]) for i, letter in enumerate(path) if letter == ".")


def parsed(text: bytes | str) -> Any:
    """The value of a JSON text, also of one that only Python and JavaScript read: half a character
    becomes U+FFFD; NaN, Infinity and numbers that are too large become null.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        lenient = text.decode() if isinstance(text, bytes) else text
        with contextlib.suppress(ValueError):
            return _as_json_has_it(json.loads(lenient))
        raise


def _as_json_has_it(value: Any) -> Any:
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_as_json_has_it(name): _as_json_has_it(value[name]) for name in value}
        case list():
            return [_as_json_has_it(each) for each in value]
        case float() if not math.isfinite(value):
            return None
    return value


def is_cut(value: Any) -> bool:
    """Whether a value is a JSON object's text that was cut off."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return False
    try:
        msgspec.json.decode(_HALF.sub(r"\\ufffd", value))
    except msgspec.DecodeError as error:
        return str(error) == _TRUNCATED
    except UnicodeError:
        return False
    return False


def unpacked(value: Any) -> Any:
    """The object or list in a text (JSON, possibly encoded twice, or a Python literal); anything
    else unchanged.
    """
    content = value
    while isinstance(content, str) and content.lstrip()[:1] in ("{", "[", '"'):
        try:
            content = parsed(content)
        except (ValueError, RecursionError):
            content = _literal(content)
            break
    return content if isinstance(content, dict | list) else value


def _literal(text: str) -> Any:
    """The object or list in a Python literal, as tables store them; None for other texts."""
    if "'" not in text or len(text) > _MOST_LITERAL:
        return None
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    # Between texts numpy writes no commas, and Python would join them.
    plain = isinstance(found, list) and all(isinstance(each, str) for each in found)
    return None if plain and _SIDE_BY_SIDE.search(text) else found
