"""Memory of a pair on a device: sums by hand, in bytes small enough to count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftbench.planner.memory import Footprint, Serving, memory_plan, plan
from draftbench.records import Candidate

SMALL = Candidate(draft="small")
# 1000 bytes: 400 of the target and 2 a token, 100 of the draft and 1 a token; a vocabulary of 5
# entries of 4 bytes, so 20 bytes of logits a position.
TARGET, DRAFT = Footprint(400, 2), Footprint(100, 1)


def serving(**changes: Any) -> Serving:
    fields = {"device_bytes": 1000, "concurrency": 2, "context": 50, "k": 1, "vocabulary": 5}
    return Serving(**fields | changes)


def test_a_draft_costs_sequences_and_context() -> None:
    found = plan(TARGET, DRAFT, serving(), None)
    # Alone 600 / (50 · 2 + 20) = 5 sequences; with the draft 500 / (50 · 3 + 2 · 20) = 2.6.
    assert (found.sequences_alone, found.sequences) == (5, 2)
    # Alone (600 / 2 - 20) / 2 tokens each, together (500 / 2 - 40) / 3.
    assert (found.max_model_len_alone, found.max_model_len) == (140, 70)
    assert found.bytes_needed == 400 + 100 + 2 * (50 * 3 + 40)
    assert found.target_fits
    assert found.fits


def test_no_context_is_longer_than_the_targets_own() -> None:
    found = plan(TARGET, DRAFT, serving(), 100)
    assert (found.max_model_len_alone, found.max_model_len) == (100, 70)


@pytest.mark.parametrize(
    ("device", "fitting"),
    # The target at this load is 400 + 2 · 120, both are 500 + 2 · 190.
    [(639, (False, False)), (640, (True, False)), (879, (True, False)), (880, (True, True))],
)
def test_what_does_not_fit_is_said_to_the_byte(device: int, fitting: tuple[bool, bool]) -> None:
    found = plan(TARGET, DRAFT, serving(device_bytes=device), None)
    assert (found.target_fits, found.fits) == fitting


def test_weights_that_do_not_fit_leave_no_context() -> None:
    found = plan(TARGET, DRAFT, serving(device_bytes=300), None)
    assert (found.sequences, found.max_model_len, found.fits) == (0, 0, False)


def test_models_without_a_cache_are_limited_by_their_weights_alone() -> None:
    found = plan(Footprint(400, 0), Footprint(100, 0), serving(), None)
    assert (found.sequences, found.max_model_len, found.fits) == (None, None, True)
    tight = plan(Footprint(400, 0), Footprint(100, 0), serving(device_bytes=450), None)
    assert (tight.target_fits, tight.fits, tight.max_model_len) == (True, False, 0)


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 200), st.integers(0, 8))
def test_a_planned_context_fits_and_one_token_more_does_not(
    device: int, concurrency: int, context: int, k: int
) -> None:
    asked = serving(device_bytes=device, concurrency=concurrency, context=context, k=k)
    longest = plan(TARGET, DRAFT, asked, None).max_model_len
    assert longest is not None

    def needed(tokens: int) -> float:
        return 500 + concurrency * (tokens * 3 + (k + 1) * 20)

    assert needed(longest) <= device or longest == 0
    assert needed(longest + 1) > device


def test_a_run_plans_with_its_own_facts_batches_and_longest_context(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.request("long", 30, prompt_tokens=70)
    scene.facts(None, weight_bytes=4000, kv_bytes_per_token=20, vocab_size=5)
    scene.facts("small", weight_bytes=1000, kv_bytes_per_token=10)
    run = scene.observed(1, 3)
    found = memory_plan(run, SMALL, 9000)
    assert found is not None
    assert (found.concurrency, found.context, found.logits_bytes) == (1, 100, 4 * 5 * 4)
    # 4000 / (100 · 30 + 80) sequences; the target's own context is 1000 tokens.
    assert (found.sequences_alone, found.sequences) == (2, 1)
    assert (found.max_model_len_alone, found.max_model_len) == (249, 130)


def test_a_copy_of_the_target_adds_a_cache_and_prompt_lookup_nothing(scene: Any) -> None:
    scene.requests(1, [1.0] * 8)
    scene.facts(None, weight_bytes=4000, kv_bytes_per_token=20)
    run = scene.observed(1)
    itself = memory_plan(run, Candidate(draft="self"), 9000)
    lookup = memory_plan(run, Candidate(draft="ngram"), 9000)
    assert itself is not None
    assert lookup is not None
    assert (itself.draft_weight_bytes, itself.draft_cache_bytes_per_token) == (0, 20)
    assert (lookup.draft_weight_bytes, lookup.draft_cache_bytes_per_token) == (0, 0)


def test_without_facts_nothing_is_planned(scene: Any) -> None:
    scene.requests(1, [1.0] * 8)
    scene.facts(None)
    assert memory_plan(scene.observed(1), SMALL, 9000) is None
