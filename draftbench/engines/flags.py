"""Words of a command line that several engines share."""

from __future__ import annotations

import json
from typing import Any

from draftbench.drafts.speculation import Speculation
from draftbench.errors import UsageError
from draftbench.hub import split_revision


def revision_flags(model: str, flag: str) -> tuple[str, list[str]]:
    """A model's name without its `@revision`, and the flags for that revision."""
    name, revision = split_revision(model)
    return name, [] if revision is None else [flag, revision]


def with_length(content: Any, k: int) -> Any:
    """What `spec:FILE.json` holds, with every "{k}" replaced by the draft length."""
    if isinstance(content, dict):
        return {name: with_length(inner, k) for name, inner in content.items()}
    if isinstance(content, list):
        return [with_length(inner, k) for inner in content]
    return k if content == "{k}" else content


def passed_flags(speculation: Speculation) -> list[str]:
    """The flags that `spec:FILE.json` holds: without a value where it is true, none where it is
    false or null.
    """
    words: list[str] = []
    for name, value in with_length(speculation.raw or {}, speculation.k).items():
        if isinstance(value, dict | list):
            raise UsageError(
                f"spec:FILE.json: the value of `{name}` is {json.dumps(value)}",
                hint="a flag's value is a text, a number, true or false",
            )
        if value is not None and value is not False:
            words += [name] if value is True else [name, str(value)]
    return words
