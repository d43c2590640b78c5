"""Fixed trees of drafted tokens: how much an engine that drafts a tree could accept in a round.

A tree is a set of paths, written as engines write their tree choices: the path (0, 2) is the
draft's best token and then its third-best. At temperature 0 the replay stores the rank of each
response token under the draft, so every round of every fixed tree is known exactly. Where tokens
tie in the draft's logits, the target's token gets the better rank.

Only the choice of a tree rests on an assumption: that a rank is accepted equally often at every
depth and after every path (Sequoia: Chen et al. 2024, arXiv 2402.12374, the positional acceptance
assumption). So a tree's figures come from requests that did not choose it. They are not comparable
with those of chains at the same k: a tree of n nodes makes the target verify n tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

from draftbench.acceptance.definitions import ByRequest, tokens_per_round, uncut_accepted_length
from draftbench.acceptance.intervals import Estimate, estimates
from draftbench.acceptance.rounds import (
    Floats,
    Ints,
    ModelPairs,
    Pairs,
    expected_rounds,
    model_pairs,
)
from draftbench.drafts.laws import StartLaw

Tree = tuple[tuple[int, ...], ...]

NODES = (4, 8, 16, 32, 64)
# Ranks from here on are too rarely accepted to be worth a node in trees of these sizes.
_RANKS = 16


class TreeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The best tree of at most `nodes` drafted tokens and at most `depth` draft steps.

    `tree` was chosen from all requests; the figures come from two trees, each chosen on half of the
    requests and walked on the other half.
    """

    nodes: int
    depth: int
    tree: Tree
    tokens_per_round: Estimate | None
    accepted_length: Estimate | None  # uncut accepted length, 1 + Σ Πh


def best_trees(pairs: Pairs, depth: int, nodes: Sequence[int] = NODES) -> tuple[TreeFigures, ...]:
    """The best tree of each size, over the responses at temperature 0.

    Empty for drafts without a replay by position, for fewer than two requests at temperature 0, and
    for replays by an engine, which have no ranks.
    """
    greedy = [(t, r) for t, r in model_pairs(pairs) if t.sampling.temperature == 0]
    if any(replay.accept and not replay.rank for _, replay in greedy):
        return ()
    # Sorted, so that the halves do not depend on the order of the traffic.
    requests = sorted({trajectory.request for trajectory, _ in greedy})
    if len(requests) < 2:
        return ()
    of_first = set(requests[::2])
    halves = [[p for p in greedy if (p[0].request in of_first) is first] for first in (True, False)]
    trajectories = ByRequest(trajectory for half in halves for trajectory, _ in half)
    rates, by_half = rank_rates(greedy), [rank_rates(half) for half in halves]
    walks = [walker(half, depth) for half in halves]
    samples = []
    for size in nodes:
        trees = [best_tree(of_half, size, depth) for of_half in by_half]
        laws = [law for walk, tree in zip(walks, trees[::-1], strict=True) for law in walk(tree)]
        rounds = expected_rounds(laws, depth)
        samples += [tokens_per_round(trajectories, rounds)]
        samples += [uncut_accepted_length(trajectories, rounds)]
    intervals = estimates(samples)
    return tuple(
        TreeFigures(
            nodes=size,
            depth=depth,
            tree=best_tree(rates, size, depth),
            tokens_per_round=tokens,
            accepted_length=length,
        )
        for size, tokens, length in zip(nodes, intervals[::2], intervals[1::2], strict=True)
    )


def rank_rates(pairs: ModelPairs) -> Floats:
    """P(the target's token has rank r under the draft) [_RANKS], over all drafted positions."""
    counts, positions = np.zeros(_RANKS), 0.0
    for trajectory, replay in pairs:
        rank = np.asarray(replay.rank)[: replay.draftable]
        counts += trajectory.weight * np.bincount(rank[rank < _RANKS], minlength=_RANKS)
        positions += trajectory.weight * len(rank)
    return counts / max(positions, 1.0)


def walker(pairs: ModelPairs, depth: int) -> Callable[[Tree], list[StartLaw]]:
    """A function of a tree of up to `depth` draft steps: how deep each response follows the tree in
    a round from each position. A path that ends before `depth` counts as rejected there, as in an
    engine's round.
    """
    steps = [len(replay.rank) for _, replay in pairs]
    # All responses' ranks in one array, with a gap after each that no tree drafts.
    gap = np.full(depth, np.iinfo(np.int64).max)
    every = [part for _, replay in pairs for part in (np.asarray(replay.rank, np.int64), gap)]
    ranks = np.concatenate(every)
    begins = np.cumsum([0, *(count + depth for count in steps)])[:-1].tolist()
    proposed = [
        np.clip(replay.draftable - np.arange(count), 0, depth)
        for (_, replay), count in zip(pairs, steps, strict=True)
    ]

    def walk(tree: Tree) -> list[StartLaw]:
        child, nowhere = _children(tree)
        width, starts = child.shape[1], len(ranks) - depth
        # In 16 bits, since memory is what takes time here.
        rows = (child * width).ravel().astype(np.int16)
        known, row = np.minimum(ranks, width - 1).astype(np.int16), np.zeros(starts, np.int16)
        matched = np.zeros(starts, np.int64)
        for step in range(depth):
            row = rows.take(row + known[step : step + starts])
            matched += row != nowhere * width
        return [
            StartLaw(t.output_tokens, t.limit, each, matched[at : at + len(each)], depth)
            for (t, _), each, at in zip(pairs, proposed, begins, strict=True)
        ]

    return walk


def _children(tree: Tree) -> tuple[Ints, int]:
    """Which node follows a node [nodes, ranks] at each rank of the next token, and the node that
    stands for "left the tree". The last rank stands for all that the tree does not draft.
    """
    index = {path: number for number, path in enumerate([(), *sorted(tree)])}
    nowhere = len(index)
    ranks = max((path[-1] for path in tree), default=-1) + 2
    child = np.full((nowhere + 1, ranks), nowhere, np.int64)
    for path in tree:
        child[index[path[:-1]], path[-1]] = index[path]
    return child, nowhere


def best_tree(rates: Floats, nodes: int, depth: int) -> Tree:
    """The tree of at most `nodes` nodes (root not counted) and `depth` levels with the greatest
    expected accepted length (Chen et al. 2024, the dynamic program of bounded depth).

    Args:
        rates: acceptance by rank [ranks], the same everywhere in the tree.
    """
    sizes = np.arange(nodes + 2)
    left = sizes[:, None] - sizes
    # gain[m]: the most tokens that a subtree of m nodes, its root included, is expected to add.
    gain = np.minimum(sizes, 1).astype(np.float64)
    # shares[level][rank][m], levels counted from the leaves: of m nodes left for the children of
    # this rank and later ones, how many the subtree of the child of this rank gets.
    shares: list[list[Ints]] = [[]]
    for _ in range(depth):
        rest, by_rank = np.zeros(len(sizes)), []
        for rate in rates[::-1]:
            total = np.where(left >= 0, rate * gain + rest[left], -np.inf)
            by_rank.append(total.argmax(axis=1))
            rest = total.max(axis=1)
        gain = np.concatenate([[0.0], 1.0 + rest[:-1]])
        shares.append(by_rank[::-1])

    def paths(level: int, nodes: int, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        for rank, share in enumerate(shares[level]):
            below = int(share[nodes])
            nodes -= below
            if below:
                yield (*path, rank)
                yield from paths(level - 1, below - 1, (*path, rank))

    return tuple(sorted(paths(depth, nodes, ())))
