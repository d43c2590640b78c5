"""A candidate with its model loaded, and the bench: what all candidates of a sweep share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from draftbench.decoder.drafters import Drafter, LookupDrafter, ModelDrafter
from draftbench.decoder.runner import Clock, Runner
from draftbench.measure.prompts import TextSide
from draftbench.records import Candidate, DraftingMode


@dataclass(frozen=True)
class Bench:
    """What every measurement of a sweep needs besides its candidate.

    `lookup` are the longest and the shortest n-gram of prompt lookup, `process` the id under which
    this process writes its records, `digest` the keyed hash of an output. `between` is called
    between two timed pieces of work with how many units were finished since the last call. It may
    raise: then the work ends, and what was not yielded is not kept.
    """

    target: Runner
    text: TextSide
    mode: DraftingMode
    ks: tuple[int, ...]
    lookup: tuple[int, int]
    dtype: str
    clock: Clock
    process: str
    digest: Callable[[tuple[int, ...]], str]
    between: Callable[[int], None] = lambda done: None


@dataclass(frozen=True)
class LoadedCandidate:
    """A candidate with its runner; `runner` None is prompt lookup."""

    candidate: Candidate
    runner: Runner | None

    def drafter(self, bench: Bench, k: int) -> Drafter | None:
        """A fresh drafter, with no cache of any request; none for the baseline, k = 0."""
        if k == 0:
            return None
        if self.runner is None:
            return LookupDrafter(*bench.lookup, bench.target.device)
        return ModelDrafter(self.runner, bench.mode, bench.target.vocab_size)
