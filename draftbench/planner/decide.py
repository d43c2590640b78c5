"""The model's draws → the decision at one concurrency: speculate, do not, or inconclusive.

Every figure comes from the same draws of log speed-ups (`effects`): intervals, probability,
expected regret, and what would settle an open answer. The configuration with the least expected
regret leads, or a smaller draft that loses hardly more. The answer is to speculate if the whole
interval of the leader's speed-up lies above the required minimum plus timing noise, and not to if
it lies below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from draftbench.acceptance.intervals import (
    MIN_REQUESTS,
    RESAMPLES,
    Estimate,
    quantiles,
)
from draftbench.acceptance.rounds import Floats
from draftbench.planner.alternatives import Alternative
from draftbench.planner.recommendation import (
    Configuration,
    Decision,
)
from draftbench.records import SELF, Candidate

if TYPE_CHECKING:
    from draftbench.planner.evaluator import Evaluator

# Interleaved runs of one process differ by 1.6 points on their own: closer speeds are a tie.
TIMING_NOISE = 0.02
# A smaller draft or k leads if it is expected to lose at most this much more of the best speed: on
# few requests a larger k is often just lucky.
HARDLY_MORE_LOSS = TIMING_NOISE / 2
# A speed-up may exceed the tokens per round by this factor: noise, and lucky decoded requests.
OVER_TOKENS = 1.25


class DecisionAt:
    """The alternatives at one concurrency, and the decision between them."""

    def __init__(
        self, evaluator: Evaluator, concurrency: int, alternatives: Sequence[Alternative]
    ) -> None:
        self.evaluator, self.concurrency, self.alternatives = evaluator, concurrency, alternatives
        self.by, self.min_speedup = evaluator.by, evaluator.options.min_speedup
        # The limits that alternatives break, in words.
        self.breaks: dict[Configuration, tuple[str, ...]] = {}
        # Those of known speed that keep the limits, by name, without the control and without k's
        # that a running server does not draft.
        self.competing: list[Alternative] = []
        # The log speed-ups of plain decoding, 0, and of every competing one [draws, 1 + competing].
        logs = [np.zeros(RESAMPLES)]
        for each in sorted(alternatives, key=str):
            if each.broken_limits:
                self.breaks[each.configuration] = each.broken_limits
            elif each.candidate.draft == SELF or each.not_run:
                continue
            elif (log := each.log_speedup(self.by)) is not None:
                self.competing.append(each)
                logs.append(log[1:])
        self._drawn: Floats = np.stack(logs, axis=1)
        # Their speeds as shares of the best in each draw.
        self._shares: Floats = np.exp(self._drawn - self._drawn.max(axis=1, keepdims=True))

    def gain(self, timed: Sequence[Alternative]) -> float:
        """How much faster the choice is expected to be, as a logarithm, if these are timed once
        more before it is made (the knowledge gradient of correlated beliefs, Frazier et al. 2009).
        """
        if not timed:
            return 0.0
        timings = self.evaluator.simulated_timings(timed)
        shown, expected = timings - timings.mean(axis=0), self._drawn.mean(axis=0)
        learned = np.linalg.lstsq(shown, self._drawn - expected, rcond=None)[0]
        return float((expected + shown @ learned).max(axis=1).mean() - expected.max())

    def loss(self, choice: Alternative | None) -> float:
        """The share of the best speed that a choice loses on average; None: plain decoding."""
        return float(1 - self._shares[:, self._column(choice)].mean())

    def probability(self, choice: Alternative | None) -> float:
        """How often a choice is the best or ties with it."""
        return float((self._shares[:, self._column(choice)] >= 1 - TIMING_NOISE).mean())

    def chance(self, one: Alternative, other: Alternative) -> float:
        """How likely the first is the faster one."""
        faster = self._drawn[:, self._column(one)] > self._drawn[:, self._column(other)]
        return float(faster.mean())

    def _column(self, choice: Alternative | None) -> int:
        return 0 if choice is None else 1 + self.competing.index(choice)

    @cached_property
    def leader(self) -> Alternative | None:
        """The alternative that ranks first; None where no speed is known."""
        return self.best_of(self.competing)

    def as_good(self, some: Sequence[Alternative]) -> list[Alternative]:
        """The alternatives within HARDLY_MORE_LOSS of the best that pay off as surely as it."""
        losses = {each: self.loss(each) for each in some}
        best = min(losses, key=losses.__getitem__, default=None)
        if best is None:
            return []
        near = [each for each in some if losses[each] <= losses[best] + HARDLY_MORE_LOSS]
        return [each for each in near if self._pays(each)] if self._pays(best) else near

    def best_of(self, some: Sequence[Alternative]) -> Alternative | None:
        """Of those as good as the best: the draft of least memory, then its smallest k."""
        near = self.as_good(some)
        losses = {each: self.loss(each) for each in near}
        least: dict[Candidate, float] = {}
        for each in near:
            least[each.candidate] = min(losses[each], least.get(each.candidate, 1.0))

        def size(each: Alternative) -> tuple[float, float, int]:
            memory = math.inf if each.memory_bytes is None else each.memory_bytes
            return memory, least[each.candidate], each.k

        return min(near, key=size, default=None)

    def _pays(self, each: Alternative) -> bool:
        return decide(each.estimate(each.log_speedup(self.by)), self.min_speedup) == "speculate"

    @property
    def best_of_draft(self) -> Alternative | None:
        """The leader; the fastest where nothing competes (the control, or limits are broken)."""
        known = [
            a for a in self.alternatives if not a.not_run and a.log_speedup(self.by) is not None
        ]
        return self.leader or max(known, key=lambda a: a.value(self.by) or 0.0, default=None)

    @cached_property
    def runner_up(self) -> Alternative | None:
        """The fastest other candidate, at the k that leads among its own."""
        leader, at = self.leader, self.evaluator.at
        candidates = dict.fromkeys(each.candidate for each in self.competing)
        bests = [at(self.concurrency, each).leader for each in candidates]
        others = [each for each in bests if each and leader and each.candidate != leader.candidate]
        return max(others, key=lambda each: each.value(self.by) or 0.0, default=None)

    @cached_property
    def deciding(self) -> Estimate | None:
        """The deciding speed-up; None where the leader has too few requests for an interval, or so
        unequal ones that they count as too few.
        """
        leader = self.leader
        if leader is None or round(leader.equal) < MIN_REQUESTS:
            return None
        return leader.estimate(leader.log_speedup(self.by))

    @cached_property
    def impossible(self) -> str | None:
        """Why the deciding speed-up cannot be true; None where it can. A round takes at least as
        long as a target step, so no speed-up exceeds the tokens per round.
        """
        if self.leader is None or self.deciding is None:
            return None
        speed, most = self.deciding.value, self.leader.tokens_per_round
        if most is None or speed <= OVER_TOKENS * most:
            return None
        return f"{speed:.2f}× is impossible with {most:.2f} tokens per round"

    @cached_property
    def decision(self) -> Decision:
        """Whether to speculate at this concurrency: no, if no configuration keeps the limits."""
        shown = [a for a in self.alternatives if not (a.candidate.draft == SELF or a.not_run)]
        if shown and all(a.configuration in self.breaks for a in shown):
            return "do_not_speculate"
        return "inconclusive" if self.impossible else decide(self.deciding, self.min_speedup)

    @property
    def choice(self) -> Alternative | None:
        """The leader if the decision is to speculate."""
        return self.leader if self.decision == "speculate" else None

    @property
    def k(self) -> int | None:
        """The chosen draft length; 0: do not speculate, None: open."""
        if self.choice is not None:
            return self.choice.k
        return 0 if self.decision == "do_not_speculate" else None

    def chance_unchanged(self, learned: float, left: float) -> float:
        """How likely more requests leave the answer as it is: the same decision, and no choice that
        is faster by more than timing noise. Time is not measured again (preposterior analysis,
        Raiffa & Schlaifer 1961).

        Args:
            learned: the variance of the new mean, as a share of today's variance from requests.
            left: the share of today's that remains.
        """
        leader, deciding = self.leader, self.deciding
        if leader is None or deciding is None:
            return 0.0
        logs, own = self.evaluator.logs_by_cause(self.concurrency, self.by), self._column(leader)
        columns = np.array([each.column for each in self.competing], np.int64)
        shown = math.sqrt(learned) * logs.requests[:, columns]
        then = self._drawn.mean(axis=0) + np.insert(shown, 0, 0.0, axis=1)  # nothing of plain
        pick = 0 if self.decision == "do_not_speculate" else own
        as_good = then[:, 1:].max(axis=1) - then[:, pick] <= math.log1p(TIMING_NOISE)
        doubt = math.sqrt(left) * logs.requests[:, leader.column] + logs.time[:, leader.column]
        low, high = quantiles(doubt - doubt.mean(), (0.025, 0.975))
        beyond = then[:, own] - math.log(faster_than(self.min_speedup))
        same = {
            "speculate": beyond + low > 0,
            "do_not_speculate": beyond + high <= 0,
            "inconclusive": (beyond + low <= 0) & (beyond + high > 0),
        }[self.decision]
        return float((same & as_good).mean())


def faster_than(speedup: float) -> float:
    """The least speed-up that counts as faster."""
    return speedup * (1 + TIMING_NOISE)


def decide(expected: Estimate | None, min_speedup: float) -> Decision:
    """Compare the interval of a speed-up with the required minimum plus timing noise."""
    least = faster_than(min_speedup)
    if expected is None or expected.low <= least < expected.high:
        return "inconclusive"
    return "speculate" if expected.low > least else "do_not_speculate"
