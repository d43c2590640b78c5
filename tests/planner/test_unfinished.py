"""A run that was interrupted says so, a run that is whole or failed in part does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from draftbench.planner.recommend import recommend
from draftbench.planner.unfinished import unfinished
from draftbench.records import Candidate
from draftbench.run_folder.run import Run

SMALL, OTHER = Candidate(draft="small"), Candidate(draft="other")
INT4, SELF = Candidate(draft="small", quant="int4"), Candidate(draft="self")
STEPS = {1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1}
ASKED = "draftbench sweep --target big --drafts small --traffic prod.jsonl"


def asked(run: Run, requests: int) -> Run:
    traffic = msgspec.structs.replace(run.manifest.traffic, requests=requests)
    manifest = msgspec.structs.replace(run.manifest, traffic=traffic)
    return dataclasses.replace(run, manifest=manifest)


def test_a_whole_run_is_finished(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.requests(2, [1.0] * 8, INT4)
    scene.requests(2, [1.0] * 8, Candidate(draft="self"))
    scene.request("of one token", 1)
    run = scene.observed(1, drafts=("./models/small",), quants=("none", "int4"))
    assert unfinished(asked(run, 3)) is None


def test_missing_responses_replays_and_candidates_are_named(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.replay("r0", [1.0] * 8, INT4)
    run = scene.observed(
        1, drafts=("./small", "org/big@v1", "m/tiny.gguf", "ngram"), quants=("none", "int4")
    )
    said = unfinished(asked(run, 5))
    assert said is not None
    assert "2 of 5 responses" in said
    assert "small:int4 replayed on 1 of 2 responses" in said
    assert "no replay of ngram, big, tiny, big:int4, tiny:int4" in said
    assert said in [c.text for c in recommend(asked(run, 5)).caveats]


def test_a_draft_that_is_stored_quantized_goes_by_its_own_level(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.requests(2, [1.0] * 8, Candidate(draft="tiny", quant="gguf-q8_0"))
    run = scene.observed(1, drafts=("small", "m/tiny.gguf"))
    assert unfinished(run) is None


def test_what_failed_is_not_waited_for(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.failure("big", "another vocabulary")
    assert unfinished(scene.observed(1, drafts=("small", "big"))) is None


@pytest.mark.parametrize(
    ("specs", "missing"), [(("link",), None), (("link", "other"), "1 of the drafts at none")]
)
def test_a_name_that_a_link_led_to_is_not_missed(
    scene: Any, specs: tuple[str, ...], missing: str | None
) -> None:
    # `link` was swept under the name of what it points to, `small`.
    scene.requests(2, [1.0] * 8)
    said = unfinished(scene.observed(1, drafts=specs))
    assert said is None if missing is None else missing in str(said)


def began(run: Run, command: str) -> Run:
    manifest = msgspec.structs.replace(run.manifest, command=command)
    return dataclasses.replace(run, manifest=manifest)


def decoded(scene: Any, candidate: Candidate, *requests: str) -> None:
    for name in requests:
        scene.decode(name, 0, 8.0, candidate)
        scene.decode(name, 1, 4.0, candidate)


def three(scene: Any, *candidates: Candidate, timed: bool = True) -> None:
    """Three responses that every candidate was replayed on, and timed."""
    for candidate in candidates:
        scene.requests(3, [1.0] * 8, candidate)
        if timed:
            scene.times(*STEPS, candidate)


def test_step_times_that_were_cut_off_are_named(scene: Any) -> None:
    three(scene, SMALL)
    three(scene, INT4, timed=False)
    run = scene.observed(1, quants=("none", "int4"))
    assert "(small:int4 not timed)" in str(unfinished(run))
    assert unfinished(run) in [c.text for c in recommend(run).caveats]


def test_decoding_that_was_cut_off_is_named_with_how_far_it_got(scene: Any) -> None:
    three(scene, SMALL, INT4)
    decoded(scene, SMALL, "r0", "r1", "r2")
    decoded(scene, INT4, "r0")
    run = scene.observed(1, quants=("none", "int4"))
    assert "(small:int4 decoded on 1 of 3 responses)" in str(unfinished(run))
    decoded(scene, INT4, "r1", "r2")
    assert unfinished(scene.observed(1, quants=("none", "int4"))) is None


def test_each_batch_size_has_its_stages(scene: Any) -> None:
    three(scene, SMALL)
    decoded(scene, SMALL, "r0", "r1")
    asked = {"batches": (1, 2)}
    assert "(small not timed with 2 rows)" in str(unfinished(scene.observed(1, **asked)))
    scene.times(*STEPS, batch=2)
    said = str(unfinished(scene.observed(1, **asked)))
    assert "(small decoded on 0 of 2 responses with 2 rows)" in said
    for name in ("r0", "r1"):
        for k in (0, 1):
            scene.batch_run(name, k, (k,) * 4, (1.0,) * 4)
    assert unfinished(scene.observed(1, **asked)) is None


def test_a_level_without_a_kernel_and_the_control_wait_for_nothing(scene: Any) -> None:
    three(scene, SMALL, SELF)
    three(scene, INT4, timed=False)
    scene.facts("small", quant="int4", has_kernel=False)
    decoded(scene, SMALL, "r0", "r1", "r2")
    asked: dict[str, Any] = {"quants": ("none", "int4")}
    assert unfinished(scene.observed(1, **asked)) is None
    asked["drafts"] = ("small", "self")
    assert "(self decoded on 0 of 3 responses)" in str(unfinished(scene.observed(1, **asked)))


def test_what_none_can_be_compared_with_is_held_against_the_command(scene: Any) -> None:
    three(scene, SMALL, timed=False)
    alone = f"{ASKED} --no-controls"
    said = [str(unfinished(began(scene.observed(1), words))) for words in (alone, ASKED)]
    assert "(small not timed)" in said[0]
    assert "(small not timed; no replay of ngram, self)" in said[1]
    scene.times(*STEPS)
    decoded(scene, SMALL, "r0")
    assert "decoded on 1 of 3 responses" in str(unfinished(began(scene.observed(1), alone)))
    for words in ("--measure-requests 1", "--measure none", "--measure=replay"):
        assert unfinished(began(scene.observed(1), f"{alone} {words}")) is None


def test_two_candidates_tell_better_than_the_command_how_much_was_decoded(scene: Any) -> None:
    three(scene, SMALL, OTHER)
    for candidate in (SMALL, OTHER):
        decoded(scene, candidate, "r0", "r1")
    run = scene.observed(1, drafts=("small", "other"))
    assert unfinished(began(run, f"{ASKED} --no-controls --measure-requests 3")) is None


def test_a_draft_without_costs_has_no_k_to_be_decoded_at(scene: Any) -> None:
    """Its context was too short for the points of the grid: the target alone was timed there."""
    three(scene, SMALL)
    three(scene, INT4, timed=False)
    scene.times(STEPS[0], None, INT4)
    decoded(scene, SMALL, "r0", "r1", "r2")
    run = scene.observed(1, quants=("none", "int4"))
    assert unfinished(run) is None
    everything = began(run, f"{ASKED} --no-controls --measure all")
    assert "(small:int4 decoded on 0 of 3 responses)" in str(unfinished(everything))
