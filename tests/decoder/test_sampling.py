"""The filters, the inverse transform and both acceptance rules, on distributions small enough to
work out by hand.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftbench.decoder.sampling import (
    TOP_P_CANDIDATES,
    Uniforms,
    _least_by_digits,
    _least_of_nucleus,
    accepted_of,
    best,
    confidence,
    distribution,
    draw,
    equal_places,
    filters_of,
    target_tokens,
)
from draftbench.records import Sampling


def logits(*probs: float) -> torch.Tensor:
    return torch.tensor([probs]).log()


@pytest.mark.parametrize(
    ("given", "settings", "expected"),
    [
        # At T = 0.5 probabilities are squared and renormalized.
        ((0.8, 0.2), {"temperature": 0.5}, (0.64 / 0.68, 0.04 / 0.68)),
        ((0.4, 0.3, 0.2, 0.1), {"top_k": 2}, (4 / 7, 3 / 7, 0, 0)),
        ((0.4, 0.3, 0.2, 0.1), {"top_p": 0.6}, (4 / 7, 3 / 7, 0, 0)),
        # The token that crosses the threshold is in the nucleus.
        ((0.5, 0.3, 0.2), {"top_p": 0.55}, (5 / 8, 3 / 8, 0)),
        # min-p is relative to the largest probability.
        ((0.5, 0.3, 0.2), {"min_p": 0.5}, (5 / 8, 3 / 8, 0)),
        # In this order: top-k 3 → .5 .3 .2; top-p .75 keeps .5 and .3 → .625 .375; min-p .7 drops
        # .375.
        ((0.45, 0.27, 0.18, 0.1), {"top_k": 3, "top_p": 0.75, "min_p": 0.7}, (1, 0, 0, 0)),
    ],
)
def test_filters_renormalize_what_they_keep(given, settings, expected):
    p = distribution(logits(*given), Sampling(**{"temperature": 1.0} | settings))
    assert p[0].tolist() == pytest.approx(expected)


OF_24_BITS = st.integers(0, (1 << 24) - 1)


@given(
    st.lists(st.lists(OF_24_BITS, min_size=9, max_size=9).filter(any), min_size=1, max_size=3),
    st.sampled_from([1, 20, 40]),
    st.integers(0, 359),
    st.sampled_from([-1, 0, 1]),
)
def test_top_p_keeps_what_a_sort_keeps_and_all_that_are_as_probable_as_the_last(
    rows, copies, nucleus, beside
):
    """Of 9 tokens, or of 180 or 360, each as probable as 19 or 39 others. Top-p is the sum of some
    of the largest, or beside it; the sums are exact.
    """
    unit = 1 << 33
    sums = [list(itertools.accumulate(sorted(row * copies, reverse=True))) for row in rows]
    least = min(sums, key=max)
    enough = max(1, min(least[nucleus % len(least)] + beside, least[-1]))
    expected = []
    for row, each in zip(rows, sums, strict=True):
        reached = next(at for at, total in enumerate(each) if total >= enough)
        expected.append([sorted(row * copies, reverse=True)[reached] / unit])
    probs = torch.tensor(rows, dtype=torch.float64).repeat(1, copies).div(unit).float()
    assert _least_of_nucleus(probs, enough / unit, None).tolist() == expected
    assert _least_by_digits(probs, enough / unit).tolist() == expected


def test_top_p_keeps_every_token_whose_probability_is_not_0_where_rounding_leaves_their_sum_below():
    probs = torch.tensor([[0.5, 0.0, 2.0**-40, 0.25]])
    assert _least_by_digits(probs, 0.99).tolist() == [[2.0**-40]]


def test_the_smallest_top_p_keeps_the_likeliest_token():
    probs = torch.tensor([[0.25, 0.5, 0.25]])
    assert _least_by_digits(probs, 1e-30).tolist() == [[0.5]]
    assert _least_of_nucleus(probs, 1e-30, None).tolist() == [[0.5]]


def test_a_token_of_probability_zero_is_never_drawn():
    probs = torch.tensor([[0.0, 1.0, 0.0]])
    assert [int(draw(probs, at(u, 1))) for u in (0.0, 0.5, 1 - 1e-12)] == [1, 1, 1]


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6), st.integers(0, 5))
def test_each_token_is_drawn_on_an_interval_as_long_as_its_probability(weights, index):
    index %= len(weights)
    probs = torch.tensor([weights], dtype=torch.float64) / sum(weights)
    low = float(probs[0, :index].sum())
    high = low + float(probs[0, index])
    for u in (low + 1e-6, (low + high) / 2, high - 1e-6):
        assert int(draw(probs, torch.tensor([u]))) == index


@pytest.mark.parametrize(
    ("target", "proposed", "accepted"),
    [
        ([3, 1, 4, 1], [3, 1, 5], 2),
        ([3, 1, 4], [3, 1], 2),
        # A later match does not revive a rejected proposal.
        ([3, 1, 4], [2, 1], 0),
    ],
)
def test_a_proposal_is_kept_up_to_the_first_difference(target, proposed, accepted):
    assert accepted_of(target, proposed) == accepted


def at(value: float, n: int = 2) -> torch.Tensor:
    return torch.full((n,), value, dtype=torch.float64)


def outcome(p, q, drafted, uniforms):
    """How many of one drafted token are accepted, and the target's token that follows."""
    q = torch.cat([q, torch.zeros_like(q)])  # nothing is proposed for the second token
    tokens = target_tokens(p, q, torch.tensor([drafted, 0]), uniforms).tolist()
    accepted = accepted_of(tokens, [drafted])
    return accepted, tokens[accepted]


@pytest.mark.parametrize(
    ("p", "q", "drafted", "numbers", "expected"),
    [
        # Accepted exactly below p/q = .4, and followed by a draw from the last distribution.
        ([[0.2, 0.8], [0, 1]], [0.5, 0.5], 0, (0.399, 0.5, 0.5), (1, 1)),
        ([[0.2, 0.8], [0, 1]], [0.5, 0.5], 0, (0.401, 0.5, 0.5), (0, 1)),
        # max(p - q, 0) = (0, 0, .3): only token 2 can follow a rejection.
        *(
            ([[0.2, 0.3, 0.5], [1, 0, 0]], [0.5, 0.3, 0.2], 0, (0.9, u, 0.5), (0, 2))
            for u in (0.01, 0.5, 0.99)
        ),
        ([[0, 1, 0], [0, 0, 1]], [0, 1, 0], 1, (0.999, 0.5, 0.5), (1, 2)),
        # Outside the target's support.
        ([[1, 0], [1, 0]], [0, 1], 1, (0, 0.5, 0.5), (0, 0)),
    ],
)
def test_a_sampled_proposal_is_accepted_or_replaced(p, q, drafted, numbers, expected):
    p, q = torch.tensor(p).float(), torch.tensor([q]).float()
    assert outcome(p, q, drafted, tuple(map(at, numbers))) == expected


def test_uniforms_belong_to_a_position_and_not_to_a_run():
    short, long = Uniforms("r", 0, 4), Uniforms("r", 0, 9)
    assert np.array_equal(short.stream("target"), long.stream("target")[:4])
    assert not np.array_equal(short.stream("target"), short.stream("accept"))
    assert not np.array_equal(short.stream("target"), Uniforms("r", 1, 4).stream("target"))


def test_a_round_of_one_token_has_the_targets_law():
    """Every uniform of a 100 × 100 grid, weighted by q: the first token's law is p to the grid's
    width. Drawing the residual from p, or with the accepting uniform, is off by .018 and more.
    """
    p = torch.tensor([[0.45, 0.35, 0.05, 0.15], [0.25, 0.25, 0.25, 0.25]])
    q = torch.tensor([[0.1, 0.2, 0.6, 0.1]])
    grid = [(i + 0.5) / 100 for i in range(100)]
    law = [0.0] * 4
    for drafted in range(4):
        for accept in grid:
            # Without a rejection the residual's uniform is not looked at.
            rejected = accept * float(q[0, drafted]) >= float(p[0, drafted])
            for residual in grid if rejected else [0.5]:
                accepted, token = outcome(p, q, drafted, (at(accept), at(residual), at(0.5)))
                first = drafted if accepted else token
                law[first] += float(q[0, drafted]) / 100 / (100 if rejected else 1)
    assert law == pytest.approx(p[0].tolist(), abs=0.008)


@given(st.integers(0, 10_000), st.sampled_from([torch.float32, torch.bfloat16]))
def test_of_tied_logits_the_first_is_best(seed, dtype):
    """Whole numbers up to 3 tie often, as bfloat16's logits do."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 4, (3, 5000), generator=generator).to(dtype)
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert best(logits).tolist() == expected


@pytest.mark.parametrize(
    ("settings", "size"),
    [({"top_k": 50, "top_p": 0.9}, 4 * TOP_P_CANDIDATES), ({"top_p": 0.9}, TOP_P_CANDIDATES)],
)
def test_a_nucleus_that_is_surely_among_the_largest_few_is_found_without_a_look(
    monkeypatch, settings, size
):
    """A look makes the host wait for a GPU."""
    probs = torch.linspace(1.0, 2.0, size)
    expected = distribution(probs.log()[None], Sampling(temperature=1.0, **settings))

    def looked(tensor):  # at a value, or at how many are not 0
        raise AssertionError("a value was looked at")

    for look in ("__bool__", "nonzero"):
        monkeypatch.setattr(torch.Tensor, look, looked)
    got = distribution(probs.log()[None], Sampling(temperature=1.0, **settings))
    assert torch.equal(got, expected)


def test_settings_are_grouped_without_their_seeds():
    """By hand: the first and the third draw from the same distributions."""
    given = [Sampling(temperature=1.0, seed=1), Sampling(), Sampling(temperature=1.0, seed=2)]
    assert equal_places(map(filters_of, given)) == {
        Sampling(temperature=1.0): [0, 2],
        Sampling(): [1],
    }


@pytest.mark.parametrize(
    ("probabilities", "among", "sure"),
    [
        # 1/3 and 2/3 are cut, not rounded.
        ((1 / 3, 2 / 3), "all", 0.666),
        ((1 / 3, 2 / 3), "ten", 0.666),
        # The ten best have .4205 + 9 · .05 = .8705, of which .4205 is .48305….
        ((0.4205, *[0.05] * 9, *[0.01295] * 10), "all", 0.42),
        ((0.4205, *[0.05] * 9, *[0.01295] * 10), "ten", 0.483),
        # Tokens that a draft lacks.
        ((0.2495, 0.7505, 0.0, 0.0), "ten", 0.75),
        ((1.0, 0.0), "all", 1.0),
    ],
)
def test_a_draft_is_as_sure_as_its_best_token_is_likely(probabilities, among, sure):
    """Whatever is added to its logits, and whichever row lies beside it."""
    row = torch.tensor(probabilities).log() + 30.0
    assert confidence(torch.stack([torch.zeros_like(row), row]), among)[1] == sure
