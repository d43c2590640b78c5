"""The observations of a run folder, grouped for the offline half.

Later facts about the same thing replace earlier ones where only one can hold (a model's facts after
a resume, a failure that a later attempt overcame) and those that cannot be compared any more (what
was decoded again with other cells); other repeated measurements are all kept. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from draftbench.errors import RunFolderError
from draftbench.records import (
    AnyObservation,
    Candidate,
    CostPoint,
    Decode,
    EngineFacts,
    Failure,
    Key,
    LookupReplay,
    MachineState,
    ModelFacts,
    Replay,
    Served,
    Trajectory,
)
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import Manifest
from draftbench.run_folder.served import decodes_of, judged

# Of shorter responses a sweep decodes none, unless there are no longer ones.
SHORTEST_DECODED = 8


@dataclass(frozen=True)
class Run:
    """Everything a run measured; `path` is its folder, where it was read from one. What an engine
    `served` is among the decodes too, as far as it can be compared; answers of visits that were cut
    short are `partial`, and nothing is made of them.
    """

    manifest: Manifest
    trajectories: tuple[Trajectory, ...]
    replays: tuple[Replay | LookupReplay, ...]
    decodes: tuple[Decode, ...]
    costs: tuple[CostPoint, ...]
    facts: tuple[ModelFacts, ...]
    failures: tuple[Failure, ...]
    states: tuple[MachineState, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    served: tuple[Served, ...] = ()
    partial: tuple[Served, ...] = ()
    path: Path | None = None

    @cached_property
    def decodes_by_batch(self) -> Mapping[int, Sequence[Decode]]:
        """Decoding runs by how many rows were decoded at once."""
        found: dict[int, list[Decode]] = {}
        for row in self.decodes:
            found.setdefault(row.batch, []).append(row)
        return found

    @cached_property
    def responses(self) -> Mapping[Key, Trajectory]:
        """The trajectories by their response."""
        return {trajectory.key: trajectory for trajectory in self.trajectories}

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every candidate with a replay, in the order in which they were measured, then those that
        only an engine can run.
        """
        replayed = [replay.candidate for replay in self.replays]
        rows = (*self.served, *self.partial)
        served = [row.candidate for row in rows if row.candidate is not None]
        return tuple(dict.fromkeys(replayed + served))

    def facts_of(self, candidate: Candidate | None) -> ModelFacts | None:
        """Facts of a draft or, with None, of the target; prompt lookup and `self` have none."""
        return next((f for f in reversed(self.facts) if f.candidate == candidate), None)


def read_run(folder: RunFolder) -> Run:
    """Read and group all observations of a run.

    Raises:
        RunFolderError: a file that cannot be read, a measurement of a response that is not there or
        of another length, or prompt lookup over fewer tokens than the run's largest k.
    """
    run = replace(run_of(folder.manifest, folder.observations()), path=folder.path)
    for row in (*run.replays, *run.decodes, *run.served, *run.partial):
        response = run.responses.get(row.key)
        check_that_it_fits(row, response.output_tokens if response else None, folder)
    return run


def check_that_it_fits(
    row: Replay | LookupReplay | Decode | Served, tokens: int | None, folder: RunFolder
) -> None:
    """Raise a RunFolderError where a measurement is not of a response of so many tokens, or does
    not reach to the run's largest k.
    """
    fits = tokens is not None or (isinstance(row, Served) and row.error is not None)
    if isinstance(row, Replay):
        fits = tokens == len(row.accept) + 1
    elif isinstance(row, LookupReplay):
        fits = tokens == len(row.proposed) + 1 and row.window >= max(folder.manifest.question.ks)
    if not fits:
        raise RunFolderError(
            f"`{folder.path}` holds a {type(row).__name__.lower()} of `{row.request}` that "
            "does not fit the response and the k measured on",
            hint="a file of this run is missing or was changed by something else",
        )


def run_of(manifest: Manifest, records: Sequence[AnyObservation]) -> Run:
    """Group records by type; the last of several records of one trajectory or replay holds, of
    decoding runs those that can be compared, an engine's answers among them, and of a candidate's
    failures the last one that no later attempt overcame.
    """
    trajectories = {r.key: r for r in records if isinstance(r, Trajectory)}
    replays = {(r.key, r.candidate): r for r in records if isinstance(r, (Replay, LookupReplay))}
    # An answer that was looked at once more, whether it left the response at a near tie.
    answers = {
        (r.server, r.key, r.load == "open" or r.concurrency): r
        for r in records
        if isinstance(r, Served)
    }
    served = tuple(judged(answers.values(), trajectories.keys()))
    counted = {row.server for row in served}
    partial = (r for r in answers.values() if r.load == "open" and r.server not in counted)
    failures: dict[Candidate | None, Failure] = {}
    for record in records:
        if isinstance(record, Failure) and record.resolved:
            failures.pop(record.candidate, None)
        elif isinstance(record, Failure):
            failures[record.candidate] = record
    return Run(
        manifest=manifest,
        trajectories=tuple(trajectories.values()),
        replays=tuple(replays.values()),
        decodes=(*comparable([r for r in records if isinstance(r, Decode)]), *decodes_of(served)),
        costs=tuple(r for r in records if isinstance(r, CostPoint)),
        facts=tuple(r for r in records if isinstance(r, ModelFacts)),
        failures=tuple(failures.values()),
        states=tuple(r for r in records if isinstance(r, MachineState)),
        engines=tuple(r for r in records if isinstance(r, EngineFacts)),
        served=served,
        partial=tuple(partial),
    )


def comparable(rows: Sequence[Decode]) -> list[Decode]:
    """The runs that can be compared: each has a baseline run of the same process.

    What a block decoded together is taken from every process that decoded all of it, or where none
    did from the last one. That is one response, or in a batch, whose rows share rounds, the whole
    batch.
    """

    def together(row: Decode) -> tuple[str, int, Key | None]:
        """What is decoded in one go: the block, the batch, and of one row the response too."""
        return row.block, row.batch, row.key if row.batch == 1 else None

    # What each process decoded, in the order of processes.
    decoded: dict[Any, dict[str, set[tuple[int, Key]]]] = {}
    for row in rows:
        by_process = decoded.setdefault(together(row), {})
        by_process.setdefault(row.process, set()).add((row.k, row.key))
    counted: dict[Any, set[str]] = {}
    for block, by_process in decoded.items():
        every = set().union(*by_process.values())
        whole = {process for process, rows_of in by_process.items() if rows_of == every}
        counted[block] = whole or {list(by_process)[-1]}
    return [row for row in rows if row.process in counted[together(row)]]


def to_decode(trajectories: Iterable[Trajectory], count: int) -> list[Trajectory]:
    """Up to `count` responses on which a sweep decodes: long enough, in an order that no segment
    and no length decides.
    """
    drafted = [t for t in trajectories if t.output_tokens > 1]
    long = [t for t in drafted if t.output_tokens >= SHORTEST_DECODED]
    return sorted(long or drafted, key=lambda t: (t.sample, t.request))[:count]
