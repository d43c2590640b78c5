"""When a training is worth it, and what is said of what came of it."""

import pytest

from draftbench.acceptance.intervals import Estimate
from draftbench.cli.train import _forecast, _outcome, _proof
from draftbench.training.outcome import Compared, Forecast, Proof, Reached


def forecast(gain, before=None, after=None, fastest=None, low=0.0, high=None, doubt=0.0):
    def reached(speed, doubt=0.0):
        if speed is None:
            return None
        return Reached(k=2, speedup=Estimate(speed, speed - doubt, speed + doubt))

    return Forecast(
        rate=0.6,
        parts=(),
        gain=Estimate(gain, low, 2 * gain if high is None else high),
        before=reached(before),
        after=reached(after, doubt),
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
    assert forecast(0.05, 0.9, after, fastest).expects_it is worth


@pytest.mark.parametrize(("gain", "worth"), [(0.02, True), (0.005, False)])
def test_where_no_speed_is_known_a_gain_that_counts_is_worth_it(gain, worth):
    assert forecast(gain).expects_it is worth


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (forecast(0.02, low=0.01, high=0.05), "Worth training"),
        (forecast(0.02, low=0.009, high=0.05), "May be worth training"),
        (forecast(0.001, low=0.0, high=0.01), "Cannot tell if training pays"),
        (forecast(0.001, low=0.0, high=0.009), "Not worth training"),
        (forecast(0.05, 1.0, 1.3, 1.0, doubt=0.2), "Worth training"),
        (forecast(0.05, 1.0, 1.3, 1.2, doubt=0.2), "May be worth training"),
        (forecast(0.05, 1.0, 1.1, 1.2, doubt=0.2), "Cannot tell if training pays"),
        (forecast(0.05, 1.0, 1.1, 1.4, doubt=0.2), "Not worth training"),
    ],
)
def test_the_verdict_is_sure_only_where_the_whole_interval_says_so(found, verdict):
    assert _forecast("draft", found).title.startswith(f"{verdict}: ")


def proof(value, low, high, after=None):
    """Of tokens per round; where the speed is known, it changes by as large a part."""
    even, rate = Estimate(0.6, 0.5, 0.7), Estimate(-0.01, -0.02, -0.005)
    reached = None if after is None else Reached(2, Estimate(after, after - 0.1, after + 0.1))
    faster = None if after is None else Estimate(1 + value, 1 + low, 1 + high)
    of_round = Compared(even, even, Estimate(value, low, high))
    return Proof(20, Compared(even, even, rate), 2, of_round, reached, reached, faster)


@pytest.mark.parametrize(
    ("figures", "of_speed", "of_tokens", "better"),
    [
        ((0.02, 0.01, 0.03), "is faster", "yields more", True),
        ((0.02, -0.01, 0.05), "is not surely faster", "may yield no more", True),
        ((-0.007, -0.02, 0.01), "is not surely faster", "may yield no more", False),
        ((-0.02, -0.03, -0.01), "is slower", "yields fewer", False),
    ],
    ids=["more", "expected more", "expected less", "less"],
)
def test_the_verdict_is_of_speed_or_else_of_tokens_per_round_whatever_is_accepted(
    figures, of_speed, of_tokens, better
):
    timed, untimed = proof(*figures, after=1.2), proof(*figures)
    on = "on 20 requests"
    assert _proof("draft", timed, "requests").title == f"The trained draft {of_speed} {on}"
    found = _proof("draft", untimed, "requests").title
    assert found == f"The trained draft {of_tokens} tokens per round {on}"
    assert (timed.better, untimed.better) == (better, better)


def test_only_a_draft_that_is_shown_better_is_one_like_any_other():
    def last(found):
        *_, last = _outcome(forecast(0.02), found, "./out")
        return last

    assert last(proof(0.02, 0.01, 0.03)).startswith("a draft like any other")
    assert "before you serve it" in last(proof(0.02, -0.01, 0.05))
    assert "not kept" in last(proof(-0.007, -0.02, 0.01))


@pytest.mark.parametrize(
    ("low", "gained", "held"),
    [
        (0.01, 0.02, True),
        (0.01, 0.005, False),
        (0.01, -0.02, False),
        (0.0, 0.05, False),
        (0.0, 0.01, None),
        (0.0, -0.02, None),
    ],
)
def test_a_forecast_held_if_it_promised_something_and_the_gain_itself_is_in_it(low, gained, held):
    assert forecast(0.02, low=low).held(gained) is held


def test_the_outcome_says_whether_the_trained_draft_beats_the_fastest_of_the_run():
    def first(after):
        return next(_outcome(forecast(0.02, 1.0, 1.2, 1.25), proof(0.1, 0.1, 0.1, after), "./out"))

    assert first(1.28) == "with 1.28× it beats the run's fastest, 1.25×"
    assert first(1.26) == "with 1.26× it does not beat the run's fastest, 1.25×"


def test_how_much_faster_it_is_has_an_interval():
    rows = _proof("draft", proof(0.05, 0.02, 0.08, 1.2), "requests").rows
    assert rows[-1][-1] == "+5% (+2% to +8%)"
