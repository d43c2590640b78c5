"""Why a log's row is left out. No message quotes the row's text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from draftbench.errors import closest
from draftbench.traffic.json_paths import unpacked

_READABLE = re.compile(r"(?=.{1,64}\Z)[$@]?[^\W\d][\w.:/-]*( [\w.:/-]+){0,2}")
_MOST_NAMES = 8
_SENTENCE = re.compile(r"[^\W\d_]{2,}\W+[^\W\d_]{2,}|[^\x00-\x7f]{3,}")

# Words in the names of fields that hold no prompt, or not all of it: answers, tools, labels.
_NOT_ASKED = re.compile(
    r"answer|response|output|completion|result|target|label|tool|function|expected|reference"
    r"|choice|predict|score|gold|resps|reply|chosen|rejected|generat(ed|ions?$)|reason|solution"
    r"|^(retrieved_?)?(contexts?|documents?)$|(^|_)model(_?id|_?name)?$",
    re.IGNORECASE,
)


@lru_cache(1024)
def not_asked(name: str) -> bool:
    """Whether a field is named as an answer's, a tool's or a label's."""
    return _NOT_ASKED.search(name) is not None


def is_sentence(text: str) -> bool:
    return _SENTENCE.search(text) is not None


def readable_names(row: Iterable[Any]) -> list[str]:
    """Those field names that are real names: in a table without a header they are texts."""
    return [name for name in row if isinstance(name, str) and _READABLE.fullmatch(name)]


def seen_in(row: Iterable[Any]) -> str:
    """The fields that were found, as words for a message."""
    names = readable_names(row)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    listed = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
    return f"its fields are {listed}{more}" if names else "it has no field with a readable name"


class BadRowError(Exception):
    """A row that cannot be read as a request."""

    hint = "fix the row, or skip and count bad rows with --skip-bad"


class UnknownFormError(BadRowError):
    """A row without a request in any known place; says which fields it has, and which may be meant.

    Args:
        path: the `--prompt-field` path, where nothing is.
        found: where there is a request instead; `query`: what `jq` takes it out with.
    """

    def __init__(
        self,
        row: Mapping[str, Any],
        path: str | None = None,
        found: str | None = None,
        query: str | None = None,
    ) -> None:
        what = f"nothing under `{path}`" if path else "no prompt or messages found"
        super().__init__(f"{what}; {seen_in(row)}")
        names = readable_names(row)
        texts = {name: row[name] for name in names if isinstance(unpacked(row[name]), str)}
        # Whoever names a field that is not there may mean any of them.
        likely = [
            name for name in texts if (path or is_sentence(texts[name])) and not not_asked(name)
        ]
        longest = max(likely, key=lambda name: len(texts[name]), default="")
        field: str | None = (closest(path, names) if path else None) or longest
        is_message = any(
            isinstance(each, Mapping) and {"role", "content"} <= each.keys()
            for each in (row, *row.values())
        )
        found, query, field = (each and shlex.quote(each) for each in (found, query, field))
        self.hint = "docs/logs.md shows each known form; several fields have to be joined first"
        if is_message:
            self.hint = "a row is one message: put those of a conversation into one, as `messages`"
        elif found:
            self.hint = f"a request stands in one of its fields: --prompt-field {found}"
        elif query:
            self.hint = f"take the requests out first: jq -c {query} FILE > requests.jsonl"
        elif field:
            self.hint = f"name the prompt's field, perhaps --prompt-field {field}"


class LengthsOnlyError(BadRowError):
    """A row of a trace that records only the lengths of requests, not their text."""

    hint = "acceptance depends on the text: give a log that holds the prompts"


class NotRepresentableError(Exception):
    """A request that `Request` cannot express; `str()` names the part or the setting."""


class NoTrafficError(Exception):
    """A row whose text was written by the logger, or whose call failed; `str()` is the reason."""
