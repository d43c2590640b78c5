"""Memory of a run's candidates, from the facts that the run recorded."""

from __future__ import annotations

from typing import Any

from draftbench.planner.memory import memory_plan
from draftbench.records import Candidate

SMALL = Candidate(draft="small")


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
