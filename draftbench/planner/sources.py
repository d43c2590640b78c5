"""Where costs come from: this run, another run, or an engine's own step times.

Acceptance is a property of models and traffic, cost of hardware and runner: a source answers for
each candidate at each batch size that was timed there, and names its runner. `priced` adds the
batch sizes between two timed ones, by linear interpolation, and leaves those beyond unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import Protocol

import numpy as np

from draftbench.acceptance.rounds import counted_rounds
from draftbench.errors import UsageError
from draftbench.planner.costs import BlockCosts, blend, block_costs, timed_batches
from draftbench.planner.passes import context_of, pass_seconds, plain_seconds
from draftbench.planner.steady import Passes, overhead, steady
from draftbench.records import Candidate, Decode
from draftbench.run_folder.run import Run

Overheads = Mapping[int, float | None]


class CostSource(Protocol):
    """Costs by candidate and batch size; `origin` names the source where it is not this run."""

    @property
    def origin(self) -> str | None: ...

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a reader must know of these costs."""
        ...

    @property
    def runner(self) -> str | None:
        """What ran the target's passes."""
        ...

    def batches(self, candidate: Candidate) -> tuple[int, ...]:
        """The batch sizes that were timed, ascending."""
        ...

    def costs(self, candidate: Candidate, batch: int) -> BlockCosts | None:
        """What passes take at a timed batch size."""
        ...

    def overheads(self, candidate: Candidate, batch: int, ks: Sequence[int]) -> Overheads:
        """Seconds of a round beyond its passes for every k, 0 included; None where unknown."""
        ...


@dataclass(frozen=True, eq=False)
class RunCosts:
    """The costs of a run; with `decoded` False none of its decoding runs is looked at. `origin` and
    `doubts` are set where the run is another than the one whose acceptance they stand beside.
    """

    observed: Run
    decoded: bool = True
    origin: str | None = None
    doubts: tuple[str, ...] = ()
    _known: dict[tuple[Candidate, int], BlockCosts | None] = field(default_factory=dict)
    _beyond: dict[tuple[Candidate, int, tuple[int, ...]], Overheads] = field(default_factory=dict)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Nothing, of a run's own costs."""
        if self.origin is None:
            return ()
        return (
            f"costs are those of {self.runner or 'an unknown runner'}, from {self.origin}: all "
            "speed-ups here are predictions for it, and what this run timed itself does not count",
            *self.doubts,
        )

    @property
    def runner(self) -> str | None:
        """That of the target's timed passes, or of the target as loaded."""
        points = self.observed.costs
        timed = next((point.runner for point in points if point.candidate is None), None)
        facts = self.observed.facts_of(None)
        return timed or (facts.runner if facts else None)

    def batches(self, candidate: Candidate) -> tuple[int, ...]:
        """Those of the candidate's block."""
        timed = timed_batches(self.observed, candidate)
        return tuple(batch for batch in timed if self.costs(candidate, batch) is not None)

    def costs(self, candidate: Candidate, batch: int) -> BlockCosts | None:
        """The points of the candidate's block."""
        key = candidate, batch
        if key not in self._known:
            self._known[key] = block_costs(self.observed, candidate, batch)
        return self._known[key]

    def overheads(self, candidate: Candidate, batch: int, ks: Sequence[int]) -> Overheads:
        """From the block's steady rounds at this batch size."""
        key = candidate, batch, tuple(ks)
        if key not in self._beyond:
            self._beyond[key] = self._rounds_beyond(candidate, batch, ks)
        return self._beyond[key]

    def _rounds_beyond(self, candidate: Candidate, batch: int, ks: Sequence[int]) -> Overheads:
        own = (d for d in self.observed.decodes if self.decoded and d.block == str(candidate))
        rows = [row for d in own if d.batch == batch and (row := steady(d)) is not None]
        passes = _once_a_cell(self._passes(self.costs(candidate, batch), batch))
        return {k: overhead(rows, k, passes) for k in (0, *ks)}

    def _passes(self, costs: BlockCosts | None, batch: int) -> Passes:
        """What the passes of runs at one k should have taken by the timed points."""
        contexts = {(t.request, t.sample): context_of(t) for t in self.observed.trajectories}

        def seconds(rows: Sequence[Decode]) -> float:
            known = [row for row in rows if costs and (row.request, row.sample) in contexts]
            spent = sum(row.decode_seconds for row in rows)
            if costs is None or not known:
                return spent
            spent -= sum(row.decode_seconds for row in known)
            context = np.array([contexts[row.request, row.sample] for row in known])
            if known[0].k == 0:
                rounds = np.array([len(row.verify_seconds) for row in known])
                return spent + float(plain_seconds(costs, rounds, context).sum())
            counted = counted_rounds(known)
            return spent + float(pass_seconds(costs, counted, context, batch).sum())

        return seconds


def _once_a_cell(passes: Passes) -> Passes:
    """The same, computed once for each k: every cell's overhead asks for those of all others."""
    known: dict[int, float] = {}

    def seconds(rows: Sequence[Decode]) -> float:
        k = rows[0].k
        if k not in known:
            known[k] = passes(rows)
        return known[k]

    return seconds


def costs_of_run(other: Run, own: Run, name: str) -> RunCosts:
    """The costs of another run, to put beside this one's acceptance.

    Raises:
        UsageError: it is of another target, or has none of this run's candidates.
    """
    asked, theirs = own.manifest.question, other.manifest.question
    targets = [(PurePath(q.target).name, q.target_quant) for q in (asked, theirs)]
    if targets[0] != targets[1]:
        here, there = (f"{name} at {quant}" for name, quant in targets)
        raise UsageError(
            f"{name} timed another target ({there}) than this run's ({here})",
            hint="costs can be borrowed for the same target and drafts only",
        )
    found = RunCosts(other, origin=name, doubts=_other_models(other, own, name))
    if not any(found.batches(candidate) for candidate in own.candidates):
        raise UsageError(
            f"{name} has no times of any candidate of this run",
            hint=f"this run has {', '.join(map(str, own.candidates))}",
        )
    return found


def _other_models(other: Run, own: Run, name: str) -> tuple[str, ...]:
    """Models of one name that are not the same files in both runs."""
    found = []
    for candidate in (None, *own.candidates):
        ours, theirs = own.facts_of(candidate), other.facts_of(candidate)
        if ours and theirs and ours.fingerprint != theirs.fingerprint:
            found.append(f"{candidate or 'the target'} is not the same model in {name}")
    return tuple(found)


@dataclass(frozen=True, eq=False)
class Priced:
    """A candidate's costs at one batch size. `note` says where they are not simply timed: between
    which batch sizes they were interpolated, or why they are unknown.
    """

    costs: BlockCosts | None
    overheads: Overheads
    note: str | None = None


def priced(source: CostSource, candidate: Candidate, batch: int, ks: Sequence[int]) -> Priced:
    """Costs as timed, interpolated between two timed batch sizes, or unknown."""
    timed = source.batches(candidate)
    if batch in timed:
        costs = source.costs(candidate, batch)
        return Priced(costs, source.overheads(candidate, batch, ks))
    around = next(((a, b) for a, b in pairwise(timed) if a < batch < b), None)
    if around is None:
        return Priced(None, {}, _unknown(source, batch, timed))
    share = (batch - around[0]) / (around[1] - around[0])
    fewer, more = (source.costs(candidate, each) for each in around)
    ends = [source.overheads(candidate, each, ks) for each in around]
    mixed = {k: _between(ends[0].get(k), ends[1].get(k), share) for k in (0, *ks)}
    costs = blend(fewer, more, share) if fewer and more else None
    return Priced(costs, mixed, f"interpolated between {around[0]} and {around[1]} rows")


def _unknown(source: CostSource, batch: int, timed: Sequence[int]) -> str | None:
    """Why costs are unknown; None where the run's own facts and failures say it better."""
    if timed:
        return f"{batch} rows at once were not timed, only {', '.join(map(str, timed))}"
    return source.origin and f"{source.origin} has no times of it"


def _between(low: float | None, high: float | None, share: float) -> float | None:
    return None if low is None or high is None else (1 - share) * low + share * high
