"""A run that was interrupted says so, a run that is whole or failed in part does not."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from draftbench.plan.recommend import recommend
from draftbench.plan.unfinished import unfinished
from draftbench.records import Candidate
from draftbench.store.observed import Observed

INT4 = Candidate(draft="small", quant="int4")


def asked(run: Observed, requests: int) -> Observed:
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
    assert said in recommend(asked(run, 5)).caveats


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
