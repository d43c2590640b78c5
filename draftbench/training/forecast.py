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
from draftbench.training.fit import LOOKS_AN_EPOCH, Progress, begin, steps_of, warm_up_of
from draftbench.training.held_out import Acceptance
from draftbench.training.outcome import Forecast, Part, Reached
from draftbench.training.plan import Plan
from draftbench.training.settings import TrainingSettings

# Parts of the training, the shortest first, and the least steps of each; the longest part is at
# most half of the training.
PARTS, LEAST_STEPS, LONGEST = (0.02, 0.04, 0.06), (2, 4, 6), 0.5
# How many average steps of a training a step at the largest rate is worth.
WORTH = 2
# A forecast reads a third of the responses that say when to stop, and at least this many.
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
    a_step: float  # seconds
    a_look: float  # seconds, at as many responses as the training looks at


def first_parts(plan: Plan, work: Path, progress: Progress) -> FirstParts:
    """Take the first parts of the training.

    Args:
        work: a folder for what is trained meanwhile.

    Raises:
        UsageError: there is too little data for parts.
    """
    train, stop, settings = plan.examples.train, plan.examples.stop, plan.settings
    steps, total = part_steps(len(train), settings), steps_of(len(train), settings)
    read = stop[: max(len(stop) // 3, LEAST_READ)]
    accepted = [plan.replayer.along(plan.draft.spec, read)]
    draft, begun, ended = plan.in_training(), list[float](), list[float]()

    def look() -> float:
        begun.append(time.monotonic())
        accepted.append(plan.replayer.now(draft, work / "part", read))
        ended.append(time.monotonic())
        return accepted[-1].rate.value or 0.0

    first = train[: steps[-1] * settings.batch]
    begin(draft, first, settings, work, progress, steps, look)
    looking, reading = fmean(np.subtract(ended, begun)), fmean(a.seconds for a in accepted[1:])
    return FirstParts(
        steps,
        [share_of(each, steps[-1], total) for each in steps],
        accepted,
        # Before the first look the trainer starts, too.
        a_step=(sum(begun[1:]) - sum(ended[:-1])) / (steps[-1] - steps[0]),
        a_look=looking + reading * (len(stop) / len(read) - 1),
    )


def forecast(plan: Plan, first: FirstParts) -> Forecast:
    """What the whole training will gain, judged by its first parts."""
    gc.collect()  # what was trained is held by cycles, and the training needs the room
    before, speeds, settings = first.accepted[0], plan.speeds, plan.settings
    rates = [each.rate for each in first.accepted]
    original, *reached = (each.value or 0.0 for each in rates)
    draws = gain_draws(first.shares, *gains_of(rates), max(plan.most - original, 0.0))
    parts = zip(first.shares, first.steps, reached, strict=True)
    total, looks = steps_of(len(plan.examples.train), settings), LOOKS_AN_EPOCH * settings.epochs
    return Forecast(
        rate=original,
        parts=tuple(Part(*each) for each in parts),
        gain=interval(draws),
        before=Reached(*speeds.now) if speeds else None,
        after=Reached(*speeds.at(before, original + draws)) if speeds else None,
        fastest=speeds.fastest if speeds else None,
        requests=len(before.rate.requests),
        tokens=plan.examples.tokens,
        seconds=first.a_step * total + first.a_look * looks,
        device=device_words(plan.device),
    )


def too_few(responses: int, settings: TrainingSettings) -> bool:
    """Whether a training has too few steps for parts."""
    return WORTH * LEAST_STEPS[-1] > LONGEST * steps_of(responses, settings)


def part_steps(responses: int, settings: TrainingSettings) -> list[int]:
    """After how many steps each part ends.

    Raises:
        UsageError: the training has too few.
    """
    total = steps_of(responses, settings)
    if too_few(responses, settings):
        fits = int(LONGEST * responses * settings.epochs / (WORTH * LEAST_STEPS[-1]))
        raise UsageError(
            f"{responses} responses to train on, {settings.batch} a step, are too few to forecast "
            "from",
            hint=(f"`--batch {fits}` is enough steps; better " if fits else "")
            + "sweep more of the traffic; `--anyway` trains without a forecast",
        )
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
    curves = np.concatenate([_grown(np.array(parts), beta) for beta in _BETAS])
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


def _grown(parts: Floats, beta: float) -> Floats:
    """The share of the whole training's gain that its parts gain, one row for each bend."""
    steps = np.log1p(np.multiply.outer(1 / _BENDS, np.append(parts, 1.0)))
    grown: Floats = -np.expm1(-beta * steps) / beta if beta else steps
    return grown[:, :-1] / grown[:, -1:]


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
