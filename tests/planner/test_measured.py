"""Measured speed-ups from seconds that can be added by hand, and the audit of outputs."""

from __future__ import annotations

from typing import Any

import pytest

from draftbench.planner.measured import Audit, Measurement, audit, measurements
from draftbench.records import Candidate, Sampling

SMALL, INT4 = Candidate(draft="small"), Candidate(draft="small", quant="int4")


def cells(scene: Any) -> dict[tuple[Candidate, int], Measurement]:
    return measurements(scene.observed(1, 2))


def test_tokens_per_second_are_compared_not_seconds(scene: Any) -> None:
    # 8 tokens in 8 s against 4 in 2 s: the shorter output does not make it faster than 2 ×.
    scene.request("a")
    scene.decode("a", 0, 8.0)
    scene.decode("a", 1, 2.0, output_tokens=5)
    assert cells(scene)[SMALL, 1].speedup.value == pytest.approx(2.0)


def test_requests_are_pooled_as_ratios_of_sums(scene: Any) -> None:
    # 16 tokens in 4 + 12 s against 16 in 2 + 2 s: 1 against 4 tokens a second.
    for name, plain in (("a", 4.0), ("b", 12.0)):
        scene.request(name)
        scene.decode(name, 0, plain)
        scene.decode(name, 2, 2.0)
    assert cells(scene)[SMALL, 2].speedup.value == pytest.approx(4.0)


def test_only_requests_with_a_baseline_of_the_same_block_count(scene: Any) -> None:
    for name in ("a", "b"):
        scene.request(name)
        scene.decode(name, 1, 2.0)
    scene.decode("a", 0, 4.0)
    scene.decode("b", 0, 400.0, INT4)
    found = cells(scene)
    assert set(found) == {(SMALL, 1)}
    assert found[SMALL, 1].speedup.requests == ("a",)
    assert found[SMALL, 1].keys == {("a", 0)}
    assert found[SMALL, 1].speedup.value == pytest.approx(2.0)


def test_repeats_of_a_request_are_averaged(scene: Any) -> None:
    # Baseline 6 and 10 s: 8 on average; the cell ran once.
    scene.request("a")
    for repeat, seconds in enumerate((6.0, 10.0)):
        scene.decode("a", 0, seconds, repeat=repeat)
    scene.decode("a", 1, 4.0)
    assert cells(scene)[SMALL, 1].speedup.value == pytest.approx(2.0)


def test_the_audit_counts_each_request_once_by_its_worst_difference(scene: Any) -> None:
    for name in ("same", "tie", "fault", "hot", "logged"):
        changes: dict[str, Any] = {"hot": {"sampling": Sampling(temperature=1.0)}}.get(name, {})
        scene.request(name, origin="log" if name == "logged" else "target", **changes)
        scene.decode(name, 1, 1.0)
    scene.decode("tie", 2, 1.0, first_difference=3, tie=True)
    scene.decode("fault", 1, 1.0, first_difference=3, tie=True)
    scene.decode("fault", 2, 1.0, first_difference=5, tie=False)
    scene.decode("logged", 2, 1.0, first_difference=0, tie=False)
    scene.decode("same", 0, 1.0, first_difference=0, tie=False)
    assert audit(scene.observed(1, 2)) == Audit(requests=3, identical=1, near_ties=1, faults=1)


def test_without_speculative_runs_there_is_nothing_to_audit(scene: Any) -> None:
    scene.request("a")
    scene.decode("a", 0, 1.0)
    assert audit(scene.observed(1)) is None
    assert cells(scene) == {}


def test_batches_are_measured_apart_and_by_their_steady_rounds(scene: Any) -> None:
    # 2 + 2 tokens in 3 s against 4 in 4 s; the rounds that one row ran alone took 99 s.
    scene.request("a")
    scene.batch_run("a", 0, (0,) * 5, (1.0,) * 4 + (99.0,), active=(2,) * 4 + (1,))
    scene.batch_run("a", 1, (1, 1, 1), (1.5, 1.5, 99.0), active=(2, 2, 1))
    run = scene.observed(1)
    assert measurements(run) == {}
    (cell,) = measurements(run, 2).values()
    assert cell.speedup.value == pytest.approx((4 / 3) / (4 / 4))
    assert [row.k for _, row in cell.baseline] == [0]


def test_a_batch_without_a_baseline_of_its_own_is_not_measured(scene: Any) -> None:
    scene.request("a")
    scene.decode("a", 0, 8.0)
    scene.batch_run("a", 1, (1,), (1.5,))
    assert measurements(scene.observed(1), 2) == {}


def test_end_to_end_counts_the_prefills_by_the_steady_share(scene: Any) -> None:
    # Alone: 8 tokens in 8 + 1 s against 8 in 4 + 1 + 1 s.
    scene.request("a")
    scene.decode("a", 0, 8.0)
    scene.decode("a", 2, 4.0)
    whole = cells(scene)[SMALL, 2].end_to_end
    assert whole is not None
    assert whole.value == pytest.approx(9 / 6)
    # Of 4 tokens 2 are steady: half of the prefills beside 1.5 s, the baseline all steady.
    scene.batch_run("a", 0, (0,) * 4, (1.0,) * 4)
    scene.batch_run("a", 1, (1, 1), (1.5, 99.0), active=(2, 1))
    whole = measurements(scene.observed(1), 2)[SMALL, 1].end_to_end
    assert whole is not None
    assert whole.value == pytest.approx((2 / (1.5 + 1)) / (4 / 5))
