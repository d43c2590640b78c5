"""How fast a draft would be if it were accepted more often: rounds at one k take as long whatever
of them is accepted, so that the measured speed-up grows as their tokens do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from draftbench.acceptance.intervals import Estimate, generator_of, quantiles
from draftbench.acceptance.rounds import Floats
from draftbench.planner.formula import alpha_of, expected_tokens
from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF, Candidate
from draftbench.training.held_out import Acceptance

# Rates between which speed-ups are interpolated.
_RATES = np.linspace(0.0, 1.0, 201)
_REACH = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Speeds:
    """The measured speed-ups of a draft by k, and of the fastest configuration of the run."""

    by_k: dict[int, Estimate]
    fastest: float  # at least 1: plain decoding

    @classmethod
    def of(cls, answer: Recommendation, candidate: Candidate) -> Speeds | None:
        """Those of a run; None where it did not time the draft."""
        by_configuration = {
            (each.candidate, each.k): each.speedup_expected
            for each in answer.evaluations
            if each.speedup_expected is not None and each.draft != SELF
        }
        by_k = {k: speed for (of, k), speed in by_configuration.items() if of == candidate}
        if not by_k:
            return None
        return cls(by_k, max(1.0, *(speed.value for speed in by_configuration.values())))

    @property
    def now(self) -> tuple[int, Estimate]:
        """The draft's fastest k as it is."""
        return max(self.by_k.items(), key=lambda item: item[1].value)

    def at(self, before: Acceptance, draws: Floats) -> tuple[int, Estimate]:
        """The fastest k, and its speed-up, if the rate becomes one of some draws; between the rate
        `before` and 1 the tokens of a round grow as if all positions were alike.
        """
        rate = before.rate.value or 0.0
        logs = {}
        for k, speed in self.by_k.items():
            tokens = before.tokens_per_round(k).value or 1.0
            alike = alpha_of(tokens, k)
            more = (_RATES - rate) / (1 - rate) if rate < 1 else np.zeros_like(_RATES)
            reached = np.clip(alike + more * (1 - alike), 0.0, 1.0)
            gained = [expected_tokens(float(each), k) / tokens for each in reached]
            logs[k] = np.log(speed.value) + np.log(gained)
        middle = float(np.median(draws))
        best = max(logs, key=lambda k: float(np.interp(middle, _RATES, logs[k])))
        fastest = np.interp(draws, _RATES, logs[best])
        noise = generator_of("speed").standard_normal(len(draws)) * _log_error(self.by_k[best])
        low, high = quantiles(fastest + noise, (0.025, 0.975))
        value = float(np.interp(middle, _RATES, logs[best]))
        return best, Estimate(*(math.exp(each) for each in (value, low, high)))

    def with_tokens(self, ratios: dict[int, Estimate]) -> tuple[int, Estimate]:
        """The fastest k, and its speed-up, if rounds yield so many times the tokens at each."""
        every = {k: _product(speed, ratios[k]) for k, speed in self.by_k.items()}
        return max(every.items(), key=lambda item: item[1].value)

    def change(self, k: int, ratio: Estimate) -> Estimate:
        """The speed-up at a k whose rounds yield so many times the tokens, over that of now; at the
        k of now both are of the same timings, whose doubt is in neither.
        """
        now, speed = self.now
        if k == now:
            return ratio
        over = Estimate(1 / speed.value, 1 / speed.high, 1 / speed.low)
        return _product(_product(self.by_k[k], over), ratio)


def _log_error(estimate: Estimate) -> float:
    """The standard error of a figure's logarithm, from its interval."""
    return math.log(estimate.high / estimate.low) / (2 * _REACH)


def _product(one: Estimate, other: Estimate) -> Estimate:
    """The product of two figures that err independently."""
    value, spread = one.value * other.value, math.hypot(_log_error(one), _log_error(other))
    reach = math.exp(_REACH * spread)
    return Estimate(value, value / reach, value * reach)
