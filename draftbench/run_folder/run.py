"""A run folder's observations, grouped for the offline half: who was measured, by what, and what
failed.

Later facts about the same thing replace earlier ones where only one can hold (a model's facts after
a resume, a failure that a later attempt overcame) and those that cannot be compared any more (what
was decoded again with other cells); other repeated measurements are all kept. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from draftbench.errors import RunFolderError
from draftbench.records import (
    AnyObservation,
    Candidate,
    CostPoint,
    Decode,
    Failure,
    LookupReplay,
    MachineState,
    ModelFacts,
    Replay,
    Trajectory,
)
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import Manifest

# What is decoded in one go: the block, the batch, and of one row the response too.
_Together = tuple[str, int, tuple[str, int] | None]


@dataclass(frozen=True)
class Run:
    """Everything a run measured."""

    manifest: Manifest
    trajectories: tuple[Trajectory, ...]
    replays: tuple[Replay | LookupReplay, ...]
    decodes: tuple[Decode, ...]
    costs: tuple[CostPoint, ...]
    facts: tuple[ModelFacts, ...]
    failures: tuple[Failure, ...]
    states: tuple[MachineState, ...] = ()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every candidate with a replay, in the order in which they were measured."""
        seen = {r.candidate: None for r in self.replays}
        return tuple(seen)

    def facts_of(self, candidate: Candidate | None) -> ModelFacts | None:
        """Facts of a draft, or of the target (None); prompt lookup and the self-draft have none of
        their own.
        """
        return next((f for f in reversed(self.facts) if f.candidate == candidate), None)


def read_run(folder: RunFolder) -> Run:
    """Read and group all observations of a run.

    Raises:
        RunFolderError: a file that cannot be read, a measurement of a response that is not there or
        of another length, or prompt lookup over fewer tokens than the run's largest k.
    """
    found = run_of(folder.manifest, folder.observations())
    lengths = {(t.request, t.sample): t.output_tokens for t in found.trajectories}
    largest = max(folder.manifest.question.ks)
    for row in (*found.replays, *found.decodes):
        length = lengths.get((row.request, row.sample))
        if length is None or not _fits(row, length, largest):
            raise RunFolderError(
                f"`{folder.path}` holds a {type(row).__name__.lower()} of `{row.request}` that "
                "does not fit the response and the k measured on",
                hint="a file of this run is missing or was changed by something else",
            )
    return found


def _fits(row: Replay | LookupReplay | Decode, length: int, largest: int) -> bool:
    """Whether it can be a measurement of a response of this length for draft lengths up to this."""
    if isinstance(row, LookupReplay):
        return len(row.proposed) == length - 1 and row.window >= largest
    return isinstance(row, Decode) or len(row.accept) == length - 1


def run_of(manifest: Manifest, records: Sequence[AnyObservation]) -> Run:
    """Group records by type; the last of several records of one trajectory or replay holds, and of
    decoding runs those that can be compared.
    """
    trajectories = {(r.request, r.sample): r for r in records if isinstance(r, Trajectory)}
    replays = {
        (r.request, r.sample, r.candidate): r
        for r in records
        if isinstance(r, (Replay, LookupReplay))
    }
    return Run(
        manifest=manifest,
        trajectories=tuple(trajectories.values()),
        replays=tuple(replays.values()),
        decodes=tuple(comparable([r for r in records if isinstance(r, Decode)])),
        costs=tuple(r for r in records if isinstance(r, CostPoint)),
        facts=tuple(r for r in records if isinstance(r, ModelFacts)),
        failures=_standing([r for r in records if isinstance(r, Failure)]),
        states=tuple(r for r in records if isinstance(r, MachineState)),
    )


# Of shorter responses a sweep decodes none, unless there are no longer ones.
SHORTEST_DECODED = 8


def to_decode(trajectories: Iterable[Trajectory], count: int) -> list[Trajectory]:
    """Up to `count` responses on which a sweep decodes: long enough, in an order that no segment
    and no length decides.
    """
    drafted = [t for t in trajectories if t.output_tokens > 1]
    long = [t for t in drafted if t.output_tokens >= SHORTEST_DECODED]
    return sorted(long or drafted, key=lambda t: (t.sample, t.request))[:count]


def comparable(rows: Sequence[Decode]) -> list[Decode]:
    """Runs with a baseline of their own process beside them, which all others of theirs have too.

    Of a batch, whose rows share rounds, the last process. Of one row, request by request, every
    process that decoded all cells that any did, or the last one.
    """
    made: dict[_Together, dict[str, set[int]]] = {}
    for row in rows:
        cells = made.setdefault(_together(row), {}).setdefault(row.process, set())
        cells.add(row.k)
    counted = {together: _counted(together, cells) for together, cells in made.items()}
    return [row for row in rows if row.process in counted[_together(row)]]


def _together(row: Decode) -> _Together:
    return row.block, row.batch, (row.request, row.sample) if row.batch == 1 else None


def _counted(together: _Together, cells: Mapping[str, set[int]]) -> set[str]:
    """The processes whose runs hold, of those in the order in which they ran."""
    every = set().union(*cells.values())
    whole = {process for process, own in cells.items() if own == every}
    alone = together[2] is not None
    return whole if alone and whole else {list(cells)[-1]}


def _standing(failures: Sequence[Failure]) -> tuple[Failure, ...]:
    """The last failure of each candidate that no later attempt overcame."""
    standing: dict[Candidate | None, Failure] = {}
    for failure in failures:
        if failure.resolved:
            standing.pop(failure.candidate, None)
        else:
            standing[failure.candidate] = failure
    return tuple(standing.values())
