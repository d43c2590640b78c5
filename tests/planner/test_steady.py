"""The rounds of a batch that count, and what rounds take beyond their passes."""

from __future__ import annotations

from typing import Any

import pytest

from draftbench.planner.costs import block_costs
from draftbench.planner.measured import Overheads, overheads, steady
from draftbench.records import Candidate, Decode

SMALL = Candidate(draft="small")


def only(scene: Any) -> Decode:
    (row,) = [record for record in scene.records if isinstance(record, Decode)]
    return row


def test_a_run_alone_is_all_steady(scene: Any) -> None:
    scene.decode("r", 2, 4.0, batch=1)
    assert steady(only(scene)) is only(scene)


def test_rounds_with_an_empty_row_do_not_count(scene: Any) -> None:
    # 3 + 1 + 2 tokens; the last round ran alone.
    scene.batch_run("r", 2, (2, 0, 1), (1.5, 1.4, 1.1), active=(2, 2, 1))
    found = steady(only(scene))
    assert found is not None
    assert (found.accepted, found.verify_seconds) == ((2, 0), (1.5, 1.4))
    assert found.output_tokens - 1 == 4
    assert found.decode_seconds == pytest.approx(2.9)


def test_a_response_that_ended_inside_its_proposal_has_no_token_of_the_targets_there(
    scene: Any,
) -> None:
    # The second round proposed two tokens, of which the first ended the response: 3 + 1 tokens.
    scene.batch_run("r", 2, (2, 1), (1.5, 1.4), cut=(0, 1), output_tokens=5)
    found = steady(only(scene))
    assert found is not None
    assert found.output_tokens - 1 == 4
    scene.records.clear()
    scene.batch_run("r", 2, (2, 1), (1.5, 1.4), cut=(0, 1), output_tokens=5, active=(1, 2))
    found = steady(only(scene))
    assert found is not None
    assert found.output_tokens - 1 == 1


def test_a_batch_that_was_never_full_has_nothing_steady(scene: Any) -> None:
    scene.batch_run("r", 2, (2,), (1.5,), active=(1,))
    assert steady(only(scene)) is None


def beyond(scene: Any, *lengths: int) -> Overheads:
    """Passes of 5 s at every k; beyond them 1 s in 10 rounds at k = 0, 2 s in 4 at k = 1 and
    3 s in 2 at k = 2.
    """
    scene.request("r")
    scene.times({1: 0.5, 2: 1.0, 3: 2.0}, {1: 0.25, 2: 0.25})
    for k in lengths:
        rounds, outside = {0: (10, 1.0), 1: (4, 2.0), 2: (2, 3.0)}[k]
        zeros, full = (0.0,) * rounds, (k,) * rounds
        counts = {"proposed": full, "accepted": full, "cut": zeros}
        scene.decode("r", k, 5 + outside, draft_seconds=zeros, verify_seconds=zeros, **counts)
    run = scene.observed(1, 2, 3)
    return overheads(run, SMALL, 1, (1, 2, 3), block_costs(run, SMALL)[1])


@pytest.mark.parametrize(
    ("decoded", "found"),
    [
        ((0, 1, 2), {0: 0.1, 1: 3.0 / 2, 2: 2.0 / 4, 3: 5.0 / 6}),
        # The baseline stands for a k beside which nothing else ran.
        ((0, 2), {0: 0.1, 1: 3.0 / 2, 2: 0.1, 3: 3.0 / 2}),
        ((), {0: None, 1: None, 2: None, 3: None}),
    ],
)
def test_the_overhead_of_a_k_comes_from_the_others(
    scene: Any, decoded: tuple[int, ...], found: Overheads
) -> None:
    assert beyond(scene, *decoded) == pytest.approx(found)
