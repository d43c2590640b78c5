"""The first parts of a training → what all of it gains and takes."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from training.falling import Falling, Silent

from draftbench.acceptance.definitions import ALPHA_EMITTED, Sample, quotient
from draftbench.errors import UsageError
from draftbench.training.forecast import first_parts, gain_draws, gains_of, interval, part_steps
from draftbench.training.settings import TrainingSettings

PARTS = (0.02, 0.04, 0.06)


def parts(responses, batch, epochs=4):
    return part_steps(responses, TrainingSettings(batch=batch, epochs=epochs))


@pytest.mark.parametrize(
    ("responses", "batch", "steps"),
    [
        (8000, 8, [40, 80, 120]),  # 2, 4 and 6 % of 4000 take half as many at the largest rate
        (149, 8, [2, 4, 6]),  # at least, here of 76
        (41, 8, [2, 4, 6]),  # of 24
        (40, 8, None),  # of 20, more than half
        (40, 6, [2, 4, 6]),
        (5, 1, None),
    ],
)
def test_the_first_parts_take_steps_of_a_training_that_is_long_enough(responses, batch, steps):
    assert parts(responses, batch) == steps


@given(responses=st.integers(8, 100_000), batch=st.integers(1, 64), epochs=st.integers(1, 20))
def test_every_part_takes_more_steps_than_the_one_before(responses, batch, epochs):
    assume(responses * epochs >= 24 * batch)
    first, second, third = parts(responses, batch, epochs)
    assert 0 < first < second < third


@pytest.mark.parametrize(
    ("responses", "batch", "hint"),
    [
        (40, 8, "train in smaller steps (`--batch 6`), or sweep more of the traffic; "),
        (5, 1, "sweep more of the traffic; "),
    ],
)
def test_too_few_steps_are_refused_with_the_batch_that_makes_enough(responses, batch, hint):
    examples = SimpleNamespace(train=(None,) * responses, validation=())
    plan = SimpleNamespace(examples=examples, settings=TrainingSettings(batch=batch))
    with pytest.raises(UsageError, match="too few to forecast") as refused:
        first_parts(plan, None, None)
    assert refused.value.hint.startswith(hint)


def test_of_a_look_only_the_reading_takes_longer_in_a_training_and_a_start_is_no_step(
    tmp_path, monkeypatch
):
    """A step takes two seconds, the first of them twenty; a look three besides a tenth for each
    response, a hundred here and 300 in the training, which has 160 steps and eight looks.
    """
    now = 0.0

    def passes(seconds):
        nonlocal now
        now += seconds

    class Stepping(Falling):
        steps = 0

        def loss(self, batch):
            passes(2.0 if self.steps else 20.0)
            self.steps += 1
            return super().loss(batch)

    def along(_, responses):
        passes(0.1 * len(responses))
        return SimpleNamespace(rate=accepted(0.5)[0], seconds=0.1 * len(responses))

    def look(draft, folder, responses):
        passes(3.0)
        return along(draft, responses)

    monkeypatch.setattr(time, "monotonic", lambda: now)
    plan = SimpleNamespace(
        examples=SimpleNamespace(train=(1.0,) * 40, validation=(None,) * 300),
        settings=TrainingSettings(batch=1, epochs=4, learning_rate=0.1),
        draft=SimpleNamespace(spec="draft"),
        along=along,
        now=look,
        in_training=Stepping,
    )
    first = first_parts(plan, tmp_path, Silent())
    assert first.steps == [2, 4, 6]
    assert first.seconds == pytest.approx(160 * 2.0 + 8 * (3.0 + 0.1 * 300))


def accepted(*rates, requests=200, tokens=50):
    """The same requests at several rates, each request at exactly the rate."""
    names = tuple(map(str, range(requests)))
    return [
        Sample(
            ALPHA_EMITTED,
            names,
            np.ones(requests),
            np.column_stack([np.full(requests, rate * tokens), np.full(requests, tokens)]),
            quotient,
        )
        for rate in rates
    ]


def forecast(*rates, **size):
    return interval(gain_draws(PARTS, *gains_of(accepted(*rates, **size))))


def test_a_gain_that_grows_by_the_same_with_every_doubling_is_held():
    # .03 for each doubling, of which there are log2(50) = 5.64 from 2 % to all.
    found = forecast(0.5, 0.53, 0.56, 0.5775)
    assert found.low < 0.03 + 5.64 * 0.03 < found.high
    assert found.low > 0.01


def test_a_gain_that_more_than_doubles_with_every_part_is_held_and_expected():
    """Half of a draft's layers, as trained: the parts, and the whole."""
    rates = (0.016 + gain for gain in (0.0, 0.0037, 0.0201, 0.0481))
    found = forecast(*rates, requests=60, tokens=40)
    assert found.low <= 0.246 <= found.high
    assert found.value == pytest.approx(0.246, abs=0.1)


def test_a_gain_that_no_longer_grows_is_expected_to_stay():
    found = forecast(0.5, 0.54, 0.54, 0.54)
    assert 0.01 < found.low < 0.04 < found.value < 0.06


def test_the_same_gain_after_a_smaller_part_means_more():
    early, late = (
        interval(gain_draws([part], *gains_of(accepted(0.5, 0.51)))) for part in (0.06, 0.6)
    )
    assert early.value > late.value > 0.005
    assert early.high > 3 * late.high


@pytest.mark.parametrize("rates", [(0.6, 0.6, 0.6, 0.6), (0.6, 0.59, 0.58, 0.57)])
def test_parts_that_gained_nothing_promise_nothing(rates):
    found = forecast(*rates)
    assert found.low == 0
    assert found.value < 0.01


@settings(max_examples=30)
@given(st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_no_forecast_leaves_what_a_rate_can_be(rates):
    draws = gain_draws(PARTS, *gains_of(accepted(*rates)), 1 - rates[0])
    assert draws.min() >= 0
    assert rates[0] + draws.max() <= 1 + 1e-12


def test_a_greedy_draft_of_a_target_that_samples_reaches_its_ceiling_at_most():
    draws = gain_draws(PARTS, *gains_of(accepted(0.5, 0.55, 0.6, 0.65)), most=0.25)
    assert draws.max() <= 0.25


def test_where_half_of_the_requests_lose_no_gain_is_sure():
    rates = (0.5, 0.53, 0.56, 0.5775)
    uneven = accepted(*rates, requests=20)
    for at, sample in enumerate(uneven[1:], 1):
        sample.addends[::2, 0] += 4.0 * at
        sample.addends[1::2, 0] -= 4.0 * at
    assert interval(gain_draws(PARTS, *gains_of(uneven))).low == 0
    assert forecast(*rates, requests=20).low > 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    "curve",
    [
        lambda x: 0.15 - 0.15 * (1 + 400 * x) ** -0.3,
        lambda x: 0.02 * np.log1p(400 * x),
        lambda x: 0.1 * x**0.5,
        lambda x: 0.12 * (1 - np.exp(-60 * x)),
        lambda x: 0.0 * x,
    ],
    ids=["power law", "logarithm", "late", "soon over", "nothing gained"],
)
def test_the_interval_holds_the_final_gain_of_simulated_trainings(curve):
    generator, held = np.random.default_rng(0), 0
    for _ in range(100):
        noise = 0.003 * generator.standard_normal(len(PARTS))
        rates = [0.6, *(0.6 + curve(np.array(PARTS)) + noise)]
        common = generator.random((200, 50))
        samples = accepted(*rates)
        for rate, sample in zip(rates, samples, strict=True):
            # The same requests and mostly the same tokens, as of drafts that are alike.
            own = np.where(
                generator.random(common.shape) < 0.8, common, generator.random((200, 50))
            )
            sample.addends[:, 0] = (own < rate).sum(axis=1)
        found = interval(gain_draws(PARTS, *gains_of(samples)))
        held += found.low <= float(curve(np.array(1.0))) <= found.high
    assert held >= 90
