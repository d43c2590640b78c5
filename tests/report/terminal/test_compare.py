"""Two runs made by hand and every difference between them.

A response has 9 tokens, 8 after the first. At k = 2 a draft that is always right needs 3 target
passes for them (3 + 3 + 2 tokens), one that is always wrong needs 8. There are six requests, of
which the second three are bad in run B.
"""

import json
from dataclasses import replace

import msgspec
import pytest

from draftbench.acceptance.intervals import Estimate
from draftbench.errors import IncomparableError
from draftbench.gate.compare import CandidateChange, FigureChange, compare_runs
from draftbench.gate.judge import judge
from draftbench.gate.limits import Limit
from draftbench.gate.pin import make_baseline
from draftbench.records import Candidate, DraftingMode
from draftbench.report.terminal.compare import render
from draftbench.run_folder.run import run_of

EIGHT, SIX = 8, 6
SMALL = Candidate(draft="small")


def made(hand, seconds=(4.0,) * SIX, draft="small", accept=(1.0,) * SIX):
    """A request for each of `seconds`, which it takes at k = 2; plain decoding takes 8 s."""
    records = [r for r in hand.perfect(draft) if not hasattr(r, "request")]
    for at, (took, rate) in enumerate(zip(seconds, accept, strict=False)):
        name = f"r{at}"
        records += [
            hand.trajectory(name),
            hand.replay(name, (rate,) * EIGHT, draft),
            hand.decode(name, 0, 8.0, draft),
            hand.decode(name, 2, took, draft),
        ]
    return records


def elsewhere(hand, run):
    """The same run on a machine of four cores."""
    head = hand.manifest()
    machine = msgspec.structs.replace(head.environment, cores=4)
    return replace(run, manifest=msgspec.structs.replace(head, environment=machine))


def by_the_gate(a, b, limit=0.02):
    baselines = (make_baseline(run, SMALL, 2) for run in (a, b))
    result = judge(*baselines, [Limit(metric="speedup", value=limit, relative=True)])
    return result.pooled[0]


def words(found):
    """The last column of the first candidate's table, by figure."""
    text = render(found, "markdown", 80)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row[-1] for row in rows[2:]}


@pytest.fixture
def run_a(hand):
    return run_of(hand.manifest(), made(hand))


@pytest.fixture
def run_b(hand):
    """As A, but on three the draft is always wrong, and k = 2 takes 8 s there instead of 4."""
    bad = made(hand, (4.0, 8.0) * 3, accept=(1.0, 0.0) * 3)
    return run_of(hand.manifest(), bad)


def figures(a, b, candidate=0):
    found = compare_runs(("a", "b"), a, b).candidates[candidate].figures
    return {(row.figure, row.k_a, row.k_b): row for row in found}


def test_a_run_compared_with_itself_has_not_changed(run_a):
    found = compare_runs(("a", "a"), run_a, run_a)
    assert (found.caveats, found.question, found.environment, found.models) == ((), (), (), ())
    for row in found.candidates[0].figures:
        assert row.obstacle is None
        assert (row.difference.value, row.difference.low, row.difference.high) == (0, 0, 0)


def test_differences_are_b_less_a_on_the_same_requests(run_a, run_b):
    found = figures(run_a, run_b)
    rate = found["α", None, None]
    assert (rate.difference.value, rate.ratio.value, rate.requests) == (-0.5, 0.5, SIX)
    tokens = found["tokens per round", 2, 2]
    assert tokens.difference.value == pytest.approx(16 / 11 - 16 / 6)
    # 48 tokens in 24 s against 48 in 48 s; then 48 in 36 s.
    speed = found["S measured", 2, 2]
    assert speed.difference.value == pytest.approx(16 / 12 - 2)
    assert speed.ratio.value == pytest.approx(2 / 3)


def test_each_run_at_its_own_best_k_where_these_differ(hand, run_a):
    # Drafting costs three target steps: the shortest k loses least.
    records = [r for r in made(hand) if type(r).__name__ not in ("CostPoint", "Decode")]
    records += [hand.cost(None, n, 1.0) for n in (1, 2, 3)]
    records += [hand.cost("small", n, 3.0) for n in (1, 2)]
    slow = run_of(hand.manifest(), records)
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
        if type(r).__name__ == "CostPoint" and r.candidate == Candidate(draft="small")
        else r
        for r in made(hand)
    ]
    cost = figures(run_a, run_of(hand.manifest(), dearer))["c", None, None]
    assert (cost.a.value, cost.b.value) == pytest.approx((0.1, 0.2))
    assert cost.difference.value == pytest.approx(0.1)
    assert cost.ratio.value == pytest.approx(2.0)


def test_a_cost_that_one_run_lacks_has_no_difference(hand, run_a):
    untimed = [r for r in made(hand) if type(r).__name__ != "CostPoint"]
    cost = figures(run_a, run_of(hand.manifest(), untimed))["c", None, None]
    assert (cost.b, cost.difference, cost.obstacle) == (None, None, "only one run has it")


def test_modes_are_never_subtracted(hand, run_a):
    records = [
        msgspec.structs.replace(r, mode=DraftingMode.SAMPLED) if hasattr(r, "mode") else r
        for r in made(hand)
    ]
    sampled = run_of(hand.manifest(mode=DraftingMode.SAMPLED), records)
    found = figures(run_a, sampled)
    assert found["α", None, None].difference is None
    assert found["tokens per round", 2, 2].obstacle == "two drafting modes: greedy and sampled"
    assert found["tokens per round", 2, 2].a.value == pytest.approx(8 / 3)


def test_other_keys_cannot_be_paired(hand, run_a):
    other = replace(run_a, manifest=msgspec.structs.replace(hand.manifest(), key_id="other"))
    found = compare_runs(("a", "b"), run_a, other)
    assert "DRAFTBENCH_KEY" in found.caveats[0]
    assert [(c.fact, c.a, c.b) for c in found.question] == [("key_id", "key", "other")]


def test_other_requests_leave_both_figures_side_by_side(hand, run_a):
    moved = [
        msgspec.structs.replace(r, request=f"x{r.request}") if hasattr(r, "request") else r
        for r in made(hand)
    ]
    other = run_of(hand.manifest(), moved)
    found = compare_runs(("a", "b"), run_a, other)
    assert "no request is in both" in found.caveats[0]
    row = figures(run_a, other)["α", None, None]
    assert (row.a.value, row.b.value, row.difference) == (1.0, 1.0, None)
    assert row.obstacle == "0 common requests"
    assert words(found)["α"] == "not comparable"


def test_other_answers_of_the_target_are_said(hand, run_a):
    records = [
        msgspec.structs.replace(r, digest="other")
        if type(r).__name__ == "Trajectory" and r.request == "r0"
        else r
        for r in made(hand)
    ]
    found = compare_runs(("a", "b"), run_a, run_of(hand.manifest(), records))
    assert "output differs on 1 of 6 responses" in found.caveats[0]


def test_times_of_another_machine_are_not_compared_nor_gated(hand, run_a):
    other = elsewhere(hand, run_a)
    found = compare_runs(("a", "b"), run_a, other)
    assert "different machines" in found.caveats[0]
    assert found.environment == ("cores: 2 → 4",)
    for key in (("c", None, None), ("S measured", 2, 2)):
        row = figures(run_a, other)[key]
        assert (row.difference, row.ratio) == (None, None)
        assert row.obstacle == "not comparable: timed on different machines"
    assert words(found) == {
        "α": "the same",
        "tokens/round": "the same",
        "c": "not comparable",
        "S measured": "not comparable",
    }
    with pytest.raises(IncomparableError, match="measured elsewhere: machine"):
        by_the_gate(run_a, other)


def test_a_speed_up_has_the_gates_interval_and_its_sign(hand, run_a):
    slower = run_of(hand.manifest(), made(hand, (5.0, 6.0, 5.5, 6.2, 5.1, 5.9)))
    check = by_the_gate(run_a, slower)
    row = figures(run_a, slower)["S measured", 2, 2]
    assert row.ratio.value == pytest.approx(1 + check.difference.value)
    assert (row.ratio.low, row.ratio.high) == pytest.approx(
        (1 + check.difference.low, 1 + check.difference.high)
    )
    assert check.difference.high < 0
    assert words(compare_runs(("a", "b"), run_a, slower))["S measured"] == "lower"
    assert words(compare_runs(("b", "a"), slower, run_a))["S measured"] == "higher"


def test_where_the_interval_holds_0_no_difference_is_shown(hand, run_a):
    noisy = run_of(hand.manifest(), made(hand, (4.3, 3.8, 4.1, 3.8, 4.2, 3.9)))
    check = by_the_gate(run_a, noisy, limit=0.2)
    assert check.difference.low < 0 < check.difference.high
    assert not check.improved
    found = compare_runs(("a", "b"), run_a, noisy)
    assert words(found)["S measured"] == "no difference shown"


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(-0.001, 0.031, "no difference shown"), (0.001, 0.1, "higher"), (-0.1, -0.001, "lower")],
)
def test_an_interval_that_leans_shows_both_ends(run_a, low, high, word):
    # As "+0.030 ±0.016" the first would look clear of 0.
    difference = Estimate(0.03, low, high)
    ratio = Estimate(1.03, 1 + low, 1 + high)
    level = Estimate(1.0, 0.9, 1.1)
    row = FigureChange("α", None, None, level, level, difference, ratio, SIX, None)
    found = compare_runs(("a", "b"), run_a, run_a)
    found = replace(found, candidates=(CandidateChange("small", (row,)),))
    assert words(found)["α"] == word
    assert f"{low:+.3f} … {high:+.3f}" in render(found, "table", 80)


def test_tokens_per_round_at_two_ks_are_neither_higher_nor_lower(run_a):
    less, level = Estimate(-0.5, -0.6, -0.4), Estimate(2.0, 1.9, 2.1)
    found = compare_runs(("a", "b"), run_a, run_a)
    for name, word in (("tokens per round", "another k"), ("S measured", "lower")):
        row = FigureChange(name, 3, 2, level, level, less, Estimate(0.8, 0.7, 0.9), SIX, None)
        one = replace(found, candidates=(CandidateChange("small", (row,)),))
        assert list(words(one).values()) == [word]


def test_four_common_requests_are_too_few_to_tell(hand):
    runs = [run_of(hand.manifest(), made(hand, (took,) * 4)) for took in (4.0, 2.0)]
    row = figures(*runs)["S measured", 2, 2]
    assert (row.difference, row.obstacle) == (None, "4 common requests: too few to tell")
    assert words(compare_runs(("a", "b"), *runs))["S measured"] == "too few requests"


def test_what_the_gate_refuses_to_pair_has_no_compared_speed_up(hand, run_a):
    # Four of six requests are fewer than the gate takes for the same traffic.
    fewer = run_of(hand.manifest(), made(hand, (4.0,) * 4))
    row = figures(run_a, fewer)["S measured", 2, 2]
    assert row.obstacle.startswith("not comparable: other traffic: only 4")


def test_what_was_asked_and_loaded_otherwise_is_listed(hand, run_a):
    records = [
        msgspec.structs.replace(r, fingerprint="g")
        if type(r).__name__ == "ModelFacts" and r.candidate == Candidate(draft="small")
        else r
        for r in made(hand)
    ]
    other = run_of(hand.manifest(ks=(1, 2, 3)), records)
    found = compare_runs(("a", "b"), run_a, other)
    assert [(c.fact, c.a, c.b) for c in found.question] == [("ks", "1, 2", "1, 2, 3")]
    assert [(c.fact, c.a, c.b) for c in found.models] == [("small fingerprint", "", "g")]


def test_candidates_of_one_run_are_named(hand, run_a):
    both = run_of(hand.manifest(), [*made(hand), *made(hand, draft="tiny")])
    found = compare_runs(("a", "b"), run_a, both)
    assert (found.only_a, found.only_b) == ((), ("tiny",))
    assert [change.candidate for change in found.candidates] == ["small"]


def test_runs_without_a_common_candidate_are_still_compared(hand, run_a):
    found = compare_runs(("a", "b"), run_a, run_of(hand.manifest(), made(hand, draft="tiny")))
    assert "no candidate is in both runs" in render(found, "table", 80)
    assert found.common_requests == SIX


def test_prompt_lookup_is_compared_within_the_smaller_window(hand):
    def run(window):
        found = [msgspec.structs.replace(hand.lookup(r), window=window) for r in ("r0", "r1")]
        return run_of(hand.manifest(ks=(1, window)), [*made(hand), *found])

    assert list(figures(run(12), run(8), candidate=1)) == [("tokens per round", 8, 8)]


def test_a_table_fits_eighty_columns(run_a, run_b):
    found = compare_runs(("results/runs/a", "results/runs/b"), run_a, run_b)
    text = render(found, "table", 80)
    assert max(map(len, text.splitlines())) <= 80
    assert "-1.000 … +0.000  no difference shown" in text


def test_json_holds_the_comparison(run_a, run_b):
    found = json.loads(render(compare_runs(("a", "b"), run_a, run_b), "json", 80))
    assert found["candidates"][0]["figures"][0]["difference"]["value"] == -0.5


def test_markdown_has_a_table_per_candidate(run_a, run_b):
    text = render(compare_runs(("a", "b"), run_a, run_b), "markdown", 80)
    assert "### small" in text
    assert "| α | – | " in text
