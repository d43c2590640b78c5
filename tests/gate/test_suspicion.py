"""What acceptance alone would hide: prompts and responses that broke."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.comparison import compare
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.suspicion import new_faults

Make = Callable[..., Baseline]
MakeCounts = Callable[..., RequestCounts]


@pytest.fixture
def forty(baseline: Make, counts: MakeCounts) -> Callable[..., Baseline]:
    """forty(accepted, odd, faults, **fields): 40 requests; the first `odd` have other fields."""

    def make(
        accepted: float = 15.0, odd: int = 0, faults: tuple[str, ...] = (), **fields: object
    ) -> Baseline:
        rows = [counts(f"r{i:02}", accepted, **(fields if i < odd else {})) for i in range(40)]
        return baseline(rows, faults=faults)

    return make


def test_a_fault_that_the_baseline_did_not_show_fails_whatever_the_figures(forty: Make) -> None:
    result = compare(forty(), forty(18.0, faults=("doubled",)))
    assert all(check.verdict is Verdict.PASS for check in result.checks)
    assert (result.verdict, result.exit_code, result.faults) == (Verdict.FAIL, 1, ("doubled",))
    assert result.notes[0] == "suspected fault: doubled"
    assert not any("improved" in note for note in result.notes)


def test_a_fault_that_the_baseline_showed_too_is_only_said(forty: Make) -> None:
    result = compare(forty(faults=("doubled",)), forty(faults=("doubled",)))
    assert (result.verdict, result.faults) == (Verdict.PASS, ())
    assert result.notes[0] == "suspected fault: doubled"


CLIFF = "draft position {} was never accepted in {} tries; before it are hazards of {}"
DOUBLED = "all {} prompts begin with the same token twice"


def test_a_fault_of_another_kind_than_the_baselines_fails(forty: Make) -> None:
    cliff, doubled = CLIFF.format(2, 90, "0.50"), DOUBLED.format(40)
    result = compare(forty(faults=(cliff,)), forty(faults=(cliff, doubled)))
    assert (result.verdict, result.faults) == (Verdict.FAIL, (doubled,))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (DOUBLED.format(40), DOUBLED.format(38)),
        (CLIFF.format(2, 90, "0.50"), CLIFF.format(4, 112, "0.61, 0.50, 0.40")),
    ],
)
def test_a_fault_that_counts_otherwise_is_of_the_same_kind(forty: Make, old: str, new: str) -> None:
    result = compare(forty(faults=(old,)), forty(faults=(new,)))
    assert (result.verdict, result.faults) == (Verdict.PASS, ())


@pytest.mark.parametrize(("loops", "verdict"), [(5, Verdict.PASS), (6, Verdict.FAIL)])
def test_responses_that_begin_to_loop_are_a_fault(
    forty: Make, loops: int, verdict: Verdict
) -> None:
    # 1/32 is above 2.5 %, 1/64 below.
    result = compare(forty(), forty(odd=loops, looping=20.0))
    assert result.verdict is verdict
    said = [note for note in result.notes if "6 of 40 responses end in a loop" in note]
    assert len(said) == (verdict is Verdict.FAIL)


def test_loops_that_come_and_go_are_no_fault(baseline: Make, counts: MakeCounts) -> None:
    old = baseline([counts(f"r{i:02}", looping=float(10 <= i < 14)) for i in range(40)])
    new = baseline([counts(f"r{i:02}", looping=float(i < 10)) for i in range(40)])
    # Ten began, four ended: P(X ≥ 10 of 14) = 1470 / 16384.
    assert new_faults(old, new, list(zip(old.requests, new.requests, strict=True))) == ()


def test_a_small_share_of_many_requests_is_no_fault(baseline: Make, counts: MakeCounts) -> None:
    old = baseline([counts(f"r{i:03}") for i in range(200)])
    new = baseline([counts(f"r{i:03}", looping=float(i < 19)) for i in range(200)])
    assert new_faults(old, new, list(zip(old.requests, new.requests, strict=True))) == ()


def cut(run: Baseline, count: int) -> Baseline:
    """The first requests end at once: nothing is drafted in them."""
    nothing = {"tokens": 0.0, "passes": 0.0, "rounds": 0.0, "accepted": 0.0}
    rows = [
        replace(c, **nothing, positions=0.0, alpha_sum=0.0) if i < count else c
        for i, c in enumerate(run.requests)
    ]
    return replace(run, requests=tuple(rows))


def test_responses_that_end_at_once_are_a_fault(forty: Make) -> None:
    result = compare(forty(), cut(forty(), 8))
    assert result.verdict is Verdict.FAIL
    assert "8 of 40 responses end after one token" in result.faults[0]


def test_acceptance_that_rose_on_other_prompts_does_not_pass(
    baseline: Make, counts: MakeCounts
) -> None:
    old = baseline([counts(f"r{i:02}", prompt_tokens=50) for i in range(40)])
    same, other = (
        baseline([counts(f"r{i:02}", 18.0 + i % 2, prompt_tokens=size) for i in range(40)])
        for size in (50, 53)
    )
    assert compare(old, same).verdict is Verdict.PASS
    result = compare(old, other)
    assert (result.verdict, result.exit_code) == (Verdict.INCONCLUSIVE, 3)
    assert result.notes[0] == (
        "40 of 40 requests are rendered to prompts of another length (+3 tokens): "
        "the chat template or the tokenizer changed"
    )
    assert any("on other prompts" in note for note in result.notes)


def test_other_prompts_alone_are_said_and_pass(baseline: Make, counts: MakeCounts) -> None:
    old, new = (
        baseline([counts(f"r{i:02}", prompt_tokens=size) for i in range(40)]) for size in (50, 53)
    )
    result = compare(old, new)
    assert result.verdict is Verdict.PASS
    assert "rendered to prompts of another length" in result.notes[0]


def test_prompts_of_unknown_length_are_not_called_changed(
    baseline: Make, counts: MakeCounts
) -> None:
    old = baseline([counts(f"r{i:02}") for i in range(40)])
    new = baseline([counts(f"r{i:02}", prompt_tokens=50) for i in range(40)])
    assert not any("another length" in note for note in compare(old, new).notes)


@pytest.mark.parametrize(
    ("others", "said"),
    [(0, "what changed is the draft"), (30, "other responses to 30 of 40 requests")],
)
def test_a_failure_says_whether_the_target_still_writes_the_same(
    baseline: Make, counts: MakeCounts, others: int, said: str
) -> None:
    old = baseline([counts(f"r{i:02}", output="a") for i in range(40)])
    rows = [counts(f"r{i:02}", 10.0, output="b" if i < others else "a") for i in range(40)]
    assert any(said in note for note in compare(old, baseline(rows)).notes)
