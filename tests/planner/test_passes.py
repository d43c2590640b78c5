"""Seconds of rounds in which several rows go together, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from draftbench.errors import UsageError
from draftbench.planner.cost_sources import costs_in, costs_of_run
from draftbench.planner.costs import pass_seconds
from draftbench.planner.predict import Predictor, predict, predictor_of
from draftbench.records import Candidate

SMALL, NGRAM = Candidate(draft="small"), Candidate(draft="ngram")
ONE, DRAFT_ONE = {1: 1.0, 2: 1.1, 3: 1.2}, {1: 0.1, 2: 0.15}
TWO, DRAFT_TWO = {1: 1.0, 2: 1.2, 3: 1.5}, {1: 0.1, 2: 0.16}
# k = 2 on 8 accepted tokens: rounds propose 2, 2 and 1, and two of the three follow a full one. The
# verify pass of two rows is 1 + 5/3 tokens wide, the first draft pass 1 + 2/3; the second happens
# unless both rows are at their limit, 1 - (1/3)².
ROUND = (1.2 + 2 / 3 * 0.3) + (0.1 + 2 / 3 * 0.06) + (8 / 9) * 0.1


def value(predictor: Predictor, k: int) -> float:
    sample = predict(predictor, k).speedup()
    assert sample is not None
    assert sample.value is not None
    return sample.value


def timed(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.times(ONE, DRAFT_ONE)
    scene.times(TWO, DRAFT_TWO, batch=2)


def test_rows_of_a_batch_go_through_rounds_of_their_mean_width(scene: Any) -> None:
    timed(scene)
    found = predictor_of(scene.observed(1, 2), SMALL, batch=2)
    assert value(found, 2) == pytest.approx(8 / (3 * ROUND))


def test_with_many_rows_somebody_always_drafts_to_the_end(scene: Any) -> None:
    timed(scene)
    scene.times(TWO, DRAFT_TWO, batch=64)
    found = predictor_of(scene.observed(1, 2), SMALL, batch=64)
    assert value(found, 2) == pytest.approx(8 / (3 * (1.4 + 0.14 + 0.1)))


def test_a_heavy_request_fills_the_rows_by_its_weight(scene: Any) -> None:
    # "a" takes 4 rounds at k = 1 (three after a full one), "b" one plain step, three times as
    # often: 4/7 of all rounds propose a token, 3/7 follow a full one.
    scene.request("a", 9)
    scene.request("b", 2, weight=3.0)
    scene.replay("a", [1.0] * 8)
    scene.replay("b", [1.0])
    scene.times(ONE, DRAFT_ONE)
    scene.times(TWO, DRAFT_TWO, batch=2)
    width = 1.0 + 4 / 7 * 0.2
    drafting = (1 - (3 / 7) ** 2) * (0.1 + 3 / 7 * 0.06)
    found = predictor_of(scene.observed(1), SMALL, batch=2)
    assert value(found, 1) == pytest.approx((8 + 3) / ((4 + 3) * (width + drafting)))


def test_a_batch_of_one_is_the_single_row(scene: Any) -> None:
    timed(scene)
    found = predictor_of(scene.observed(1, 2), SMALL)
    context = np.array([14.5, 14.5])
    assert found.costs is not None
    alone = pass_seconds(found.costs, found.rounds(2), context)
    assert alone == pytest.approx([4.1, 4.1])


def test_lookups_of_a_batch_are_paid_in_every_round(scene: Any) -> None:
    # Two found at starts 1 and 4, one at 7: three rounds of 1 + 5/3 tokens, two lookups each.
    for name in ("a", "b"):
        scene.request(name)
        scene.lookup(name, [2] * 8, [2] * 8)
    scene.times(ONE, None, NGRAM)
    scene.times(TWO, None, NGRAM, batch=2)
    scene.cost("ngram", NGRAM, 2, 0.01, what="proposal")
    found = predictor_of(scene.observed(2), NGRAM, batch=2)
    assert value(found, 2) == pytest.approx(8 / (3 * (1.4 + 0.02)))


def test_the_overhead_of_a_batch_comes_from_its_own_other_cells(scene: Any) -> None:
    # Plain rounds take 0.1 s beyond their pass. At k = 1 a round's passes are 1.2 + 0.1 + 3/4 of
    # 0.06 s (three of four rounds follow a full one), it took 0.2 s more.
    timed(scene)
    for name in ("r0", "r1"):
        scene.batch_run(name, 0, (0,) * 8, (1.1,) * 8)
        scene.batch_run(name, 1, (1,) * 4, (1.545,) * 4)
        scene.batch_run(name, 2, (2,) * 3, (99.0,) * 3)
        scene.decode(name, 1, 99.0)
    found = predictor_of(scene.observed(1, 2), SMALL, batch=2)
    assert found.overheads[0] == pytest.approx(0.1)
    assert found.overheads[2] == pytest.approx(0.2)
    assert value(found, 2) == pytest.approx(8 * 1.1 / (3 * (ROUND + 0.2)))


def test_between_two_batch_sizes_costs_and_overheads_are_interpolated_and_said(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.times(ONE, DRAFT_ONE)
    scene.times({1: 2.0, 2: 2.2, 3: 2.4}, {1: 0.2, 2: 0.3}, batch=5)
    scene.decode("r0", 0, 8.8)
    run = scene.observed(1, 2)
    found = costs_in(run).at(SMALL, 2, (1, 2))
    assert found.note == "interpolated between 1 and 5 rows"
    assert found.costs is not None
    assert found.costs.target.at(3, 0) == pytest.approx(0.75 * 1.2 + 0.25 * 2.4)
    assert found.costs.draft_cost_ratio(0.0).value == pytest.approx(0.1)
    # Nothing was decoded at five rows.
    assert found.overheads == {0: None, 1: None, 2: None}


@pytest.mark.parametrize("batch", [1, 9])
def test_beyond_the_timed_batch_sizes_costs_are_unknown(scene: Any, batch: int) -> None:
    scene.requests(2, [1.0] * 8)
    for rows in (2, 4):
        scene.times(ONE, DRAFT_ONE, batch=rows)
    found = costs_in(scene.observed(1)).at(SMALL, batch, (1,))
    assert (found.costs, found.overheads) == (None, {})
    assert found.note == f"{batch} rows at once were not timed, only 2, 4"


def test_costs_of_another_run_stand_beside_this_ones_acceptance(scene: Any) -> None:
    scene.requests(2, [1.0] * 8)
    scene.times({1: 9.0, 2: 9.0, 3: 9.0}, {1: 9.0, 2: 9.0})
    scene.facts("small", fingerprint="a")
    own = scene.observed(1, 2)
    scene.records.clear()
    scene.times(ONE, DRAFT_ONE, runner="elsewhere")
    scene.facts("small", fingerprint="b")
    source = costs_of_run(scene.observed(1, 2), own, "`other`")
    assert value(predictor_of(own, SMALL, source=source), 2) == pytest.approx(8 / 4.1)
    assert source.runner == "elsewhere"
    assert any("elsewhere" in text for text in source.caveats)
    assert "small is not the same model in `other`" in source.caveats


@pytest.mark.parametrize(
    ("changes", "meant"),
    [({"target": "u"}, "another target"), ({"target_quant": "int8"}, "at int8"), ({}, "no times")],
)
def test_costs_of_something_else_are_refused(scene: Any, changes: Any, meant: str) -> None:
    scene.requests(2, [1.0] * 8)
    own = scene.observed(1)
    with pytest.raises(UsageError, match=meant):
        costs_of_run(scene.observed(1, **changes), own, "`other`")


def test_a_batch_played_round_by_round_takes_what_is_predicted(scene: Any) -> None:
    # Four rows, refilled from 60 responses of 5 to 40 tokens over and over; seconds are linear in
    # the tokens of a pass, as the costs say. Counted over the rounds of the middle.
    rng = np.random.default_rng(7)
    tracks = [(rng.random(rng.integers(4, 40)) < 0.7).astype(float) for _ in range(60)]
    for i, track in enumerate(tracks):
        scene.request(f"r{i}", len(track) + 1)
        scene.replay(f"r{i}", track)
    scene.times({1: 1.0, 5: 1.8}, {1: 0.1, 2: 0.14}, batch=4)
    found = predictor_of(scene.observed(4), SMALL, batch=4)
    plain, speculative = played([track for _ in range(40) for track in tracks], rows=4, k=4)
    assert plain / speculative == pytest.approx(value(found, 4), rel=0.01)


def played(tracks: list[Any], rows: int, k: int) -> tuple[float, float]:
    """Seconds a token of plain decoding and of rounds in lockstep; a row that ends is refilled."""
    waiting = iter(tracks)
    active = [[next(waiting), 0, False] for _ in range(rows)]
    seconds, tokens = 0.0, 0
    while True:
        widths = [min(k, len(track) - at - 1) for track, at, _ in active]
        firsts = [1 + full for _, _, full in active]
        seconds += 1.0 + 0.2 * np.mean(widths)
        if max(widths):
            seconds += 0.1 + 0.04 * (np.mean(firsts) - 1) + 0.1 * (max(widths) - 1)
        for row, width in zip(active, widths, strict=True):
            track, at, _ = row
            tried = track[at : at + width]
            accepted = width if tried.all() else int(np.argmin(tried))
            row[1:] = [at + accepted + 1, width > 0 and accepted == width]
            tokens += accepted + 1
            if row[1] >= len(track):
                fresh = next(waiting, None)
                if fresh is None:
                    return 1.0, seconds * rows / tokens
                row[:] = [fresh, 0, False]
