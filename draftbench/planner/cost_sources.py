"""Where costs come from: this run, another run, or a YAML file of an engine's step times.

Acceptance is a property of models and traffic, cost of hardware and runner: a source answers for
each candidate at each batch size that was timed there, and names its runner. `priced` adds the
batch sizes between two timed ones, by linear interpolation, and leaves those beyond unknown.

    engine: llama.cpp b4000, 4-bit GGUF          # named in every answer
    batches:
      1:                                          # active rows
        tokens_per_second: 27.5                   # of all rows, plain decoding; or target_step_s
        verify: {2: 0.041, 5: 0.060}              # seconds of a target pass over n tokens a row
        drafts:
          qwen0.5:int4: {step_s: 0.021}           # by the names that `recommend` prints

All seconds are those of all rows together. For prompt lookup (`ngram`) `step_s` is one whole
lookup. Such a file knows no contexts, prefills or overheads: context is taken to make no
difference, the others are unknown.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np

from draftbench.acceptance.rounds import counted_rounds
from draftbench.errors import UsageError
from draftbench.planner.costs import (
    BlockCosts,
    Surface,
    blend,
    block_costs,
    context_of,
    pass_seconds,
    plain_seconds,
    timed_batches,
)
from draftbench.planner.measured import Passes, overhead, steady
from draftbench.records import LOOKUP, Candidate, Decode
from draftbench.run_folder.run import Run
from draftbench.safe_files import UnreadableError, read_yaml

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

    run: Run
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
        points = self.run.costs
        timed = next((point.runner for point in points if point.candidate is None), None)
        facts = self.run.facts_of(None)
        return timed or (facts.runner if facts else None)

    def batches(self, candidate: Candidate) -> tuple[int, ...]:
        """Those of the candidate's block."""
        timed = timed_batches(self.run, candidate)
        return tuple(batch for batch in timed if self.costs(candidate, batch) is not None)

    def costs(self, candidate: Candidate, batch: int) -> BlockCosts | None:
        """The points of the candidate's block."""
        key = candidate, batch
        if key not in self._known:
            self._known[key] = block_costs(self.run, candidate, batch)
        return self._known[key]

    def overheads(self, candidate: Candidate, batch: int, ks: Sequence[int]) -> Overheads:
        """From the block's steady rounds at this batch size."""
        key = candidate, batch, tuple(ks)
        if key not in self._beyond:
            self._beyond[key] = self._rounds_beyond(candidate, batch, ks)
        return self._beyond[key]

    def _rounds_beyond(self, candidate: Candidate, batch: int, ks: Sequence[int]) -> Overheads:
        block = str(candidate), batch
        own = [d for d in self.run.decodes if self.decoded and (d.block, d.batch) == block]
        rows = [row for d in own if (row := steady(d)) is not None]
        passes = _once_a_k(self._passes(self.costs(candidate, batch), batch))
        return {k: overhead(rows, k, passes) for k in (0, *ks)}

    def _passes(self, costs: BlockCosts | None, batch: int) -> Passes:
        """What the passes of runs at one k should have taken by the timed points."""
        contexts = {(t.request, t.sample): context_of(t) for t in self.run.trajectories}

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


def _once_a_k(passes: Passes) -> Passes:
    """The same, computed once for each k: the overhead of a k asks for those of all others."""
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


Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
# One surface for every context: the file knows none.
_ANY_CONTEXT = np.array([0, 1 << 40])
_HINT = "see `draftbench recommend --help` for what such a file holds"


class _Draft(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    step_s: Positive


class _Batch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    verify: Annotated[
        dict[Annotated[int, msgspec.Meta(ge=2)], Positive], msgspec.Meta(min_length=1)
    ]
    drafts: Annotated[dict[str, _Draft], msgspec.Meta(min_length=1)]
    target_step_s: Positive | None = None
    tokens_per_second: Positive | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    engine: Annotated[str, msgspec.Meta(min_length=1)]
    batches: Annotated[dict[Annotated[int, msgspec.Meta(ge=1)], _Batch], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, eq=False)
class EngineCosts:
    """What an engine takes; answers for the drafts that its file names."""

    name: str
    file: _File

    @property
    def origin(self) -> str:
        """The file."""
        return f"`{self.name}`"

    @property
    def runner(self) -> str:
        """The engine, as its file calls it."""
        return self.file.engine

    @property
    def caveats(self) -> tuple[str, ...]:
        """What such a file leaves out."""
        return (
            f"costs are those of {self.runner}, from {self.origin}: all speed-ups here are "
            "predictions for it; what a round takes beyond its passes is unknown there and counted "
            "as nothing, prefill is unknown, and a step takes as long at every context",
            "its times come without repeats: ±0.00 of c and v means that their spread is unknown, "
            "and no probability or interval here counts it",
        )

    def batches(self, candidate: Candidate) -> tuple[int, ...]:
        """The batch sizes at which the file names the candidate."""
        named = (b for b, costs in self.file.batches.items() if str(candidate) in costs.drafts)
        return tuple(sorted(named))

    def costs(self, candidate: Candidate, batch: int) -> BlockCosts | None:
        """Its step times as surfaces without spread."""
        given = self.file.batches[batch]
        target = {1: _target_step(given, batch), **given.verify}
        own = _surface({1: given.drafts[str(candidate)].step_s})
        lookup = candidate.draft == LOOKUP
        return BlockCosts(
            target=_surface(target),
            draft=None if lookup else own,
            proposal=own if lookup else None,
            prefill=None,
            draft_prefill=None,
        )

    def overheads(self, candidate: Candidate, batch: int, ks: Sequence[int]) -> Overheads:
        """Unknown."""
        return dict.fromkeys((0, *ks))


def read_engine_costs(path: Path, candidates: Sequence[Candidate]) -> EngineCosts:
    """Read and check a file of step times.

    Args:
        candidates: those of the run; the file must have times of one of them.

    Raises:
        UsageError: no such file, unknown keys, impossible values, or no draft of this run.
    """
    try:
        found = read_yaml(path)
    except UnreadableError as error:
        raise UsageError(f"cannot read `{path}`: {error}", hint=_HINT) from error
    _refuse_unknown(path, found)
    try:
        file = msgspec.convert(found, _File)
    except msgspec.ValidationError as error:
        raise UsageError(f"`{path}`: {error}", hint=_HINT) from error
    for batch, given in file.batches.items():
        if (given.target_step_s is None) == (given.tokens_per_second is None):
            raise UsageError(
                f"`{path}`: batch {batch} needs one of target_step_s and tokens_per_second",
                hint=_HINT,
            )
        rising = [_target_step(given, batch), *(given.verify[n] for n in sorted(given.verify))]
        if rising != sorted(rising):
            raise UsageError(
                f"`{path}`: batch {batch}: a pass over more tokens takes less time than one over "
                "fewer, or than a step",
                hint="all are seconds of all rows together; average over more passes",
            )
    named = {name for given in file.batches.values() for name in given.drafts}
    known = [str(candidate) for candidate in candidates]
    if not named & set(known):
        raise UsageError(
            f"`{path}` has times of {', '.join(sorted(named))}, none of which this run measured",
            hint=f"name drafts as the run does: {', '.join(known)}",
        )
    return EngineCosts(str(path), file)


def _target_step(given: _Batch, batch: int) -> float:
    if given.target_step_s is not None:
        return given.target_step_s
    assert given.tokens_per_second is not None
    return batch / given.tokens_per_second


def _surface(seconds: dict[int, float]) -> Surface:
    sizes = sorted(seconds)
    samples = np.array([[[seconds[size]], [seconds[size]]] for size in sizes], dtype=np.float64)
    return Surface.of(np.array(sizes), _ANY_CONTEXT, samples)


def _refuse_unknown(path: Path, found: Any) -> None:
    """A key that is not known is named with the one that was probably meant."""
    _check(path, found, _File)
    batches = found.get("batches") if isinstance(found, dict) else None
    for given in batches.values() if isinstance(batches, dict) else ():
        _check(path, given, _Batch)
        drafts = given.get("drafts") if isinstance(given, dict) else None
        for own in drafts.values() if isinstance(drafts, dict) else ():
            _check(path, own, _Draft)


def _check(path: Path, found: Any, kind: type[msgspec.Struct]) -> None:
    fields = kind.__struct_fields__
    for key in found if isinstance(found, dict) else ():
        if key not in fields:
            near = difflib.get_close_matches(str(key), fields, 1)
            hint = f"did you mean `{near[0]}`?" if near else f"there are: {', '.join(fields)}"
            raise UsageError(f"`{path}`: unknown key `{key}`", hint=hint)
