"""How large a sweep settles an open decision, and how surely: held against drawn sweeps."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftbench.planner.settling import OpenInterval, sweep_that_settles

DRAWS = 200_000
PLENTY = 10**6


def opened(distance, of_requests, of_processes=lambda processes: (0.0, 0.0), processes=1):
    return OpenInterval(distance, of_requests, 24, of_processes, processes)


def scattering(sd):
    """So well known that half of an interval is 1.96 standard deviations."""
    return lambda processes: (1.96 * sd / math.sqrt(processes), sd / math.sqrt(processes))


@pytest.mark.parametrize(
    ("distance", "times", "processes"), [(0.05, 4, 1), (0.0, 2, 1), (0.05, 4, 3), (-0.08, 1, 5)]
)
def test_the_chance_is_the_share_of_new_sweeps_that_leave_the_asked_speed_up_out(
    distance, times, processes
):
    # Today requests show ±.1 and one process scatters by .02.
    interval = opened(distance, 0.1, scattering(0.02))
    generator = np.random.default_rng(0)
    requests, scatter = 0.1 / 1.96, 0.02
    truth = distance + math.hypot(requests, scatter) * generator.standard_normal(DRAWS)
    new = math.hypot(requests / math.sqrt(times), scatter / math.sqrt(processes))
    seen = truth + new * generator.standard_normal(DRAWS)
    settled = (abs(seen) > 1.96 * new).mean()
    assert interval.chance(times, processes) == pytest.approx(settled, abs=0.005)


def test_what_lies_farther_off_needs_fewer_requests():
    near, far = (
        sweep_that_settles(opened(d, 0.1), PLENTY, processes_help=True) for d in (0.08, 0.11)
    )
    assert (near.enough, far.enough) == (True, True)
    assert 24 < far.requests < near.requests


def test_where_one_process_scatters_too_much_the_same_work_is_spread_over_more():
    interval = opened(0.12, 0.1, scattering(0.03))
    found = sweep_that_settles(interval, PLENTY, processes_help=True)
    assert found.enough
    assert found.processes > 1
    # One process would need more work.
    assert interval.chance(found.requests * found.processes / 24, 1) < 0.9
    assert sweep_that_settles(interval, PLENTY, processes_help=False).enough is False


def test_no_more_is_advised_than_is_within_reason():
    # 50 times the requests settle it in 93 of 100 cases, 100 times in 95.
    assert sweep_that_settles(opened(0.08, 0.1), PLENTY, processes_help=False).requests == 50 * 24


@pytest.mark.parametrize("distance", [0.11, 0.12])
def test_twice_as_many_as_advised_settle_hardly_more_often_and_fewer_would_not_do(distance):
    interval = opened(distance, 0.1)
    advised = sweep_that_settles(interval, PLENTY, processes_help=False).requests / 24

    def gained(times):
        return interval.chance(2 * times, 1) - interval.chance(times, 1)

    assert interval.chance(advised, 1) >= 0.9
    assert gained(advised) <= 0.01
    assert gained(0.9 * advised) > 0.01


def test_what_nothing_settles_surely_gets_the_next_sweep_with_its_chance():
    # In the middle of its interval, and ±.2 in any process.
    interval = opened(0.0, 0.1, lambda processes: (0.2, 0.1))
    found = sweep_that_settles(interval, PLENTY, processes_help=True)
    assert (found.requests, found.processes, found.enough) == (240, 3, False)
    assert found.chance == pytest.approx(interval.chance(10, 3))


def test_no_request_more_is_advised_than_settles_it():
    """Three processes leave no doubt, and the requests of now show ±.01."""
    interval = opened(0.1, 0.01, lambda processes: (0.2, 0.0) if processes == 1 else (0.0, 0.0))
    found = sweep_that_settles(interval, PLENTY, processes_help=True)
    assert (found.requests, found.processes) == (24, 3)


@pytest.mark.parametrize(
    ("rows", "requests", "short"), [(240, 240, None), (100, 100, None), (24, 240, 24)]
)
def test_the_chance_is_that_of_the_rows_the_traffic_has_while_these_are_more_than_now(
    rows, requests, short
):
    interval = opened(0.0, 0.1, lambda processes: (0.2, 0.1))
    found = sweep_that_settles(interval, rows, processes_help=False)
    assert (found.requests, found.rows) == (requests, short)
    assert found.chance == pytest.approx(interval.chance(requests / 24, 1))


def test_more_processes_are_advised_before_more_requests_than_the_traffic_has():
    interval = opened(0.13, 0.1, scattering(0.02))
    alone = sweep_that_settles(interval, PLENTY, processes_help=True)
    assert alone.processes == 1
    found = sweep_that_settles(interval, alone.requests - 1, processes_help=True)
    assert (found.rows, found.enough) == (None, True)
    assert found.processes == 3


def test_requests_that_show_nothing_ask_for_no_more_of_them():
    assert sweep_that_settles(opened(0.01, 0.0), PLENTY, processes_help=True) is None


@given(st.floats(-0.3, 0.3), st.floats(0.01, 0.5), st.floats(1, 50), st.floats(1.01, 4))
def test_more_requests_never_settle_less(distance, of_requests, times, more):
    interval = opened(distance, of_requests, scattering(0.01))
    assert interval.chance(times * more, 1) >= interval.chance(times, 1) - 1e-9
