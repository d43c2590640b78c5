"""A run in memory: the observations of a run folder, grouped for the offline half.

If a response, a replay or an engine's answer was recorded again, the last record counts. A failure
counts until a later attempt succeeds, and a decoding run if it can be compared with a baseline of
the same process. All other repeated measurements are kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from draftbench.errors import RunFolderError
from draftbench.records import (
    SELF,
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
    StackReplay,
    Trajectory,
    WorkerFacts,
    stacked,
)
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import Manifest
from draftbench.run_folder.served import (
    answers_that_count,
    decodes_of,
    open_loop_or_all,
    without_answer,
)

# A sweep decodes on responses of at least this many tokens, unless there are none.
SHORTEST_DECODED = 8
# Requests of the first wave.
WAVE = 64


@dataclass(frozen=True)
class Run:
    """Everything that a run measured; `path` is the folder that it was read from, if any.

    The `replays` of stacks are combined from those of their parts. An engine's answers are in
    `served`, and also among the `decodes`, as decoding runs.
    """

    manifest: Manifest
    trajectories: tuple[Trajectory, ...]
    replays: tuple[Replay | LookupReplay | StackReplay, ...]
    decodes: tuple[Decode, ...]
    costs: tuple[CostPoint, ...]
    facts: tuple[ModelFacts, ...]
    failures: tuple[Failure, ...]
    states: tuple[MachineState, ...] = ()
    workers: tuple[WorkerFacts, ...] = ()
    engines: tuple[EngineFacts, ...] = ()
    served: tuple[Served, ...] = ()
    path: Path | None = None
    # The rounds computed along its replays (`acceptance.candidate_rounds`), by candidate; a sweep
    # hands them from one run to the next, which has a few more records.
    rounds: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        """Three lines, for a notebook."""
        question = self.manifest.question
        counts = {
            "responses": self.trajectories,
            "replays": self.replays,
            "decodes": self.decodes,
            "timings": self.costs,
            "failures": self.failures,
        }
        held = ", ".join(f"{len(rows)} {kind}" for kind, rows in counts.items() if rows)
        return (
            f"Run {self.path or self.manifest.run}: {question.target} on {question.traffic}\n"
            f"{', '.join(map(str, self.candidates)) or 'no candidate'}; "
            f"k = {', '.join(map(str, question.ks))}\n"
            f"{held or 'nothing measured'}"
        )

    @cached_property
    def responses(self) -> Mapping[Key, Trajectory]:
        """The trajectories by request and sample."""
        return {trajectory.key: trajectory for trajectory in self.trajectories}

    @cached_property
    def unanswered(self) -> tuple[Served, ...]:
        """The failed answer to each request that a serving engine never answered."""
        return without_answer(self.served)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every candidate with a replay, in order of measurement, then those that only an engine
        ran.
        """
        replayed = [replay.candidate for replay in self.replays]
        served = [row.candidate for row in self.served if row.candidate is not None]
        return tuple(dict.fromkeys(replayed + served))

    @cached_property
    def has_baseline(self) -> bool:
        """Whether responses were written without speculation, so not by servers that all draft."""
        return not self.served or any(row.candidate is None for row in self.served)

    def answers_at(self, concurrency: int) -> list[Served]:
        """A serving engine's answers at one of the run's loads."""
        return [
            row for row in open_loop_or_all(self.served) if row.asked_concurrency == concurrency
        ]

    def facts_of(self, candidate: Candidate | None) -> ModelFacts | None:
        """The last facts of a draft or, with None, of the target; for a stack that was not loaded
        here, those of its draft. None for prompt lookup and `self`, which have no facts.
        """
        found = next((f for f in reversed(self.facts) if f.candidate == candidate), None)
        fallback = candidate and candidate.fallback
        return self.facts_of(fallback) if found is None and fallback else found


def read_run(folder: RunFolder) -> Run:
    """Read and group all observations of a run. The built-in decoder's responses and replays are in
    one order, whichever of several workers came first: the longest prompts first, one candidate
    after the other.

    Raises:
        RunFolderError: a file cannot be read, is not what it was when the sweep ended, or holds a
            measurement that does not fit its response or what the run asked.
    """
    run = replace(run_of(folder.manifest, folder.observations()), path=folder.path)
    question = run.manifest.question
    if question.engine is None:
        drafts = {name: at for at, name in enumerate(run.manifest.specs)}
        levels = {level: at for at, level in enumerate(question.quants)}
        responses = sorted(run.trajectories, key=lambda t: (-t.prompt_tokens, *t.key))
        place = {response.key: at for at, response in enumerate(responses)}

        def order(row: Replay | LookupReplay | StackReplay) -> tuple[int, ...]:
            of = row.candidate
            kind = isinstance(row, LookupReplay) + 2 * isinstance(row, StackReplay)
            draft, level = drafts.get(of.draft, len(drafts)), levels.get(of.quant, 0)
            return kind, draft, level, of.draft == SELF, place.get(row.key, 0)

        replays = tuple(sorted(run.replays, key=order))
        run = replace(run, trajectories=tuple(responses), replays=replays)
    for row in (*run.replays, *run.decodes, *run.served):
        if not isinstance(row, StackReplay):
            check_that_it_fits(row, run.responses.get(row.key), folder)
    return run


def check_that_it_fits(
    row: Replay | LookupReplay | Decode | Served, response: Trajectory | None, folder: RunFolder
) -> None:
    """Raise a RunFolderError if a measurement does not fit its response or the run's question; an
    engine may leave out rounds and times.
    """
    if response is None:
        if isinstance(row, Served) and row.error is not None:
            return
        raise RunFolderError(
            f"`{folder.path}` lacks responses that it has measurements of: "
            "observations/trajectory.jsonl is missing or was cut",
            hint="copy the whole run folder again, or sweep again with another --out",
        )
    question, wrong = folder.manifest.question, None
    match row:
        case Replay(accept=along) | LookupReplay(proposed=along) if (
            len(along) + 1 != response.output_tokens
        ):
            wrong = "does not fit the response"
        case LookupReplay(window=window) if window < max(question.ks):
            wrong = "looked up fewer tokens than the largest k"
        case Replay(mode=mode) if mode != question.mode:
            wrong = f"is of {mode} drafting, and the run of {question.mode}"
        case Replay() if response.sampling.temperature == 0 and not row.accepts_outright:
            wrong = "accepts tokens in part, and its response is at temperature 0"
        case Decode(output_tokens=tokens) if question.engine is None and tokens > 1:
            if not (row.accepted and row.decode_seconds):
                wrong = "has no rounds, or they took no time"
    if wrong is not None:
        kind = row.__struct_config__.tag
        raise RunFolderError(
            f"`{folder.path}/observations/{kind}.jsonl`: the {kind} of request `{row.request}` "
            f"{wrong}",
            hint="a file of this run is missing or was changed by something else",
        )


def run_of(
    manifest: Manifest,
    records: Sequence[AnyObservation],
    rounds: dict[Any, Any] | None = None,
) -> Run:
    """Group records by type, leaving out those that no longer count (see the top of this file).

    Args:
        rounds: of an earlier run with some of these records.
    """
    trajectories = {r.key: r for r in records if isinstance(r, Trajectory)}
    replays = {(r.key, r.candidate): r for r in records if isinstance(r, (Replay, LookupReplay))}
    # An answer is recorded again once it is known whether it differs at a near tie.
    answers = {
        (r.server, r.key, r.load, r.asked_concurrency): r for r in records if isinstance(r, Served)
    }
    served = tuple(answers_that_count(answers.values(), trajectories.keys()))
    failures: dict[Candidate | None, Failure] = {}
    for record in records:
        if isinstance(record, Failure) and record.resolved:
            failures.pop(record.candidate, None)
        elif isinstance(record, Failure):
            failures[record.candidate] = record
    return Run(
        manifest=manifest,
        trajectories=tuple(trajectories.values()),
        replays=(*replays.values(), *stacked(replays.values(), manifest.specs)),
        decodes=(*comparable([r for r in records if isinstance(r, Decode)]), *decodes_of(served)),
        costs=tuple(r for r in records if isinstance(r, CostPoint)),
        facts=tuple(r for r in records if isinstance(r, ModelFacts)),
        failures=tuple(failures.values()),
        states=tuple(r for r in records if isinstance(r, MachineState)),
        workers=tuple(r for r in records if isinstance(r, WorkerFacts)),
        engines=tuple(r for r in records if isinstance(r, EngineFacts)),
        served=served,
        rounds={} if rounds is None else rounds,
    )


def part_of(run: Run, requests: Collection[str]) -> Run:
    """A run of the built-in decoder with some of its requests alone."""
    return replace(
        run,
        trajectories=tuple(row for row in run.trajectories if row.request in requests),
        replays=tuple(row for row in run.replays if row.request in requests),
        decodes=tuple(row for row in run.decodes if row.request in requests),
    )


def comparable(rows: Sequence[Decode]) -> list[Decode]:
    """The decoding runs that can be compared with a baseline run of the same process.

    A candidate's k's and the baseline are interleaved: on each response or, at a higher
    concurrency, where rows share rounds, on all responses together. Of each response (or of all
    together) only processes that finished it count; if none did, the last one.
    """

    def unit_of(row: Decode) -> tuple[str, int, Key | None]:
        return row.block, row.concurrency, row.key if row.concurrency == 1 else None

    # What each process decoded of each unit, in the order of processes.
    decoded: dict[Any, dict[str, set[tuple[int, Key]]]] = {}
    for row in rows:
        by_process = decoded.setdefault(unit_of(row), {})
        by_process.setdefault(row.process, set()).add((row.k, row.key))
    counted: dict[Any, set[str]] = {}
    for unit, by_process in decoded.items():
        whole = set().union(*by_process.values())
        complete = {process for process, part in by_process.items() if part == whole}
        counted[unit] = complete or {list(by_process)[-1]}
    return [row for row in rows if row.process in counted[unit_of(row)]]


def waves(requests: Iterable[str]) -> list[list[str]]:
    """Requests in the order of their keyed hashes, so that every first part is a random sample:
    `WAVE` of them, then each time as many again as there were before (64, 64, 128, 256, …).
    """
    ordered, found, begun = sorted(requests), list[list[str]](), 0
    while begun < len(ordered):
        found.append(ordered[begun : max(2 * begun, WAVE)])
        begun += len(found[-1])
    return found


def to_decode(trajectories: Iterable[Trajectory], count: int) -> list[Trajectory]:
    """Up to `count` responses on which a sweep decodes: long ones, ordered by the hash of their
    request, so they are a fair sample of segments and lengths.
    """
    drafted = [t for t in trajectories if t.output_tokens > 1]
    long = [t for t in drafted if t.output_tokens >= SHORTEST_DECODED]
    return sorted(long or drafted, key=lambda t: (t.sample, t.request))[:count]
