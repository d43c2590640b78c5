"""Why a row of a log is left out. No message quotes the row's text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from draftbench.errors import closest

_READABLE = re.compile(r"(?=.{1,64}\Z)[^\W\d][\w.:/-]*( [\w.:/-]+){0,2}")
_MOST_NAMES = 8
_SENTENCE = re.compile(r"[^\W\d_]{2,}\W+[^\W\d_]{2,}|[^\x00-\x7f]{3,}")


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
    """A row without a request at the known places; it says which fields there are, and which may
    have been meant.

    Args:
        path: of `--prompt-field`, under which there is nothing.
        found: where a request stands instead.
    """

    def __init__(
        self, row: Mapping[str, Any], path: str | None = None, found: str | None = None
    ) -> None:
        what = f"nothing under `{path}`" if path else "no known form of request"
        super().__init__(f"{what}; {seen_in(row)}")
        names = readable_names(row)
        meant = path and closest(path, names)
        texts = {name: row[name] for name in names if isinstance(row[name], str)}
        # Whoever names a field that is not there may mean any of them.
        likely = [name for name in texts if path or _SENTENCE.search(texts[name])]
        self.hint = (
            "docs/logs.md shows each known form; a prompt of several fields has to be joined first"
        )
        if found:
            self.hint = (
                f"a request stands in one of its fields: --prompt-field {shlex.quote(found)}"
            )
        elif meant or likely:
            field = meant or max(likely, key=lambda name: len(texts[name]))
            self.hint = f"name the prompt's field, perhaps --prompt-field {shlex.quote(field)}"


class LengthsOnlyError(BadRowError):
    """A row of a trace that keeps the lengths of requests without their text."""

    hint = "acceptance depends on the text: give a log that holds the prompts"


class NotRepresentableError(Exception):
    """A request that a `Request` cannot express; `str()` is the part or the setting."""


class NoTrafficError(Exception):
    """A row whose text is the logger's, or whose call failed; `str()` is the reason."""
