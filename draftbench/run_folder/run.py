"""A run in memory: the observations of a run folder that count, grouped for the offline half."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from draftbench.drafts.kinds import parts_of
from draftbench.drafts.laws import AnyReplay
from draftbench.drafts.stack.replay import combined
from draftbench.errors import RunFolderError
from draftbench.records import (
    SELF,
    Candidate,
    CostPoint,
    Decode,
    DraftingMode,
    EngineFacts,
    Failure,
    Key,
    LookupReplay,
    MachineState,
    ModelFacts,
    Observation,
    Replay,
    Served,
    Trajectory,
    WorkerFacts,
)
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.manifest import Manifest
from draftbench.run_folder.observations import Observations
from draftbench.run_folder.served import decodes_of, open_loop_or_all, without_answer

# A sweep decodes on responses of at least this many tokens, unless there are none.
SHORTEST_DECODED = 8
# Requests of the first wave.
WAVE = 64


@dataclass(frozen=True)
class Run:
    """Everything that a run measured; `path` is the folder that it was read from, if any.

    The `replays` of what has parts are combined from theirs. An engine's answers are in `served`,
    and also among the `decodes`, as decoding runs.
    """

    manifest: Manifest
    trajectories: tuple[Trajectory, ...]
    replays: tuple[AnyReplay, ...]
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

    def __getstate__(self) -> dict[str, Any]:
        """Its fields: what was computed from them stays in its process."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"rounds": {}}

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
        """The last facts of a draft or, with None, of the target; of a draft in parts that was not
        loaded itself, those of its last. None for prompt lookup and `self`, which have no facts.
        """
        found = next((f for f in reversed(self.facts) if f.candidate == candidate), None)
        parts = parts_of(candidate) if candidate and found is None else ()
        return self.facts_of(parts[-1]) if parts else found


def read_run(folder: RunFolder) -> Run:
    """Read all observations of a run.

    Raises:
        RunFolderError: a file cannot be read, is not what it was when the sweep ended, or holds a
            measurement that does not fit its response or what the run asked.
    """
    run = replace(run_of(folder.manifest, folder.observations()), path=folder.path)
    for row in (*run.trajectories, *run.replays, *run.decodes, *run.served):
        if isinstance(row, Observation):  # what was put together from others fits with them
            check_that_it_fits(row, run.responses.get(row.key), folder)
    return run


def check_that_it_fits(
    row: Trajectory | Replay | LookupReplay | Decode | Served,
    response: Trajectory | None,
    folder: RunFolder,
) -> None:
    """Raise a RunFolderError if a response does not fit the run's question, or a measurement its
    response; an engine may leave out rounds and times.
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
        case Trajectory(origin=origin) if origin != question.responses and (
            origin != "engine" or question.engine is None
        ):
            wrong = f"is of the {origin}, and the run's are of the {question.responses}"
        case Replay(accept=along) | LookupReplay(proposed=along) if (
            len(along) + 1 != response.output_tokens
        ):
            wrong = "does not fit the response"
        case LookupReplay(window=window, at_once=False) if window < max(question.ks):
            wrong = "looked up fewer tokens than the largest k"
        case Replay(mode=mode) if mode != question.mode:
            wrong = f"is of {mode} drafting, and the run of {question.mode}"
        case Replay(mode=mode) if (
            mode is not DraftingMode.GREEDY  # whose records are refused otherwise
            and response.sampling.temperature == 0
            and not row.accepts_outright
        ):
            wrong = "accepts tokens in part, and its response is at temperature 0"
        case Decode(output_tokens=tokens) if question.engine is None:
            equal = row.digest == response.digest
            if tokens > 1 and not (row.accepted and row.decode_seconds):
                wrong = "has no rounds, or they took no time"
            elif response.sampling.temperature == 0 and equal != (row.first_difference is None):
                wrong = "has another digest than its response and no first difference, or the same"
    if wrong is not None:
        kind = row.__struct_config__.tag
        raise RunFolderError(
            f"`{folder.path}/observations/{kind}.jsonl`: the {kind} of request `{row.request}` "
            f"{wrong}",
            hint="a file of this run is missing or was changed by something else",
        )


def run_of(
    manifest: Manifest, records: Iterable[Observation], rounds: dict[Any, Any] | None = None
) -> Run:
    """The run that records make, in the order in which they were made. Responses and replays are in
    an order of their own, whichever came first: the longest prompts first, one candidate after the
    other.

    Args:
        rounds: of an earlier run with some of these records.
    """
    index = Observations(records)
    responses = sorted(index.trajectories.values(), key=lambda t: (-t.prompt_tokens, *t.key))
    places = {response.key: at for at, response in enumerate(responses)}
    drafts = {name: at for at, name in enumerate(manifest.specs)}
    levels = {level: at for at, level in enumerate(manifest.question.quants)}

    def order(row: AnyReplay) -> tuple[int, ...]:
        of = row.candidate
        whole, by_start = isinstance(row, Observation), isinstance(row, LookupReplay)
        draft, level = drafts.get(of.draft, len(drafts)), levels.get(of.quant, 0)
        return not whole, by_start, draft, level, of.draft == SELF, places.get(row.key, 0)

    replays = list(chain.from_iterable(along.values() for along in index.replays.values()))
    served = tuple(index.served)
    return Run(
        manifest=manifest,
        trajectories=tuple(responses),
        replays=tuple(sorted((*replays, *combined(replays, manifest.specs)), key=order)),
        decodes=(*index.decodes(), *decodes_of(served)),
        costs=tuple(index.costs.values()),
        facts=tuple(index.facts.values()),
        failures=tuple(index.failures.values()),
        states=tuple(index.states.values()),
        workers=tuple(index.workers.values()),
        engines=tuple(index.engines.values()),
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
