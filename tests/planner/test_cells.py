"""What passes promise of one row and of several that go together, each counted by hand, and what
cells of an engine's starts are worth.
"""

import numpy as np
import pytest
from scenes import ALL, CHEAP, NGRAM, NONE, SMALL, TARGET

from draftbench.planner.cells import beyond_timed
from draftbench.planner.decide import Evaluator
from draftbench.planner.options import DecisionOptions

TWO, DRAFT_TWO = {1: 1.0, 2: 1.2, 3: 1.5}, {1: 0.1, 2: 0.16}
# k = 2 on 8 accepted tokens: rounds propose 2, 2 and 1, and two of the three follow a full one. The
# verify pass of two rows is 1 + 5/3 tokens wide, the first draft pass 1 + 2/3; the second happens
# unless both rows are at their limit, 1 - (1/3)².
ROUND = (1.2 + 2 / 3 * 0.3) + (0.1 + 2 / 3 * 0.06) + (8 / 9) * 0.1


def alternative(scene, k, candidate=SMALL, concurrency=1):
    every = Evaluator(scene.observed(1, 2, k), DecisionOptions()).alternatives(concurrency)
    return next(each for each in every if (each.candidate, each.k) == (candidate, k))


def speedup(scene, k, candidate=SMALL, concurrency=1):
    plain, rounds, _, weights = alternative(scene, k, candidate, concurrency).promised
    return weights @ plain / (weights @ rounds)


@pytest.fixture
def timed(scene):
    """Two requests that accept everything, timed with one row and with two."""
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    scene.times(TWO, DRAFT_TWO, concurrency=2)
    return scene


def one_heavy(scene):
    """Of 8 accepted tokens "a" takes 4 rounds at k = 1, three of them after a full one; "b" is one
    plain step and stands for three.
    """
    scene.request("a", 9)
    scene.request("b", 2, weight=3.0)
    scene.replay("a", ALL)
    scene.replay("b", [1.0])
    scene.times(TARGET, CHEAP)
    scene.times(TWO, DRAFT_TWO, concurrency=2)


def test_two_requests_that_accept_everything(timed):
    # Rounds start at 1, 4 and 7, the last proposes one token. Plain 8 · 1.0. Passes 1.2 + 1.2 +
    # 1.1, five draft steps of 0.1, and two rounds follow a full one, whose first step reads two
    # tokens: 2 · 0.05. Together 4.1.
    assert speedup(timed, 2) == pytest.approx(8 / 4.1)


def test_a_draft_that_is_never_right_costs_its_steps_and_longer_passes(scene):
    # 8 rounds; at k = 1 the first seven propose one token, the last position proposes none.
    scene.requests(2, NONE)
    scene.times(TARGET, CHEAP)
    assert speedup(scene, 1) == pytest.approx(8 / (7 * (1.1 + 0.1) + 1.0))


def test_the_long_request_weighs_by_its_seconds_and_a_heavy_one_by_its_weight(scene):
    one_heavy(scene)
    assert speedup(scene, 1) == pytest.approx((8 + 3) / (4 * 1.2 + 3 * 0.05 + 3))


def test_each_request_pays_at_its_own_context(scene):
    # prompt + L/2 is 10 + 2 / 2 = 11 and 90 + 2 / 2 = 91; a step takes a second per 100 tokens.
    for name, prompt in (("near", 10), ("far", 90)):
        scene.request(name, 2, prompt_tokens=prompt, limit=9)
        scene.replay(name, [0.0])
    for context in (0, 100):
        scene.times(dict.fromkeys((1, 2, 3), context / 100), {1: 0.1, 2: 0.1}, contexts=(context,))
    plain, rounds, *_ = alternative(scene, 1).promised
    assert plain == pytest.approx([0.11, 0.91])
    assert rounds == pytest.approx([0.21, 1.01])


def test_prompt_lookup_pays_one_proposal_a_round_whatever_it_finds(scene):
    # Starts 1 (two found, both match), 4 (nothing found), 5 (one found, wrong), 6, 7, 8 (nothing).
    for name in ("a", "b"):
        scene.request(name)
        scene.lookup(name, [2, 0, 0, 0, 1, 0, 0, 0], [2, 0, 0, 0, 0, 0, 0, 0])
    scene.times(TARGET, None, NGRAM)
    scene.cost("ngram", NGRAM, 2, 0.01, what="proposal")
    rounds = 1.2 + 1.0 + 1.1 + 3 * 1.0 + 6 * 0.01
    assert speedup(scene, 2, NGRAM) == pytest.approx(8 / rounds)


def test_end_to_end_adds_both_prefills(timed):
    assert alternative(timed, 2).log("end_to_end") is None
    timed.prefills(2.0, 0.5)
    found = alternative(timed, 2).value("end_to_end")
    assert found == pytest.approx((8 + 2) / (4.1 + 2.5))


def test_without_costs_the_rounds_are_still_known(scene):
    scene.requests(2, ALL)
    found = alternative(scene, 2)
    assert (found.decoding, found.log("end_to_end")) == (None, None)
    assert found.responses.at(2).accepted.tolist() == [5, 5]


def test_costs_asked_beyond_the_timed_points_are_named(scene):
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP, contexts=(0, 14))
    rest = (
        "were not timed at the size or context of 2 of 2 responses; the nearest timed ones are used"
    )
    found = beyond(scene, 3)
    assert found == (f"target passes {rest}", f"draft steps {rest}")
    scene.times(TARGET, CHEAP, contexts=(15,))
    assert beyond(scene, 2) == ()
    assert len(beyond(scene, 3)) == 1


def beyond(scene, largest_k):
    found = alternative(scene, 2)
    return beyond_timed(found.responses, found.block, largest_k)


def test_rows_of_a_batch_go_through_rounds_of_their_mean_width(timed):
    assert speedup(timed, 2, concurrency=2) == pytest.approx(8 / (3 * ROUND))


def test_with_many_rows_somebody_always_drafts_to_the_end(timed):
    timed.times(TWO, DRAFT_TWO, concurrency=64)
    assert speedup(timed, 2, concurrency=64) == pytest.approx(8 / (3 * (1.4 + 0.14 + 0.1)))


def test_a_heavy_request_fills_the_rows_by_its_weight(scene):
    # "b", three times as often as "a", takes one plain step: 4/7 of all rounds propose a token,
    # 3/7 follow a full one.
    one_heavy(scene)
    width = 1.0 + 4 / 7 * 0.2
    drafting = (1 - (3 / 7) ** 2) * (0.1 + 3 / 7 * 0.06)
    assert speedup(scene, 1, concurrency=2) == pytest.approx(
        (8 + 3) / ((4 + 3) * (width + drafting))
    )


def test_lookups_of_a_batch_are_paid_in_every_round(scene):
    # Two found at starts 1 and 4, one at 7: three rounds of 1 + 5/3 tokens, two lookups each.
    for name in ("a", "b"):
        scene.request(name)
        scene.lookup(name, [2] * 8, [2] * 8)
    scene.times(TARGET, None, NGRAM)
    scene.times(TWO, None, NGRAM, concurrency=2)
    scene.cost("ngram", NGRAM, 2, 0.01, what="proposal")
    assert speedup(scene, 2, NGRAM, concurrency=2) == pytest.approx(8 / (3 * (1.4 + 0.02)))


def test_a_batch_played_round_by_round_takes_what_is_predicted(scene):
    # Four rows, refilled from 60 responses of 5 to 40 tokens over and over; seconds are linear in
    # the tokens of a pass, as the costs say. Counted over the rounds of the middle.
    rng = np.random.default_rng(7)
    tracks = [(rng.random(rng.integers(4, 40)) < 0.7).astype(float) for _ in range(60)]
    for i, track in enumerate(tracks):
        scene.request(f"r{i}", len(track) + 1)
        scene.replay(f"r{i}", track)
    scene.times({1: 1.0, 5: 1.8}, {1: 0.1, 2: 0.14}, concurrency=4)
    plain, speculative = played([track for _ in range(40) for track in tracks], rows=4, k=4)
    assert plain / speculative == pytest.approx(speedup(scene, 4, concurrency=4), rel=0.01)


def played(tracks, rows, k):
    """Seconds a token of plain decoding and of rounds in lockstep; a row that ends is refilled."""
    waiting = iter(tracks)
    active = [[next(waiting), 0, False] for _ in range(rows)]
    seconds, tokens = 0.0, 0
    while True:
        widths = [min(k, len(track) - at - 1) for track, at, _ in active]
        firsts = [1 + full for _, _, full in active]
        seconds += 1.0 + 0.2 * np.mean(widths)
        if max(widths):
            seconds += 0.1 + 0.04 * (np.mean(firsts) - 1) + 0.1 * (max(widths) - 1)
        for row, width in zip(active, widths, strict=True):
            track, at, _ = row
            tried = track[at : at + width]
            accepted = width if tried.all() else int(np.argmin(tried))
            row[1:] = [at + accepted + 1, width > 0 and accepted == width]
            tokens += accepted + 1
            if row[1] >= len(track):
                fresh = next(waiting, None)
                if fresh is None:
                    return 1.0, seconds * rows / tokens
                row[:] = [fresh, 0, False]
