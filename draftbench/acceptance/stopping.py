"""Replays → rounds of rules that a run did not use: drafting that stops when the draft is unsure,
and a draft length per temperature.

A rule looks at the draft's confidence, max q at temperature 1, before anything is drawn: a rule
that looked at the drawn token's own probability would not be lossless. Below the threshold drafting
ends and the unsure token is not proposed (engines that propose it first, or that take the drawn
token's probability, differ).

Rounds are exact: a round only gets to a position with the response before it, where the confidence
is known. Draft steps are a lower bound and accepted / drafted is an upper one, because what is
drafted after a wrong token is not seen. No gain follows from either; that takes a decoding run at
the threshold.
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
from draftbench.acceptance.laws import AnyReplay, law_of
from draftbench.acceptance.rounds import Floats, expected_rounds
from draftbench.acceptance.tried import drafted_positions, tried
from draftbench.records import Replay, Trajectory

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


class TemperatureRounds(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one temperature at one fixed k."""

    temperature: float
    k: int
    requests: int
    tokens_per_round: Estimate | None
    draft_steps_per_round: Estimate | None


def stopping_rules(
    pairs: Sequence[tuple[Trajectory, AnyReplay]],
    k: int,
    thresholds: Sequence[float] = THRESHOLDS,
) -> tuple[Stopping, ...]:
    """Fixed k, then every threshold; empty for prompt lookup, which has no confidence."""
    model = _model_pairs(pairs)
    return tuple(
        Stopping(
            k=k,
            threshold=threshold,
            tokens_per_round=estimate(tokens),
            draft_steps_per_round=estimate(steps),
            accepted_per_drafted=estimate(accepted),
        )
        for threshold in (None, *thresholds)
        if model
        for tokens, steps, accepted in [
            _fixed(model, k) if threshold is None else stopped(model, k, threshold)
        ]
    )


def by_temperature(
    pairs: Sequence[tuple[Trajectory, AnyReplay]], ks: Sequence[int]
) -> tuple[TemperatureRounds, ...]:
    """Every fixed k on the requests of each temperature; which is best depends on costs.

    Empty where all have the same, and for prompt lookup, which takes no draft steps.
    """
    model = _model_pairs(pairs)
    temperatures = sorted({trajectory.sampling.temperature for trajectory, _ in model})
    found = []
    for temperature in temperatures if len(temperatures) > 1 else ():
        own = [(t, r) for t, r in model if t.sampling.temperature == temperature]
        for k in ks:
            tokens, steps, _ = _fixed(own, k)
            found.append(
                TemperatureRounds(
                    temperature=temperature,
                    k=k,
                    requests=len(tokens.requests),
                    tokens_per_round=estimate(tokens),
                    draft_steps_per_round=estimate(steps),
                )
            )
    return tuple(found)


def stopped(
    pairs: Sequence[tuple[Trajectory, Replay]], k: int, threshold: float
) -> tuple[Sample, Sample, Sample]:
    """Tokens per round (exact), draft steps per round (at least), accepted / drafted (at most) of
    drafting that ends before the first token with a confidence under `threshold`.
    """
    counts = [_Counts(trajectory, replay, threshold) for trajectory, replay in pairs]
    reached = tried([count.accept for count in counts], k)
    rows = [count.row(r) for count, r in zip(counts, reached, strict=True)]
    tokens, rounds, steps, drafted, accepted = np.array(rows).T
    trajectories = [trajectory for trajectory, _ in pairs]
    return (
        ratio(TOKENS_PER_ROUND, trajectories, tokens, rounds),
        ratio(DRAFT_STEPS, trajectories, steps, rounds),
        ratio(ACCEPTED_PER_DRAFTED, trajectories, accepted, drafted),
    )


class _Counts:
    """One response under the rule: an unsure token ends its round just as a rejected one does."""

    def __init__(self, trajectory: Trajectory, replay: Replay, threshold: float) -> None:
        last = drafted_positions(trajectory, replay)
        self.sure = np.array(replay.confidence[:last]) >= threshold
        self.accept: Floats = np.array(replay.accept[:last]) * self.sure
        self.tokens = max(trajectory.output_tokens - 1, 0)

    def row(self, reached: Floats) -> tuple[float, float, float, float, float]:
        """Tokens, rounds, draft steps (the unsure token's included), drafted, accepted."""
        accepted = self.accept * reached
        # Behind an accepted token no round starts, nor behind the response's last.
        rounds = self.tokens - float(accepted[: max(self.tokens - 1, 0)].sum())
        drafted = float((self.sure * reached).sum())
        return self.tokens, rounds, float(reached.sum()), drafted, float(accepted.sum())


def _fixed(pairs: Sequence[tuple[Trajectory, Replay]], k: int) -> tuple[Sample, Sample, Sample]:
    trajectories = [trajectory for trajectory, _ in pairs]
    rounds = expected_rounds([law_of(t, r) for t, r in pairs], k)
    return (
        tokens_per_round(trajectories, rounds),
        ratio(DRAFT_STEPS, trajectories, rounds.proposed, rounds.rounds + rounds.plain),
        accepted_per_drafted(trajectories, rounds),
    )


def _model_pairs(
    pairs: Sequence[tuple[Trajectory, AnyReplay]],
) -> list[tuple[Trajectory, Replay]]:
    return [(trajectory, r) for trajectory, r in pairs if isinstance(r, Replay)]
