"""Measured speed-ups from seconds that can be added by hand, the rounds of a batch that count, and
the drift of plain decoding.
"""

import math

import pytest
from scenes import INT4, SMALL

from draftbench.planner.measured import Drift, baseline_drift, measurements, steady
from draftbench.records import Decode


def found_in(scene):
    return measurements(scene.observed(1, 2))


def test_tokens_per_second_are_compared_and_requests_pooled_as_ratios_of_sums(scene):
    # 8 tokens in 8 s against 4 in 2 s at k = 1: the shorter output does not make it faster than
    # 2 ×. At k = 2 16 tokens in 8 + 12 s against 16 in 3 + 2 s.
    for name in ("a", "b"):
        scene.request(name)
    scene.decode("a", 0, 8.0)
    scene.decode("a", 1, 2.0, verify_seconds=(1.0, 1.0))
    scene.decode("a", 2, 3.0)
    scene.decode("b", 0, 12.0)
    scene.decode("b", 2, 2.0)
    found = found_in(scene)
    assert found[SMALL, 1].speedup.value == pytest.approx(2.0)
    assert found[SMALL, 2].speedup.value == pytest.approx((16 / 5) / (16 / 20))


def test_only_requests_with_a_baseline_of_the_same_block_count(scene):
    for name in ("a", "b"):
        scene.request(name)
        scene.decode(name, 1, 2.0)
    scene.decode("a", 0, 4.0)
    scene.decode("b", 0, 400.0, INT4)
    found = found_in(scene)
    assert set(found) == {(SMALL, 1)}
    assert found[SMALL, 1].speedup.requests == ("a",)
    assert found[SMALL, 1].keys == {("a", 0)}
    assert found[SMALL, 1].speedup.value == pytest.approx(2.0)


def test_repeats_of_a_request_are_averaged(scene):
    # Baseline 6 and 10 s: 8 on average; k = 1 ran once.
    scene.request("a")
    for repeat, seconds in enumerate((6.0, 10.0)):
        scene.decode("a", 0, seconds, repeat=repeat)
    scene.decode("a", 1, 4.0)
    assert found_in(scene)[SMALL, 1].speedup.value == pytest.approx(2.0)


def test_without_speculative_runs_nothing_is_measured(scene):
    scene.request("a")
    scene.decode("a", 0, 1.0)
    assert found_in(scene) == {}


def test_batches_are_measured_apart_and_by_their_steady_rounds(scene):
    # 2 + 2 tokens in 3 s against 4 in 4 s; the rounds that one row ran alone took 99 s.
    scene.request("a")
    scene.batch_run("a", 0, (0,) * 5, (1.0,) * 4 + (99.0,), active=(2,) * 4 + (1,))
    scene.batch_run("a", 1, (1, 1, 1), (1.5, 1.5, 99.0), active=(2, 2, 1))
    run = scene.observed(1)
    assert measurements(run) == {}
    (found,) = measurements(run, 2).values()
    assert found.speedup.value == pytest.approx((4 / 3) / (4 / 4))
    assert [each.row.k for each in found.baseline] == [0]


def test_a_batch_without_a_baseline_of_its_own_is_not_measured(scene):
    scene.request("a")
    scene.decode("a", 0, 8.0)
    scene.batch_run("a", 1, (1,), (1.5,))
    assert measurements(scene.observed(1), 2) == {}


def test_end_to_end_counts_the_prefills_by_the_steady_share(scene):
    # Alone: 8 tokens in 8 + 1 s against 8 in 4 + 1 + 1 s.
    scene.request("a")
    scene.decode("a", 0, 8.0)
    scene.decode("a", 2, 4.0)
    assert found_in(scene)[SMALL, 2].end_to_end.value == pytest.approx(9 / 6)
    # Of 4 tokens 2 are steady: half of the prefills beside 1.5 s, the baseline all steady.
    scene.batch_run("a", 0, (0,) * 4, (1.0,) * 4)
    scene.batch_run("a", 1, (1, 1), (1.5, 99.0), active=(2, 1))
    whole = measurements(scene.observed(1), 2)[SMALL, 1].end_to_end
    assert whole.value == pytest.approx((2 / (1.5 + 1)) / (4 / 5))


def only(scene):
    (row,) = [record for record in scene.records if isinstance(record, Decode)]
    return row


def test_a_run_alone_is_all_steady(scene):
    scene.decode("r", 2, 4.0, concurrency=1)
    assert steady(only(scene)) is only(scene)


def test_rounds_with_an_empty_row_do_not_count(scene):
    # 3 + 1 + 2 tokens; the last round ran alone.
    scene.batch_run("r", 2, (2, 0, 1), (1.5, 1.4, 1.1), active=(2, 2, 1))
    found = steady(only(scene))
    assert (found.accepted, found.verify_seconds) == ((2, 0), (1.5, 1.4))
    assert found.output_tokens - 1 == 4
    assert found.decode_seconds == pytest.approx(2.9)


def test_a_response_that_ended_inside_its_proposal_has_no_token_of_the_targets_there(scene):
    # The second round proposed two tokens, of which the first ended the response: 3 + 1 tokens.
    scene.batch_run("r", 2, (2, 1), (1.5, 1.4), cut=(0, 1), output_tokens=5)
    found = steady(only(scene))
    assert found.output_tokens - 1 == 4
    scene.records.clear()
    scene.batch_run("r", 2, (2, 1), (1.5, 1.4), cut=(0, 1), output_tokens=5, active=(1, 2))
    found = steady(only(scene))
    assert found.output_tokens - 1 == 1


def test_a_batch_that_was_never_full_has_nothing_steady(scene):
    scene.batch_run("r", 2, (2,), (1.5,), active=(1,))
    assert steady(only(scene)) is None


def drift(scene, *paces):
    """Of (request, seconds per token) of baseline runs of 8 tokens after the first, in order."""
    for request, pace in paces:
        scene.decode(request, 0, 8 * pace)
    return baseline_drift([record for record in scene.records if isinstance(record, Decode)])


def test_a_constant_machine_does_not_drift_however_requests_differ(scene):
    scene.decode("a", 2, 100.0)
    assert drift(scene, *[("a", 1.0), ("b", 3.0)] * 4) == Drift(0.0, 0.0)


def test_one_percent_a_run_is_ten_percent_after_ten(scene):
    found = drift(scene, *(("a" if i % 2 else "b", 1.01**i) for i in range(11)))
    assert found == pytest.approx((1.01**10 - 1, 0.0))


def test_one_run_that_was_disturbed_is_no_trend(scene):
    paces = [("a", 1.0)] * 10
    paces[3] = ("a", 20.0)
    assert drift(scene, *paces).change == 0.0


def test_an_uneven_machine_has_no_trend_beyond_doubt(scene):
    found = drift(scene, *[("a", 1.0), ("a", 1.21)] * 20)
    assert abs(found.change) < found.doubt
    # Logarithms ± .095 about the middle: 1.4826 · .095 · √(40 / 39) over √(Σ(x - 19.5)²), which
    # is √5330, twice that, over 39 runs.
    assert found.doubt == pytest.approx(math.expm1(2 * 39 * 0.1427 / 5330**0.5), rel=0.02)


def test_many_runs_show_a_drift_that_is_smaller_than_the_scatter_of_one(scene):
    # 12% slower in the end, where one run is 15% off: twenty times less in 400 runs.
    paces = [1.12 ** (i / 399) * (0.85, 1.15, 1.0, 1.15, 0.85)[i % 5] for i in range(400)]
    found = drift(scene, *(("a", pace) for pace in paces))
    assert found.change == pytest.approx(0.12, abs=0.04)
    assert found.doubt < 0.1 < found.change


def test_rounds_of_a_batch_with_empty_rows_show_no_drift(scene):
    # Full rounds take 1 s in every run; the second ran on for six alone, at a quarter of that.
    for alone in (0, 6):
        active, seconds = (2,) * 4 + (1,) * alone, (1.0,) * 4 + (0.25,) * alone
        scene.batch_run("a", 0, (0,) * len(active), seconds, active=active)
    scene.batch_run("a", 0, (0,), (9.0,), active=(1,))
    assert drift(scene) == Drift(0.0, 0.0)


@pytest.mark.parametrize("paces", [[], [("a", 1.0)], [("a", 1.0), ("b", 2.0)]])
def test_without_a_repeated_request_no_drift_is_known(scene, paces):
    assert drift(scene, *paces) is None
