"""What a better draft at the same cost would bring, before one is trained: how fast the best
possible one would be, and how often a draft must be accepted to pay off or to win.

A round at one k takes the same time however much of it is accepted, so its speed-up grows with its
tokens. At most these are the tokens of a draft that is always accepted or, where a greedy draft
meets a target that samples, of the target as its own draft, which is accepted with E[max p]. In a
stack this holds for the rounds that its draft drafts; those of prompt lookup stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.rounds import alpha_of
from draftbench.planner.decide import Alternative, DecisionAt
from draftbench.planner.recommendation import Evaluation, Headroom, Reach
from draftbench.records import LOOKUP, SELF, Candidate, LookupReplay, Replay, StackReplay

# Drafts without weights to train.
_UNTRAINED = (LOOKUP, "suffix")


def headroom(
    decided: DecisionAt, evaluated: Sequence[Evaluation], ceiling: float | None
) -> tuple[Headroom, ...]:
    """The headroom of every draft that training could improve and whose speed is known.

    Args:
        evaluated: the candidates with their α.
        ceiling: the α of the target as its own greedy draft, if no draft can reach more.
    """
    alphas = {each.candidate: each.alpha.value for each in evaluated if each.alpha}
    of_self = {
        each.k: each
        for each in decided.alternatives
        if each.candidate.draft == SELF and ceiling is not None
    }
    scales: dict[Candidate, list[_Scale]] = {}
    for each in decided.competing:
        speed, tokens = each.value("expected"), each.tokens_per_round
        most = _most_tokens(each, of_self.get(each.k))
        if speed and tokens and most:
            most = max(most, tokens)
            rates = (alphas.get(each.candidate), ceiling or 1.0)
            scales.setdefault(each.candidate, []).append(
                _Scale(each.k, speed, tokens, most, *rates)
            )
    fastest = {of: max(at.speedup for at in every) for of, every in scales.items()}
    found = []
    for candidate, every in scales.items():
        if candidate.draft not in _UNTRAINED:
            others = (speed for of, speed in fastest.items() if _trained(of) != _trained(candidate))
            best = max((decided.min_speedup, *others))
            found.append(
                Headroom(
                    draft=candidate.draft,
                    quant=candidate.quant,
                    alpha=alphas.get(candidate),
                    speedup=fastest[candidate],
                    most=max((at.with_tokens(at.most) for at in every), key=lambda r: r.speedup),
                    to_pay=_least(every, decided.min_speedup),
                    to_win=_least(every, best),
                    best_of_others=best,
                )
            )
    return tuple(found)


class _Scale(NamedTuple):
    """A draft at one k: its speed-up now, and its tokens per round and α, now and at most."""

    k: int
    speedup: float
    tokens: float
    most: float
    alpha: float | None
    most_alpha: float

    def share(self, tokens: float) -> float:
        """The share of now rejected tokens that must be accepted to reach `tokens` per round, as if
        all positions were alike.
        """
        now, needed, most = (alpha_of(each, self.k) for each in (self.tokens, tokens, self.most))
        return (needed - now) / (most - now) if most > now else 0.0

    def with_tokens(self, tokens: float) -> Reach:
        rate = self.alpha
        if rate is not None:
            rate += self.share(tokens) * (self.most_alpha - rate)
        return Reach(self.k, tokens, rate, self.speedup * tokens / self.tokens)


def _trained(candidate: Candidate) -> str:
    """The draft whose weights training would change."""
    return (candidate.fallback or candidate).draft


def _most_tokens(each: Alternative, of_self: Alternative | None) -> float | None:
    """Tokens per round if every drafted token is accepted, counting the shorter last rounds of
    responses; or those of the target as its own draft. None for a stack without replays.
    """
    along = each.along
    tokens = np.array([max(t.output_tokens - 1.0, 0.0) for t in along.trajectories])
    if each.candidate.fallback:
        best = {r.key: r for _, r in of_self.along.replays} if of_self else {}
        perfect = [
            (t, structs.replace(r, draft=best.get(r.key) or _accepted(r.draft)))
            for t, r in along.replays
            if isinstance(r, StackReplay)
        ]
        if not perfect:
            return None
        passes = CandidateRounds.of(perfect).at(each.k).target_passes
    elif of_self and of_self.tokens_per_round:
        return of_self.tokens_per_round
    else:
        passes = np.ceil(tokens / (each.k + 1))
    return float(along.weights @ tokens) / max(float(along.weights @ passes), 1.0)


def _accepted(replay: Replay | LookupReplay) -> Replay | LookupReplay:
    """The replay as if every drafted token were accepted."""
    if isinstance(replay, Replay):
        return structs.replace(replay, accept=[1.0] * len(replay.accept))
    return structs.replace(replay, matched=replay.proposed)


def _least(scales: Sequence[_Scale], speedup: float) -> Reach | None:
    """The k that needs the least improvement to reach a speed-up; None if none can."""
    needed = [(at, at.tokens * speedup / at.speedup) for at in scales]
    able = [(at, tokens) for at, tokens in needed if tokens <= at.most]
    at, tokens = min(able, key=lambda pair: pair[0].share(pair[1]), default=(None, 0.0))
    return at.with_tokens(tokens) if at else None
