"""A YAML file of an engine's own step times → costs to put beside a run's acceptance.

    engine: llama.cpp b4000, 4-bit GGUF          # named in every answer
    batches:
      1:                                          # active rows
        tokens_per_second: 27.5                   # of all rows, plain decoding; or target_step_s
        verify: {2: 0.041, 5: 0.060}              # seconds of a target pass over n tokens a row
        drafts:
          qwen0.5:int4: {step_s: 0.021}           # by the names that `recommend` prints

All seconds are those of all rows together. For prompt lookup (`ngram`) `step_s` is one whole
lookup. Contexts, prefills, and what a round takes beyond its passes are not in such a file: context
is taken to make no difference, and overhead and prefill are unknown.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from draftbench.errors import UsageError
from draftbench.planner.costs import BlockCosts
from draftbench.planner.sources import Overheads
from draftbench.planner.surface import Surface
from draftbench.records import LOOKUP, Candidate
from draftbench.safe_files import UnreadableError, read_yaml

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
            "as nothing, contexts and prefills are not told apart",
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
