"""Between two timed loads: what was measured at both, carried over, and what is in doubt.

Every token is accepted. At k = 1 four rounds of 1.1 + 0.1 s stand against eight steps of 1 s, at
k = 2 three rounds of up to 1.2 + 0.2 s, at 4 rows as at 16.
"""

from dataclasses import replace

import pytest
from scenes import ALL, BIG, SMALL, TARGET

from draftbench.planner.alternatives import carried_over
from draftbench.planner.at_concurrency import Evaluator
from draftbench.planner.latency import tail_ratio
from draftbench.planner.options import DecisionOptions

ONE = 8 / 4.8
# Of eight rows all three rounds draft; in a third of them a row drafts one token only.
TWO = 8 / (3 * (1.1 + 0.2 / 3 + 0.1 + 0.1 * (1 - 1 / 3**8)))


def decoded(scene, rows, factor, candidate=SMALL, k=1):
    """Five requests at `rows` rows, whose rounds at k = 1 are worth `factor` of what their passes
    promise.
    """
    for at in range(5):
        full = {"batch": rows, "candidate": candidate}
        scene.batch_run(f"r{at}", 0, (0,) * 8, (1.0,) * 8, active=(rows,) * 8, **full)
        seconds = (1.2 / factor,) * 4
        scene.batch_run(f"r{at}", k, (1,) * 4, seconds, active=(rows,) * 4, **full)


@pytest.fixture
def timed(scene):
    scene.requests(5, ALL)
    for rows in (4, 16):
        scene.times(TARGET, {1: 0.1, 2: 0.1}, batch=rows)
    return scene


def alternatives(scene, rows, candidate=SMALL):
    evaluator = Evaluator(scene.observed(1, 2, batches=(4, 16)), DecisionOptions())
    return [each for each in evaluator.at(rows).alternatives if each.candidate == candidate]


@pytest.mark.parametrize("k", [1, 2])
def test_what_was_measured_at_both_ends_is_carried_over_and_stands_for_other_ks(timed, k):
    decoded(timed, 4, 0.9)
    decoded(timed, 16, 0.8)
    found = alternatives(timed, 8)[k - 1]
    passes = {1: ONE, 2: TWO}[k]
    assert found.predicted.value == pytest.approx(passes)
    # 8 rows are a third of the way from 4 to 16.
    assert found.expected.value == pytest.approx(passes * 0.9 ** (2 / 3) * 0.8 ** (1 / 3))
    # Either end alone differs from their mean, the root of .72.
    assert sorted(set(found.errors)) == pytest.approx([0.72**0.5 / 0.9 - 1, 0.72**0.5 / 0.8 - 1])


def test_at_a_load_where_nothing_was_decoded_passes_alone_stand(timed):
    decoded(timed, 4, 0.9)
    assert alternatives(timed, 16)[0].expected.value == pytest.approx(ONE)
    found = alternatives(timed, 10)[0]
    assert found.expected.value == pytest.approx(ONE * 0.9**0.5)
    assert sorted(set(found.errors)) == pytest.approx([0.9**0.5 - 1, 0.9**-0.5 - 1])


def test_a_k_has_its_own_correction_where_it_was_decoded(timed):
    decoded(timed, 4, 0.9)
    decoded(timed, 16, 0.9)
    fewer, between, more = (alternatives(timed, rows) for rows in (4, 8, 16))
    bare = [
        replace(each, expected=each.predicted, end_to_end=None, errors=None) for each in between
    ]
    ends = []
    for one, two in (fewer, more):
        # As if k = 2 had been decoded too, and found to be worth .8 of its passes.
        alone = two.passes_only.speedup()
        worth = replace(alone, addends=alone.addends * [1, 1 / 0.8])
        ends.append((one, replace(two, measured=one.measured, expected=worth)))
    one, other = carried_over(bare, *ends, "expected", ())
    assert one.expected.value == pytest.approx(ONE * 0.9)
    assert other.expected.value == pytest.approx(TWO * 0.8)


def test_a_draft_that_was_not_decoded_keeps_the_doubt_of_those_that_were(timed):
    timed.requests(5, ALL, BIG)
    for rows in (4, 16):
        timed.times(TARGET, {1: 0.1, 2: 0.1}, BIG, batch=rows)
        decoded(timed, rows, 0.9)
    found = alternatives(timed, 8, BIG)[0]
    assert found.expected.value == pytest.approx(ONE)
    assert found.errors == pytest.approx([1 / 0.9 - 1] * len(found.errors))


def test_waits_are_corrected_like_speed_ups(timed):
    decoded(timed, 4, 0.9)
    decoded(timed, 16, 0.9)
    ratio, of = tail_ratio(alternatives(timed, 8)[0])
    assert ratio == pytest.approx(4.8 / 0.9 / 8)
    assert of == "the largest of 5, predicted"


def test_passes_that_may_bend_between_the_timed_points_are_in_doubt(scene):
    # A pass over 16 tokens takes 1 s like all shorter ones, one over 32 takes 2 s like a longer
    # one: 24 take 1 to 2 s, four rounds of 1.1 to 2.1 s with the draft's step.
    scene.requests(5, ALL)
    for rows, steps in ((4, {1: 1.0, 2: 1.0, 3: 1.0}), (16, {1: 1.0, 2: 2.0, 3: 2.0})):
        scene.times(steps, {1: 0.1, 2: 0.1}, batch=rows)
    found = alternatives(scene, 12)[0]
    assert found.expected.value == pytest.approx(8 / (4 * 1.6))
    assert sorted(found.errors) == pytest.approx([1.1 / 1.6 - 1, 0, 2.1 / 1.6 - 1])
