"""A run folder's observations, grouped for the offline half: who was measured, by what, and what
failed.

Later facts about the same thing replace earlier ones where only one can hold (a model's facts after
a resume, a failure that a later attempt overcame); repeated measurements are all kept. Computes
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftbench.records import (
    AnyObservation,
    Candidate,
    CostPoint,
    Decode,
    Failure,
    LookupReplay,
    ModelFacts,
    Replay,
    Trajectory,
)
from draftbench.store.folder import RunFolder
from draftbench.store.manifest import Manifest


@dataclass(frozen=True)
class Observed:
    """Everything a run measured."""

    manifest: Manifest
    trajectories: tuple[Trajectory, ...]
    replays: tuple[Replay | LookupReplay, ...]
    decodes: tuple[Decode, ...]
    costs: tuple[CostPoint, ...]
    facts: tuple[ModelFacts, ...]
    failures: tuple[Failure, ...]

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every candidate with a replay, in the order in which they were measured."""
        seen = {Candidate(draft=r.draft, quant=r.quant): None for r in self.replays}
        return tuple(seen)

    def facts_of(self, candidate: Candidate | None) -> ModelFacts | None:
        """Facts of a draft, or of the target (None); prompt lookup and the self-draft have none of
        their own.
        """
        if candidate is None:
            return next((f for f in reversed(self.facts) if f.draft is None), None)
        wanted = (candidate.draft, candidate.quant)
        return next((f for f in reversed(self.facts) if (f.draft, f.quant) == wanted), None)


def read_run(folder: RunFolder) -> Observed:
    """Read and group all observations of a run."""
    return observed(folder.manifest, folder.observations())


def observed(manifest: Manifest, records: Sequence[AnyObservation]) -> Observed:
    """Group records by type; the last of several records of one trajectory or replay holds."""
    trajectories = {(r.request, r.sample): r for r in records if isinstance(r, Trajectory)}
    replays = {
        (r.request, r.sample, r.draft, r.quant): r
        for r in records
        if isinstance(r, (Replay, LookupReplay))
    }
    return Observed(
        manifest=manifest,
        trajectories=tuple(trajectories.values()),
        replays=tuple(replays.values()),
        decodes=tuple(r for r in records if isinstance(r, Decode)),
        costs=tuple(r for r in records if isinstance(r, CostPoint)),
        facts=tuple(r for r in records if isinstance(r, ModelFacts)),
        failures=_standing([r for r in records if isinstance(r, Failure)]),
    )


def _standing(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """The last failure of each candidate (or request of it) that no later attempt overcame."""
    standing: dict[tuple[str | None, str, str | None], Failure] = {}
    for failure in failures:
        if failure.resolved:
            own = (failure.draft, failure.quant)
            standing = {key: kept for key, kept in standing.items() if key[:2] != own}
        else:
            standing[failure.draft, failure.quant, failure.request] = failure
    return tuple(standing.values())
