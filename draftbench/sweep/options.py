"""A sweep as the user asked for it, and who watches it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from draftbench.models.source import Trust
from draftbench.records import NGRAMS, SELF, Candidate, DraftingMode, NGramSizes, Observation
from draftbench.traffic import TrafficQuery

# Requests that a server answers at once at times of arrival, unless its engine answers more.
SLOTS = 16


@dataclass(frozen=True)
class ServingOptions:
    """A serving engine to measure on instead of the built-in decoder: one that the sweep starts, or
    the user's servers.
    """

    engine: str | None = None  # None: the server tells
    server: str | None = None  # address of the user's server
    baseline: str | None = None  # address of the user's server without speculation
    args: str = ""
    command: str | None = None
    stop_command: str | None = None
    ready_timeout: float = 900.0
    tokenizer: str | None = None  # None: the target's
    arrivals: str = "closed"  # closed, log or poisson:RATE
    time_scale: float = 1.0  # times the log's own speed
    max_concurrency: int | None = (
        None  # requests answered at once at times of arrival; None: the default
    )
    restarts: int = 1
    replay: str = "local"  # or engine: the engine serves the draft
    dtype: str | None = None  # that the user's server computes in, where it does not tell


@dataclass(frozen=True)
class SweepOptions:
    """A sweep as the user asked for it. `target` is empty where a server is to tell its model."""

    target: str
    drafts: tuple[str, ...]
    traffic: TrafficQuery
    ks: tuple[int, ...] = tuple(range(1, 9))
    concurrency: tuple[int, ...] = (1,)
    quants: tuple[str, ...] = ("none",)
    target_quant: str = "none"
    dtype: str | None = None
    device: str | None = None
    simulate_quant: bool = False
    one_layout: bool = False
    mode: DraftingMode = DraftingMode.GREEDY
    lookup: NGramSizes = NGRAMS
    responses: str = "target"
    samples: int = 1
    max_new_tokens: int | None = None
    temperature: float | None = None
    measure: str = "best"
    measure_requests: int = 30
    controls: bool = True
    threads: int | None = None
    processes: int = 1
    candidate_timeout: float | None = None
    isolate: bool = False
    audit: bool = False
    show_prompt: bool = False
    trust: Trust = field(default_factory=Trust)
    serving: ServingOptions | None = None

    @property
    def max_concurrency(self) -> int:
        """The most requests that a server answers at once, as far as is known before it starts."""
        if self.serving is None or self.serving.arrivals == "closed":
            return max(self.concurrency)
        return self.serving.max_concurrency or SLOTS

    @property
    def most_ks(self) -> int:
        """At how many k's a candidate is decoded at most: all, or the best predicted one and one
        more that is worth its time.
        """
        return {"best": min(2, len(self.ks)), "all": len(self.ks)}.get(self.measure, 0)

    def decodes(self, candidate: Candidate) -> bool:
        """Whether a candidate is decoded; the target as its own draft only if it was asked for."""
        return self.measure == "all" or candidate.draft != SELF or SELF in self.drafts

    @property
    def turns(self) -> int:
        """How often all candidates are measured: each time in another process, or by another start
        of every server.
        """
        return self.serving.restarts if self.serving else self.processes


class Watcher(Protocol):
    """Receives the progress of a sweep; draws nothing while something is timed."""

    def stage(self, what: str, total: int, candidate: Candidate | None = None) -> None:
        """A stage of `total` units begins, of a candidate or (None) of the target."""
        ...

    def advance(self, units: int = 1) -> None:
        """So many units of the stage are done at once."""
        ...

    def kept(self, records: Sequence[Observation]) -> None:
        """Observations were just written to the run folder; nothing is timed meanwhile."""
        ...

    def note(self, text: str, *, always: bool = False) -> None:
        """Something worth a line; `always`, also where only the result is wanted."""
        ...
