"""Rounds of drafting that stops when the draft is unsure, a rule that the run did not use.

The rule looks at the draft's confidence, max q at temperature 1, before anything is drawn; by the
probability of the drawn token sampling would not be lossless. Below the threshold drafting
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
    PositionLaw,
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
    """Fixed k, then every threshold; empty without confidences: for prompt lookup, and where an
    engine replayed.
    """
    model = model_pairs(pairs)
    if not model or any(replay.accept and not replay.confidence for _, replay in model):
        return ()
    trajectories = [trajectory for trajectory, _ in model]
    rounds = expected_rounds([law_of(*pair) for pair in model], k)
    fixed = (
        tokens_per_round(trajectories, rounds),
        ratio(DRAFT_STEPS, trajectories, rounds.proposed, rounds.rounds + rounds.plain),
        accepted_per_drafted(trajectories, rounds),
    )
    rules = [
        (None, fixed),
        *((threshold, stopped(model, k, threshold)) for threshold in thresholds),
    ]
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
    sure = [np.array(replay.confidence) >= threshold for _, replay in pairs]
    # An unsure token ends its round just as a rejected one does.
    laws = [
        PositionLaw(t.output_tokens, t.limit, np.array(r.accept) * certain, r.draftable)
        for (t, r), certain in zip(pairs, sure, strict=True)
    ]
    rounds, reached = expected_rounds(laws, k), tried(laws, k)
    steps = np.array([each.sum() for each in reached])
    drafted = np.array([each @ s[: len(each)] for each, s in zip(reached, sure, strict=True)])
    trajectories = [trajectory for trajectory, _ in pairs]
    return (
        tokens_per_round(trajectories, rounds),
        ratio(DRAFT_STEPS, trajectories, steps, rounds.rounds + rounds.plain),
        ratio(ACCEPTED_PER_DRAFTED, trajectories, rounds.accepted, drafted),
    )
