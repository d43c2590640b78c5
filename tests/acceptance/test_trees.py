"""Fixed trees against a round-by-round walk, chains, and every tree of a small size."""

from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenes import lookup, replayed, trajectory

from draftbench.acceptance.definitions import tokens_per_round, uncut_accepted_length
from draftbench.acceptance.rounds import expected_rounds
from draftbench.acceptance.trees import best_tree, best_trees, rank_rates, walker
from draftbench.drafts.laws import PositionLaw
from draftbench.records import Sampling

responses = st.lists(st.integers(0, 3), min_size=1, max_size=12)


def paths(depth, ranks):
    return [path for d in range(1, depth + 1) for path in product(range(ranks), repeat=d)]


def trees(nodes, depth, ranks):
    """Every set of `nodes` paths that holds the beginnings of its paths."""
    return [
        tree
        for tree in combinations(paths(depth, ranks), nodes)
        if all(len(path) == 1 or path[:-1] in tree for path in tree)
    ]


def expected_length(tree, rates):
    return 1.0 + sum(float(np.prod([rates[rank] for rank in path])) for path in tree)


def ranked(ranks, request="r", **changes):
    return replayed([0.0] * len(ranks), request, rank=tuple(ranks), **changes)


def walk(tree, ranks, limit, draftable):
    """Rounds that an engine needs, one by one."""
    start, rounds = 1, 0
    while start <= len(ranks):
        path = ()
        while True:
            at = start + len(path)
            if at > min(len(ranks), limit - 2, draftable) or (*path, ranks[at - 1]) not in tree:
                break
            path = (*path, ranks[at - 1])
        start += len(path) + 1
        rounds += 1
    return rounds


@given(responses, st.sampled_from(trees(3, 3, 2)), st.integers(1, 3), st.integers(0, 14))
def test_a_trees_rounds_are_those_of_an_engine_that_walks_it(ranks, tree, room, draftable):
    limit = len(ranks) + room
    made, along = ranked(ranks, limit=max(limit, len(ranks) + 1), draftable=draftable)
    rounds = expected_rounds(walker([(made, along)], 3)(tree), 3)
    assert rounds.target_passes[0] == walk(tree, ranks, made.limit, draftable)


@given(st.lists(responses, min_size=1, max_size=4), st.integers(1, 4), st.integers(1, 3))
def test_a_chain_as_a_tree_has_the_chains_figures(many, k, room):
    chain = tuple((0,) * depth for depth in range(1, k + 1))
    pairs = [
        ranked(ranks, str(name), limit=len(ranks) + 1 + room, draftable=99)
        for name, ranks in enumerate(many)
    ]
    laws = [
        PositionLaw(made.output_tokens, made.limit, np.array(along.rank) == 0.0, 99)
        for made, along in pairs
    ]
    made_trajectories = [made for made, _ in pairs]
    as_tree = expected_rounds(walker(pairs, k)(chain), k)
    as_chain = expected_rounds(laws, k)
    for figure in (uncut_accepted_length, tokens_per_round):
        one, other = figure(made_trajectories, as_tree), figure(made_trajectories, as_chain)
        assert one.value == other.value or one.value == pytest.approx(other.value)


def test_no_tree_follows_one_response_into_the_next():
    walk_along = walker([ranked([1, 0], "a"), ranked([0, 0, 0], "b")], 3)
    laws = walk_along(((0,), (0, 0), (0, 0, 0)))
    assert [law.matched.tolist() for law in laws] == [[0, 1], [3, 2, 1]]


def test_a_path_that_ends_early_is_rejected_there_not_cut():
    # Half of the rounds take the short branch: 1 + 1 + 1/2, not 1 + 1 + 1.
    made, along = ranked([0, 0, 9, 1, 9], limit=20, draftable=20)
    (law,) = walker([(made, along)], 2)(((0,), (0, 0), (1,)))
    assert uncut_accepted_length([made], expected_rounds([law], 2)).value == pytest.approx(2.5)


rates_of_ranks = st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.3, 0.6, 0.9]), min_size=2, max_size=2)


@given(rates_of_ranks, st.integers(1, 4), st.integers(1, 3))
def test_the_best_tree_is_the_best_of_all_trees(rates, nodes, depth):
    found = best_tree(np.array(rates), nodes, depth)
    assert len(found) <= nodes
    assert max(map(len, found), default=0) <= depth
    assert all(len(path) == 1 or path[:-1] in found for path in found)
    every = [tree for size in range(nodes + 1) for tree in trees(size, depth, 2)]
    best = max(expected_length(tree, rates) for tree in every)
    assert expected_length(found, rates) == pytest.approx(best)


def test_the_best_tree_of_independent_ranks_by_hand():
    # Paths by probability: 0.6, 0.36 = 0.6², 0.3, 0.216 = 0.6³, 0.18 twice (0·1 and 1·0).
    rates = np.array([0.6, 0.3])
    assert best_tree(rates, 2, 8) == ((0,), (0, 0))
    assert best_tree(rates, 4, 8) == ((0,), (0, 0), (0, 0, 0), (1,))
    assert best_tree(rates, 6, 2) == ((0,), (0, 0), (0, 1), (1,), (1, 0), (1, 1))
    assert best_tree(np.array([1.0, 0.0]), 3, 8) == ((0,), (0, 0), (0, 0, 0))
    assert best_tree(np.zeros(2), 3, 8) == ()


def test_rank_rates_count_tokens_by_weight_where_the_draft_could_draft():
    pairs = [ranked([0, 0, 1], "a"), ranked([1, 7, 0], "b", weight=2.0, draftable=2)]
    assert rank_rates(pairs)[:3] == pytest.approx([2 / 7, (1 + 2) / 7, 0.0])


def test_only_greedy_responses_of_model_drafts_have_trees():
    hot = {"sampling": Sampling(temperature=0.7)}
    assert best_trees([ranked([0], request, **hot) for request in "abc"], 2) == ()
    found = [(trajectory(request, 2), lookup((1,), (1,), request=request)) for request in "abc"]
    assert best_trees(found, 2) == ()


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (0, 2, 4, 1, 3, 5), (5, 1, 0, 2, 3, 4)])
def test_the_order_of_the_requests_changes_no_figure_of_a_tree(order):
    # As above: whatever stands between them, a half is always judged by the other's rank.
    pairs = [ranked([i % 2] * 4, str(i), limit=9, draftable=9) for i in order]
    (found,) = best_trees(pairs, 2, (2,))
    assert found.tokens_per_round is not None
    assert found.tokens_per_round.value == 1.0
