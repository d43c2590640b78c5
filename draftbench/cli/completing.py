"""What is typed so far → how it can go on, for the shell's TAB. Imports no torch.

A value that may also be a file is only completed once it cannot be meant as one: where nothing is
offered, the shell completes file names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path

from draftbench.memory import LEVELS

SUITE = "suite:"
_BEFORE_COLON = "_DRAFTBENCH_BEFORE_COLON"


def among(*values: str) -> Callable[[str], list[str]]:
    """A completion to one of these; Typer leaves out those that begin otherwise."""

    def complete(incomplete: str) -> list[str]:
        return list(values)

    return complete


def levels(incomplete: str) -> list[str]:
    """`none,i` → `none,int8`, `none,int4`."""
    given, comma, _ = incomplete.rpartition(",")
    return [f"{given}{comma}{level}" for level in LEVELS if level not in given.split(",")]


def devices(incomplete: str) -> list[str]:
    """The kinds, and the cards of this machine by number."""
    cards = sorted(int(path.name[6:]) for path in Path("/dev").glob("nvidia[0-9]*"))
    return _after_colon(["cpu", "cuda", "auto", *(f"cuda:{card}" for card in cards)])


def sources(incomplete: str) -> list[str]:
    """Suites, from `su` on."""
    from draftbench.traffic.suites import suite_names

    typed = os.environ.get(_BEFORE_COLON, "") + incomplete
    known = [f"{SUITE}{name}" for name in suite_names()]
    return _after_colon(known) if typed.startswith(SUITE[:2]) else []


def engines(incomplete: str) -> list[str]:
    """The engines that `export` knows."""
    from draftbench.models.engine_rules import ENGINES

    return list(ENGINES)


def cards(incomplete: str) -> list[str]:
    """The cards that `estimate` knows."""
    from draftbench.planner.cards import CARDS

    return list(CARDS)


def _after_colon(values: list[str]) -> list[str]:
    """Where bash completes what follows a colon, that part of the values which have it before."""
    before = os.environ.get(_BEFORE_COLON, "")
    return [value.removeprefix(before) for value in values if value.startswith(before)]


def mend_words(environment: MutableMapping[str, str]) -> None:
    """Bash takes words apart at colons: `--traffic suite:co` comes as `suite`, `:`, `co`. Leave the
    last part as the word to complete, and keep what stands before it apart.
    """
    if environment.get("_DRAFTBENCH_COMPLETE") != "complete_bash":
        return
    words = environment.get("COMP_WORDS", "").split("\n")
    at = int(environment.get("COMP_CWORD") or 0)
    joined = re.sub("\n?:\n?", ":", "\n".join(words[: at + 1]))
    earlier, newline, last = joined.rpartition("\n")
    before, colon, rest = last.rpartition(":")
    environment[_BEFORE_COLON] = before + colon
    environment["COMP_WORDS"] = f"{earlier}{newline}{rest}"
    environment["COMP_CWORD"] = str(earlier.count("\n") + 1)
