"""The forecast: the draft takes the first parts of its training, and their gain on held-out
requests says what the whole training will gain.

A step moves the weights in proportion to its learning rate, which rises from 0 in a warm-up of w
steps: n steps are worth n - (w + 1)/2 steps at the largest rate. Over a whole training, in which it
falls to 0 again, the average rate is half the largest; so 3 % of the steps at the largest rate are
6 % of the training. The rate of acceptance after the share x of the training is taken to follow a
power law,

    α(x) = α∞ - b · (1 + x/c)^(-β)        a gain of G · φ(x) / φ(1), φ(x) = (1 - (1 + x/c)^(-β)) / β

where G is the gain of the whole training. The gain is nothing before the first step, grows at first
in proportion to x, and more and more slowly from about c on (with β = 0 like the logarithm of x).
Given c, β and how much two equally long trainings differ, the parts have the covariance of the
held-out requests, which they share, and noise of their own; the forecast gain is proved on other
requests, as noisy as these. G and these three are drawn from a grid by their likelihood.

The better of the original and the trained draft is used, so no gain is below 0.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import RESAMPLES, Estimate, generator_of, quantiles, widening
from draftbench.acceptance.rounds import Floats
from draftbench.decoder.device import device_words
from draftbench.errors import UsageError
from draftbench.training.examples import tokens_of
from draftbench.training.fit import LOOKS_AN_EPOCH, Progress, begin, warm_up_of
from draftbench.training.held_out import Acceptance
from draftbench.training.outcome import Forecast, TrainingPart
from draftbench.training.plan import Plan
from draftbench.training.settings import TrainingSettings

# Parts of the training, the shortest first, and the least steps of each; the longest part is at
# most half of the training.
PARTS, LEAST_STEPS, LONGEST = (0.02, 0.04, 0.06), (2, 4, 6), 0.5
# How many average steps of a training a step at the largest rate is worth.
WORTH = 2
# A forecast reads a third of the validation set, and at least this many.
LEAST_READ = 50
# The share of a training at which gains bend (c), on a grid: from its beginning to beyond its end.
_BENDS = np.geomspace(0.003, 3.0, 12)
# How soon they end after that (β), on a grid.
_BETAS = (0.0, 0.5, 1.0, 1.5)
# How much two equally long trainings differ (sd), on a grid.
_NOISES = np.geomspace(0.003, 0.03, 8)
# The least gain (G) that counts as one; the logarithms of larger gains are equally likely
# beforehand.
_LEAST = 0.001


def share_of(steps: int, last: int, total: int) -> float:
    """The share of a training that its first steps make up; the last of them ends the forecast."""
    warm_up = warm_up_of(last)
    lost = (warm_up + 1) / 2 if warm_up else 0.0
    return WORTH * (steps - lost) / total


class FirstParts(NamedTuple):
    """A draft before its training and after its first parts, on the same requests."""

    steps: list[int]  # of each part
    shares: list[float]  # of the training
    accepted: list[Acceptance]  # before training, and after each part
    seconds: float  # that the whole training will take, judged by these


def first_parts(plan: Plan, work: Path, progress: Progress) -> FirstParts:
    """Take the first parts of the training.

    Args:
        work: a folder for what is trained meanwhile.

    Raises:
        UsageError: there is too little data for parts.
    """
    train, validation, settings = plan.examples.train, plan.examples.validation, plan.settings
    if (steps := part_steps(len(train), settings)) is None:
        fits = int(LONGEST * len(train) * settings.epochs / (WORTH * LEAST_STEPS[-1]))
        raise UsageError(
            f"{len(train)} responses to train on, {settings.batch} a step, are too few to forecast "
            "from",
            hint=(f"train in smaller steps (`--batch {fits}`), or " if fits else "")
            + "sweep more of the traffic; `--anyway` trains without a forecast",
        )
    read = validation[: max(len(validation) // 3, LEAST_READ)]
    accepted = [plan.along(plan.draft.spec, read)]
    draft, begun, ended = plan.in_training(), list[float](), list[float]()

    def look() -> float:
        begun.append(time.monotonic())
        accepted.append(plan.now(draft, work / "part", read))
        ended.append(time.monotonic())
        return accepted[-1].rate.value or 0.0

    first, total = train[: steps[-1] * settings.batch], settings.steps(len(train))
    begin(draft, first, settings, work, progress, steps, look)
    # Before the first look the trainer starts, too.
    a_step = (sum(begun[1:]) - sum(ended[:-1])) / (steps[-1] - steps[0])
    # The training looks at more responses than the forecast.
    reading = fmean(each.seconds for each in accepted[1:]) * (len(validation) / len(read) - 1)
    a_look = fmean(np.subtract(ended, begun)) + reading
    return FirstParts(
        steps,
        [share_of(each, steps[-1], total) for each in steps],
        accepted,
        seconds=a_step * total + a_look * LOOKS_AN_EPOCH * settings.epochs,
    )


def forecast(plan: Plan, first: FirstParts) -> Forecast:
    """What the whole training will gain, judged by its first parts."""
    gc.collect()  # what was trained is held by cycles, and the training needs the room
    before, speeds = first.accepted[0], plan.speeds
    rates = [each.rate for each in first.accepted]
    original, *reached = (each.value or 0.0 for each in rates)
    draws = gain_draws(first.shares, *gains_of(rates), max(plan.most - original, 0.0))
    parts = zip(first.shares, first.steps, reached, strict=True)
    after, over_fastest = speeds.at(before, original + draws) if speeds else (None, None)
    return Forecast(
        rate=original,
        parts=tuple(TrainingPart(*each) for each in parts),
        gain=interval(draws),
        before=speeds.now if speeds else None,
        after=after,
        fastest=speeds.fastest.value if speeds else None,
        over_fastest=over_fastest,
        requests=len(before.rate.requests),
        tokens=tokens_of(plan.examples.train),
        seconds=first.seconds,
        device=device_words(plan.device),
    )


def part_steps(responses: int, settings: TrainingSettings) -> list[int] | None:
    """After how many steps each part ends; None if the training has too few steps for parts."""
    total = settings.steps(responses)
    if WORTH * LEAST_STEPS[-1] > LONGEST * total:
        return None
    wanted = zip(PARTS, LEAST_STEPS, strict=True)
    return [max(round(part * total / WORTH), least) for part, least in wanted]


def gain_draws(
    parts: Sequence[float], gains: Floats, covariance: Floats, most: float = 1.0
) -> Floats:
    """Draws of the gain of the whole training.

    Args:
        parts: the parts that were taken, ascending.
        gains: of each part, with their covariance.
        most: the greatest possible gain.
    """
    steps = np.log1p(np.multiply.outer(1 / _BENDS, np.append(parts, 1.0)))
    grown = np.concatenate([-np.expm1(-b * steps) / b if b else steps for b in _BETAS])
    curves = grown[:, :-1] / grown[:, -1:]  # the shares of the whole gain, a row for each curve
    finals = np.geomspace(_LEAST, max(most, _LEAST), 60)
    off = gains - np.multiply.outer(finals, curves)
    chances = []
    for noise in _NOISES:
        inverse = np.linalg.inv(covariance + noise**2 * np.eye(len(gains)))
        distance = np.einsum("fcp,pq,fcq->fc", off, inverse, off)
        chances.append((np.linalg.slogdet(inverse)[1] - distance) / 2)
    likely = np.exp(chances - np.max(chances))
    generator = generator_of("learning curve")
    chosen = generator.choice(likely.size, p=likely.ravel() / likely.sum(), size=RESAMPLES)
    noises, wholes, _ = np.unravel_index(chosen, likely.shape)
    spread = np.sqrt(_NOISES[noises] ** 2 + covariance[-1, -1])
    drawn: Floats = finals[wholes] + spread * generator.standard_normal(RESAMPLES)
    return np.clip(drawn, 0.0, most)


def gains_of(accepted: Sequence[Sample]) -> tuple[Floats, Floats]:
    """The gains of rates over the first one, and their covariance by a Bayesian bootstrap (Rubin
    1981) over the requests, which all of them share.
    """
    first = accepted[0]
    chances = generator_of("requests").exponential(size=(RESAMPLES, len(first.requests)))
    weights = chances * first.weights
    drawn = np.stack([each.combine(weights @ each.addends) for each in accepted], axis=1)
    gains = (drawn[:, 1:] - drawn[:, :1]) * widening(first.equal_requests)
    values = np.array([each.value for each in accepted], np.float64)
    return values[1:] - values[0], np.atleast_2d(np.cov(gains.T))


def interval(draws: Floats) -> Estimate:
    """The middle of some draws, with the interval that holds 95% of them."""
    middle, low, high = quantiles(draws, (0.5, 0.025, 0.975))
    return Estimate(middle, low, high)
