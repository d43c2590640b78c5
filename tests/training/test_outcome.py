"""When a training is worth it, and what is said of what came of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from draftbench.acceptance.intervals import Estimate
from draftbench.cli.train import _forecast, sections
from draftbench.training.outcome import Compared, Forecast, Proof, Reached, TrainingAnswer


def forecast(gain, before=None, after=None, fastest=None, low=0.0, high=None, doubt=0.0):
    """`doubt` is that of the trained draft's speed over the fastest one's."""

    def reached(speed):
        return None if speed is None else Reached(k=2, speedup=Estimate(speed, speed, speed))

    over = after / fastest if after and fastest else None
    return Forecast(
        rate=0.6,
        parts=(),
        gain=Estimate(gain, low, 2 * gain if high is None else high),
        before=reached(before),
        after=reached(after),
        fastest=fastest,
        over_fastest=over and Estimate(over, over - doubt, over + doubt),
        requests=100,
        tokens=1000,
        seconds=60.0,
        device="cpu",
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        # Without a speed a gain of 0.01 counts.
        (forecast(0.02, low=0.01, high=0.05), "Worth training"),
        (forecast(0.02, low=0.009, high=0.05), "May be worth training"),
        (forecast(0.001, low=0.0, high=0.01), "Cannot tell if training pays"),
        (forecast(0.001, low=0.0, high=0.009), "Not worth training"),
        # Else it must become the fastest of the run, by more than a tie of 2 %.
        (forecast(0.05, 1.0, 1.3, 1.0, doubt=0.2), "Worth training"),
        (forecast(0.05, 1.0, 1.3, 1.2, doubt=0.2), "May be worth training"),
        (forecast(0.05, 1.0, 1.1, 1.2, doubt=0.2), "Cannot tell if training pays"),
        (forecast(0.05, 1.0, 1.1, 1.4, doubt=0.2), "Not worth training"),
        (forecast(0.05, 0.9, 1.3, 1.25), "Worth training"),
        (forecast(0.05, 0.9, 1.3, 1.29), "Not worth training"),
    ],
)
def test_the_verdict_is_sure_only_where_the_whole_interval_says_so(found, verdict):
    assert _forecast("draft", found).title.startswith(f"{verdict}: ")
    assert found.expects_it is verdict.endswith("orth training") & (verdict[0] != "N")


def proof(value, low, high, after=None, over_fastest=None):
    """Of tokens per round; where the speed is known, it changes by as large a part."""
    even, rate = Estimate(0.6, 0.5, 0.7), Estimate(-0.01, -0.02, -0.005)
    reached = None if after is None else Reached(2, Estimate(after, after - 0.1, after + 0.1))
    faster = None if after is None else Estimate(1 + value, 1 + low, 1 + high)
    of_round = Compared(even, even, Estimate(value, low, high))
    even_rate = Compared(even, even, rate)
    return Proof(20, even_rate, 2, of_round, reached, reached, faster, over_fastest)


def shown(found, made, other=None):
    """What `train` prints after the training."""
    training = SimpleNamespace(proof=found, other=other)
    return sections(TrainingAnswer(made, training), "draft", Path("out"))


@pytest.mark.parametrize(
    ("figures", "of_speed", "of_tokens", "then"),
    [
        ((0.02, 0.01, 0.03), "is faster", "yields more", "a draft like any other"),
        ((0.02, -0.01, 0.05), "may be faster", "may yield more", "before you serve it"),
        ((-0.007, -0.02, 0.01), "is no faster", "yields no more", "was not kept"),
        ((-0.02, -0.03, -0.01), "is slower", "yields fewer", "was not kept"),
    ],
    ids=["more", "expected more", "expected less", "less"],
)
def test_the_proof_is_of_speed_or_else_of_tokens_per_round_whatever_is_accepted(
    figures, of_speed, of_tokens, then
):
    for found, verdict in (
        (proof(*figures, after=1.2), of_speed),
        (proof(*figures), f"{of_tokens} tokens per round"),
    ):
        (section,) = shown(found, forecast(0.02))
        assert section.title.startswith(f"The trained draft {verdict} on 20 requests")
        assert then in section.notes[-1]
        assert found.better is (then != "was not kept")


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


@pytest.mark.parametrize(
    ("low", "high", "beats"),
    [(1.02, 1.04, "beats"), (1.0, 1.05, "may beat"), (0.98, 1.019, "does not beat")],
)
def test_the_trained_draft_beats_the_fastest_of_the_run_by_the_whole_interval(low, high, beats):
    found = proof(0.05, 0.02, 0.08, 1.28, Estimate(1.02, low, high))
    (section,) = shown(found, forecast(0.02, 1.0, 1.2, 1.25))
    assert section.notes[0] == f"with 1.28× it {beats} the run's fastest, 1.25×"
    assert section.rows[-1][-1] == "+5% (+2% to +8%)"


def test_the_proof_on_other_traffic_comes_second_and_decides_nothing():
    first, second = shown(proof(0.02, 0.01, 0.03), forecast(0.02), proof(-0.02, -0.03, -0.01))
    assert "a draft like any other" in first.notes[-1]
    title = "The trained draft yields fewer tokens per round on 20 requests of the other traffic"
    assert (second.title, second.notes) == (title, ())
