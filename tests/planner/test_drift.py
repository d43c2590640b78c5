"""A machine that slows down is told from one that is merely uneven."""

from __future__ import annotations

import pytest

from draftbench.planner.drift import baseline_drift
from draftbench.records import Decode


def baselines(scene, paces):
    """(request, seconds per token) of baseline runs of 8 tokens after the first, in order."""
    for request, pace in paces:
        scene.decode(request, 0, 8 * pace)
    return [record for record in scene.records if isinstance(record, Decode)]


def test_a_constant_machine_does_not_drift_however_requests_differ(scene):
    found = baseline_drift(baselines(scene, [("a", 1.0), ("b", 3.0)] * 4))
    assert (found.change, found.scatter, found.runs) == (0.0, 0.0, 8)


def test_one_percent_a_run_is_ten_percent_after_ten(scene):
    paces = [("a" if i % 2 else "b", 1.01**i) for i in range(11)]
    found = baseline_drift(baselines(scene, paces))
    assert found.change == pytest.approx(1.01**10 - 1)
    assert found.scatter == pytest.approx(0.0)


def test_one_run_that_was_disturbed_is_no_trend(scene):
    paces = [("a", 1.0)] * 10
    paces[3] = ("a", 20.0)
    assert baseline_drift(baselines(scene, paces)).change == 0.0


def test_an_uneven_machine_scatters(scene):
    found = baseline_drift(baselines(scene, [("a", 1.0), ("a", 1.21)] * 20))
    assert abs(found.change) < found.scatter
    assert found.scatter == pytest.approx(0.1, abs=0.02)


def test_speculative_runs_do_not_count(scene):
    scene.decode("a", 2, 100.0)
    found = baseline_drift(baselines(scene, [("a", 1.0), ("a", 1.0)]))
    assert (found.change, found.runs) == (0.0, 2)


def test_rounds_of_a_batch_with_empty_rows_do_not_count(scene):
    # Full rounds take 1 s in every run; the second ran on for six alone, at a quarter of that.
    for alone in (0, 6):
        active, seconds = (2,) * 4 + (1,) * alone, (1.0,) * 4 + (0.25,) * alone
        scene.batch_run("a", 0, (0,) * len(active), seconds, active=active)
    scene.batch_run("a", 0, (0,), (9.0,), active=(1,))
    rows = [record for record in scene.records if isinstance(record, Decode)]
    found = baseline_drift(rows)
    assert (found.change, found.runs) == (0.0, 2)


@pytest.mark.parametrize("paces", [[], [("a", 1.0)], [("a", 1.0), ("b", 2.0)]])
def test_without_a_repeated_request_nothing_is_known(scene, paces):
    assert baseline_drift(baselines(scene, paces)) is None
