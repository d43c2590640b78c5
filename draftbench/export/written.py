"""What the writers of all engines share: an engine's version, and what is written for it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.errors import UsageError
from draftbench.records import DraftingMode

Version = tuple[int, int]
NEWEST = (10**9, 0)


@dataclass(frozen=True)
class Written:
    """The text for an engine, and the `command` that starts it with that text in FILE, where the
    text is no command itself. `mode` is the one in which the engine will draft, None where it has
    none; `scheduled` says that the text holds the draft lengths by load.
    """

    text: str
    notes: list[str]
    mode: DraftingMode | None
    scheduled: bool = False
    command: str | None = None
    to_do: Sequence[str] = ()


def version_of(text: str | None) -> Version:
    """A version's first two numbers; the newest where none is given.

    Raises:
        UsageError: it is no version.
    """
    if text is None:
        return NEWEST
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})(?![0-9])", text)
    if not numbers:
        raise UsageError(f"`{text}` is not a version", hint="for example 0.26 or 1.4.0rc1")
    return int(numbers[1]), int(numbers[2])


def too_old(engine: str, oldest: str, feature: str) -> UsageError:
    return UsageError(
        f"{engine} before {oldest} has no {feature}", hint=f"use {engine} {oldest} or newer"
    )


def match_taken(*, first: bool, measured_first: bool) -> str:
    """Which match an engine's prompt lookup takes, and whether the run's took the same."""
    takes, took = ("first" if is_first else "last" for is_first in (first, measured_first))
    same = "as was measured" if takes == took else f"the run measured the {took}"
    return f"takes the {takes} match in the prompt, {same}"
