"""A run folder → what of a sweep it holds already, by candidate and batch size.

The grid asks before it loads anything, a worker before each of its steps. Needs no weights, and
takes for measured only what the folder says is.
"""

from __future__ import annotations

from collections.abc import Sequence

from draftbench.measure.candidate import Contender
from draftbench.planner.recommend import promising_ks
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
    Replay,
    Trajectory,
)
from draftbench.run_folder.folder import Key, RunFolder
from draftbench.run_folder.run import Run, comparable, run_of
from draftbench.sweep.options import SweepOptions
from draftbench.sweep.preparation import Prepared
from draftbench.sweep.responses import Responses


def unmeasured(prepared: Prepared, folder: RunFolder) -> tuple[Candidate, ...]:
    """The candidates of which something is left to measure, or whose failure stands, in order."""
    responses = Responses(prepared, folder)
    if responses.missing() or not responses.spans:
        return prepared.candidates
    drafted = {_key(t) for group in responses.groups() for _, _, t in group}
    chosen = {_key(t) for _, _, t in responses.chosen(prepared.options.measure_requests)}
    kept, failed = Kept(prepared.options, folder), standing_failures(folder)
    return tuple(
        candidate
        for candidate in prepared.candidates
        if candidate in failed or not kept.whole(candidate, drafted, chosen)
    )


def standing_failures(folder: RunFolder) -> set[Candidate]:
    """The candidates that failed and did not go through later."""
    failures = run_of(folder.manifest, list(folder.records(Failure))).failures
    return {f.candidate for f in failures if f.candidate is not None}


class Kept:
    """What is in the folder now: every question reads it again."""

    def __init__(self, options: SweepOptions, folder: RunFolder) -> None:
        self.options, self.folder = options, folder

    def facts(self, candidate: Candidate | None) -> ModelFacts | None:
        """Of a draft, or of the target (None), as it was loaded last."""
        found = None
        for facts in self.folder.records(ModelFacts):
            if facts.candidate == candidate:
                found = facts
        return found

    def replayed(self, candidate: Candidate) -> set[Key]:
        """The responses that the draft was run along."""
        kind: type[Replay] | type[LookupReplay]
        kind = LookupReplay if candidate.draft == LOOKUP else Replay
        return {_key(r) for r in self.folder.records(kind) if r.candidate == candidate}

    def to_time(self, candidate: Candidate) -> bool:
        """Whether seconds are wanted: those of a level without a kernel say nothing of it."""
        facts = filter(None, (self.facts(None), self.facts(candidate)))
        return self.options.measure != "replay" and all(found.has_kernel for found in facts)

    def timed(self, candidate: Candidate, batch: int) -> bool:
        """Whether its passes were timed, beside the target's."""
        own = (str(candidate), batch)
        return any((p.block, p.batch) == own for p in self.folder.records(CostPoint))

    def to_decode(self, candidate: Candidate, batch: int) -> list[int]:
        """The k's to decode at; those of `best` follow from what was replayed and timed."""
        if self.options.measure == "none":
            return []
        if self.options.measure == "all":
            return list(self.options.ks)
        if candidate.draft == SELF and SELF not in self.options.drafts:
            return []
        return promising_ks(self._seen_of(candidate), candidate, batch)

    def decoded(self, candidate: Candidate, ks: Sequence[int], batch: int) -> set[Key]:
        """The responses that were decoded in every cell, the baseline's among them."""
        cells = {(c.k, c.stop_below) for c in Contender(candidate, None).cells(self.options, ks)}
        seen: dict[Key, set[tuple[int, float | None]]] = {}
        own = (str(candidate), batch)
        rows = [row for row in self.folder.records(Decode) if (row.block, row.batch) == own]
        for row in comparable(rows):
            seen.setdefault(_key(row), set()).add((row.k, row.stop_below))
        return {key for key, found in seen.items() if not cells - found}

    def whole(self, candidate: Candidate, drafted: set[Key], chosen: set[Key]) -> bool:
        """Whether nothing is left to measure.

        Args:
            drafted: the responses that have a token to draft.
            chosen: those of them that are decoded.
        """
        models = (None,) if candidate.draft in (LOOKUP, SELF) else (None, candidate)
        if not all(map(self.facts, models)) or drafted - self.replayed(candidate):
            return False
        if not self.to_time(candidate):
            return True
        return all(self._whole_at(batch, candidate, chosen) for batch in self.options.batches)

    def _whole_at(self, batch: int, candidate: Candidate, chosen: set[Key]) -> bool:
        if not self.timed(candidate, batch):
            return False
        ks = self.to_decode(candidate, batch)
        return not ks or not chosen - self.decoded(candidate, ks, batch)

    def _seen_of(self, candidate: Candidate) -> Run:
        """What a choice of k for one candidate looks at."""
        kept: list[AnyObservation] = [*self.folder.records(Trajectory)]
        kept += self.folder.records(ModelFacts)
        kept += self.folder.records(CostPoint)
        kept += (r for r in self.folder.records(Replay) if r.candidate == candidate)
        kept += (r for r in self.folder.records(LookupReplay) if r.candidate == candidate)
        return run_of(self.folder.manifest, kept)


def _key(record: Trajectory | Replay | LookupReplay | Decode) -> Key:
    return record.request, record.sample
