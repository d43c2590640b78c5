"""Timed passes → seconds of any pass, and of the rounds that a draft needs.

Ratios between models are only taken within a block (one candidate and the target beside it), whose
points were timed in turn. A pass never costs less for more tokens, a longer context or more rows:
medians are made monotone, then interpolated. Outside of what was timed the nearest timed point
answers, and `covers` says so.

One row takes, over its rounds,

    Σ [first draft step of 1 token, 2 after a full round + (k'-1) · d(1) + t(k'+1)]

and b rows, which go through a round together,

    rounds · [P(some k' ≥ 1) · d(w) + Σ_{j=2..k} P(some k' ≥ j) · d(1) + t(1 + E k')]

Their tokens stand ragged side by side, so that the linear layers, which are most of a pass, see the
mean width over rows: of the verify pass 1 + E k', of the first draft pass w = 1 + P(the row's round
before was full). There are as many draft passes as the row that drafts most needs,
P(some k' ≥ j) = 1 - P(k' < j)^b with rows independent of each other. Seconds are those that a
response waits for its rounds, not its share of them. Prompt lookup looks in every round, found or
not. Prefills of other rows between two rounds are not modelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from draftbench.acceptance.intervals import Estimate
from draftbench.acceptance.rounds import Floats, Ints, Rounds
from draftbench.records import SELF, Candidate, CostPoint, Trajectory
from draftbench.run_folder.run import Run

_DRAWS = 400


@dataclass(frozen=True, eq=False)
class Surface:
    """Seconds of one model's passes over `sizes` new tokens a row on `contexts` cached ones.

    `samples` [sizes, contexts, repeats] as timed, `seconds` [..., sizes, contexts] made monotone.
    """

    sizes: Ints
    contexts: Ints
    samples: Floats
    seconds: Floats

    @classmethod
    def of(cls, sizes: Ints, contexts: Ints, samples: Floats) -> Surface:
        """The surface through the medians of `samples` [sizes, contexts, repeats]."""
        return cls(sizes, contexts, samples, _monotone(np.median(samples, axis=-1)))

    def at(self, size: npt.ArrayLike, context: npt.ArrayLike) -> Floats:
        """Seconds by linear interpolation, at fractional sizes too; the arguments broadcast."""
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

    def raised(self, fewer_rows: Surface) -> Surface:
        """This surface, nowhere under that of a smaller batch, as far as the smaller was timed."""
        sizes, contexts = self.sizes[:, None], self.contexts[None, :]
        floor = np.where(
            fewer_rows.covers(sizes, contexts), fewer_rows.at(sizes, contexts), -np.inf
        )
        seconds = np.maximum(self.seconds, floor)
        shift = (seconds - self.seconds)[..., None]
        return Surface(self.sizes, self.contexts, self.samples + shift, seconds)

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


def between(fewer: Surface, more: Surface, share: float) -> Surface | None:
    """The surface at a batch size between two timed ones, linear in the batch.

    Args:
        share: how far the batch lies from the smaller to the larger one, 0 … 1.

    Returns:
        On the sizes and contexts that both cover; None where there are none.
    """
    sizes = _common(fewer.sizes, more.sizes)
    contexts = _common(fewer.contexts, more.contexts)
    if not (len(sizes) and len(contexts)):
        return None
    draft_lengths = sizes[:, None], contexts[None, :]
    seconds = (1 - share) * fewer.at(*draft_lengths) + share * more.at(*draft_lengths)
    repeats = min(fewer.samples.shape[-1], more.samples.shape[-1])
    each = [_repeats(surface).at(*draft_lengths)[:repeats] for surface in (fewer, more)]
    samples = np.moveaxis((1 - share) * each[0] + share * each[1], 0, -1)
    return Surface(sizes, contexts, samples, seconds)


def _repeats(surface: Surface) -> Surface:
    """`seconds` [repeats, sizes, contexts] as timed."""
    seconds = np.moveaxis(surface.samples, -1, 0)
    return Surface(surface.sizes, surface.contexts, surface.samples, seconds)


def _common(one: Ints, other: Ints) -> Ints:
    """The points of both axes that lie on both."""
    points = np.union1d(one, other)
    inside: Ints = points[_inside(one, points) & _inside(other, points)]
    return inside


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


def _between(axis: Ints, wanted: npt.NDArray[np.generic]) -> tuple[Ints, Ints, Floats]:
    """The draft_lengths points around each wanted one and how far it is from the lower."""
    # Not np.clip, which costs more than the rest of it on arrays as short as these.
    clamped = np.minimum(np.maximum(wanted.astype(np.float64), axis[0]), axis[-1])
    last = len(axis) - 1
    high = np.minimum(np.maximum(np.searchsorted(axis, clamped), min(1, last)), last)
    low = np.maximum(high - 1, 0)
    share: Floats = (clamped - axis[low]) / np.maximum(axis[high] - axis[low], 1)
    return low, high, share


def _inside(axis: Ints, wanted: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    asked = np.asarray(wanted)
    inside: npt.NDArray[np.bool_] = (axis[0] <= asked) & (asked <= axis[-1])
    return inside


@dataclass(frozen=True, eq=False)
class BlockCosts:
    """What one candidate and the target beside it take; None where it was not timed.

    Seconds are those of all rows of the batch together. Exactly one of `draft` (passes of a draft
    model) and `proposal` (prompt lookup: one cost per round, whatever k) is set.
    """

    target: Surface
    draft: Surface | None
    proposal: Surface | None
    prefill: Surface | None
    draft_prefill: Surface | None

    @cached_property
    def redrawn(self) -> BlockCosts:
        """The steps with their repeats drawn anew, every surface by the same draws."""
        return replace(
            self,
            target=self.target.redrawn,
            draft=self.draft and self.draft.redrawn,
            proposal=self.proposal and self.proposal.redrawn,
        )

    def draft_cost_ratio(self, context: float) -> Estimate:
        """c: one draft step (prompt lookup: one whole proposal) over one target step."""
        top = self.draft or self.proposal
        assert top is not None
        return _ratio(top, self.target, (1, 1), context)

    def verify_ratio(self, tokens: int, context: float) -> Estimate:
        """v(n): a target pass over `tokens` over one of a single token."""
        return _ratio(self.target, self.target, (tokens, 1), context)


def block_costs(run: Run, candidate: Candidate, batch: int = 1) -> BlockCosts | None:
    """The costs of a candidate's block at a batch size that was timed; None where unknown.

    Unknown are a quantization level without a real kernel, the target's too, and steps that nobody
    timed. More rows never cost less than fewer.
    """
    known = (run.facts_of(candidate), run.facts_of(None))
    if any(facts is not None and not facts.has_kernel for facts in known):
        return None
    block = str(candidate)
    points = [p for p in run.costs if p.block == block]
    own = None if candidate.draft == SELF else candidate
    target, draft = _rising(points, None, batch), _rising(points, own, batch)
    proposal = _proposal(points, own, batch)
    if target is None or (draft is None and proposal is None):
        return None
    alone = [point for point in points if point.batch == 1]
    return BlockCosts(
        target=target,
        draft=draft,
        proposal=proposal,
        prefill=_surface(alone, None, "prefill"),
        draft_prefill=_surface(alone, own, "prefill"),
    )


def timed_batches(run: Run, candidate: Candidate) -> tuple[int, ...]:
    """The batch sizes at which any pass of a candidate's block was timed, ascending."""
    block = str(candidate)
    return tuple(sorted({p.batch for p in run.costs if p.block == block}))


def blend(fewer: BlockCosts, more: BlockCosts, share: float) -> BlockCosts | None:
    """Costs at a batch size between two timed ones, linear in the batch; prefill as it is.

    Args:
        share: how far the batch lies from the smaller to the larger one, 0 … 1.
    """

    def mixed(one: Surface | None, other: Surface | None) -> Surface | None:
        return between(one, other, share) if one and other else None

    target = mixed(fewer.target, more.target)
    draft, proposal = mixed(fewer.draft, more.draft), mixed(fewer.proposal, more.proposal)
    if target is None or (draft is None and proposal is None):
        return None
    return replace(fewer, target=target, draft=draft, proposal=proposal)


def _rising(points: Sequence[CostPoint], draft: Candidate | None, batch: int) -> Surface | None:
    """The steps at one batch size, raised over those of all smaller ones."""
    steps = [p for p in points if (p.candidate, p.what) == (draft, "step") and p.batch <= batch]
    found: Surface | None = None
    for size in sorted({p.batch for p in steps} | {batch}):
        surface = _surface([p for p in steps if p.batch == size], draft, "step")
        if surface is not None and found is not None:
            surface = surface.raised(found)
        found = surface if size == batch else surface or found
    return found


def _proposal(points: Sequence[CostPoint], draft: Candidate | None, batch: int) -> Surface | None:
    """Prompt lookup for all rows: the host looks them up one after the other."""
    timed = _surface([p for p in points if p.batch == batch], draft, "proposal")
    if timed is not None or batch == 1:
        return timed
    one = _surface([p for p in points if p.batch == 1], draft, "proposal")
    return one and Surface.of(one.sizes, one.contexts, one.samples * batch)


def _surface(points: Sequence[CostPoint], draft: Candidate | None, what: str) -> Surface | None:
    """All timed samples by size and context; a context that lacks a size is left out."""
    pooled: dict[tuple[int, int], list[float]] = {}
    for point in points:
        if (point.candidate, point.what) == (draft, what):
            pooled.setdefault((point.new_tokens, point.context), []).extend(point.seconds)
    sizes = sorted({size for size, _ in pooled})
    contexts = sorted({context for _, context in pooled})
    whole = [c for c in contexts if all((size, c) in pooled for size in sizes)]
    if not whole:
        return None
    repeats = min(len(pooled[size, c]) for size in sizes for c in whole)
    samples = np.array([[pooled[size, c][:repeats] for c in whole] for size in sizes])
    return Surface.of(np.array(sizes), np.array(whole), samples)


def _ratio(top: Surface, bottom: Surface, sizes: tuple[int, int], context: float) -> Estimate:
    """A ratio of medians with its 95 % interval over timing repeats."""
    value = top.at(sizes[0], context) / bottom.at(sizes[1], context)
    draws = top.redrawn.at(sizes[0], context) / bottom.redrawn.at(sizes[1], context)
    low, high = np.quantile(draws, (0.025, 0.975))
    return Estimate(float(value), float(low), float(high))


def context_of(trajectory: Trajectory) -> float:
    """Tokens in the cache half-way through the response."""
    return trajectory.prompt_tokens + trajectory.output_tokens / 2


def plain_seconds(costs: BlockCosts, rounds: Floats, context: Floats) -> Floats:
    """Seconds of `rounds` target steps per response [responses], each at its own context."""
    seconds: Floats = rounds * costs.target.at(1, context)
    return seconds


def pass_seconds(
    costs: BlockCosts,
    rounds: Rounds,
    context: Floats,
    batch: int = 1,
    weights: Floats | None = None,
) -> Floats:
    """Seconds of every response's draft steps and target passes [responses].

    Args:
        costs: at this batch size.
        context: cached tokens of every response [responses].
        weights: how often each response occurs in the traffic that the other rows hold
            [responses]; all alike without.
    """
    if batch == 1:
        verify = costs.target.at(np.arange(1, rounds.k + 2), context[:, None])
        alone: Floats = (rounds.by_draft_length * verify).sum(axis=-1)
        return alone + _drafting_alone(costs, rounds, context)
    mass = np.ones(len(context)) if weights is None else weights
    together: Floats = rounds.by_draft_length.sum(axis=1) * _lockstep(
        costs, rounds, context, batch, mass
    )
    return together


def _drafting_alone(costs: BlockCosts, rounds: Rounds, context: Floats) -> Floats:
    """Seconds of drafting per response."""
    if costs.proposal is not None:
        looked = rounds.by_draft_length.sum(axis=1)
        seconds: Floats = looked * costs.proposal.at(1, context)
        return seconds
    assert costs.draft is not None
    one, two = costs.draft.at(1, context), costs.draft.at(2, context)
    seconds = rounds.proposed * one + rounds.after_full[:, 1:].sum(axis=1) * (two - one)
    return seconds


def _lockstep(
    costs: BlockCosts, rounds: Rounds, context: Floats, batch: int, weights: Floats
) -> Floats:
    """Seconds of one round of `batch` rows at each response's context."""
    lengths = weights @ rounds.by_draft_length
    total = lengths.sum()
    if total == 0:
        return np.zeros(len(context))
    shares = lengths / total
    verify: Floats = costs.target.at(1 + shares @ np.arange(rounds.k + 1), context)
    if costs.proposal is not None:
        return verify + costs.proposal.at(1, context)
    assert costs.draft is not None
    after_full = (weights @ rounds.after_full[:, 1:]).sum() / total
    happens = 1 - np.cumsum(shares)[:-1] ** batch
    first = costs.draft.at(1 + after_full, context)
    return verify + happens[0] * first + happens[1:].sum() * costs.draft.at(1, context)
