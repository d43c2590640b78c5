"""The gate's own error rates, on paired requests drawn from a pool with a known drop.

400 seeded trials a case. A rate of 2.5% shows as more than 5% with a probability of 0.002, one of
80% as less than 75% with one of 0.008, one of 95% as less than 92% with one of 0.005.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from scenes import ratio

from draftbench.acceptance.definitions import quotient
from draftbench.acceptance.rounds import Floats, expected_rounds
from draftbench.drafts.laws import PositionLaw
from draftbench.gate.noninferiority import Verdict, gain_of

TRIALS = 400
LIMIT = 0.02


@dataclass(frozen=True)
class Pool:
    """Requests in two runs, as addends of the mean accepted length, and the drop over them all."""

    old: Floats
    new: Floats
    drop: float

    def gains(self, requests):
        """Both runs on the same draw of requests, again and again."""
        generator = np.random.default_rng(7)
        for _ in range(TRIALS):
            drawn = generator.integers(len(self.old), size=requests)
            yield gain_of(ratio(*self.old[drawn].T), ratio(*self.new[drawn].T), relative=True)

    def verdicts(self, limit, requests):
        return Counter(gain.verdict(limit) for gain in self.gains(requests))

    def advised(self, limit):
        """What the tool names after a first run of 200 requests."""
        pilot = gain_of(ratio(*self.old[:200].T), ratio(*self.new[:200].T), relative=True)
        number = pilot.advised_requests(limit)
        assert number is not None
        return number


def pool(lost):
    """A greedy draft at k = 4: a tenth of its proposals change, and `lost` go wrong."""
    generator = np.random.default_rng(0)
    lengths = np.minimum(generator.geometric(1 / 80, 2000) + 8, 256)
    rates = generator.beta(4, 2, 2000)
    laws: tuple[list[PositionLaw], list[PositionLaw]] = ([], [])
    for length, rate in zip(lengths.tolist(), rates.tolist(), strict=True):
        draws = generator.random((4, length - 1))
        old = draws[0] < rate
        new = np.where(draws[1] < 0.1, draws[2] < rate, old) & (draws[3] >= lost)
        for side, accept in zip(laws, (old, new), strict=True):
            side.append(PositionLaw(length, length, accept.astype(np.float64), length - 1))
    rounds = [expected_rounds(side, 4) for side in laws]
    addends = [np.stack([r.with_draft + r.accepted, r.with_draft], axis=1) for r in rounds]
    figures = [float(quotient(side.sum(axis=0))) for side in addends]
    return Pool(addends[0], addends[1], 1 - figures[1] / figures[0])


@pytest.fixture(scope="module")
def unharmed():
    return pool(0.0)


@pytest.fixture(scope="module")
def harmed():
    return pool(0.02)


def test_without_a_drop_hardly_any_run_fails_and_most_pass(unharmed):
    assert abs(unharmed.drop) < LIMIT / 10
    found = unharmed.verdicts(LIMIT, unharmed.advised(LIMIT))
    assert found[Verdict.FAIL] <= 0.01 * TRIALS
    assert found[Verdict.PASS] >= 0.75 * TRIALS


def test_a_drop_of_the_limit_hardly_ever_passes(harmed):
    found = harmed.verdicts(harmed.drop, harmed.advised(harmed.drop))
    assert found[Verdict.PASS] <= 0.05 * TRIALS
    assert found[Verdict.FAIL] <= 0.05 * TRIALS


def test_a_drop_of_twice_the_limit_fails_at_the_advised_size(harmed):
    limit = harmed.drop / 2
    assert harmed.verdicts(limit, harmed.advised(limit))[Verdict.FAIL] >= 0.75 * TRIALS


@pytest.mark.parametrize(("requests", "least"), [(12, 0.90), (24, 0.90), (60, 0.92), (240, 0.92)])
def test_intervals_hold_the_true_drop_about_as_often_as_they_say(harmed, requests, least):
    intervals = [gain.interval for gain in harmed.gains(requests)]
    held = sum(i is not None and i.low <= -harmed.drop <= i.high for i in intervals)
    assert least <= held / TRIALS <= 0.99
