"""What all writers share: versions, what a writer returns, and a sentence on prompt lookup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.errors import UsageError
from draftbench.export.serve_plan import ServePlan
from draftbench.models.engine_rules import ENGINE_RULES
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
    """The first two numbers of a version, or a build of llama.cpp (b11368); the newest if none is
    given.

    Raises:
        UsageError: it is not a version.
    """
    if text is None:
        return NEWEST
    numbers = re.match(r"(?:b|v?(?=\d+\.))(\d{1,9})(?:\.(\d{1,9}))?(?![0-9])", text)
    if not numbers:
        raise UsageError(
            f"`{text}` is not a version",
            hint="for example 0.26 or 1.4.0rc1; of llama.cpp a build, b11368",
        )
    return int(numbers[1]), int(numbers[2] or 0)


def too_old(engine: str, oldest: str, feature: str) -> UsageError:
    return UsageError(
        f"{engine} before {oldest} has no {feature}", hint=f"use {engine} {oldest} or newer"
    )


def other_lookup(plan: ServePlan, engine: str, how: str) -> list[str]:
    """What to do where an engine looks up prompts otherwise than the run, unless that ran on it."""
    differs = plan.engine != engine
    return [f"{ENGINE_RULES[engine].name} {how}: measure acceptance there"] if differs else []
