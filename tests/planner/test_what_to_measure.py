"""Steps are timed until the decision no longer depends on how often; which k's are decoded, and
which an engine is started with.
"""

import msgspec
import pytest
from planner.engine_run import PLAIN, in_pieces, in_rounds, replayed_run
from scenes import ALL, BIG, DRAFT, NONE, SMALL, evaluation

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.planner import effects
from draftbench.planner.decide import DecisionAt
from draftbench.planner.recommend import recommend
from draftbench.planner.what_to_measure import (
    lengths_to_decode,
    next_start,
    settled,
    settled_after,
    timed_enough,
)
from draftbench.records import Candidate, CostPoint
from draftbench.run_folder import run as run_folder
from draftbench.run_folder.run import part_of


@pytest.fixture
def judged(scene):
    """judged(visits, …): whether those of a draft's step are enough, beside a target that takes a
    second a pass and 20 requests, some accepted and some not. Decoding takes 9 s a response.
    """

    def make(visits, accepted=14, responses=20, cells=4, requests=20, load=1):
        for at in range(20):
            scene.request(f"r{at}")
            scene.replay(f"r{at}", ALL if at < accepted else NONE)
        samples = tuple(seconds for visit in visits for seconds in (visit, visit))
        constant = (1.0,) * len(samples)
        steps = dict.fromkeys((1, 2, 3), constant), {1: samples, 2: samples}
        scene.times(*steps, concurrency=load)
        run = scene.observed(1, 2, requests=requests)
        points = [record for record in scene.records if isinstance(record, CostPoint)]
        decoded = run.trajectories[:responses]
        return timed_enough(run, SMALL, load, decoded, cells, points)

    return make


ALONE = {"responses": 1, "cells": 1}
NEAR = [0.5 * factor for factor in (1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.1, 0.9)]
APART = (1.0, 1.3, 1.1, 1.2, 1.0)


@pytest.mark.parametrize(
    ("visits", "options", "enough"),
    [
        ((0.1, 0.101, 0.099), {}, True),
        ((0.1, 0.2, 0.5), {}, False),  # three that differ by half an order of magnitude
        ((0.1, 0.11, 0.09, 0.1, 0.11, 0.09), {}, True),
        # Timing takes at most half as long as decoding. Eight points a visit; 20 responses of 9
        # tokens at 4 cells are 720 s, one at one 9 s. A stall is no time spent on timing.
        ((0.1, 0.2, 0.5), ALONE, True),
        ((0.1, 0.2, 0.5), {"load": 8}, True),  # decoding takes an eighth of it
        ((0.1, 0.2, 0.5, 0.1, 270.0), {}, False),
        # However little there is to decode, three visits that did not stall are always timed.
        ((0.1, 0.1, 8.0), ALONE, False),
        ((0.1, 8.0, 0.1, 8.0), ALONE, False),
        ((8.0, 0.1, 8.0, 0.1, 0.1), ALONE, True),
        # Near break-even these twenty requests leave more doubt than such steps; of two thousand,
        # of which they are the first, a tenth of it is left.
        (NEAR, {"requests": 20}, True),
        (NEAR, {"requests": 2000}, False),
        # Requests that are all alike leave no doubt. At a tenth of a step the draft is worth 2.3,
        # whatever exactly it costs; at one it is worth about 1.
        ([0.1 * factor for factor in APART], {"accepted": 20}, True),
        (APART, {"accepted": 20}, False),
    ],
)
def test_steps_are_timed_until_the_decision_no_longer_depends_on_how_often(
    judged, visits, options, enough
):
    assert judged(visits, **options) is enough


def test_what_has_no_speed_to_predict_is_timed_no_longer(scene):
    scene.requests(5, ALL)
    assert timed_enough(scene.observed(1), SMALL, 1, (), 4, [])


def test_the_best_predicted_k_is_decoded_at_each_load(loaded):
    loaded.times({1: 1.0, 2: 1.05, 3: 9.0}, DRAFT, concurrency=4)
    run = loaded.observed(1, 2, 4)
    assert [ks_of_lengths(run, SMALL, load) for load in (1, 4, 64)] == [[4], [1], []]
    assert ks_of_lengths(run, BIG) == []


def start_at(*asked, **more):
    length = next_start(*asked, **more)
    return length and length.k


def ks_of_lengths(*asked, **more):
    return [length.k for length in lengths_to_decode(*asked, **more)]


@pytest.fixture
def alike(scene, monkeypatch):
    """Of eight tokens two rounds of 1.4 and 1.2 s at k = 4, and one of 1.9 + .7 s at k = 8, which
    take as long; alike(.1): decoding may show that k's differ by about 10 %.
    """
    scene.requests(6, ALL)
    scene.times({1: 1.0, 5: 1.0, 9: 2.2}, DRAFT)

    def make(differ):
        monkeypatch.setattr(effects, "K", differ)
        return scene.observed(1, 4, 8)

    return make


def test_another_k_is_decoded_where_the_choice_may_be_much_faster_for_it(alike):
    assert ks_of_lengths(alike(0.001), SMALL) == [4]
    assert ks_of_lengths(alike(0.1), SMALL) == [4, 8]
    assert ks_of_lengths(alike(0.1), SMALL, most=1) == [4]


def test_of_a_draft_that_others_leave_far_behind_the_best_k_alone_is_decoded(scene, alike):
    scene.requests(6, ALL, BIG)
    scene.times({1: 1.0, 9: 1.0}, {1: 0.01, 2: 0.01}, BIG)
    for request in range(6):
        scene.decode(f"r{request}", 0, 8.0, BIG)
        scene.decode(f"r{request}", 8, 1.1, BIG)
    assert ks_of_lengths(alike(0.1), SMALL) == [4]


SOME = {"accept": (1, 1, 0, 1, 1, 0, 1, 1)}


@pytest.mark.parametrize(
    ("rows", "options", "k"),
    [
        ([], {}, 1),
        # By rounds of replay 4, 3 and 2 of .13, .14 and .16 s: k = 4 is the best.
        (in_rounds(1, 0.13), {}, 4),
        (in_rounds(1, 0.13), {"ks": (1, 2)}, 2),
        (in_rounds(1, 0.13) + in_rounds(4, 0.16), {}, None),
        # With .30 s at k = 4 the line says .187 at k = 2: .56 against .52 and .60 s.
        (in_rounds(1, 0.13) + in_rounds(4, 0.30), {}, None),
        # Two of three tokens accepted: 5 and 3 rounds of .12 and .20 s; at k = 2 three of .147 s.
        (
            in_pieces(1, 0.5, 0.12, (1, 2, 1, 2, 1, 2), accepted=(1, 0, 1, 0, 1))
            + in_pieces(4, 0.5, 0.20, (1, 3, 3, 2), accepted=(2, 2, 2)),
            SOME,
            2,
        ),
        # Where a start answered few requests its k was started all the same.
        ([row for row in in_rounds(1, 0.13) if row.request in "abc"], {}, 4),
    ],
)
def test_the_smallest_k_and_the_largest_are_started_then_the_best_predicted(rows, options, k):
    run = replayed_run(*PLAIN, *rows, accept=options.get("accept", (1.0,) * 8))
    assert start_at(run, SMALL, ks=options.get("ks", ())) == k


def test_a_k_between_two_is_started_where_rounds_may_bend_so_far_that_it_is_the_best(monkeypatch):
    """Two rounds of .22 s at k = 4 are the best of .13 and .22 s, and three of .16 s expected."""
    run = replayed_run(*PLAIN, *in_rounds(1, 0.13), *in_rounds(4, 0.22))
    assert next_start(run, SMALL) is None
    monkeypatch.setattr(effects, "BEND", 3.0)
    assert start_at(run, SMALL) == 2


def test_what_cannot_reach_plain_decoding_is_not_started():
    # At k = 2 the line says .333 s, three times, where eight target steps take .8: .8, better than
    # .71 and .73. A bend may be .013 s (4 %), and starts differ by 3 %: at most about .9.
    run = replayed_run(*PLAIN, *in_rounds(1, 0.28), *in_rounds(4, 0.44))
    two = evaluation(recommend(run), k=2)
    assert two.speedup_expected.value == pytest.approx(0.8, rel=0.01)
    assert next_start(run, SMALL) is None


def test_a_draft_that_only_the_engine_runs_is_started_at_the_largest_k_and_has_its_hazards():
    eagle = Candidate(draft="eagle3")
    own = [msgspec.structs.replace(row, candidate=eagle) for row in in_rounds(4, 0.14)]
    assert start_at(replayed_run(*PLAIN), eagle) == 4
    along = candidate_rounds(replayed_run(*PLAIN, *own), eagle)
    # Everything is accepted: at k = 1 four rounds for 8 tokens.
    assert along.at(1).with_draft == pytest.approx([4.0] * 5)
    assert not along.reaches(5)
    assert start_at(replayed_run(*PLAIN, *own), eagle) == 1


@pytest.fixture
def alike_requests(scene):
    """alike_requests(loads): eight, all accepted, of a draft that is worth 2.3 at every load."""

    def make(*loads):
        scene.requests(8, ALL)
        for load in loads:
            scene.times({1: 1.0, 2: 1.0, 3: 1.0}, DRAFT, concurrency=load)
        return scene.observed(1, 2, concurrency=loads or (1,), requests=8)

    return make


def test_an_answer_is_settled_where_it_is_at_every_load(alike_requests, monkeypatch):
    run, likely = alike_requests(1, 4), {1: 0.96, 4: 0.94}
    weights = {trajectory.request: 1.0 for trajectory in run.trajectories}
    monkeypatch.setattr(
        DecisionAt, "chance_unchanged", lambda here, learned, left: likely[here.concurrency]
    )
    assert not settled(run, weights)
    likely[4] = 0.95
    assert settled(run, weights)


@pytest.mark.parametrize(
    ("others", "learned", "left"),
    [
        # All eight requests leave half the doubt of these four, so that their mean shows the rest.
        ((1, 1, 1, 1), 1 / 2, 1 / 2),
        # Shares of 1/4 each now. Of all, 1/32 each and 25/32: of the variance Σ (1/4)² = 1/4.
        ((1, 1, 1, 25), 4 * (4 * (7 / 32) ** 2 + 3 / 32**2 + (25 / 32) ** 2), 4 * 632 / 32**2),
    ],
)
def test_requests_that_occur_often_may_change_an_answer_as_much(
    alike_requests, monkeypatch, others, learned, left
):
    run, asked = alike_requests(1), []
    names = [trajectory.request for trajectory in run.trajectories]
    monkeypatch.setattr(
        DecisionAt, "chance_unchanged", lambda here, *shares: asked.append(shares) or 1.0
    )
    settled(part_of(run, names[:4]), dict(zip(names, (1, 1, 1, 1, *others), strict=True)))
    assert asked == [(pytest.approx(learned), pytest.approx(left))]


def test_the_fewest_requests_that_settle_an_answer_are_of_whole_waves(alike_requests, monkeypatch):
    """Eight requests come as two, two and four."""
    monkeypatch.setattr(run_folder, "WAVE", 2)
    run, asked = alike_requests(1), []

    def stays(here, *shares):
        asked.append(int(here.table.requests[0]))
        return 0.9 + 0.01 * len(asked) * 3

    monkeypatch.setattr(DecisionAt, "chance_unchanged", stays)
    assert settled_after(run) == 4
    assert asked == [2, 4]


def test_requests_that_are_all_alike_settle_an_answer_at_once(alike_requests, monkeypatch):
    monkeypatch.setattr(run_folder, "WAVE", 5)
    assert settled_after(alike_requests(1)) == 5
