"""A table of draws → the decision at one load: speculate, do not, or inconclusive.

Every figure comes from the same draws: intervals, probability, expected regret, and what would
settle an open answer. The configuration with the least expected regret leads, or a smaller draft
that loses hardly more. The answer is to speculate if the whole interval of the leader's speed-up
lies above the required minimum plus timing noise, and not to if it lies below.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from draftbench.acceptance.intervals import MIN_REQUESTS, Estimate, quantiles
from draftbench.acceptance.rounds import Floats
from draftbench.drafts.stopping import STOP_RULES
from draftbench.planner.caveat_kinds import OVER_TOKENS
from draftbench.planner.recommendation import Configuration, Decision
from draftbench.planner.table import Table
from draftbench.records import SELF, Candidate, StopKind

# Interleaved runs of one process differ by 1.6 points on their own: closer speeds are a tie.
TIMING_NOISE = 0.02
# A smaller draft or k leads if it is expected to lose at most this much more of the best speed: on
# few requests a larger k is often just lucky.
HARDLY_MORE_LOSS = TIMING_NOISE / 2
# Of equally good rules the simplest leads.
_COMPLEXITY = {kind: place for place, kind in enumerate((None, *STOP_RULES))}


@dataclass(frozen=True, eq=False)
class DecisionAt:
    """The decision between the configurations of a table, or between those of one candidate, or
    those without a rule or with one that `stops` a draft so. `breaks` has the limits that some
    break, `not_run` why others may not be chosen.
    """

    table: Table
    min_speedup: float
    breaks: Mapping[Configuration, Sequence[str]] = field(default_factory=dict)
    not_run: Mapping[Configuration, str] = field(default_factory=dict)
    only: Candidate | None = None
    stops: Collection[StopKind] | None = None

    @property
    def concurrency(self) -> int:
        return self.table.concurrency

    @cached_property
    def configurations(self) -> list[Configuration]:
        own = [c for c in self.table.configurations if self.only in (None, c.candidate)]
        if self.stops is None:
            return own
        return [c for c in own if c.stop is None or c.stop.kind in self.stops]

    @cached_property
    def shown(self) -> list[Configuration]:
        """All but the control and the k's that a running server does not draft."""
        return [c for c in self.configurations if c.draft != SELF and c not in self.not_run]

    @cached_property
    def competing(self) -> list[Configuration]:
        """Those that may be chosen, by name: their speed is known, and they keep the limits."""
        may = set(self.table.known).intersection(self.shown).difference(self.breaks)
        return sorted(may, key=str)

    @cached_property
    def drawn(self) -> Floats:
        """Log speed-ups of plain decoding, 0, and of those that may be chosen [draws, 1 +
        competing].
        """
        logs = self.table.logs[1:, [self.table.column[each] for each in self.competing]]
        return np.insert(logs, 0, 0.0, axis=1)

    @cached_property
    def _shares(self) -> Floats:
        """Their speeds as shares of the best in each draw."""
        shares: Floats = np.exp(self.drawn - self.drawn.max(axis=1, keepdims=True))
        return shares

    @cached_property
    def _losses(self) -> list[float]:
        losses: list[float] = (1 - self._shares.mean(axis=0)).tolist()
        return losses

    @cached_property
    def _place(self) -> dict[Configuration | None, int]:
        return {None: 0, **{each: place for place, each in enumerate(self.competing, 1)}}

    def loss(self, choice: Configuration | None) -> float:
        """The share of the best speed that a choice loses on average; None: plain decoding."""
        return self._losses[self._place[choice]]

    def probability(self, choice: Configuration | None) -> float:
        """How often a choice is the best or ties with it."""
        return float((self._shares[:, self._place[choice]] >= 1 - TIMING_NOISE).mean())

    def chance(self, one: Configuration, other: Configuration) -> float:
        """How likely the first is the faster one."""
        faster = self.drawn[:, self._place[one]] > self.drawn[:, self._place[other]]
        return float(faster.mean())

    @cached_property
    def leader(self) -> Configuration | None:
        """The configuration that ranks first; None where no speed is known."""
        return self.best_of(self.competing)

    def as_good(self, some: Sequence[Configuration]) -> list[Configuration]:
        """Those that lose at most 1% more than the best of them and lead to the same decision."""
        best = min(some, key=self.loss, default=None)
        if best is None:
            return []
        near = [each for each in some if self.loss(each) <= self.loss(best) + HARDLY_MORE_LOSS]
        return [each for each in near if self._pays(each)] if self._pays(best) else near

    def best_of(self, some: Sequence[Configuration]) -> Configuration | None:
        """Of those as good as the best: the draft of least memory, then the simplest rule, a fixed
        k if there is one, then the smallest k.
        """
        near, table = self.as_good(some), self.table
        least: dict[Candidate, float] = {}
        for each in near:
            least[each.candidate] = min(self.loss(each), least.get(each.candidate, 1.0))

        def size(each: Configuration) -> tuple[float, float, int, int]:
            memory = table.memory[table.column[each]]
            smallest = math.inf if memory is None else memory, least[each.candidate]
            return *smallest, _COMPLEXITY[each.stop.kind if each.stop else None], each.k

        return min(near, key=size, default=None)

    def _pays(self, each: Configuration) -> bool:
        return decide(self.table.estimate(each), self.min_speedup) == "speculate"

    @property
    def best_of_draft(self) -> Configuration | None:
        """The leader; the fastest where nothing competes (the control, or limits are broken)."""
        known = set(self.table.known).difference(self.not_run)
        some = [each for each in self.configurations if each in known]
        return self.leader or max(some, key=lambda c: self.table.value(c) or 0.0, default=None)

    def alone(self, candidate: Candidate) -> DecisionAt:
        """The decision on one candidate alone."""
        return replace(self, only=candidate)

    def following(self, stops: Collection[StopKind]) -> DecisionAt:
        """The decision among k's and these kinds of rules alone."""
        return replace(self, stops=stops)

    @cached_property
    def runner_up(self) -> Configuration | None:
        """The fastest other candidate, at the k that leads among its own."""
        if self.leader is None:
            return None
        others = dict.fromkeys(each.candidate for each in self.competing)
        others.pop(self.leader.candidate)
        bests = filter(None, (self.alone(other).leader for other in others))
        return max(bests, key=lambda each: self.table.value(each) or 0.0, default=None)

    @cached_property
    def deciding(self) -> Estimate | None:
        """The deciding speed-up; None where the leader has too few requests for an interval, or so
        unequal ones that they count as too few.
        """
        leader, table = self.leader, self.table
        if (
            leader is None
            or round(float(table.effective_requests[table.column[leader]])) < MIN_REQUESTS
        ):
            return None
        return table.estimate(leader)

    @cached_property
    def impossible(self) -> str | None:
        """Why the deciding speed-up cannot be true; None where it can. A round takes at least as
        long as a target step, so no speed-up exceeds the tokens per round.
        """
        if self.leader is None or self.deciding is None:
            return None
        speed, most = self.deciding.value, self.table.tokens(self.leader)
        if most is None or speed <= OVER_TOKENS * most:
            return None
        return f"{speed:.2f}× is impossible with {most:.2f} tokens per round"

    @cached_property
    def decision(self) -> Decision:
        """Whether to speculate at this load: no, if no configuration keeps the limits."""
        if self.shown and all(each in self.breaks for each in self.shown):
            return "do_not_speculate"
        return "inconclusive" if self.impossible else decide(self.deciding, self.min_speedup)

    @property
    def choice(self) -> Configuration | None:
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
        leader, table = self.leader, self.table
        if leader is None or self.deciding is None:
            return 0.0
        requests = table.by_requests[:, [table.column[each] for each in self.competing]]
        shown = np.insert(math.sqrt(learned) * requests, 0, 0.0, axis=1)  # nothing of plain
        then, own = self.drawn.mean(axis=0) + shown, self._place[leader]
        pick = 0 if self.decision == "do_not_speculate" else own
        as_good = then[:, 1:].max(axis=1) - then[:, pick] <= math.log1p(TIMING_NOISE)
        doubt = math.sqrt(left) * requests[:, own - 1] + table.by_time[:, table.column[leader]]
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
