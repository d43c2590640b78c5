"""Steps are timed until the decision no longer depends on how often; which k's are decoded."""

from __future__ import annotations

import pytest
from scenes import ALL, BIG, CHEAP, DRAFT, NONE, SMALL, TARGET

from draftbench.planner.what_to_measure import promising_ks, timed_enough
from draftbench.records import CostPoint


@pytest.fixture
def judged(scene):
    """judged(visits, …): whether those of a draft's step are enough, beside a target that takes a
    second a pass and 20 requests, some accepted and some not. Decoding takes 9 s a response.
    """

    def make(visits, accepted=14, responses=20, cells=4, ks=(1, 2)):
        for at in range(20):
            scene.request(f"r{at}")
            scene.replay(f"r{at}", ALL if at < accepted else NONE)
        samples = tuple(seconds for visit in visits for seconds in (visit, visit))
        constant = (1.0,) * len(samples)
        sizes = range(1, max(ks) + 2)
        scene.times(dict.fromkeys(sizes, constant), {1: samples, 2: samples})
        run = scene.observed(*ks)
        points = [record for record in scene.records if isinstance(record, CostPoint)]
        decoded = run.trajectories[:responses]
        return timed_enough(run, SMALL, 1, decoded, cells)(points)

    return make


@pytest.mark.parametrize(
    ("visits", "enough"),
    [
        ((0.1, 0.101, 0.099), True),
        ((0.1, 0.2, 0.5), False),  # three that differ by half an order of magnitude
        ((0.1, 0.11, 0.09, 0.1, 0.11, 0.09), True),
    ],
)
def test_steps_that_agree_are_timed_no_longer(judged, visits, enough):
    assert judged(visits) is enough


@pytest.mark.parametrize(
    ("visits", "enough"),
    [
        ((0.1, 0.1, 8.0), False),
        ((0.1, 8.0, 0.1, 8.0), False),
        ((8.0, 0.1, 8.0, 0.1, 0.1), True),
    ],
)
def test_what_stalled_is_timed_again(judged, visits, enough):
    """However little there is to decode: three visits that did not stall are always timed."""
    assert judged(visits, responses=1, cells=1) is enough


def test_a_stall_is_no_time_spent_on_timing(judged):
    """Four visits to eight points take 12 s a visit without the stall. Half of 720 s is left for
    timing, of which the stall alone would be three times as much.
    """
    assert not judged((0.1, 0.2, 0.5, 0.1, 270.0))


@pytest.mark.parametrize(("step", "enough"), [(0.1, True), (1.0, False)])
def test_far_from_break_even_less_will_do(judged, step, enough):
    """Requests that are all alike leave no doubt of their own. At a tenth of a step the draft is
    worth 2.3, whatever exactly it costs; at one it is worth about 1.
    """
    visits = [step * factor for factor in (1.0, 1.3, 1.1, 1.2, 1.0)]
    assert judged(visits, accepted=20) is enough


def test_timing_takes_at_most_half_as_long_as_decoding(judged):
    # Eight points a visit, 20 responses of 9 tokens at 4 cells: 720 s. One response at one: 9 s.
    apart = (0.1, 0.2, 0.5)
    assert not judged(apart)
    assert judged(apart, responses=1, cells=1)


@pytest.mark.parametrize(("responses", "enough"), [(9, True), (12, False)])
def test_the_smallest_k_as_the_best_is_decoded_with_one_neighbour_only(judged, responses, enough):
    """A third k would leave time for another visit from eight responses on."""
    assert judged((0.9, 1.2, 0.6), responses=responses, ks=(1, 2, 3, 4)) is enough


def test_what_has_no_speed_to_predict_is_timed_no_longer(scene):
    scene.requests(5, ALL)
    assert timed_enough(scene.observed(1), SMALL, 1, (), 4)([])


def test_the_ks_worth_measuring_are_the_best_and_its_neighbours_whatever_was_decoded(scene):
    # Passes of 4 and more tokens cost 6 s: k = 2 is best.
    scene.requests(5, ALL)
    assert promising_ks(scene.observed(1, 2), SMALL) == []
    scene.times(TARGET | {4: 6.0, 9: 6.0}, CHEAP)
    scene.decode("r0", 8, 99.0)
    scene.decode("r0", 1, 1.0)
    assert promising_ks(scene.observed(1, 2, 4, 8), SMALL) == [1, 2, 4]
    assert promising_ks(scene.observed(2, 4, 8), SMALL) == [2, 4]
    assert promising_ks(scene.observed(2), SMALL) == [2]
    assert promising_ks(scene.observed(1, 2), BIG) == []


def test_the_ks_worth_measuring_depend_on_the_batch(loaded):
    loaded.times({1: 1.0, 2: 1.05, 3: 9.0}, DRAFT, batch=4)
    run = loaded.observed(1, 2, 4)
    assert promising_ks(run, SMALL, 4) == [1, 2]
    assert promising_ks(run, SMALL, 64) == []
