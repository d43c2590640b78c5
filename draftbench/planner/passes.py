"""Rounds × costs → seconds of draft steps and target passes.

    one row   Σ rounds [first draft step of 1 token, 2 after a full round + (k'-1) · d(1) + t(k'+1)]
    b rows    rounds · [P(some k' ≥ 1) · d(w) + Σ_{j=2..k} P(some k' ≥ j) · d(1) + t(1 + E k')]

b rows go through a round together. Their tokens stand ragged side by side, so that the linear
layers, which are most of a pass, see the mean width over rows: of the verify pass 1 + E k', of the
first draft pass w = 1 + P(the row's round before was full). There are as many draft passes as the
row that drafts most needs, P(some k' ≥ j) = 1 - P(k' < j)^b with rows independent of each other.
Seconds are those that a response waits for its rounds, not its share of them.

Prompt lookup looks in every round, found or not. What other rows' prompts take between two rounds
is not modelled.
"""

from __future__ import annotations

import numpy as np

from draftbench.acceptance.rounds import Floats, Rounds
from draftbench.planner.costs import BlockCosts
from draftbench.records import Trajectory


def context_of(trajectory: Trajectory) -> float:
    """Tokens in the cache half-way through the response."""
    return trajectory.prompt_tokens + trajectory.output_tokens / 2


def plain_seconds(costs: BlockCosts, rounds: Floats, context: Floats) -> Floats:
    """Seconds of `rounds` plain steps per response [responses], each at its own context."""
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
