"""Rules that need no confidence, beside which the chosen one stands: foresight, which no rule
beats, and the moving average of accepted tokens that SGLang adapts k by.

Both follow from what was accepted, for rows that are alike, and are ratios of rounds whose first
passes read one token. Stacks, whose rounds cost what lookup finds, have neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.rounds import Floats, Ints
from draftbench.planner.passes import Block
from draftbench.planner.stop_choice import compared

# SGLang 0.5.23, speculative/adaptive_spec_params.py: what it does by default with one request.
STEPS, WEIGHT, WARM_UP, INTERVAL, DOWN = (1, 3, 5, 7), 0.2, 10, 5, -0.25


def foresight(rounds: CandidateRounds, block: Block, fixed: int) -> float | None:
    """How many times as fast as at a fixed k decoding would be if every round drafted just the
    tokens that will be accepted, by timed passes; None for blocks, whose tokens depend on k.

    The seconds from a position on are the least over what a round there may draft (dynamic
    programming from the end).
    """
    if block.block is not None:
        return None
    cost, matched = _seconds_of_rounds(rounds, block), [tokens for _, tokens in _matched(rounds)]
    length = np.array([len(tokens) + 1 for tokens in matched])
    least = np.zeros((len(matched), int(length.max(initial=1)) + len(cost) + 1))
    accepted = np.zeros(least.shape, np.int64)
    for row, tokens in enumerate(matched):
        accepted[row, 1 : 1 + len(tokens)] = tokens
    for at in range(int(length.max(initial=1)) - 1, 0, -1):
        options = cost + least[:, at + 1 : at + 1 + len(cost)]
        options = np.where(np.arange(len(cost)) <= accepted[:, at, None], options, np.inf)
        least[:, at] = np.where(at < length, options.min(axis=1), 0.0)
    return _over_fixed(rounds, block, fixed, least[:, 1])


def moving_average(rounds: CandidateRounds, block: Block, fixed: int) -> float | None:
    """How many times as fast as at a fixed k decoding would be by SGLang's moving average, from one
    request to the next; None if not all of its k's were replayed.
    """
    if rounds.most_stopped < STEPS[-1] or block.block is not None:
        return None
    k, seen = STEPS[len(STEPS) // 2], 0
    average = k - 1.0

    def following(accepted: int) -> int:
        nonlocal k, seen, average
        average += WEIGHT * (accepted - average)
        seen += 1
        if seen > WARM_UP and (seen - WARM_UP) % INTERVAL == 0:
            k = _next_step(k, average)
        return k

    return _over_fixed(rounds, block, fixed, _walked(rounds, block, k, following))


def _walked(
    rounds: CandidateRounds, block: Block, k: int, following: Callable[[int], int]
) -> Floats:
    """Seconds of each response, one after the other, if `following` gives the k of the next round
    by what was accepted.
    """
    cost, seconds = _seconds_of_rounds(rounds, block), list[float]()
    for limit, matched in _matched(rounds):
        at, spent = 1, 0.0
        while at <= len(matched):
            drafted = min(k, max(limit - at - 1, 0))
            accepted = min(int(matched[at - 1]), drafted)
            spent += float(cost[drafted])
            at += accepted + 1
            k = following(accepted)
        seconds.append(spent)
    return np.array(seconds)


def _next_step(k: int, average: float) -> int:
    """Down as long as the average is a quarter of a token below what the smaller k would show, else
    up as long as it is above what this one would.
    """
    at = start = STEPS.index(k)
    while at > 0 and average <= STEPS[at - 1] - 0.5 + DOWN:
        at -= 1
    while at == start and at < len(STEPS) - 1 and average > STEPS[at] - 0.5:
        at, start = at + 1, at + 1
    return STEPS[at]


def _seconds_of_rounds(rounds: CandidateRounds, block: Block) -> Floats:
    """Seconds of a round by the tokens that it drafts, from 0, at the mean context."""
    tokens = np.arange(rounds.most_stopped + 1)
    first, later = ((p.at(1, rounds.context)[0, 0] if p else 0.0) for p in block.draft_passes)
    draft = np.where(tokens > 0, first + later * np.maximum(tokens - 1, 0), 0.0)
    seconds: Floats = block.target.at(1 + tokens, rounds.context)[0] + draft
    return seconds


def _matched(rounds: CandidateRounds) -> Iterator[tuple[int, Ints]]:
    """The limit of each compared response, and how many drafted tokens are right from each start of
    it.
    """
    k, some = rounds.most_stopped, compared(rounds)
    _, _, matched = rounds.drafted_of(k, some).under(k, None)
    end = 0
    for response in (rounds.trajectories[row] for row in some):
        begin, end = end, end + response.output_tokens - 1
        yield response.limit, matched[begin:end]


def _over_fixed(rounds: CandidateRounds, block: Block, fixed: int, seconds: Floats) -> float:
    weights = rounds.weights[compared(rounds)]
    at_fixed = _walked(rounds, block, fixed, lambda accepted: fixed)
    return float((weights @ at_fixed) / ((weights @ seconds) or 1.0))
