"""What all candidates of a sweep share while they are measured, and one loaded candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftbench.decoder.drafters import Drafter, LookupDrafter, ModelDrafter, StackDrafter
from draftbench.decoder.heads import Head
from draftbench.decoder.runner import Clock, Runner
from draftbench.measure.prompts import TextSide
from draftbench.records import Candidate, DraftingMode, NGramSizes


@dataclass(frozen=True)
class MeasurementContext:
    """The loaded target, and all that every measurement of a sweep needs besides a candidate."""

    target: Runner
    text: TextSide
    mode: DraftingMode
    ks: tuple[int, ...]
    lookup: NGramSizes
    dtype: str
    clock: Clock
    process: str  # id under which this process writes its records
    digest: Callable[[tuple[int, ...]], str]  # keyed hash of an output
    # Called between two timed pieces of work with how many units were finished since the last call.
    # If it raises, the work ends, and what was not yielded yet is lost.
    between: Callable[[int], None] = lambda done: None


@dataclass(frozen=True)
class LoadedCandidate:
    """A candidate with its runner (for a stack, its draft's; None for prompt lookup) or its head,
    and what all measurements share.
    """

    candidate: Candidate
    runner: Runner | Head | None
    measurement: MeasurementContext

    def drafter(self) -> Drafter:
        """A new drafter with empty caches."""
        runner, measurement = self.runner, self.measurement
        lookup = LookupDrafter(*measurement.lookup, measurement.target.device)
        if runner is None:
            return lookup
        drafter: Drafter
        if isinstance(runner, Head):
            drafter = runner.drafter()
        else:
            drafter = ModelDrafter(runner, measurement.mode)
        return StackDrafter(lookup, drafter) if self.candidate.fallback else drafter
