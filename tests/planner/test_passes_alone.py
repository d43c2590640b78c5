"""What decoded cells show of predictions from timed passes alone, and what follows for cells that
were not decoded.

At k = 2 a draft that is always right takes two rounds of t(3) and one of t(2), five draft steps and
two catch-ups after full rounds: 3.5 + 0.5 + 0.1 = 4.1 s where plain decoding takes 8.
"""

from __future__ import annotations

from typing import Any

import pytest

from draftbench.planner.rank import Alternative
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration, Evaluation, Recommendation
from draftbench.records import Candidate

BIG = Candidate(draft="big")
TARGET = {1: 1.0, 2: 1.1, 3: 1.2}
ALL = [1.0] * 8
PASSES = 4.1


def texts(found: Recommendation) -> list[str]:
    return [caveat.text for caveat in found.caveats]


def decoded(scene: Any, seconds: float, plain: float = 8.0, requests: int = 5) -> None:
    """`small`, timed, and decoded at k = 2 with the rounds that its replay expects."""
    scene.requests(requests, ALL)
    scene.times(TARGET, {1: 0.1, 2: 0.15})
    for name in (f"r{i}" for i in range(requests)):
        scene.decode(name, 0, plain)
        scene.decode(
            name,
            2,
            seconds,
            proposed=(2, 2, 1),
            accepted=(2, 2, 1),
            cut=(0,) * 3,
            draft_seconds=(0.0,) * 3,
            verify_seconds=(seconds / 3,) * 3,
        )


def undecoded(scene: Any, step: float) -> None:
    """`big`, timed and never decoded: at k = 2 it takes 3.6 s and five of its steps."""
    scene.requests(5, ALL, BIG)
    scene.times(TARGET, {1: step, 2: step + 0.05}, BIG)


def cell(found: Recommendation, draft: str) -> Evaluation:
    return next(c for c in found.evaluations if c.draft == draft)


def says(found: Recommendation, *words: str) -> bool:
    return any(all(word in caveat for word in words) for caveat in texts(found))


def test_a_rounds_overhead_is_its_time_over_that_of_its_passes(scene: Any) -> None:
    decoded(scene, 1.3 * PASSES)
    assert cell(recommend(scene.observed(2)), "small").round_overhead == pytest.approx(1.3)


def test_plain_steps_have_an_overhead_of_their_own(scene: Any) -> None:
    # Eight passes of a second; without costs or runs there is none.
    decoded(scene, PASSES, plain=9.6)
    undecoded(scene, 0.2)
    found = recommend(scene.observed(2))
    assert cell(found, "small").plain_overhead == pytest.approx(1.2)
    assert cell(found, "big").plain_overhead is None


def test_what_rounds_and_plain_steps_took_longer_alike_is_no_caveat(scene: Any) -> None:
    # The speed-up of the passes, 8 / 4.1, is that of the decoding: (1.3 · 8) / (1.3 · 4.1).
    decoded(scene, 1.3 * PASSES, plain=1.3 * 8)
    found = recommend(scene.observed(2))
    assert found.prediction_error is not None
    assert found.prediction_error.passes_only_worst == pytest.approx(0.0)
    assert not says(found, "rounds of")


def test_passes_alone_are_off_by_what_rounds_took_longer_than_plain_steps_did(scene: Any) -> None:
    # Plain steps took a tenth more than their passes, rounds 30 %.
    decoded(scene, 1.3 * PASSES, plain=8.8)
    found = recommend(scene.observed(2)).prediction_error
    assert found is not None
    assert found.passes_only_worst == pytest.approx(1.3 / 1.1 - 1)
    # A prediction that knows the baseline's tenth of a second a step adds it to each round.
    assert found.worst == pytest.approx(1.3 * PASSES / (PASSES + 0.3) - 1)


def test_a_prediction_that_wins_by_less_than_such_predictions_were_off_is_not_chosen(
    scene: Any,
) -> None:
    # small ran at 8 / 5.33 = 1.50; big is predicted at 8 / 4.6 = 1.74, which is 1.34 if it is off
    # by the same 30 %.
    decoded(scene, 1.3 * PASSES)
    undecoded(scene, 0.2)
    found = recommend(scene.observed(2))
    assert found.choice == Configuration(draft="small", quant="none", k=2)
    assert found.probability_best == 1.0
    assert cell(found, "big").probability_best == 0.0
    assert cell(found, "big").reason == (
        "not decoded: 1.74× is predicted, but such predictions were off by up to +30% where "
        "others were decoded"
    )


def test_a_prediction_that_wins_by_more_is_chosen_with_an_interval_that_allows_for_it(
    scene: Any,
) -> None:
    # small ran at 8 / 10.66 = 0.75, 2.6 times its passes; big is predicted at 8 / 3.8.
    decoded(scene, 2.6 * PASSES)
    undecoded(scene, 0.04)
    found = recommend(scene.observed(2))
    assert found.leader == Configuration(draft="big", quant="none", k=2)
    deciding = found.speedup_deciding
    assert deciding is not None
    assert (deciding.value, deciding.high) == pytest.approx((8 / 3.8, 8 / 3.8))
    assert deciding.low == pytest.approx(8 / 3.8 / 2.6)
    assert found.decision == "inconclusive"
    assert says(found, "big at k = 2 was not measured", "off by +160% to +160%")
    expected = cell(found, "big").speedup_expected
    assert expected is not None
    assert (expected.low, expected.high) == pytest.approx((8 / 3.8, 8 / 3.8))


def test_more_requests_do_not_settle_what_only_decoding_would(scene: Any) -> None:
    # One request of eight accepts less: the interval over requests has a width and is clear of 1.
    decoded(scene, 2.6 * PASSES, requests=8)
    undecoded(scene, 0.04)
    for at in range(5, 8):
        scene.replay(f"r{at}", [float(at < 7), *ALL[1:]], BIG)
    found = recommend(scene.observed(2))
    expected, deciding = cell(found, "big").speedup_expected, found.speedup_deciding
    assert expected is not None
    assert deciding is not None
    assert 1.5 < expected.low < expected.high
    assert deciding.low < 1
    assert (found.decision, found.requests_needed) == ("inconclusive", None)


def test_nothing_is_doubted_where_nothing_was_decoded(scene: Any) -> None:
    undecoded(scene, 0.08)
    found = recommend(scene.observed(2))
    assert (found.decision, found.probability_best) == ("speculate", 1.0)
    assert not says(found, "off by")


def test_an_unknown_error_of_passes_alone_is_no_error_of_0(
    scene: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A prediction of no seconds at all has no speed-up to compare.
    decoded(scene, 1.3 * PASSES)
    monkeypatch.setattr(Alternative, "passes_only_error", lambda self, by="expected": None)
    found = recommend(scene.observed(2)).prediction_error
    assert found is not None
    assert (found.passes_only_median, found.passes_only_worst) == (None, None)
