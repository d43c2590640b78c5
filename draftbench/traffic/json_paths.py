"""Finds a value in a raw row, however a log keeps it: nested, as the text of JSON or of a Python
literal, in columns whose names are paths, or in OpenTelemetry's lists of typed attributes.
"""

from __future__ import annotations

import ast
import contextlib
import io
import itertools
import json
import re
import tokenize
from functools import lru_cache
from typing import Any

import msgspec

# Most characters of a Python literal: parsing takes a hundred times its size.
_MOST_LITERAL = 1 << 20
_TRUNCATED = "Input data was truncated"  # msgspec's words
_SIDE_BY_SIDE = re.compile(r"""["']\s*[rbu]?["']""", re.IGNORECASE)


def at(row: Any, path: str) -> Any:
    """The value at a dotted path, where names may hold dots; the row itself for an empty path.

    If the path is only the beginning of columns (`request.model`, `request.messages`), the value is
    the object that these columns make, or the list if they are numbered (`messages.0.role`).
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


@lru_cache(1024)
def splits(path: str) -> tuple[tuple[str, str], ...]:
    """The two parts of a path at each of its dots, from the first dot on."""
    return tuple((path[:i], path[i + 1 :]) for i, letter in enumerate(path) if letter == ".")


def parsed(text: bytes | str) -> Any:
    """The value of JSON, in which NaN and Infinity, as Python writes them, are null.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        lenient = text.decode() if isinstance(text, bytes) else text
        if "NaN" not in lenient and "Infinity" not in lenient:
            raise
        with contextlib.suppress(ValueError):
            return json.JSONDecoder(parse_constant=lambda _: None).decode(lenient)
        raise


def is_cut(value: Any) -> bool:
    """Whether a value is the text of a JSON object that ends before the object does."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return False
    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError as error:
        return str(error) == _TRUNCATED
    except UnicodeError:
        return False
    return False


def unpacked(value: Any) -> Any:
    """The object or list that a text holds as JSON, possibly encoded twice, or as a Python literal,
    or that a list holds as typed attributes; anything else as it is.
    """
    if not isinstance(value, str | list):
        return value
    content = value
    while isinstance(content, str) and content.lstrip()[:1] in ("{", "[", '"'):
        try:
            content = parsed(content)
        except (ValueError, RecursionError):
            content = _literal(content)
            break
    if isinstance(content, list) and content and all(map(_is_attribute, content)):
        return _untyped({"kvlistValue": {"values": content}})
    return content if isinstance(content, dict | list) else value


def _literal(text: str) -> Any:
    """The object or list that a Python literal holds, as tables keep it; None for other texts.

    Texts side by side are several, as numpy writes them, and not one, as Python reads them.
    """
    if "'" not in text or len(text) > _MOST_LITERAL:
        return None
    try:
        if _SIDE_BY_SIDE.search(text):
            tokens = tokenize.generate_tokens(io.StringIO(text.strip()).readline)
            words = [token for token in tokens if token.type != tokenize.NL]
            text = " ".join(
                word.string + "," * (word.type == after.type == tokenize.STRING)
                for word, after in itertools.pairwise(words)
            )
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, tokenize.TokenError, MemoryError, RecursionError):
        return None


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
