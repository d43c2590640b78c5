"""What an engine's configuration is written from, and what the engine's `write` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from draftbench.hub import split_revision
from draftbench.models.drafting import Speculation
from draftbench.records import DraftingMode, Sampling

Version = tuple[int, int]  # its first two numbers; of llama.cpp the build, and 0
# First and last number of concurrent requests, and the draft length between; 0: no speculation.
Schedule = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class ServePlan:
    """What to serve."""

    target: str  # without its revision
    target_quant: str
    speculation: Speculation  # the draft by the name that the engine will find
    sampled: bool  # whether any request is above temperature 0, where the drafting mode matters
    vocabularies: tuple[int, int] | None  # sizes of the target's and a draft model's
    on_gpu: bool
    other_ids: bool = False  # whether the draft has other ids than the target, or lacks tokens
    misread: Mapping[str, str] = field(default_factory=dict)  # what engines make of a head
    target_revision: str | None = None
    sampling: Sampling = field(default_factory=Sampling)  # of most requests
    mixed: bool = False  # whether other requests have another sampling
    limit: int = 128  # longest response in tokens
    contexts: tuple[int, int] | None = None  # lengths of the target's and the draft's
    concurrency: int = 1  # largest number of concurrent requests that was measured
    schedule: Schedule = ()  # draft lengths by load; empty if one length serves all
    open_loads: tuple[str, ...] = ()  # sentences on loads at which the run is inconclusive
    differences: tuple[str, ...] = ()  # from what the run recommends
    doubts: tuple[str, ...] = ()  # why not to trust the answer, or not for whole requests
    # With --synthetic, the share of rounds that accept their first 1, 2, … draft tokens.
    survival: tuple[float, ...] = ()
    engine: str | None = None  # the engine that measured; None: the built-in decoder

    @property
    def draft(self) -> str | None:
        """The draft model, without its revision; None for a method that needs none."""
        return self.speculation.model and split_revision(self.speculation.model)[0]

    @property
    def draft_revision(self) -> str | None:
        return self.speculation.model and split_revision(self.speculation.model)[1]

    def speculation_at(self, k: int) -> Speculation:
        """How to draft k tokens instead."""
        return replace(self.speculation, k=k, translated=self.translated)

    @property
    def longest(self) -> int:
        """The most tokens that are drafted at any load."""
        return max((k for _, _, k in self.schedule), default=self.speculation.k)

    @property
    def translated(self) -> bool:
        """Whether tokens have to be translated between target and draft."""
        target, draft = self.vocabularies or (0, 0)
        return self.other_ids or target != draft


@dataclass(frozen=True)
class Written:
    """The configuration of an engine."""

    text: str
    mode: DraftingMode | None  # in which the engine will draft; None for a method without modes
    scheduled: bool = False  # whether the text has the draft lengths by load
    command: str | None = None  # starts the engine with the text in FILE; None: the text does
    to_do: Sequence[str] = ()
    differences: Sequence[str] = ()  # from what the run measured
