"""A sweep that may begin."""

from __future__ import annotations

from dataclasses import dataclass

from draftbench.measure.prompts import Prompt
from draftbench.models.quantize import Build
from draftbench.models.source import ModelSource
from draftbench.records import Candidate, Failure
from draftbench.run_folder.manifest import Manifest
from draftbench.sweep.engine_servers import Servers
from draftbench.sweep.options import SweepOptions
from draftbench.traffic.summary import TrafficSummary


@dataclass(frozen=True)
class Prepared:
    """A sweep that passed every check that needs no weights; `drafts`, `most_drafted` in a round
    and `caveats` are by the run's names of drafts.
    """

    options: SweepOptions
    target: ModelSource
    drafts: dict[str, ModelSource]
    most_drafted: dict[str, int]  # of those that were trained for so many tokens
    candidates: tuple[Candidate, ...]
    failures: tuple[Failure, ...]  # of drafts that were refused
    caveats: dict[str, tuple[str, ...]]
    prompts: tuple[Prompt, ...]
    traffic: TrafficSummary
    manifest: Manifest
    build: Build
    servers: Servers | None = None
    settings: str = ""  # all of them, as YAML, where the manifest's command hides some

    @property
    def prompt_tokens(self) -> list[tuple[int, int]]:
        """(prompt tokens, most output tokens) of every request."""
        return [(len(prompt.tokens), prompt.limit) for prompt in self.prompts]

    def ks(self, candidate: Candidate) -> tuple[int, ...]:
        """The k's of the sweep at which a candidate can draft."""
        least = self.servers.minimum_k(candidate) if self.servers else 1
        most = self.most_drafted.get(candidate.draft, max(self.options.ks))
        return tuple(k for k in self.options.ks if least <= k <= most)
