"""What a better draft at the same cost would bring, before one is trained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from draftbench.acceptance.intervals import MIN_REQUESTS
from draftbench.acceptance.rounds import alpha_of
from draftbench.drafts.kinds import kind_of, parts_of
from draftbench.planner.decide import DecisionAt
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.recommendation import (
    BetterDraft,
    Configuration,
    Evaluation,
    Headroom,
    Reach,
)
from draftbench.records import SELF, Candidate


def headroom(
    evaluator: Evaluator,
    decided: DecisionAt,
    evaluated: Sequence[Evaluation],
    ceiling: float | None,
) -> tuple[Headroom, ...]:
    """What a better draft at the same cost would bring, before one is trained: how fast the best
    possible one would be, and how often a draft must be accepted to pay off or to win; for every
    draft by itself that training could improve and whose speed is known.

    The time of a round at one k does not depend on acceptance, so the speed-up is proportional to
    tokens per round. Their ceiling is full acceptance or, for greedy drafts of a target that
    samples, the target as its own draft.

    Args:
        evaluated: the candidates with their α.
        ceiling: the α of the target as its own greedy draft, if no draft can reach more.
    """
    alphas = {each.candidate: each.alpha.value for each in evaluated if each.alpha}
    table, decoding = decided.table, evaluator.table(decided.concurrency, "expected")
    of_self = {
        each.k: table.tokens(each)
        for each in table.configurations
        if each.draft == SELF and ceiling is not None
    }
    at_each_k: dict[Candidate, list[_AtK]] = {}
    fastest = defaultdict[Candidate, float](float)
    for each in decided.competing:
        speed, tokens, most = decoding.value(each), table.tokens(each), of_self.get(each.k)
        if most is None:  # every drafted token is accepted; the last round of a response is shorter
            rounds = evaluator.evidence(each).rounds
            lengths, weights = rounds.tokens, rounds.weights
            passes = weights @ np.ceil(lengths / (each.k + 1))
            most = float(weights @ lengths) / max(float(passes), 1.0)
        if speed and tokens:
            fastest[each.candidate] = max(speed, fastest[each.candidate])
        if speed and tokens and each.stop is None:  # a rule stops at other tokens of a better draft
            most = max(most, tokens)
            rates = (alphas.get(each.candidate), ceiling or 1.0)
            per_position = (alpha_of(tokens, each.k), alpha_of(most, each.k))
            at_each_k.setdefault(each.candidate, []).append(
                _AtK(each.k, speed, tokens, most, *rates, *per_position)
            )
    found = []
    for candidate, every in at_each_k.items():
        if kind_of(candidate.draft).trainable:
            others = (speed for of, speed in fastest.items() if _trained(of) != _trained(candidate))
            best = max((decided.min_speedup, *others))
            found.append(
                Headroom(
                    draft=candidate.draft,
                    quant=candidate.quant,
                    alpha=alphas.get(candidate),
                    speedup=max(at.speedup for at in every),
                    most=max((at.with_tokens(at.most) for at in every), key=lambda r: r.speedup),
                    to_pay=_least(every, decided.min_speedup),
                    to_win=_least(every, best),
                    best_of_others=best,
                )
            )
    return tuple(found)


def better_draft(
    choice: Configuration | None,
    candidates: Sequence[Candidate],
    found: Sequence[Headroom],
    requests: int,
) -> BetterDraft | None:
    """Which draft training could make the answer; None if the answer is a trainable draft already,
    if one is as fast and something else led, or if requests are too few to say.
    """
    trainable = {each.candidate for each in found}
    if (
        not found
        or requests < MIN_REQUESTS
        or (choice is not None and choice.candidate in trainable)
    ):
        return None
    able = [each for each in found if each.to_win]
    nearest = min(able, key=lambda each: each.best_of_others / each.speedup, default=None)
    if nearest and nearest.speedup >= nearest.best_of_others:
        return None
    return BetterDraft(
        nearest=nearest,
        most=max(each.most.speedup for each in found),
        behind_lookup=any(map(parts_of, candidates)),
    )


class _AtK(NamedTuple):
    """A draft at one k: its speed-up now, and its tokens per round and α, now and at most; and the
    acceptance that gives these tokens if all positions are alike.
    """

    k: int
    speedup: float
    tokens: float
    most: float
    alpha: float | None
    most_alpha: float
    per_position: float
    most_per_position: float

    def share(self, tokens: float) -> float:
        """The share of the tokens rejected now that must be accepted to reach `tokens` per round,
        as if all positions were alike; below 0 where fewer than now would do.
        """
        gap = self.most_per_position - self.per_position
        return (alpha_of(tokens, self.k) - self.per_position) / gap if gap > 0 else 0.0

    def with_tokens(self, tokens: float) -> Reach:
        rate = self.alpha
        if rate is not None and tokens < self.tokens:  # between no acceptance and today's
            rate *= alpha_of(tokens, self.k) / self.per_position
        elif rate is not None:
            rate += self.share(tokens) * (self.most_alpha - rate)
        return Reach(self.k, tokens, rate, self.speedup * tokens / self.tokens)


def _trained(candidate: Candidate) -> str:
    """The draft whose weights training would change."""
    return (candidate, *parts_of(candidate))[-1].draft


def _least(at_each_k: Sequence[_AtK], speedup: float) -> Reach | None:
    """The k that needs the least improvement to reach a speed-up; None if none can."""
    needed = [(at, at.tokens * speedup / at.speedup) for at in at_each_k]
    able = [(at, tokens) for at, tokens in needed if tokens <= at.most]
    at, tokens = min(able, key=lambda pair: pair[0].share(pair[1]), default=(None, 0.0))
    return at.with_tokens(tokens) if at else None
