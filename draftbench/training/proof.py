"""The proof: the original and the trained draft on requests that the training never looked at."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import Estimate, estimate, paired_difference, paired_ratio
from draftbench.measure.trajectories import ScoredResponse
from draftbench.training.outcome import Compared, Proof, Reached
from draftbench.training.plan import Plan


def prove(plan: Plan, trained: Path, responses: Sequence[ScoredResponse]) -> Proof:
    """Compare both along some responses."""
    original, better = (plan.replayer.along(each, responses) for each in (plan.draft.spec, trained))
    speeds, ks = plan.speeds, plan.replayer.ks
    after, faster, k = None, None, max(ks)
    if speeds is not None:
        ratios = {
            at: _known(paired_ratio(better.tokens_per_round(at), original.tokens_per_round(at)))
            for at in speeds.by_k
        }
        k, speedup = speeds.with_tokens(ratios)
        after, faster = Reached(k, speedup), speeds.change(k, ratios[k])
    return Proof(
        requests=len(original.rate.requests),
        rate=_compared(original.rate, better.rate),
        k=k,
        tokens_per_round=_compared(original.tokens_per_round(k), better.tokens_per_round(k)),
        before=Reached(*speeds.now) if speeds else None,
        after=after,
        faster=faster,
    )


def _compared(original: Sample, trained: Sample) -> Compared:
    every = original, trained, paired_difference(trained, original)
    return Compared(*map(_known, every))


def _known(sample: Sample) -> Estimate:
    """The figure with its interval; without width where all requests agree."""
    found = estimate(sample)
    if found is not None:
        return found
    value = sample.value or 0.0
    return Estimate(value, value, value)
