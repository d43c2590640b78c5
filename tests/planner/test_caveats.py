"""What a reader is warned of, and that a clean run warns of nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Recommendation
from draftbench.records import Candidate

BIG = Candidate(draft="big")
TARGET = {1: 1.0, 2: 1.1, 3: 1.2}
CHEAP = {1: 0.1, 2: 0.15}
ALL = [1.0] * 8


def says(found: Recommendation, *words: str) -> bool:
    return any(all(word in caveat for word in words) for caveat in found.caveats)


def test_doubts_are_listed_where_they_apply_and_not_elsewhere(scene: Any) -> None:
    scene.requests(2, ALL)
    scene.requests(1, ALL, BIG)
    scene.facts("small", replay_disagreement=0.1, caveats=("the head was not quantized",))
    scene.facts("big", replay_disagreement=0.02)
    scene.times(TARGET, CHEAP, contexts=(0, 12))
    scene.times(TARGET, CHEAP, BIG)
    scene.failure("other", "another vocabulary")
    scene.decode("r0", 0, 8.0)
    scene.decode("r0", 1, 8.0, first_difference=2, tie=False)
    found = recommend(scene.observed(1))
    assert says(found, "2 requests were replayed", "under 30")
    assert says(found, "within one process")
    assert says(found, "1 of 1 requests", "suspect the decoder")
    assert says(found, "small: the head was not quantized")
    assert says(found, "small: stepping chose another token", "10.0%")
    assert says(found, "small: target passes were not timed", "2 of 2")
    assert says(found, "big: replayed on 1 of 2 responses")
    assert says(found, "other was not measured to the end: another vocabulary")
    assert not says(found, "big: stepping")
    assert not says(found, "big: target passes")
    assert not says(found, "near ties")


def test_one_request_decides_nothing(scene: Any) -> None:
    scene.requests(1, ALL)
    scene.times(TARGET, CHEAP)
    found = recommend(scene.observed(2))
    assert (found.decision, found.requests_needed) == ("inconclusive", None)
    assert says(found, "small at k = 2: too few requests for an interval")


def test_a_clean_run_raises_no_doubt(scene: Any) -> None:
    scene.requests(30, ALL)
    scene.times(TARGET, CHEAP)
    # Two rounds of t(3) and one of t(2), five draft steps and two catch-ups: 4.1 s.
    rounds = {"proposed": (2, 2, 1), "accepted": (2, 2, 1), "cut": (0,) * 3}
    rounds |= {"draft_seconds": (0.0,) * 3, "verify_seconds": (4.1 / 3,) * 3}
    for i in range(30):
        scene.decode(f"r{i}", 0, 8.0, process=f"p{i % 3}")
        scene.decode(f"r{i}", 2, 4.1, process=f"p{i % 3}", **rounds)
    found = recommend(scene.observed(2))
    assert found.decision == "speculate"
    assert found.caveats == ()
    assert found.near_tie_share == 0.0


def test_near_ties_are_counted_by_the_dtypes_noise(scene: Any) -> None:
    scene.request("r0", margins=(0.0005,) * 3 + (5.0,) * 6)
    scene.requests(1, ALL)
    found = recommend(scene.observed(1))
    assert found.near_tie_share == pytest.approx(1 / 3)
    assert says(found, "33.3%", "near ties")


def test_a_busy_machine_is_said(scene: Any) -> None:
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    run = scene.observed(1, 2)
    environment = msgspec.structs.replace(run.manifest.environment, load=0.9)
    manifest = msgspec.structs.replace(run.manifest, environment=environment)
    busy = recommend(dataclasses.replace(run, manifest=manifest))
    assert says(busy, "busy when the run began, with a load of 0.9 for each core")
    assert not says(recommend(run), "busy when the run began")


def test_a_run_that_stood_still_is_said(scene: Any) -> None:
    # Eight steps of 1 s, one of them 21 s: over twenty times the median.
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    scene.decode("r0", 0, 28.0, verify_seconds=(1.0,) * 7 + (21.0,))
    scene.decode("r1", 0, 8.0)
    assert says(recommend(scene.observed(1, 2)), "1 decoding runs stood still in a round")


def test_a_target_that_repeats_itself_is_said(scene: Any) -> None:
    scene.request("r0", looping=6)
    scene.requests(2, ALL)
    scene.times(TARGET, CHEAP)
    # 6 of 18 tokens.
    assert says(recommend(scene.observed(1)), "33% of the output is the target repeating itself")


def test_what_holds_of_several_candidates_is_said_once_naming_all(scene: Any) -> None:
    for candidate in (Candidate(draft="small"), BIG):
        scene.requests(2, ALL, candidate)
        scene.times(TARGET, CHEAP, candidate)
        scene.facts(candidate.draft, caveats=("the chat templates differ",))
    found = recommend(scene.observed(1))
    told = [caveat for caveat in found.caveats if "templates" in caveat]
    assert told == ["small, big: the chat templates differ"]


def test_costs_that_are_interpolated_are_a_caveat(scene: Any) -> None:
    scene.requests(2, ALL)
    for batch in (1, 4):
        scene.times(TARGET, CHEAP, batch=batch)
    found = recommend(scene.observed(1), concurrency=(2,))
    assert says(found, "small: its costs are interpolated between 1 and 4 rows")
    assert not says(recommend(scene.observed(1)), "interpolated")


def test_what_speeds_of_a_batch_leave_out_is_said(scene: Any) -> None:
    scene.requests(2, ALL)
    for batch in (1, 2):
        scene.times(TARGET, CHEAP, batch=batch)
    scene.batch_run("r0", 0, (0,) * 8, (1.0,) * 8)
    scene.batch_run("r0", 1, (1,) * 4, (1.2,) * 4)
    found = recommend(scene.observed(1), concurrency=(2,))
    assert says(found, "concurrency 2", "other requests' prompts")
    assert says(found, "share their rounds")
    assert not says(recommend(scene.observed(1)), "prompts")
