"""What rounds would be if drafting stopped where the draft is unsure, which no sweep decodes with.

The rule looks at the draft's confidence, max q at temperature 1, before a token is drawn; by the
probability of the drawn token, sampling would not be lossless. Where the confidence is below the
threshold, drafting ends and the unsure token is not proposed. Some engines propose it first, or
take the probability of the drawn token, and so differ.

Rounds are exact: a round reaches a position only along the response, where the confidence was
stored. Draft steps are a lower bound and accepted / drafted is an upper one, because replay does
not see what is drafted after a wrong token. Whether a rule saves time takes a decoding run.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.definitions import (
    ACCEPTED_PER_DRAFTED,
    ByRequest,
    Figure,
    Sample,
    accepted_per_drafted,
    ratio,
    tokens_per_round,
)
from draftbench.acceptance.intervals import Estimate, estimates
from draftbench.acceptance.rounds import (
    ModelPairs,
    Pairs,
    PositionLaw,
    expected_rounds,
    model_pairs,
    tried_probabilities,
)

# 0.4 and 0.75 are thresholds that transformers and llama.cpp have had as defaults.
THRESHOLDS = (0.2, 0.4, 0.6, 0.75, 0.9)
DRAFT_STEPS = Figure(
    name="draft steps per round",
    symbol="steps/R",
    formula="passes of the draft that propose / target passes after the prefill",
)


class Stopping(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: k tokens a round, fewer where the draft's confidence falls below `threshold` (None:
    always k).

    With a threshold, `draft_steps_per_round` is at least and `accepted_per_drafted` at most what a
    run would show; without one both are exact.
    """

    k: int
    threshold: float | None
    tokens_per_round: Estimate | None
    draft_steps_per_round: Estimate | None
    accepted_per_drafted: Estimate | None


def stopping_rules(
    pairs: Pairs, k: int, thresholds: Sequence[float] = THRESHOLDS
) -> tuple[Stopping, ...]:
    """Fixed k, then every threshold; empty for prompt lookup and for replays by an engine, which
    have no confidences.
    """
    model = model_pairs(pairs)
    if not model or any(replay.accept and not replay.confidence for _, replay in model):
        return ()
    along = CandidateRounds.of(model)
    trajectories, rounds = along.trajectories, along.at(k)
    fixed = (
        tokens_per_round(trajectories, rounds),
        ratio(DRAFT_STEPS, trajectories, rounds.proposed, rounds.target_passes),
        accepted_per_drafted(trajectories, rounds),
    )
    rules = {None: fixed} | {limit: stopped(model, k, limit) for limit in thresholds}
    intervals = estimates([sample for samples in rules.values() for sample in samples])
    return tuple(
        Stopping(
            k=k,
            threshold=threshold,
            tokens_per_round=tokens,
            draft_steps_per_round=steps,
            accepted_per_drafted=accepted,
        )
        for threshold, tokens, steps, accepted in zip(
            rules, intervals[::3], intervals[1::3], intervals[2::3], strict=True
        )
    )


def stopped(pairs: ModelPairs, k: int, threshold: float) -> tuple[Sample, Sample, Sample]:
    """Tokens per round (exact), draft steps per round (a lower bound) and accepted / drafted (an
    upper bound) where drafting ends before the first token with a confidence under `threshold`.
    """
    sure = [np.asarray(replay.confidence) >= threshold for _, replay in pairs]
    # An unsure token ends its round just as a rejected one does.
    laws = [
        PositionLaw(t.output_tokens, t.limit, np.asarray(r.accept) * is_sure, r.draftable)
        for (t, r), is_sure in zip(pairs, sure, strict=True)
    ]
    rounds, tried = expected_rounds(laws, k), tried_probabilities(laws, k)
    steps = np.array([p.sum() for p in tried])
    drafted = np.array([p @ is_sure[: len(p)] for p, is_sure in zip(tried, sure, strict=True)])
    trajectories = ByRequest(trajectory for trajectory, _ in pairs)
    return (
        tokens_per_round(trajectories, rounds),
        ratio(DRAFT_STEPS, trajectories, steps, rounds.target_passes),
        ratio(ACCEPTED_PER_DRAFTED, trajectories, rounds.accepted, drafted),
    )
