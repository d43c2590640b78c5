"""What a sweep has measured so far: read once from its run folder when it begins, kept in memory
while it goes on.

Only what later steps ask for is kept: of a candidate that is done nothing but its facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from draftbench.measure.trajectories import Asked, ScoredResponse, plan
from draftbench.planner.recommend import best_cells
from draftbench.records import (
    LOOKUP,
    SELF,
    AnyObservation,
    Candidate,
    CostPoint,
    Decode,
    Failure,
    LookupReplay,
    ModelFacts,
    Observation,
    Replay,
)
from draftbench.run_folder.folder import Key, RunFolder
from draftbench.run_folder.run import comparable, run_of, to_decode
from draftbench.sweep.options import SweepOptions
from draftbench.sweep.preparation import Prepared


@dataclass
class Measured:
    """What is there of a sweep, in memory; `add` takes note of what was appended to its folder."""

    prepared: Prepared
    responses: dict[Key, ScoredResponse] = field(default_factory=dict)
    facts: list[ModelFacts] = field(default_factory=list)
    failures: dict[Candidate | None, Failure] = field(default_factory=dict)
    replays: dict[Candidate, dict[Key, Replay | LookupReplay]] = field(default_factory=dict)
    costs: dict[str, list[CostPoint]] = field(default_factory=dict)
    decodes: dict[str, list[Decode]] = field(default_factory=dict)

    @classmethod
    def read(cls, prepared: Prepared, folder: RunFolder) -> Measured:
        """What the folder holds. A text without its record does not count.

        Raises:
            RunFolderError: a file that cannot be read.
        """
        found = cls(prepared)
        prompts = {prompt.request.id: prompt for prompt in prepared.prompts}
        texts = {(text.request, text.sample): text for text in folder.private_texts()}
        for record in folder.observations():
            key = (getattr(record, "request", ""), getattr(record, "sample", 0))
            if record.__class__.__name__ == "Trajectory":
                if key in texts and key[0] in prompts:
                    scored = ScoredResponse.kept(prompts[key[0]], texts[key], record)
                    found.responses[key] = scored
            else:
                found.add([record])
        return found

    @property
    def options(self) -> SweepOptions:
        return self.prepared.options
