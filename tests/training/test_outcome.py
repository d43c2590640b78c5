"""When a training is worth it."""

import pytest

from draftbench.acceptance.intervals import Estimate
from draftbench.training.outcome import Forecast, Reached


def forecast(gain, before=None, after=None, fastest=None):
    def reached(speed):
        return None if speed is None else Reached(k=2, speedup=Estimate(speed, speed, speed))

    return Forecast(
        rate=0.6,
        parts=(),
        gain=Estimate(gain, 0.0, 2 * gain),
        before=reached(before),
        after=reached(after),
        fastest=fastest,
        requests=100,
        tokens=1000,
        seconds=60.0,
        device="cpu",
    )


@pytest.mark.parametrize(
    ("after", "fastest", "worth"),
    [(1.3, 1.25, True), (1.3, 1.29, False), (1.3, 1.6, False), (0.95, 1.0, False)],
    ids=["faster than all", "a tie", "another stays faster", "slower than no draft"],
)
def test_it_is_worth_it_if_the_trained_draft_becomes_the_fastest_of_the_run(after, fastest, worth):
    assert forecast(0.05, 0.9, after, fastest).worth_it is worth


@pytest.mark.parametrize(("gain", "worth"), [(0.02, True), (0.005, False)])
def test_where_no_speed_is_known_a_gain_that_counts_is_worth_it(gain, worth):
    assert forecast(gain).worth_it is worth
