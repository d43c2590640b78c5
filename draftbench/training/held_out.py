"""A draft on requests that it was not trained on: its acceptance, how fast that makes it, and the
proof, which compares the original and the trained draft.

Rounds at one k take the same time however much of them is accepted, so the measured speed-up grows
with their tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.definitions import Sample, accepted_per_drafted, alpha, tokens_per_round
from draftbench.acceptance.intervals import (
    Estimate,
    estimate,
    generator_of,
    paired_difference,
    paired_ratio,
    quantiles,
)
from draftbench.acceptance.rounds import Floats, Pairs, alpha_of
from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF, Candidate
from draftbench.training.outcome import Compared, Proof, Reached

_REACH = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Acceptance:
    """A draft along some responses."""

    pairs: Pairs
    seconds: float  # that it took to read them, its weights being loaded

    @cached_property
    def _rounds(self) -> CandidateRounds:
        return CandidateRounds.of(self.pairs)

    @cached_property
    def rate(self) -> Sample:
        """α; for a head, whose acceptance depends on where a round starts, the acceptance of the
        first token that it drafts.
        """
        by_position = alpha(self.pairs)
        if by_position is not None:
            return by_position
        return accepted_per_drafted(self._rounds.trajectories, self._rounds.at(1))

    def tokens_per_round(self, k: int) -> Sample:
        """What speed depends on."""
        return tokens_per_round(self._rounds.trajectories, self._rounds.at(k))


@dataclass(frozen=True)
class Speeds:
    """The speed-ups of a draft in a run by k, and of the fastest configuration of the run."""

    by_k: dict[int, Estimate]
    fastest: Estimate  # exactly 1 if that is plain decoding

    @classmethod
    def of(cls, answer: Recommendation, candidate: Candidate) -> Speeds | None:
        """The speed-ups that a run expects; None if it did not time the draft."""
        by_configuration = {
            each.configuration: each.speedup_expected
            for each in answer.evaluations
            if each.speedup_expected is not None and each.draft != SELF
        }
        by_k = {
            own.k: speed
            for own, speed in by_configuration.items()
            if own.candidate == candidate and own.stop is None
        }
        if not by_k:
            return None
        plain = Estimate(1.0, 1.0, 1.0)
        return cls(by_k, max(plain, *by_configuration.values(), key=lambda speed: speed.value))

    @property
    def now(self) -> Reached:
        """The draft's speed-up in the run."""
        return _fastest(self.by_k)

    def at(self, before: Acceptance, draws: Floats) -> tuple[Reached, Estimate]:
        """The speed-up at the fastest k, with draws of the rate after training, and how many times
        that of the run's fastest configuration it is. Between the rate `before` and 1, tokens per
        round grow as if all positions were alike.
        """
        rate = before.rate.value or 0.0
        more = (draws - rate) / (1 - rate) if rate < 1 else np.zeros_like(draws)
        speeds: dict[int, Floats] = {}
        for k, speed in self.by_k.items():
            tokens = before.tokens_per_round(k).value or 1.0
            alike = alpha_of(tokens, k)
            reached = np.clip(alike + more * (1 - alike), 0.0, 1.0)
            speeds[k] = speed.value / tokens * np.sum([reached**i for i in range(k + 1)], axis=0)
        best = max(speeds, key=lambda k: float(np.median(speeds[k])))
        noise = generator_of("speed").standard_normal(len(draws))

        def timed(values: Floats, *timings: Estimate) -> Estimate:
            error = math.hypot(*map(_log_error, timings))
            low, high = quantiles(values * np.exp(error * noise), (0.025, 0.975))
            return Estimate(float(np.median(values)), low, high)

        here, fastest = self.by_k[best], self.fastest
        over = timed(speeds[best] / fastest.value, *(() if here == fastest else (here, fastest)))
        return Reached(best, timed(speeds[best], here)), over

    def with_tokens(self, ratios: dict[int, Estimate]) -> Reached:
        """The speed-up at the fastest k, if rounds yield `ratios` times as many tokens."""
        return _fastest({k: _product(speed, ratios[k]) for k, speed in self.by_k.items()})

    def over(self, other: Estimate, k: int, ratio: Estimate) -> Estimate:
        """The speed-up at a k whose rounds yield `ratio` times as many tokens, over another one of
        the run. If that is the draft's at the same k, the timings cancel, and only the uncertainty
        of the tokens is left.
        """
        if other == self.by_k[k]:
            return ratio
        inverse = Estimate(1 / other.value, 1 / other.high, 1 / other.low)
        return _product(_product(self.by_k[k], inverse), ratio)


def _fastest(by_k: dict[int, Estimate]) -> Reached:
    return Reached(*max(by_k.items(), key=lambda item: item[1].value))


def _log_error(estimate: Estimate) -> float:
    """The standard error of a figure's logarithm, from its interval."""
    return math.log(estimate.high / estimate.low) / (2 * _REACH)


def _product(one: Estimate, other: Estimate) -> Estimate:
    """The product of two figures with independent errors."""
    value, spread = one.value * other.value, math.hypot(_log_error(one), _log_error(other))
    reach = math.exp(_REACH * spread)
    return Estimate(value, value / reach, value * reach)


def prove(
    original: Acceptance, trained: Acceptance, speeds: Speeds | None, ks: Sequence[int]
) -> Proof:
    """Compare both drafts along the same responses."""

    def compared(before: Sample, now: Sample) -> Compared:
        return Compared(*map(_known, (before, now, paired_difference(now, before))))

    after, faster, over_fastest, k = None, None, None, max(ks)
    if speeds is not None:
        ratios = {
            at: _known(paired_ratio(trained.tokens_per_round(at), original.tokens_per_round(at)))
            for at in speeds.by_k
        }
        after = speeds.with_tokens(ratios)
        k = after.k
        faster, over_fastest = (
            speeds.over(other, k, ratios[k]) for other in (speeds.now.speedup, speeds.fastest)
        )
    return Proof(
        requests=len(original.rate.requests),
        rate=compared(original.rate, trained.rate),
        k=k,
        tokens_per_round=compared(original.tokens_per_round(k), trained.tokens_per_round(k)),
        before=speeds.now if speeds else None,
        after=after,
        faster=faster,
        over_fastest=over_fastest,
    )


def _known(sample: Sample) -> Estimate:
    """The figure with its interval, which has no width if all requests agree."""
    found = estimate(sample)
    if found is not None:
        return found
    value = sample.value or 0.0
    return Estimate(value, value, value)
