"""Cost points of one block → what passes take at one batch size, in seconds.

Ratios between models are only taken within a block, whose points were timed in turn. Steps are
timed at several batch sizes, prompts one at a time, so the prefill is the same at every batch.
Between two timed batch sizes costs are interpolated (`blend`), beyond them they are unknown.

Does not know acceptance, and never reads the runs of the cell that is predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.surface import Surface, between
from draftbench.records import SELF, Candidate, CostPoint
from draftbench.run_folder.run import Run


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


def block_costs(observed: Run, candidate: Candidate, batch: int = 1) -> BlockCosts | None:
    """The costs of a candidate's block at a batch size that was timed; None where unknown.

    Unknown are a quantization level without a real kernel, the target's too, and steps that nobody
    timed. More rows never cost less than fewer.
    """
    known = (observed.facts_of(candidate), observed.facts_of(None))
    if any(facts is not None and not facts.has_kernel for facts in known):
        return None
    points = [p for p in observed.costs if p.block == str(candidate)]
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


def timed_batches(observed: Run, candidate: Candidate) -> tuple[int, ...]:
    """The batch sizes at which any pass of a candidate's block was timed, ascending."""
    return tuple(sorted({p.batch for p in observed.costs if p.block == str(candidate)}))


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
