"""Why a row of a log is left out. No message quotes the row's text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from draftbench.errors import closest

_READABLE = re.compile(r"(?=.{1,64}\Z)[^\W\d][\w.:/-]*( [\w.:/-]+){0,2}")
_MOST_NAMES = 8


def readable_names(row: Iterable[Any]) -> list[str]:
    """The names of fields that are names: a table without a header has texts in their place."""
    return [name for name in row if isinstance(name, str) and _READABLE.fullmatch(name)]


def seen_in(row: Iterable[Any]) -> str:
    """The fields that were found, in words."""
    names = readable_names(row)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
    return f"its fields are {listed}{more}" if names else "it has no field with a readable name"


class BadRowError(Exception):
    """A row that cannot be read as a request."""

    hint = "fix the row, or skip and count bad rows with --skip-bad"


class UnknownFormError(BadRowError):
    """A row in which nothing looks like a request; it says which fields there are, and which may
    have been meant.

    Args:
        path: of `--prompt-field`, under which there is nothing.
    """

    def __init__(self, row: Mapping[str, Any], path: str | None = None) -> None:
        what = f"nothing under `{path}`" if path else "no known form of request"
        super().__init__(f"{what}; {seen_in(row)}")
        meant = path and closest(path, readable_names(row))
        texts = [name for name in readable_names(row) if isinstance(row[name], str)]
        self.hint = "its prompt may be a text of several fields, which draftbench does not join"
        if meant or texts:
            field = meant or max(texts, key=lambda name: len(row[name]))
            self.hint = f"name the prompt's field, perhaps --prompt-field {field}"


class LengthsOnlyError(BadRowError):
    """A row of a trace that keeps the lengths of requests without their text."""

    hint = "acceptance depends on the text: give a log that holds the prompts"


class NotRepresentableError(Exception):
    """A request that a `Request` cannot express; `str()` is the part or the setting."""


class NoTrafficError(Exception):
    """A row whose text is the logger's, or whose call failed; `str()` is the reason."""
