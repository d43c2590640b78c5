"""Rounds of a rule that the run did not use: drafting that stops when the draft is unsure.

The rule looks at the draft's confidence, max q at temperature 1, before anything is drawn: a rule
that looked at the drawn token's probability would not be lossless. Below the threshold drafting
ends and the unsure token is not proposed (some engines propose it first, or take the probability of
the drawn token, and so differ).

Rounds are exact: a round only gets to a position with the response before it, where the confidence
is known. Draft steps are a lower bound and accepted / drafted is an upper one, because what is
drafted after a wrong token is unknown. Whether a rule gains time takes a decoding run to tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from draftbench.acceptance.definitions import (
    ACCEPTED_PER_DRAFTED,
    TOKENS_PER_ROUND,
    Figure,
    Sample,
    accepted_per_drafted,
    ratio,
    tokens_per_round,
)
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.acceptance.rounds import (
    ModelPairs,
    Pairs,
    drafted_positions,
    expected_rounds,
    law_of,
    model_pairs,
    tried,
)

# 0.4 and 0.75 are thresholds that transformers and llama.cpp have had as defaults.
THRESHOLDS = (0.2, 0.4, 0.6, 0.75, 0.9)
DRAFT_STEPS = Figure(
    name="draft steps per round",
    symbol="steps/R",
    formula="passes of the draft that propose / target passes after the prefill",
)


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: at most k tokens, fewer where the confidence falls under `threshold`.

    With a threshold, `draft_steps_per_round` is at least and `accepted_per_drafted` at most what a
    run would show; without one (None: fixed k) both are exact.
    """

    k: int
    threshold: float | None
    tokens_per_round: Estimate | None
    draft_steps_per_round: Estimate | None
    accepted_per_drafted: Estimate | None


def stopping_rules(
    pairs: Pairs, k: int, thresholds: Sequence[float] = THRESHOLDS
) -> tuple[Stopping, ...]:
    """Fixed k, then every threshold; empty for prompt lookup, which has no confidence."""
    model = model_pairs(pairs)
    if not model:
        return ()
    rules = [(None, _fixed(model, k)), *((t, stopped(model, k, t)) for t in thresholds)]
    return tuple(
        Stopping(
            k=k,
            threshold=threshold,
            tokens_per_round=estimate(tokens),
            draft_steps_per_round=estimate(steps),
            accepted_per_drafted=estimate(accepted),
        )
        for threshold, (tokens, steps, accepted) in rules
    )


def stopped(pairs: ModelPairs, k: int, threshold: float) -> tuple[Sample, Sample, Sample]:
    """Tokens per round (exact), draft steps per round (at least), accepted / drafted (at most) of
    drafting that ends before the first token with a confidence under `threshold`.
    """
    sure, accept = [], []
    for trajectory, replay in pairs:
        last = drafted_positions(trajectory, replay)
        sure.append(np.array(replay.confidence[:last]) >= threshold)
        # An unsure token ends its round just as a rejected one does.
        accept.append(np.array(replay.accept[:last]) * sure[-1])
    rows = []
    for at, reached in enumerate(tried(accept, k)):
        tokens = max(pairs[at][0].output_tokens - 1, 0)
        accepted = accept[at] * reached
        # After an accepted token no round starts, nor after the response's last.
        rounds = tokens - float(accepted[: max(tokens - 1, 0)].sum())
        drafted = float((sure[at] * reached).sum())
        rows.append((tokens, rounds, float(reached.sum()), drafted, float(accepted.sum())))
    columns = np.array(rows, np.float64).T
    trajectories = [trajectory for trajectory, _ in pairs]
    return (
        ratio(TOKENS_PER_ROUND, trajectories, columns[0], columns[1]),
        ratio(DRAFT_STEPS, trajectories, columns[2], columns[1]),
        ratio(ACCEPTED_PER_DRAFTED, trajectories, columns[4], columns[3]),
    )


def _fixed(pairs: ModelPairs, k: int) -> tuple[Sample, Sample, Sample]:
    trajectories = [trajectory for trajectory, _ in pairs]
    rounds = expected_rounds([law_of(t, r) for t, r in pairs], k)
    return (
        tokens_per_round(trajectories, rounds),
        ratio(DRAFT_STEPS, trajectories, rounds.proposed, rounds.rounds + rounds.plain),
        accepted_per_drafted(trajectories, rounds),
    )
