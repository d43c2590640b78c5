"""Two runs made by hand and every difference between them.

A response has 9 tokens, 8 after the first. At k = 2 a draft that is always right needs 3 target
passes for them (3 + 3 + 2 tokens), one that is always wrong needs 8.
"""

import json
from dataclasses import replace

import msgspec
import pytest

from draftbench.records import DraftingMode
from draftbench.report.compared import render
from draftbench.report.comparing import compare_runs
from draftbench.store.observed import observed

EIGHT = 8


@pytest.fixture
def run_a(hand):
    return observed(hand.manifest(), hand.perfect())


@pytest.fixture
def run_b(hand):
    """As A, but on r1 the draft is always wrong, and k = 2 takes 8 s there instead of 4."""
    records = hand.perfect()
    records += [hand.replay("r1", (0.0,) * EIGHT)]
    records = [r for r in records if not (getattr(r, "k", 0) == 2 and r.request == "r1")]
    return observed(hand.manifest(), [*records, hand.decode("r1", 2, 8.0)])


def figures(a, b, candidate=0):
    found = compare_runs(("a", "b"), a, b).candidates[candidate].figures
    return {(row.figure, row.k_a, row.k_b): row for row in found}


def test_a_run_compared_with_itself_has_not_changed(run_a):
    found = compare_runs(("a", "a"), run_a, run_a)
    assert (found.doubts, found.question, found.environment, found.models) == ((), (), (), ())
    for row in found.candidates[0].figures:
        assert row.obstacle is None
        assert (row.difference.value, row.difference.low, row.difference.high) == (0, 0, 0)


def test_differences_are_b_less_a_on_the_same_requests(run_a, run_b):
    found = figures(run_a, run_b)
    rate = found["α", None, None]
    assert (rate.difference.value, rate.ratio.value, rate.requests) == (-0.5, 0.5, 2)
    tokens = found["tokens per round", 2, 2]
    assert tokens.difference.value == pytest.approx(16 / 11 - 16 / 6)
    # 16 tokens in 8 s against 16 in 16 s; then 16 in 12 s.
    speed = found["S measured", 2, 2]
    assert speed.difference.value == pytest.approx(16 / 12 - 2)
    assert speed.ratio.value == pytest.approx(2 / 3)


def test_each_run_at_its_own_best_k_where_these_differ(hand, run_a):
    # Drafting costs three target steps: the shortest k loses least.
    records = [r for r in hand.perfect() if type(r).__name__ not in ("CostPoint", "Decode")]
    records += [hand.cost(None, n, 1.0) for n in (1, 2, 3)]
    records += [hand.cost("small", n, 3.0) for n in (1, 2)]
    slow = observed(hand.manifest(), records)
    found = figures(run_a, slow)
    assert {key for key in found if key[0] == "tokens per round"} == {
        ("tokens per round", 2, 2),
        ("tokens per round", 2, 1),
    }
    # 4 passes of two tokens at k = 1.
    assert found["tokens per round", 2, 1].difference.value == pytest.approx(2 - 8 / 3)
    assert found["S measured", 2, 2].obstacle == "only one run has it"


def test_costs_are_compared_by_their_timings(hand, run_a):
    dearer = [
        msgspec.structs.replace(r, seconds=(0.2,) * 3)
        if type(r).__name__ == "CostPoint" and r.draft == "small"
        else r
        for r in hand.perfect()
    ]
    cost = figures(run_a, observed(hand.manifest(), dearer))["c", None, None]
    assert (cost.a.value, cost.b.value) == pytest.approx((0.1, 0.2))
    assert cost.difference.value == pytest.approx(0.1)
    assert cost.ratio.value == pytest.approx(2.0)


def test_a_cost_that_one_run_lacks_has_no_difference(hand, run_a):
    untimed = [r for r in hand.perfect() if type(r).__name__ != "CostPoint"]
    cost = figures(run_a, observed(hand.manifest(), untimed))["c", None, None]
    assert (cost.b, cost.difference, cost.obstacle) == (None, None, "only one run has it")


def test_modes_are_never_subtracted(hand, run_a):
    records = [
        msgspec.structs.replace(r, mode=DraftingMode.SAMPLED) if hasattr(r, "mode") else r
        for r in hand.perfect()
    ]
    sampled = observed(hand.manifest(mode=DraftingMode.SAMPLED), records)
    found = figures(run_a, sampled)
    assert found["α", None, None].difference is None
    assert found["tokens per round", 2, 2].obstacle == "greedy against sampled drafting"
    assert found["tokens per round", 2, 2].a.value == pytest.approx(8 / 3)


def test_other_keys_cannot_be_paired(hand, run_a):
    other = replace(run_a, manifest=msgspec.structs.replace(hand.manifest(), key_id="other"))
    found = compare_runs(("a", "b"), run_a, other)
    assert "DRAFTBENCH_KEY" in found.doubts[0]
    assert [(c.what, c.a, c.b) for c in found.question] == [("key_id", "", "other")]


def test_other_requests_leave_both_figures_side_by_side(hand, run_a):
    moved = [
        msgspec.structs.replace(r, request=f"x{r.request}") if hasattr(r, "request") else r
        for r in hand.perfect()
    ]
    elsewhere = observed(hand.manifest(), moved)
    found = compare_runs(("a", "b"), run_a, elsewhere)
    assert "no request is in both" in found.doubts[0]
    row = figures(run_a, elsewhere)["α", None, None]
    assert (row.a.value, row.b.value, row.difference) == (1.0, 1.0, None)
    assert row.obstacle == "0 common requests"


def test_other_answers_of_the_target_are_said(hand, run_a):
    records = [
        msgspec.structs.replace(r, digest="other")
        if type(r).__name__ == "Trajectory" and r.request == "r0"
        else r
        for r in hand.perfect()
    ]
    found = compare_runs(("a", "b"), run_a, observed(hand.manifest(), records))
    assert "answered 1 of 2 otherwise" in found.doubts[0]


def test_another_machine_is_said_beside_times(hand, run_a):
    head = hand.manifest()
    machine = msgspec.structs.replace(head.environment, cores=2)
    other = replace(run_a, manifest=msgspec.structs.replace(head, environment=machine))
    found = compare_runs(("a", "b"), run_a, other)
    assert "different machines" in found.doubts[0]
    assert found.environment == ("cores: 1 → 2",)


def test_what_was_asked_and_loaded_otherwise_is_listed(hand, run_a):
    records = [
        msgspec.structs.replace(r, fingerprint="g")
        if type(r).__name__ == "ModelFacts" and r.draft == "small"
        else r
        for r in hand.perfect()
    ]
    other = observed(hand.manifest(ks=(1, 2, 3)), records)
    found = compare_runs(("a", "b"), run_a, other)
    assert [(c.what, c.a, c.b) for c in found.question] == [("ks", "1, 2", "1, 2, 3")]
    assert [(c.what, c.a, c.b) for c in found.models] == [("small fingerprint", "f", "g")]


def test_candidates_of_one_run_are_named(hand, run_a):
    both = observed(hand.manifest(), [*hand.perfect(), *hand.perfect("tiny")])
    found = compare_runs(("a", "b"), run_a, both)
    assert (found.only_a, found.only_b) == ((), ("tiny",))
    assert [change.candidate for change in found.candidates] == ["small"]


def test_runs_without_a_common_candidate_are_still_compared(hand, run_a):
    found = compare_runs(("a", "b"), run_a, observed(hand.manifest(), hand.perfect("tiny")))
    assert "no candidate is in both runs" in render(found, "table", 80)
    assert found.common_requests == 2


def test_prompt_lookup_is_compared_within_the_smaller_window(hand):
    def run(window):
        found = [msgspec.structs.replace(hand.lookup(r), window=window) for r in ("r0", "r1")]
        return observed(hand.manifest(ks=(1, window)), [*hand.perfect(), *found])

    assert list(figures(run(12), run(8), candidate=1)) == [("tokens per round", 8, 8)]


def test_a_table_fits_eighty_columns(run_a, run_b):
    found = compare_runs(("results/runs/a", "results/runs/b"), run_a, run_b)
    text = render(found, "table", 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "-0.500 ±" in text


def test_json_holds_the_comparison(run_a, run_b):
    found = json.loads(render(compare_runs(("a", "b"), run_a, run_b), "json", 80))
    assert found["candidates"][0]["figures"][0]["difference"]["value"] == -0.5


def test_markdown_has_a_table_per_candidate(run_a, run_b):
    text = render(compare_runs(("a", "b"), run_a, run_b), "markdown", 80)
    assert "### small" in text
    assert "| α | – | " in text
