"""What all writers share: versions, what a writer returns, and sentences on prompt lookup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.errors import UsageError
from draftbench.export.serve_plan import ServePlan
from draftbench.records import DraftingMode

Version = tuple[int, int]
NEWEST = (10**9, 0)


@dataclass(frozen=True)
class WriterResult:
    """What a writer returns."""

    text: str
    mode: DraftingMode | None  # in which the engine will draft; None for a method without modes
    scheduled: bool = False  # whether the text has the draft lengths by load
    command: str | None = None  # starts the engine with the text in FILE; None: the text does
    to_do: Sequence[str] = ()
    differences: Sequence[str] = ()  # from what the run measured


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


def other_lookup(
    plan: ServePlan, engine: str, *, first: bool = False, lengths: str = ""
) -> list[str]:
    """What to do if an engine's prompt lookup takes the first match and the run took the last, or
    the other way round, or if it looks up n-grams of other `lengths`.
    """
    takes, took = ("first" if each else "last" for each in (first, plan.first_match))
    differs = [lengths] if lengths else []
    if takes != took:
        differs.append(f"takes the {takes} match in the prompt, the run the {took}")
    return [f"{engine} {' and '.join(differs)}: measure acceptance there"] if differs else []


def down_to_one(plan: ServePlan) -> str:
    """How an engine that looks up n-grams down to one token differs from the run; may be empty."""
    shortest = plan.lookup.shortest
    return f"looks up n-grams down to one token, the run down to {shortest}" * (shortest > 1)
