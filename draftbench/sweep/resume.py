"""What a sweep has measured so far: read once from its run folder when it begins, kept in memory
while it lasts.

Only what later steps ask for is kept: of a candidate that is done, nothing but its facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from draftbench.measure.trajectories import Asked, ScoredResponse, plan
from draftbench.planner.recommend import promising_ks
from draftbench.records import (
    SELF,
    Candidate,
    CostPoint,
    Decode,
    Failure,
    LookupReplay,
    ModelFacts,
    Observation,
    Replay,
    Trajectory,
)
from draftbench.run_folder.folder import Key, RunFolder
from draftbench.run_folder.run import check_that_it_fits, comparable, run_of, to_decode
from draftbench.sweep.preparation import Prepared


class Replaying(NamedTuple):
    """Groups of responses of which any is not replayed."""

    groups: list[list[ScoredResponse]]


class Timing(NamedTuple):
    """Steps at a batch size."""

    batch: int


class Decoding(NamedTuple):
    """Some responses at some k's and a batch size, the baseline's runs among them; without those
    that are `done` in as many processes as asked for, where each is decoded by itself.
    """

    batch: int
    ks: list[int]
    responses: list[ScoredResponse]
    done: set[Key]


@dataclass
class Measured:
    """What there is of a sweep; `add` takes note of what was written to its folder. `groups` are
    all responses of the sweep as they are written together; costs and decodes are kept by block.
    """

    prepared: Prepared
    groups: list[list[Asked]]
    responses: dict[Key, ScoredResponse] = field(default_factory=dict)
    facts: dict[Candidate | None, list[ModelFacts]] = field(default_factory=dict)
    failures: dict[Candidate | None, Failure] = field(default_factory=dict)
    replays: dict[Candidate, dict[Key, Replay | LookupReplay]] = field(default_factory=dict)
    costs: dict[str, list[CostPoint]] = field(default_factory=dict)
    decodes: dict[str, list[Decode]] = field(default_factory=dict)
    timed_models: set[Candidate | None] = field(default_factory=set)

    @classmethod
    def read(cls, prepared: Prepared, folder: RunFolder) -> Measured:
        """What a folder holds; a response's text without its record does not count.

        Raises:
            RunFolderError: a file that cannot be read, or was changed.
        """
        found = cls(prepared, plan(prepared.prompts, prepared.options.samples))
        prompts = {prompt.request.id: prompt for prompt in prepared.prompts}
        texts = {(text.request, text.sample): text for text in folder.private_texts()}
        for record in folder.observations():
            if not isinstance(record, Trajectory):
                found.add([record])
            elif record.request in prompts and (record.request, record.sample) in texts:
                text = texts[record.request, record.sample]
                response = ScoredResponse.kept(prompts[record.request], text, record)
                found.responses[response.key] = response
        for along in found.replays.values():
            for key in along.keys() & found.responses.keys():
                tokens = found.responses[key].trajectory.output_tokens
                check_that_it_fits(along[key], tokens, folder)
        return found

    def kept(self) -> list[Observation]:
        """The responses, then what was replayed and decoded on them."""
        return [
            *(response.trajectory for response in self.responses.values()),
            *(replay for along in self.replays.values() for replay in along.values()),
            *(row for rows in self.decodes.values() for row in rows),
        ]

    def add(self, records: Iterable[Observation]) -> None:
        """Take note of observations; responses are in `responses` with their tokens."""
        for record in records:
            match record:
                case Replay() | LookupReplay():
                    along = self.replays.setdefault(record.candidate, {})
                    along[record.request, record.sample] = record
                case CostPoint():
                    self.costs.setdefault(record.block, []).append(record)
                    self.timed_models.add(record.candidate)
                case Decode():
                    self.decodes.setdefault(record.block, []).append(record)
                case ModelFacts():
                    self.facts.setdefault(record.candidate, []).append(record)
                case Failure(resolved=True):
                    self.failures.pop(record.candidate, None)
                case Failure():
                    self.failures[record.candidate] = record

    def forget(self, candidate: Candidate) -> None:
        """Let go of the measurements of a candidate that is done."""
        self.replays.pop(candidate, None)
        self.costs.pop(str(candidate), None)
        self.decodes.pop(str(candidate), None)

    def unanswered(self) -> list[list[Asked]]:
        """The groups of which any response is missing: they are written again as a whole."""
        return [
            group
            for group in self.groups
            if any((prompt.request.id, sample) not in self.responses for prompt, sample in group)
        ]

    def drafted(self) -> list[list[ScoredResponse]]:
        """The responses that have a token to draft, in their groups."""
        known = self.responses
        groups = [
            [known[prompt.request.id, n] for prompt, n in group if (prompt.request.id, n) in known]
            for group in self.groups
        ]
        drafted = ([r for r in group if len(r.tokens) > 1] for group in groups)
        return [group for group in drafted if group]

    def left(self) -> tuple[Candidate, ...]:
        """The candidates of which something is left to measure, or whose failure stands."""
        candidates = self.prepared.candidates
        if self.unanswered() or not self.drafted():
            return candidates

        def whole(candidate: Candidate) -> bool:
            models = (None, candidate) if candidate.draft in self.prepared.drafts else (None,)
            loaded = all(model in self.facts for model in models)
            return loaded and next(self.steps(candidate), None) is None

        return tuple(c for c in candidates if c in self.failures or not whole(c))

    def steps(self, candidate: Candidate) -> Iterator[Replaying | Timing | Decoding]:
        """What is left to measure of a candidate in one process, in order. Each step is to be
        measured before the next is asked for: where to decode follows from it.
        """
        along = self.replays.get(candidate, {})
        missing = [group for group in self.drafted() if any(r.key not in along for r in group)]
        if missing:
            yield Replaying(missing)
        loaded = [self.facts[model][-1] for model in (None, candidate) if model in self.facts]
        # Seconds of a level without a kernel say nothing of it.
        if self.prepared.options.measure == "replay" or not all(f.has_kernel for f in loaded):
            return
        trajectories = [response.trajectory for response in self.responses.values()]
        chosen = to_decode(trajectories, self.prepared.options.measure_requests)
        responses = [self.responses[t.request, t.sample] for t in chosen]
        for batch in self.prepared.options.batches:
            points = self.costs.get(str(candidate), ())
            timed = {point.process for point in points if point.batch == batch}
            if len(timed) < self.prepared.options.processes:
                yield Timing(batch)
            ks = self._ks(candidate, batch)
            done = self._decoded(candidate, ks, batch)
            if ks and any(response.key not in done for response in responses):
                yield Decoding(batch, ks, responses, done)

    def _ks(self, candidate: Candidate, batch: int) -> list[int]:
        """The k's to decode at; those of `best` follow from what was replayed and first timed, so
        that all processes decode the same.
        """
        options = self.prepared.options
        if options.measure == "none":
            return []
        if options.measure == "all":
            return list(options.ks)
        if candidate.draft == SELF and SELF not in options.drafts:
            return []
        points = self.costs.get(str(candidate), ())
        first = {point.batch: point.process for point in reversed(points)}
        records = [
            *(response.trajectory for response in self.responses.values()),
            *(facts for loaded in self.facts.values() for facts in loaded),
            *(point for point in points if point.process == first[point.batch]),
            *self.replays.get(candidate, {}).values(),
        ]
        return promising_ks(run_of(self.prepared.manifest, records), candidate, batch)

    def _decoded(self, candidate: Candidate, ks: Sequence[int], batch: int) -> set[Key]:
        """The responses that as many processes as asked for decoded at every k, the baseline's
        among them.
        """
        rows = [row for row in self.decodes.get(str(candidate), ()) if row.batch == batch]
        seen = defaultdict[Key, dict[str, set[int]]](dict)
        for row in comparable(rows):
            seen[row.request, row.sample].setdefault(row.process, set()).add(row.k)
        return {
            key
            for key, by_process in seen.items()
            if sum(found >= {0, *ks} for found in by_process.values())
            >= self.prepared.options.processes
        }
