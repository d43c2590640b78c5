"""What a sweep has measured so far, and which steps are left.

The state is read from the run folder when the sweep begins and kept in memory while it lasts, since
the k's at which a candidate is worth decoding follow from what was measured before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from draftbench.drafts.kinds import kind_of, parts_of, remembers
from draftbench.drafts.laws import AnyReplay
from draftbench.drafts.stack.replay import combined
from draftbench.drafts.suffix.memory import Remembered
from draftbench.measure.prompts import Prompt
from draftbench.measure.step_costs import grid_for
from draftbench.measure.timed_passes import CostGrid
from draftbench.measure.trajectories import GROUP, PromptSample, ScoredResponse, plan
from draftbench.models.compatibility import context_length_of
from draftbench.planner.what_to_measure import lengths_to_decode, next_start, settled, timed_enough
from draftbench.records import (
    AnyObservation,
    Candidate,
    CostPoint,
    Decode,
    DraftLength,
    Key,
    LookupReplay,
    ModelFacts,
    Observation,
    Replay,
    Trajectory,
)
from draftbench.run_folder.folder import PrivateText, RunFolder
from draftbench.run_folder.manifest import Manifest
from draftbench.run_folder.observations import Observations
from draftbench.run_folder.run import Run, check_that_it_fits, run_of, to_decode
from draftbench.sweep.engine_servers import ALONE, Load, ServerConfig, Servers
from draftbench.sweep.options import in_turn
from draftbench.sweep.prepared import Prepared


class Writing(NamedTuple):
    """Write a group's responses, or take them from the log, and score them."""

    group: list[PromptSample]


class Replaying(NamedTuple):
    """Replay the groups that have a response without a replay."""

    groups: list[list[ScoredResponse]]


class Timing(NamedTuple):
    """Time the passes of a grid until they are known well enough."""

    grid: CostGrid
    enough: Callable[[Sequence[CostPoint]], bool]


class Decoding(NamedTuple):
    """Decode some responses without a draft and at some draft lengths at one concurrency; one by
    one, only those that are not `done`.
    """

    concurrency: int
    lengths: list[DraftLength]
    responses: list[ScoredResponse]
    done: set[Key]


@dataclass
class SweepState:
    """What a sweep has measured, and the texts with which it measures on; `add` takes in what was
    just written.
    """

    prepared: Prepared
    waves: list[list[list[PromptSample]]]  # all responses to write, by wave and group
    due: int  # waves to measure; with --until settled one more at a time
    settled: bool = False  # whether these waves settle the answer
    observations: Observations = field(default_factory=Observations)
    responses: dict[Key, ScoredResponse] = field(default_factory=dict)
    # By candidate: computed along replays when k's were chosen, and not again for the next.
    rounds: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, prepared: Prepared, folder: RunFolder) -> SweepState:
        """Read a run folder; a response's text without its record does not count.

        Raises:
            RunFolderError: a file cannot be read, or was changed.
        """
        waves = plan(prepared.prompts, prepared.options.samples)
        state = cls(prepared, waves, len(waves))
        state.add(folder.observations(resumes=True), folder.records(PrivateText))
        if prepared.options.until == "settled":  # whatever was begun is measured to its end
            begun = (
                {sample.key for sample in chain(*wave)} & state.responses.keys() for wave in waves
            )
            state.due = max((at for at, keys in enumerate(begun, start=1) if keys), default=1)
        for along in state.observations.replays.values():
            for key in along.keys() & state.responses.keys():
                check_that_it_fits(along[key], state.responses[key].trajectory, folder)
        return state

    @property
    def groups(self) -> list[list[PromptSample]]:
        """The responses that are due, in the groups in which they are written."""
        return list(chain(*self.waves[: self.due]))

    @property
    def requests(self) -> int:
        """How many requests are due."""
        return len({sample.prompt.request.id for group in self.groups for sample in group})

    def next_wave(self) -> bool:
        """Make another wave due; False where all are, or where those that are settle the answer."""
        if self.due == len(self.waves):
            return False
        weights = {request: prompt.request.weight for request, prompt in self.prompts.items()}
        self.settled = settled(self.run(), weights)
        self.due += not self.settled
        return not self.settled

    def manifest(self) -> Manifest:
        """The head of the run folder, with how many requests settled the answer, if fewer than all
        did.
        """
        known, after = self.prepared.manifest, self.requests if self.settled else None
        effort = msgspec.structs.replace(known.effort, settled_after=after)
        return msgspec.structs.replace(known, effort=effort)

    def along(self, candidate: Candidate) -> Mapping[Key, AnyReplay]:
        """The replays of a candidate, or those of its parts put together."""
        replays = self.observations.replays
        if not (parts := parts_of(candidate)):
            return replays.get(candidate, {})
        rows = chain.from_iterable(replays.get(part, {}).values() for part in parts)
        return {each.key: each for each in combined(rows, [candidate.draft])}

    def used(self, candidate: Candidate | None) -> bool:
        """Whether anything was measured with a draft at its level, or with the target (None)."""
        timed = any(point.candidate == candidate for point in self.observations.costs.values())
        return timed or bool(self.along(candidate) if candidate else self.responses)

    def run(self, part: Callable[[AnyObservation], bool] = lambda record: True) -> Run:
        """What was measured so far, or a part of it."""
        records = (record for record in self.observations if part(record))
        return run_of(self.prepared.manifest, records, self.rounds)

    def trajectories(self) -> list[Trajectory]:
        """The recorded responses, in the order of the plan."""
        samples = (sample.key for group in self.groups for sample in group)
        return [self.responses[key].trajectory for key in samples if key in self.responses]

    def add(self, records: Iterable[Observation], texts: Iterable[PrivateText] = ()) -> None:
        """Take in observations; a response counts only together with its text."""
        known = {text.key: text for text in texts}
        for record in records:
            if isinstance(record, Trajectory):
                if record.request not in self.prompts or record.key not in known:
                    continue
                self.responses[record.key] = ScoredResponse.recorded(
                    self.prompts[record.request], known[record.key], record
                )
            self.observations.add([record])

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        """The prompts by request id."""
        return {prompt.request.id: prompt for prompt in self.prepared.prompts}

    def unwritten(self) -> list[list[PromptSample]]:
        """The groups with a missing response, which are written again as a whole."""
        return [
            group
            for group in self.groups
            if any(sample.key not in self.responses for sample in group)
        ]

    def drafted(self) -> list[list[ScoredResponse]]:
        """The responses of more than one token, which leave something to draft, in their groups."""
        known = self.responses
        groups = ([known[each.key] for each in group if each.key in known] for group in self.groups)
        drafted = ([r for r in group if len(r.tokens) > 1] for group in groups)
        return [group for group in drafted if group]

    @cached_property
    def _places(self) -> dict[Key, tuple[int, int, int]]:
        """Where a draft that remembers responses meets each: in which wave and sample, and after
        how many requests of the traffic. Only with --until settled what is due grows, and what was
        measured must not depend on it.
        """
        grows, places = self.prepared.options.until == "settled", list(self.prompts)
        at = {request: place for place, request in enumerate(places)}
        return {
            each.key: (wave if grows else 0, each.sample, at[each.key[0]])
            for wave, groups in enumerate(self.waves)
            for each in chain(*groups)
        }

    def in_order(self, responses: Iterable[ScoredResponse]) -> list[ScoredResponse]:
        """Responses in the order in which a draft that remembers them meets them."""
        return sorted(responses, key=lambda response: self._places[response.key])

    def log(self, candidate: Candidate) -> list[Remembered]:
        """What a candidate remembers: the responses, in the order of their requests in the traffic;
        nothing if it does not remember.
        """
        if not remembers(candidate):
            return []
        written = self.responses.keys() & self._places.keys()
        return [
            Remembered(key, self._places[key][0], self.responses[key].tokens)
            for key in sorted(written, key=lambda key: self._places[key][-1])
        ]

    def left(self) -> tuple[Candidate, ...]:
        """The candidates that are not completely measured, or have failed."""
        candidates, servers = self.prepared.candidates, self.prepared.servers
        if self.unwritten() or not self.drafted():
            return candidates

        def whole(candidate: Candidate) -> bool:
            models: list[Candidate | None] = [] if servers else [None]
            models += [candidate] * (candidate.draft in self.prepared.drafts)
            loaded = all(model in self.observations.facts for model in models)
            return (
                loaded
                and next(self.steps(candidate), None) is None
                and not any(
                    self.unserved(config)
                    for repeat in range(self.prepared.options.repeats)
                    for session in self.sessions(candidate, repeat)
                    for config in session
                )
            )

        failures = self.observations.failures
        return tuple(c for c in candidates if c in failures or not whole(c))

    def unreplayed(self, candidate: Candidate) -> list[list[ScoredResponse]]:
        """The groups with a response that is not replayed yet; none if the candidate has no weights
        here to be replayed with.
        """
        if (
            self.prepared.servers is not None
            and not kind_of(candidate.draft).from_text
            and candidate.draft not in self.prepared.drafts
        ):
            return []
        along, groups = self.along(candidate), self.drafted()
        if remembers(candidate):
            ordered = self.in_order(chain(*groups))
            groups = [ordered[at : at + GROUP] for at in range(0, len(ordered), GROUP)]
        return [group for group in groups if any(r.key not in along for r in group)]

    def steps(self, candidate: Candidate) -> Iterator[Replaying | Timing | Decoding]:
        """The steps left for a candidate in one process, in order. Do each before asking for the
        next, which depends on what it measured.
        """
        if missing := self.unreplayed(candidate):
            yield Replaying(missing)
        if self.prepared.servers is not None:  # its servers are in `sessions`
            return
        facts = self.observations.facts
        loaded = [facts[model] for model in (None, candidate) if model in facts]
        # The speed of a simulated level says nothing about the level.
        if not self.prepared.options.times(candidate) or not all(f.has_kernel for f in loaded):
            return
        chosen = to_decode(self.trajectories(), self.prepared.options.measure_requests)
        responses = [self.responses[t.key] for t in chosen]
        if remembers(candidate):
            responses = self.in_order(responses)
        for concurrency in self.prepared.options.concurrency:
            block = str(candidate), concurrency
            points = self.observations.costs.values()
            timed = {point.process for point in points if (point.block, point.concurrency) == block}
            if len(timed) < self.prepared.options.processes:
                room = context_length_of(self.prepared.target)
                assert room is not None  # otherwise the sweep was refused
                drafted = list(chain.from_iterable(self.drafted()))
                grid = grid_for(drafted, self.prepared.options.ks, room, concurrency)
                yield Timing(grid, self._timed_enough(candidate, concurrency))
            lengths = self._lengths(candidate, concurrency)
            done = self.decoded(candidate, lengths, concurrency)
            if lengths and any(response.key not in done for response in responses):
                yield Decoding(concurrency, lengths, responses, done)

    def sessions(self, candidate: Candidate, repeat: int) -> Iterator[list[ServerConfig]]:
        """The servers that measure a candidate in one repeat; those of one session take turns. Hold
        each session before asking for the next: the k's at which a server is started depend on what
        was served before.
        """
        servers, measure = self.prepared.servers, self.prepared.options.measure
        if servers is None or measure in ("none", "replay"):
            return
        if servers.drafting is not None and candidate == servers.drafting.candidate:
            if servers.baseline is not None:
                yield servers.session(servers.drafting._replace(repeat=repeat))
        elif servers.given is None and candidate in servers.levels:
            for k, stop in self._lengths_to_start(servers, candidate, repeat):
                yield servers.session(ServerConfig(candidate, k, repeat, stop))

    def _lengths_to_start(
        self, servers: Servers, candidate: Candidate, repeat: int
    ) -> Iterator[DraftLength]:
        """All k's with `--measure all`; otherwise the draft lengths started so far and then, one
        after the other, those worth a start. Once a repeat has ended, with its last server without
        a draft or where the next one has begun, no new one is started in it, except in the last
        repeat.
        """
        options, ks = self.prepared.options, self.prepared.ks(candidate)
        if options.measure == "all":
            yield from in_turn(map(DraftLength, sorted(ks)), repeat)
            return
        asked = {ServerConfig(*config[:-1]) for config in self.observations.answered()}
        own = (server for server in asked if server.candidate == candidate)
        started = {server.length for server in own if server.repeat <= repeat}
        yield from in_turn(sorted(started, key=lambda length: (length.k, str(length))), repeat)
        ended = any(server.candidate and server.repeat > repeat for server in asked)
        ended = ended or not asked.isdisjoint(servers.plain_starts(repeat)[-1:])
        last = repeat + 1 == options.repeats
        while ks and (last or not ended):
            run = self.run()
            wanted = (
                next_start(run, candidate, concurrency, ks) for concurrency in options.concurrency
            )
            length = next((each for each in wanted if each and each not in started), None)
            if length is None:
                return
            started.add(length)
            yield length

    def answered(self, candidate: Candidate) -> bool:
        """Whether any server that drafts with the candidate has answered."""
        return any(asked[0] == candidate for asked in self.observations.answered())

    def plain_left(self) -> bool:
        """Whether servers without a draft still have to be asked."""
        servers = self.prepared.servers
        if servers is None:
            return False
        repeats = range(self.prepared.options.repeats)
        plain = chain([servers.writer], *map(servers.plain_starts, repeats))
        return any(map(self.unserved, plain))

    def unserved(self, config: ServerConfig) -> dict[Load, list[PromptSample]]:
        """What a server still has to answer, by load."""
        servers = self.prepared.servers
        assert servers is not None
        samples = self._samples([config])
        known = self.trajectories()
        missing = {}
        for load in servers.loads(config):
            answers = self.observations.answers((*config, load.concurrency))
            done = {row.key for row in answers if row.error is None}
            if config == servers.writer and load == ALONE:  # its answers are the responses
                due = {sample.key for sample in samples} - (done & self.responses.keys())
            # All or none: fewer requests would be less load, or less to remember.
            elif load.concurrency is None or (config.candidate and remembers(config.candidate)):
                due = set(self.responses) if self.responses.keys() - done else set()
            else:
                due = {t.key for t in to_decode(known, self.prepared.options.measure_requests)}
                due -= done
            if due:
                missing[load] = [sample for sample in samples if sample.key in due]
        return missing

    def unserved_by(self, session: Sequence[ServerConfig], load: Load) -> list[list[PromptSample]]:
        """What each server of a session still has to answer at a load. Those that take turns answer
        a request one after the other or not at all: one that misses an answer has all asked again.
        """
        left = [self.unserved(config).get(load, []) for config in session]
        if load.concurrency is None:
            return left
        due = {sample.key for sample in chain(*left)}
        return [[each for each in self._samples(session) if each.key in due]] * len(session)

    def _samples(self, session: Sequence[ServerConfig]) -> list[PromptSample]:
        """What servers are asked in order: that of the traffic if one remembers its answers."""
        samples = list(chain(*self.groups))
        if any(config.candidate and remembers(config.candidate) for config in session):
            samples.sort(key=lambda sample: self._places[sample.key])
        return samples

    def _lengths(self, candidate: Candidate, concurrency: int) -> list[DraftLength]:
        """The draft lengths to decode at: those decoded so far; if there are none, the best ones by
        what was measured of this candidate and of those before it, and no more, so that a resumed
        sweep chooses as one that was not interrupted. With --measure all every k in any case, and
        the best rule.
        """
        options = self.prepared.options
        if not options.most_ks:
            return []
        every_k = options.measure == "all"
        asked = list(map(DraftLength, self.prepared.ks(candidate))) if every_k else []
        decoded = {row.length for row in self._decodes(candidate, concurrency) if row.k}
        if decoded or (every_k and not options.stops):
            return sorted({*decoded, *asked}, key=lambda length: (length.k, str(length)))
        every, loads = self.prepared.candidates, options.concurrency
        seen, until = every[: every.index(candidate) + 1], loads[: loads.index(concurrency) + 1]
        blocks = {str(each) for each in seen}
        first = dict[tuple[str, int], str]()  # process that timed
        for point in self.observations.costs.values():
            first.setdefault((point.block, point.concurrency), point.process)

        def before(record: AnyObservation) -> bool:
            match record:
                case Replay() | LookupReplay():
                    return record.candidate in seen
                case Decode(block=block):
                    return block in blocks
                case CostPoint(block=block, concurrency=load):
                    later = block == str(candidate) and load not in until
                    return block in blocks and not later and record.process == first[block, load]
            return isinstance(record, (Trajectory, ModelFacts))

        run = self.run(before)
        if every_k:
            best = lengths_to_decode(run, candidate, concurrency, 2)
            return [*asked, *(each for each in best if each.stop)]
        return lengths_to_decode(run, candidate, concurrency, options.most_ks)

    def _timed_enough(
        self, candidate: Candidate, concurrency: int
    ) -> Callable[[Sequence[CostPoint]], bool]:
        """Whether its steps are timed well enough for what was replayed and will be decoded."""
        options = self.prepared.options
        trajectories = self.trajectories()
        decoded = to_decode(trajectories, options.measure_requests)
        if not options.most_ks:
            decoded = trajectories  # besides timing, the sweep only writes these
        parts = (candidate, *parts_of(candidate))
        run = self.run(
            lambda record: (
                isinstance(record, Trajectory)
                or (isinstance(record, (Replay, LookupReplay)) and record.candidate in parts)
            )
        )
        return partial(timed_enough, run, candidate, concurrency, decoded, 1 + options.most_ks)

    def decoded(
        self, candidate: Candidate, lengths: Sequence[DraftLength], concurrency: int
    ) -> set[Key]:
        """The responses that enough processes decoded, both without a draft and at every one of
        these lengths.
        """
        seen = defaultdict[Key, dict[str, set[DraftLength]]](dict)
        for row in self._decodes(candidate, concurrency):
            seen[row.key].setdefault(row.process, set()).add(row.length)
        return {
            key
            for key, by_process in seen.items()
            if sum(decoded >= {DraftLength(0), *lengths} for decoded in by_process.values())
            >= self.prepared.options.processes
        }

    def _decodes(self, candidate: Candidate, concurrency: int) -> list[Decode]:
        rows = self.observations.decodes(str(candidate))
        return [row for row in rows if row.concurrency == concurrency]
