"""What the writers of all engines share: versions, what a writer returns, and common sentences."""

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
    """What a writer returns."""

    text: str
    notes: list[str]
    mode: DraftingMode | None  # in which the engine will draft; None for a method without modes
    scheduled: bool = False  # whether the text has the draft lengths by load
    command: str | None = None  # starts the engine with the text in FILE; None: the text does
    to_do: Sequence[str] = ()


def version_of(text: str | None) -> Version:
    """The first two numbers of a version; the newest if none is given.

    Raises:
        UsageError: it is not a version.
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
    """Words on which match an engine's prompt lookup takes, and whether the run's took the same."""
    takes, took = ("first" if is_first else "last" for is_first in (first, measured_first))
    same = "as was measured" if takes == took else f"the run measured the {took}"
    return f"takes the {takes} match in the prompt, {same}"
