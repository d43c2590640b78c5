"""What a pass costs between, on and beyond the timed points."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftbench.plan.costs import _isotonic, block_costs, overhead
from draftbench.records import Candidate, Decode

SMALL = Candidate(draft="small")


def test_costs_are_interpolated_in_tokens_and_in_context(scene: Any) -> None:
    for context, seconds in ((100, 1.0), (300, 2.0)):
        scene.times({1: seconds, 5: seconds + 0.4}, {1: 0.1, 2: 0.1}, contexts=(context,))
    costs = block_costs(scene.observed(4), SMALL)
    assert costs is not None
    assert costs.target.at(1, 100) == pytest.approx(1.0)
    assert costs.target.at(3, 100) == pytest.approx(1.2)
    assert costs.target.at(3, 250) == pytest.approx(1.2 + 0.75)


def test_beyond_the_timed_points_the_nearest_answers_and_says_so(scene: Any) -> None:
    scene.times({1: 1.0, 5: 1.4}, {1: 0.1, 2: 0.1}, contexts=(100, 300))
    costs = block_costs(scene.observed(4), SMALL)
    assert costs is not None
    assert costs.target.at(9, 500) == pytest.approx(1.4)
    asked = costs.target.covers(np.array([5, 6, 5, 1]), np.array([300, 300, 301, 99]))
    assert asked.tolist() == [True, False, False, False]


def test_the_median_of_all_repeats_counts(scene: Any) -> None:
    scene.times({1: (1.0, 9.0, 1.2), 2: (1.2,) * 3}, {1: (0.1,) * 3})
    costs = block_costs(scene.observed(1), SMALL)
    assert costs is not None
    assert costs.target.at(1, 0) == pytest.approx(1.2)


def test_a_longer_pass_is_never_cheaper(scene: Any) -> None:
    # 1.2 before 1.0: the nearest non-decreasing pair is their mean, twice.
    scene.times({1: 1.2, 2: 1.0, 3: 1.3}, {1: 0.1, 2: 0.1})
    costs = block_costs(scene.observed(2), SMALL)
    assert costs is not None
    assert costs.target.at(np.array([1, 2, 3]), 0) == pytest.approx([1.1, 1.1, 1.3])


@given(st.lists(st.floats(0.001, 10), min_size=1, max_size=8))
def test_the_monotone_curve_keeps_the_mean_and_is_unchanged_where_it_was_monotone(
    values: list[float],
) -> None:
    curve = _isotonic(np.array(values))
    assert all(a <= b + 1e-9 for a, b in pairwise(curve))
    assert curve.mean() == pytest.approx(np.mean(values))
    assert _isotonic(np.sort(values)) == pytest.approx(np.sort(values))


def test_points_of_other_blocks_do_not_count(scene: Any) -> None:
    scene.times({1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1})
    scene.times({1: 7.0, 2: 7.0}, {1: 3.0, 2: 3.0}, Candidate(draft="small", quant="int4"))
    costs = block_costs(scene.observed(1), SMALL)
    assert costs is not None
    ratio = costs.draft_cost_ratio(500.0)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((0.1, 0.1, 0.1))


def test_ratios_carry_the_spread_of_their_repeats(scene: Any) -> None:
    scene.times({1: (1.0, 1.0, 1.0), 3: (1.0, 1.5, 2.0)}, {1: (0.1,) * 3, 2: (0.1,) * 3})
    costs = block_costs(scene.observed(2), SMALL)
    assert costs is not None
    ratio = costs.verify_ratio(3, 500.0)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1.5, 1.0, 2.0))


def test_the_target_as_its_own_draft_costs_a_target_step(scene: Any) -> None:
    control = Candidate(draft="self")
    scene.times({1: 1.0, 2: 1.2}, None, control)
    costs = block_costs(scene.observed(1), control)
    assert costs is not None
    assert costs.draft is not None
    assert costs.draft.at(2, 0) == pytest.approx(1.2)
    assert costs.draft_cost_ratio(0.0).value == 1.0


def test_a_level_without_kernel_and_steps_that_nobody_timed_cost_nobody_knows_what(
    scene: Any,
) -> None:
    scene.facts("small", has_kernel=False)
    scene.times({1: 1.0, 2: 1.0}, {1: 0.1, 2: 0.1})
    scene.times({1: 1.0, 2: 1.0}, None, Candidate(draft="other"))
    run = scene.observed(1)
    assert block_costs(run, SMALL) is None
    assert block_costs(run, Candidate(draft="other")) is None
    assert block_costs(run, Candidate(draft="third")) is None


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


def own(row: Any) -> float:
    """The run's own passes: what is left is what the loop took."""
    return sum(row.draft_seconds) + sum(row.verify_seconds)


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
