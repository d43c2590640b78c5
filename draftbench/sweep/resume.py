"""What a sweep has measured so far: read once from its run folder when it begins, kept in memory
while it lasts.

Only what later steps ask for is kept: of a candidate that is done, nothing but its facts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
from draftbench.run_folder.run import comparable, run_of, to_decode
from draftbench.sweep.preparation import Prepared


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
            RunFolderError: a file that cannot be read.
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
        keys = ([(prompt.request.id, sample) for prompt, sample in g] for g in self.groups)
        groups = ([self.responses[key] for key in group if key in self.responses] for group in keys)
        drafted = ([r for r in group if len(r.tokens) > 1] for group in groups)
        return [group for group in drafted if group]

    def chosen(self) -> list[ScoredResponse]:
        """The responses on which candidates are decoded."""
        trajectories = (response.trajectory for response in self.responses.values())
        count = self.prepared.options.measure_requests
        return [self.responses[t.request, t.sample] for t in to_decode(trajectories, count)]

    def to_time(self, candidate: Candidate) -> bool:
        """Whether seconds are wanted: those of a level without a kernel say nothing of it."""
        loaded = [self.facts[model][-1] for model in (None, candidate) if model in self.facts]
        return self.prepared.options.measure != "replay" and all(f.has_kernel for f in loaded)

    def timed(self, candidate: Candidate, batch: int) -> bool:
        """Whether its passes were timed, beside the target's."""
        return any(point.batch == batch for point in self.costs.get(str(candidate), ()))

    def to_decode(self, candidate: Candidate, batch: int) -> list[int]:
        """The k's to decode at; those of `best` follow from what was replayed and timed."""
        options = self.prepared.options
        if options.measure == "none":
            return []
        if options.measure == "all":
            return list(options.ks)
        if candidate.draft == SELF and SELF not in options.drafts:
            return []
        records = [
            *(response.trajectory for response in self.responses.values()),
            *(facts for loaded in self.facts.values() for facts in loaded),
            *self.costs.get(str(candidate), ()),
            *self.replays.get(candidate, {}).values(),
        ]
        return promising_ks(run_of(self.prepared.manifest, records), candidate, batch)

    def decoded(self, candidate: Candidate, ks: Sequence[int], batch: int) -> set[Key]:
        """The responses that were decoded at every k, the baseline's among them."""
        rows = [row for row in self.decodes.get(str(candidate), ()) if row.batch == batch]
        seen = defaultdict[Key, set[int]](set)
        for row in comparable(rows):
            seen[row.request, row.sample].add(row.k)
        return {key for key, found in seen.items() if found >= {0, *ks}}

    def left(self) -> tuple[Candidate, ...]:
        """The candidates of which something is left to measure, or whose failure stands."""
        candidates = self.prepared.candidates
        drafted = {response.key for group in self.drafted() for response in group}
        if self.unanswered() or not drafted:
            return candidates
        chosen = {response.key for response in self.chosen()}

        def whole(candidate: Candidate) -> bool:
            models = (None, candidate) if candidate.draft in self.prepared.drafts else (None,)
            replayed = self.replays.get(candidate, {}).keys()
            if any(model not in self.facts for model in models) or drafted - replayed:
                return False
            for batch in self.prepared.options.batches if self.to_time(candidate) else ():
                if not self.timed(candidate, batch):
                    return False
                ks = self.to_decode(candidate, batch)
                if ks and chosen - self.decoded(candidate, ks, batch):
                    return False
            return True

        return tuple(c for c in candidates if c in self.failures or not whole(c))
