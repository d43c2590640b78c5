"""The command line that began a run → how much of it was to be measured.

Flags that only change effort are no part of a run's question. They are known where the command line
held them, and not where a file of flags, a notebook or another command did.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.run_folder.run import Run

# Of shorter responses a sweep decodes none, unless there are no longer ones.
SHORTEST_DECODED = 8


@dataclass(frozen=True)
class Effort:
    """What `sweep` takes by its flags: their defaults are here too."""

    measure: str = "best"
    measure_requests: int = 24
    controls: bool = True

    @property
    def times(self) -> bool:
        """Whether candidates were to be timed."""
        return self.measure != "replay"

    def decoded(self, observed: Run) -> int:
        """On how many of a run's responses a candidate was to be decoded."""
        if self.measure not in ("best", "all"):
            return 0
        lengths = [t.output_tokens for t in observed.trajectories if t.output_tokens > 1]
        long = [length for length in lengths if length >= SHORTEST_DECODED]
        return min(self.measure_requests, len(long or lengths))


def effort_of(command: str) -> Effort | None:
    """The effort that a command line asks for; None where it does not tell."""
    try:
        words = shlex.split(command)
        requests = int(_value(words, "--measure-requests") or Effort.measure_requests)
    except ValueError:  # no command line of ours
        return None
    given = all(_value(words, flag) for flag in ("--target", "--traffic"))
    if words[:2] != ["draftbench", "sweep"] or not given:
        return None
    if any(word.endswith((".yaml", ".yml")) for word in words):
        return None
    return Effort(
        measure=_value(words, "--measure") or Effort.measure,
        measure_requests=requests,
        controls="--no-controls" not in words,
    )


def _value(words: Sequence[str], flag: str) -> str | None:
    """What stands behind a flag, or behind its `=`."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == flag:
            return after
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None
