"""With what a draft is checked and loaded, and what a kind with weights does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from draftbench.decoder.runner import Runner
from draftbench.drafts.kind import Method
from draftbench.measure.candidate import LoadedDraft
from draftbench.measure.replay import ServedTarget
from draftbench.measure.timed_passes import CostGrid, Record, Sizes, TimedPass
from draftbench.measure.trajectories import ScoredResponse
from draftbench.models.quantize import Build
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, DraftingMode, ModelFacts

LEAVE_OUT = "leave it out of --drafts; the server's own drafting is measured anyway"


@dataclass(frozen=True)
class Serving:
    """The engine over whose answers a draft is replayed."""

    engine: str
    running: bool  # whether the user started it, so that it does not start with the draft
    no_states: str | None  # why the target's states cannot be computed here
    note: Callable[..., None]  # tells the user something


@dataclass(frozen=True)
class Pairing:
    """What a draft is checked for."""

    target: ModelSource
    traffic: Mapping[int, float]  # how often each of the target's tokens occurs in it
    chats: bool  # whether it has chats, which a template renders
    serving: Serving | None = None  # None: the built-in decoder


@dataclass(frozen=True)
class Loading:
    """What a draft is loaded for."""

    candidate: Candidate
    source: ModelSource
    build: Build
    target: ModelSource
    runner: Runner | ServedTarget  # the target as it runs
    mode: DraftingMode
    # On which a model is stepped, to see whether replay predicts its drafting.
    longest: ScoredResponse | None = None
    engine: str | None = None  # what drafts with it; None: the built-in decoder


class Stackable(LoadedDraft, Protocol):
    """A draft whose first pass in a round can read more than the round before brought."""

    context_length: int

    def passes(
        self, record: Record, grid: CostGrid, first: Sizes = None
    ) -> Iterator[TimedPass]: ...


class Weights(Protocol):
    """What the module `draft` of a kind does with weights that are loaded here."""

    def check(
        self, source: ModelSource, pairing: Pairing, method: Method
    ) -> tuple[str, ...] | None:
        """The caveats of a draft that can be measured here, named as one of a method; None if only
        the engine can run it.

        Raises:
            PairError: it cannot draft for the target.
            ModelError: it cannot be read, or run here.
        """
        ...

    def load(self, loading: Loading) -> tuple[Stackable, ModelFacts]:
        """Load, quantize, and count.

        Raises:
            ModelError: it cannot be loaded or quantized.
        """
        ...


class HeadWeights(Weights, Protocol):
    """Weights that read the target's states, so that their files must fit it."""

    def misfits(
        self, target: ModelSource, source: ModelSource
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Why its files do not fit the target, whatever drafts with it; and what of it the built-in
        decoder does not run.
        """
        ...


class ServedWeights(Weights, Protocol):
    """Weights that are replayed here over the answers of an engine, which drafts with them too."""

    def refused_by(
        self, engine: str, target: ModelSource, source: ModelSource, method: Method
    ) -> str | None:
        """Why the engine is not started with it."""
        ...

    def held(self, facts: ModelFacts, loading: Loading, dtype: str) -> ModelFacts:
        """The facts with the bytes that the engine holds, which computes in `dtype`."""
        ...
