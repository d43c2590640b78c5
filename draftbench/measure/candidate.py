"""What all candidates of a sweep share while they are measured, and one loaded candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftbench.decoder.drafters import Drafter
from draftbench.decoder.runner import Clock, Runner
from draftbench.measure.prompts import TargetText
from draftbench.measure.timed_passes import CostGrid, Record, TimedPass
from draftbench.measure.trajectories import Group, ScoredResponse
from draftbench.records import Candidate, DraftingMode, LookupReplay, NGramSizes, Replay

Replays = Sequence[Replay | LookupReplay]


@dataclass(frozen=True)
class MeasurementContext:
    """What every measurement of a sweep shares: the loaded target, its text, the clock, the k's."""

    target: Runner
    text: TargetText
    mode: DraftingMode
    ks: tuple[int, ...]
    lookup: NGramSizes
    dtype: str
    clock: Clock
    process: str  # id under which this process writes its records
    digest: Callable[[tuple[int, ...]], str]  # keyed hash of an output
    stops: bool = True  # whether rules to stop by are asked for, so that confidences are replayed
    # Called between two timed pieces of work with how many units were finished since the last call.
    # If it raises, the work ends, and what was not yielded yet is lost.
    between: Callable[[int], None] = lambda done: None


class LoadedDraft(Protocol):
    """A draft of any kind, ready to draft for a target: all that measuring needs of it."""

    reads: Sequence[int]  # the target's layers whose inputs it reads

    def drafter(self) -> Drafter:
        """A new drafter with empty caches."""
        ...

    def replay(
        self, candidate: Candidate, group: Group, window: int, *, stops: bool = True
    ) -> Replays:
        """What it would have proposed along some responses.

        Args:
            window: the largest k.
            stops: whether also how sure it is of all that a round may draft.
        """
        ...

    def passes(self, record: Record, grid: CostGrid) -> Iterator[TimedPass]:
        """The work of its rounds, to be timed beside the target's passes. Its name says what a
        round takes: a `step` for each token; a `catch-up` for the first of them; a `block` after
        it, for all; one `proposal`.
        """
        ...


@dataclass(frozen=True)
class LoadedCandidate:
    """A candidate with its draft, and what all measurements share."""

    candidate: Candidate
    draft: LoadedDraft
    measurement: MeasurementContext

    def replay(self, group: Sequence[ScoredResponse]) -> Replays:
        """Replay it along some responses."""
        window, stops = max(self.measurement.ks), self.measurement.stops
        return self.draft.replay(self.candidate, group, window, stops=stops)
