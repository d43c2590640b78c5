"""Chooses the best rule of each kind for a draft at one load, and judges it on requests that did
not choose it.

Which of some hundred rules is fastest is partly luck, so its speed on the requests that chose it
would look too good. Requests are dealt into folds: those of a fold are decoded by the rule that is
best on all the others (cross-fitting), and the rule that is named is the best on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.every_rule import EveryRule, every_rule
from draftbench.acceptance.rounds import Floats, Ints
from draftbench.drafts.laws import off_path_at_most
from draftbench.drafts.stopping import STOP_RULES, THRESHOLDS
from draftbench.planner.passes import Block
from draftbench.planner.seconds import in_seconds
from draftbench.records import DraftLength, Replay, StopKind, StopRule
from draftbench.remembered import remembered

FOLDS = 5
# Positions of responses over which rules are compared: more would hardly change the choice.
_POSITIONS = 20_000
# A rule that saves less than this is not worth a larger k or another threshold; one that was
# decoded, whose time is known better, is kept as long as no other saves more than that.
_AS_FAST, _AS_FAST_AS_DECODED = 1e-3, 1e-2


@dataclass(frozen=True)
class ChosenRule:
    """The best rule of one kind: on all requests, and on those outside of each fold."""

    length: DraftLength
    elsewhere: tuple[DraftLength, ...]  # by fold

    def seconds(
        self,
        rounds: CandidateRounds,
        block: Block,
        concurrency: int,
        of_a_round: Floats | None = None,
    ) -> Floats:
        """Predicted seconds of every response by the rule that the other folds chose [responses].
        Where an engine shows no passes they are rounds of the rule itself: those of another one
        count as much more as a round takes longer.

        Args:
            of_a_round: its seconds there by the tokens that it drafts.
        """
        found, folds = np.zeros(len(rounds.trajectories)), _folds(rounds)

        def longer(length: DraftLength) -> float:
            if of_a_round is None:
                return 1.0
            drafted = rounds.at(*length).drafted_per_round
            return float(np.interp(drafted, np.arange(len(of_a_round)), of_a_round))

        for fold, length in enumerate(self.elsewhere):
            seconds, _ = in_seconds(rounds, block, concurrency, *length)
            scaled = seconds * longer(length) / longer(self.length)
            found[folds == fold] = scaled[folds == fold]
        return found


# Rounds by the tokens that they propose, and by those that the draft itself drafts
# [rules, k + 1] → their seconds [rules].
Cost = Callable[[Floats, Floats], Floats]


def chosen_rules(
    rounds: CandidateRounds,
    cost: Cost,
    kinds: Sequence[StopKind],
    decoded: Collection[DraftLength] = (),
    most: float = math.inf,
) -> list[ChosenRule]:
    """The best rule of each of these kinds, for rounds with known confidences.

    Args:
        cost: of rounds of up to `most` tokens; longer ones are unknown.
    """
    every, found = _every_rule(rounds), []
    proposed, drafted = every.proposed.sum(axis=1), every.drafted.sum(axis=1)
    of_all, without = cost(proposed, drafted), list[Floats]()
    for fold in range(every.proposed.shape[1]):
        elsewhere = proposed - every.proposed[:, fold], drafted - every.drafted[:, fold]
        without.append(cost(*elsewhere))
    for kind in kinds:
        of_kind = np.array(
            [
                at
                for at, (k, stop) in enumerate(every.rules)
                if stop and stop.kind == kind and k <= most
            ]
        )
        if not of_kind.size:
            continue

        def best(seconds: Floats, of_kind: Ints = of_kind) -> DraftLength:
            least, own = seconds[of_kind].min(), seconds[of_kind]
            rules = [every.rules[at] for at in of_kind]
            known = (at for at, rule in enumerate(rules) if rule in decoded)
            at = min(known, key=lambda at: own[at], default=None)
            if at is not None and own[at] <= least * (1 + _AS_FAST_AS_DECODED):
                return rules[at]
            # The smallest k, then the highest threshold, which drafts least in vain.
            as_fast = (rules[at] for at in np.flatnonzero(own <= least * (1 + _AS_FAST)))
            return min(as_fast, key=lambda each: (each.k, -each.stop.threshold))

        found.append(ChosenRule(best(of_all), tuple(map(best, without))))
    return found


def bounds(
    rounds: CandidateRounds, block: Block, concurrency: int, fixed: int
) -> tuple[float, float] | None:
    """How many times as fast as at a fixed k the best rule is at least and at most, of a draft
    model whose confidences were replayed along the responses alone; None where not even these were.
    """
    known = [
        (t, replay)
        for t, replay in rounds.replays
        if isinstance(replay, Replay) and replay.accepts_outright and replay.confidence
    ]
    if not known or len(known) < len(rounds.replays) or not rounds.tokens.any():
        return None
    if rounds.most_stopped < 2:
        return None
    weights, found = rounds.weights, list[float]()
    at_fixed = float(weights @ in_seconds(rounds, block, concurrency, fixed)[0])
    for sure in (True, False):
        assumed = CandidateRounds.of(
            tuple((t, off_path_at_most(r, rounds.most_stopped, sure=sure)) for t, r in known),
            rounds.ks,
        )
        cost = partial(by_passes, block, rounds.context, concurrency)
        rules = chosen_rules(assumed, cost, ("after", "product"))
        seconds = (float(weights @ rule.seconds(assumed, block, concurrency)) for rule in rules)
        found.append(at_fixed / min(seconds))
    return max(found[0], 1.0), max(*found, 1.0)


def compared(rounds: CandidateRounds) -> range:
    """The rows of as many responses as rules are compared on."""
    positions = sum(t.output_tokens for t in rounds.trajectories)
    return range(0, len(rounds.trajectories), max(1, -(-positions // _POSITIONS)))


@remembered
def _every_rule(rounds: CandidateRounds) -> EveryRule:
    """The rounds under every rule, by fold, of as many responses as the choice needs."""
    some = compared(rounds)
    ks = [k for k in rounds.ks if 2 <= k <= rounds.most_stopped]
    return every_rule(
        [rounds.trajectories[at] for at in some],
        lambda k: rounds.drafted_of(k, some),
        rounds.weights[some],
        _folds(rounds)[some],
        [
            DraftLength(k, StopRule(kind=kind, threshold=threshold))
            for kind, threshold, k in product(STOP_RULES, THRESHOLDS, ks)
        ],
    )


@remembered
def _folds(rounds: CandidateRounds) -> Ints:
    """The fold of every response: all samples of a request are in one."""
    names = sorted({t.request for t in rounds.trajectories})
    fold = {name: at % min(FOLDS, len(names)) for at, name in enumerate(names)}
    return np.array([fold[t.request] for t in rounds.trajectories], np.int64)


def by_passes(
    block: Block, context: float, concurrency: int, proposed: Floats, drafted: Floats
) -> Floats:
    """The `Cost` of rounds at one context: the formulas of `passes`, with first passes that read a
    single token.
    """
    widths, rounds = np.arange(proposed.shape[1]), proposed.sum(axis=1)
    target = block.target.at(1 + widths, context)[0]
    first, later = ((p.at(1, context)[0, 0] if p else 0.0) for p in block.draft_passes)
    if concurrency == 1:
        some = drafted[:, ::-1].cumsum(axis=1)[:, -2::-1]  # rounds that draft at least 1, 2, …
        verified = proposed @ target
    else:
        share = np.cumsum(drafted, axis=1)[:, :-1] / np.maximum(rounds, 1e-9)[:, None]
        some = rounds[:, None] * (1 - share**concurrency)
        verified = rounds * np.interp(proposed @ widths / np.maximum(rounds, 1e-9), widths, target)
    looked_up = block.proposal.at(1, context)[0, 0] * rounds if block.proposal else 0.0
    if block.block is not None:  # every round that drafts makes one pass over its whole block
        whole = drafted[:, 1:] @ block.block.at(widths[1:], context)[0]
        first = first + whole / np.maximum(drafted[:, 1:].sum(axis=1), 1e-9)
    seconds: Floats = verified + looked_up + some[:, 0] * first + some[:, 1:].sum(axis=1) * later
    return seconds
