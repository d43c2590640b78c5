"""Cost points and decoding runs of one block → what a pass and a round take, in seconds.

Ratios between models are only taken within a block, whose points were timed in turn. A pass never
costs less for more tokens or a longer context: the medians are made monotone before they are
interpolated. Outside of what was timed the nearest timed point answers, and `covers` says so.

Does not know acceptance, and never reads the runs of the cell that is predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from draftbench.acceptance.intervals import Estimate
from draftbench.acceptance.rounds import Floats, Ints
from draftbench.records import SELF, Candidate, CostPoint, Decode
from draftbench.store.observed import Observed

_DRAWS = 400


@dataclass(frozen=True, eq=False)
class Surface:
    """Seconds of one model's passes over `sizes` new tokens on `contexts` cached ones.

    `samples` [sizes, contexts, repeats] as timed, `seconds` [..., sizes, contexts] made monotone.
    """

    sizes: Ints
    contexts: Ints
    samples: Floats
    seconds: Floats

    def at(self, size: npt.ArrayLike, context: npt.ArrayLike) -> Floats:
        """Seconds by linear interpolation; the two arguments broadcast."""
        low, high, above = _between(self.sizes, np.asarray(size))
        left, right, beyond = _between(self.contexts, np.asarray(context))
        shorter = (1 - above) * self.seconds[..., low, left] + above * self.seconds[..., high, left]
        longer = (1 - above) * self.seconds[..., low, right] + above * self.seconds[
            ..., high, right
        ]
        seconds: Floats = (1 - beyond) * shorter + beyond * longer
        return seconds

    def covers(self, size: npt.ArrayLike, context: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether a pass lies within what was timed."""
        return _inside(self.sizes, size) & _inside(self.contexts, context)

    @cached_property
    def redrawn(self) -> Surface:
        """The surface with its repeats drawn anew, `seconds` [draws, sizes, contexts].

        Repeats of a block are drawn together: what disturbed one pass disturbed its neighbours.
        """
        repeats = self.samples.shape[-1]
        generator = np.random.Generator(np.random.Philox(key=0))
        drawn = generator.integers(repeats, size=(_DRAWS, repeats))
        seconds = np.moveaxis(np.median(self.samples[..., drawn], axis=-1), -1, 0)
        return Surface(self.sizes, self.contexts, self.samples, _monotone(seconds))


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """What one candidate and the target beside it take; None where it was not timed.

    Exactly one of `draft` (passes of a draft model) and `proposal` (prompt lookup: one cost per
    round, whatever k) is set.
    """

    target: Surface
    draft: Surface | None
    proposal: Surface | None
    prefill: Surface | None
    draft_prefill: Surface | None

    def draft_cost_ratio(self, context: float) -> Estimate:
        """c: one draft step (prompt lookup: one whole proposal) over one target step."""
        top = self.draft or self.proposal
        assert top is not None
        return _ratio(top, self.target, (1, 1), context)

    def verify_ratio(self, tokens: int, context: float) -> Estimate:
        """v(n): a target pass over `tokens` over one of a single token."""
        return _ratio(self.target, self.target, (tokens, 1), context)


def block_costs(observed: Observed, candidate: Candidate) -> BlockCosts | None:
    """The costs of a candidate's block; None where its cost is unknown.

    Unknown are a quantization level without a real kernel, the target's too, and steps that nobody
    timed.
    """
    known = (observed.facts_of(candidate), observed.facts_of(None))
    if any(facts is not None and not facts.has_kernel for facts in known):
        return None
    points = [p for p in observed.costs if p.block == str(candidate) and p.batch == 1]
    own = None if candidate.draft == SELF else candidate.draft
    target = _surface(points, None, "step")
    draft, proposal = _surface(points, own, "step"), _surface(points, own, "proposal")
    if target is None or (draft is None and proposal is None):
        return None
    return BlockCosts(
        target=target,
        draft=draft,
        proposal=proposal,
        prefill=_surface(points, None, "prefill"),
        draft_prefill=_surface(points, own, "prefill"),
    )


def overhead(rows: Sequence[Decode], k: int, passes: Callable[[Decode], float]) -> float | None:
    """Seconds of a round beyond its passes, for cell `k`, from the other cells of its block.

    The baseline (k = 0) has only its own runs to learn from; where nothing but the baseline ran, it
    stands for every cell. None where nothing ran.

    Args:
        passes: what the draft steps and target passes of a run should have taken, in seconds, by
            the timed points; what it took longer is overhead, wherever in the round it was spent.
    """
    baseline = [row for row in rows if row.k == 0]
    others = [row for row in rows if row.k not in (0, k)]
    used = baseline if k == 0 else others or baseline
    rounds = sum(len(row.verify_seconds) for row in used)
    spent = sum(row.decode_seconds - passes(row) for row in used)
    return spent / rounds if rounds else None


def _surface(points: Sequence[CostPoint], draft: str | None, what: str) -> Surface | None:
    """All timed samples by size and context; a context that lacks a size is left out."""
    pooled: dict[tuple[int, int], list[float]] = {}
    for point in points:
        if (point.draft, point.what) == (draft, what):
            pooled.setdefault((point.new_tokens, point.context), []).extend(point.seconds)
    sizes = sorted({size for size, _ in pooled})
    contexts = sorted({context for _, context in pooled})
    whole = [c for c in contexts if all((size, c) in pooled for size in sizes)]
    if not whole:
        return None
    repeats = min(len(pooled[size, c]) for size in sizes for c in whole)
    samples = np.array([[pooled[size, c][:repeats] for c in whole] for size in sizes])
    seconds = _monotone(np.median(samples, axis=-1))
    return Surface(np.array(sizes), np.array(whole), samples, seconds)


def _monotone(seconds: Floats) -> Floats:
    """Least-squares monotone [..., sizes, contexts] along sizes, then along contexts."""
    along_sizes = np.swapaxes(_isotonic(np.swapaxes(seconds, -1, -2)), -1, -2)
    return _isotonic(along_sizes)


def _isotonic(values: Floats) -> Floats:
    """The non-decreasing sequence nearest to each row: max over starts of min over ends of means.

    It keeps the order of two rows, so a second axis does not undo the first (Barlow et al. 1972).
    """
    zero = np.zeros((*values.shape[:-1], 1))
    sums = np.concatenate([zero, np.cumsum(values, axis=-1)], axis=-1)
    start, end = np.ogrid[: values.shape[-1], : values.shape[-1]]
    means = (sums[..., None, 1:] - sums[..., :-1, None]) / np.maximum(end - start + 1, 1)
    means = np.where(end >= start, means, np.inf)
    lowest = np.minimum.accumulate(means[..., ::-1], axis=-1)[..., ::-1]
    nearest: Floats = np.where(end >= start, lowest, -np.inf).max(axis=-2)
    return nearest


def _ratio(top: Surface, bottom: Surface, sizes: tuple[int, int], context: float) -> Estimate:
    """A ratio of medians with its 95 % interval over timing repeats."""
    value = top.at(sizes[0], context) / bottom.at(sizes[1], context)
    draws = top.redrawn.at(sizes[0], context) / bottom.redrawn.at(sizes[1], context)
    low, high = np.quantile(draws, (0.025, 0.975))
    return Estimate(float(value), float(low), float(high))


def _between(axis: Ints, wanted: npt.NDArray[np.generic]) -> tuple[Ints, Ints, Floats]:
    """The grid points around each wanted one and how far it is from the lower."""
    clamped = np.clip(wanted.astype(np.float64), axis[0], axis[-1])
    last = len(axis) - 1
    high = np.clip(np.searchsorted(axis, clamped), min(1, last), last)
    low = np.maximum(high - 1, 0)
    share: Floats = (clamped - axis[low]) / np.maximum(axis[high] - axis[low], 1)
    return low, high, share


def _inside(axis: Ints, wanted: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    asked = np.asarray(wanted)
    inside: npt.NDArray[np.bool_] = (axis[0] <= asked) & (asked <= axis[-1])
    return inside
