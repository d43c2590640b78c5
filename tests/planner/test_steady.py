"""The rounds of a batch that count, and what rounds take beyond their passes."""

from __future__ import annotations

from typing import Any

import pytest

from draftbench.planner.measured import overhead, steady
from draftbench.records import Decode


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


def _rows(scene: Any) -> list[Decode]:
    """Outside their passes: 1 s in 10 plain rounds, 2 s in 4 rounds at k = 1, 3 s in 2 at k = 2."""
    for k, rounds, outside in ((0, 10, 1.0), (1, 4, 2.0), (2, 2, 3.0)):
        scene.decode(
            "r",
            k,
            5.0 + outside,
            draft_seconds=(1.0 / rounds,) * rounds,
            verify_seconds=(4.0 / rounds,) * rounds,
        )
    return [record for record in scene.records if isinstance(record, Decode)]


def own(rows: Any) -> float:
    """The runs' own passes: what is left is what the loop took."""
    return sum(sum(row.draft_seconds) + sum(row.verify_seconds) for row in rows)


def test_the_overhead_of_a_cell_comes_from_other_cells(scene: Any) -> None:
    rows = _rows(scene)
    assert overhead(rows, 1, own) == pytest.approx(3.0 / 2)
    assert overhead(rows, 2, own) == pytest.approx(2.0 / 4)
    assert overhead(rows, 3, own) == pytest.approx(5.0 / 6)


def test_the_baseline_has_its_own_overhead_and_lends_it_where_nothing_else_ran(scene: Any) -> None:
    rows = _rows(scene)
    assert overhead(rows, 0, own) == pytest.approx(0.1)
    assert overhead([row for row in rows if row.k in (0, 2)], 2, own) == pytest.approx(0.1)
    assert overhead([], 2, own) is None
