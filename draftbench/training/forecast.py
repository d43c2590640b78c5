"""The forecast: the draft takes the first parts of its training, and what they gain on held-out
requests says what all of it will.

A step moves the weights as far as its learning rate, which over a training is half of the largest
on average; so at the largest 3 % of the steps are 6 % of the training. The rate of acceptance at
the part x of the training is taken to be a power law,

    α(x) = α∞ - b · x^(-β)

written as a + s · φ(x) with φ(x) = (1 - (x/x₁)^(-β)) / β, where a is what the longest part x₁
reaches and s what a training e times as long adds there. Published curves, by the data, have β
above 0; but after few steps gains may still grow faster than the logarithm of x, with β as low as
-1, where they grow as x does. Given β and how much two equally long trainings differ, everything is
normal: the gains of the parts have the covariance of the held-out requests, which they share, and
noise of their own; the gain that is forecast is proven on other requests, as noisy as these. Both
unknowns are drawn from a grid by their likelihood.

Of the original and the trained draft the better is used, so that no gain is below 0.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import RESAMPLES, Estimate, generator_of, quantiles, widening
from draftbench.acceptance.rounds import Floats
from draftbench.decoder.device import device_words
from draftbench.errors import UsageError
from draftbench.measure.trajectories import ScoredResponse
from draftbench.training.fit import LOOKS_AN_EPOCH, Progress, begin, steps_of
from draftbench.training.held_out import Acceptance
from draftbench.training.outcome import Forecast, Part, Reached
from draftbench.training.plan import Plan
from draftbench.training.settings import TrainingSettings

# Parts of the training, the shortest first, and the least steps of each; the longest is at most a
# half of it.
PARTS, LEAST_STEPS, LONGEST = (0.02, 0.04, 0.06), (2, 4, 6), 0.5
# How many average steps of a training one at the largest rate is worth.
WORTH = 2
# Of the responses that say when to stop a forecast reads a third, and so many where there are.
LEAST_READ = 50
# The exponents, all as likely beforehand.
_BETAS = np.linspace(-1.0, 1.5, 26)
# How much two equally long trainings differ (sd), on a grid.
_NOISES = np.geomspace(0.003, 0.03, 8)
# What a training e times as long adds (sd), on a grid: from fitted drafts to halves of drafts.
_SLOPES = np.geomspace(0.003, 0.1, 8)
# What the longest part adds (sd), before anything was trained.
_LEVEL = 0.3


def forecast(plan: Plan, work: Path, progress: Progress) -> Forecast:
    """Take the first parts of the training, and look ahead.

    Args:
        work: a folder for what is trained meanwhile.

    Raises:
        UsageError: there is too little data for parts.
    """
    train, stop, settings = plan.examples.train, plan.examples.stop, plan.settings
    total = steps_of(len(train), settings)
    looks = part_steps(len(train), settings)
    read = stop[: max(len(stop) // 3, LEAST_READ)]
    before = plan.replayer.along(plan.draft.spec, read)
    seen = _begun(plan, looks, read, work, progress)
    gc.collect()  # what was trained is held by cycles, and the training needs the room
    parts = tuple(
        Part(WORTH * steps / total, steps, each.accepted.rate.value or 0.0, each.training)
        for steps, each in zip(looks, seen, strict=True)
    )
    original, speeds = before.rate.value or 0.0, plan.speeds
    rates = [before.rate, *(each.accepted.rate for each in seen)]
    draws = gain_draws([part.share for part in parts], rates, max(plan.most, original))
    a_step = (parts[-1].seconds - parts[0].seconds) / (looks[-1] - looks[0])
    a_look = sum(each.looking for each in seen) / len(seen) * len(stop) / len(read)
    return Forecast(
        rate=original,
        parts=parts,
        gain=interval(draws),
        before=Reached(*speeds.now) if speeds else None,
        after=Reached(*speeds.at(before, original + draws)) if speeds else None,
        fastest=speeds.fastest if speeds else None,
        requests=len(before.rate.requests),
        tokens=plan.examples.tokens,
        seconds=a_step * total + a_look * LOOKS_AN_EPOCH * settings.epochs,
        device=device_words(plan.device),
    )


def part_steps(responses: int, settings: TrainingSettings) -> list[int]:
    """After how many steps at the largest rate each part ends."""
    total, least = steps_of(responses, settings), LEAST_STEPS[-1]
    if WORTH * least > LONGEST * total:
        fits = int(LONGEST * responses * settings.epochs / (WORTH * least))
        raise UsageError(
            f"{responses} responses to train on, {settings.batch} a step, are too few to forecast "
            "from",
            hint=(f"`--batch {fits}` is enough steps; better " if fits else "")
            + "sweep more of the traffic",
        )
    wanted = zip(PARTS, LEAST_STEPS, strict=True)
    return [max(round(part * total / WORTH), least) for part, least in wanted]


class _Seen(NamedTuple):
    """A look at the draft after a part of its training."""

    accepted: Acceptance
    training: float  # seconds of all steps before it
    looking: float  # seconds


def _begun(
    plan: Plan,
    looks: Sequence[int],
    read: Sequence[ScoredResponse],
    work: Path,
    progress: Progress,
) -> list[_Seen]:
    """Train as far as the last look."""
    draft, seen, begun = plan.in_training(), list[_Seen](), time.monotonic()

    def look() -> float:
        before = time.monotonic()
        accepted = plan.replayer.now(draft, work / "part", read)
        training = before - begun - sum(each.looking for each in seen)
        seen.append(_Seen(accepted, training, time.monotonic() - before))
        return accepted.rate.value or 0.0

    first = plan.examples.train[: looks[-1] * plan.settings.batch]
    begin(draft, first, plan.settings, work, progress, looks, look)
    return seen


def gain_draws(parts: Sequence[float], accepted: Sequence[Sample], most: float = 1.0) -> Floats:
    """Draws of what is gained by the whole training.

    Args:
        parts: the parts of it that were taken, growing.
        accepted: the rate before training and after each part, on the same requests.
        most: the greatest rate that there can be.
    """
    original, covariance = _rates(accepted)
    gains = original[1:] - original[0]
    x, chances, options = np.log(np.array([*parts, 1.0]) / parts[-1]), [], []
    for beta, noise, slope in product(_BETAS.tolist(), _NOISES.tolist(), _SLOPES.tolist()):
        more = x if abs(beta) < 1e-9 else -np.expm1(-beta * x) / beta
        design = np.stack([np.full_like(x, _LEVEL), slope * more], axis=1)
        known, wanted = design[:-1], design[-1]
        inverse = np.linalg.inv(known @ known.T + covariance + noise**2 * np.eye(len(parts)))
        chances.append((np.linalg.slogdet(inverse)[1] - gains @ inverse @ gains) / 2)
        pull = wanted @ known.T @ inverse
        left = wanted @ wanted - pull @ known @ wanted + noise**2 + covariance[-1, -1]
        options.append((float(pull @ gains), float(np.sqrt(left))))
    likely = np.exp(np.array(chances) - max(chances))
    generator = generator_of("learning curve")
    chosen = generator.choice(len(options), p=likely / likely.sum(), size=RESAMPLES)
    middle, spread = np.array(options)[chosen].T
    drawn: Floats = middle + spread * generator.standard_normal(RESAMPLES)
    return np.clip(drawn, 0.0, most - original[0])


def _rates(accepted: Sequence[Sample]) -> tuple[Floats, Floats]:
    """The rates, and the covariance of their gains over the first by a Bayesian bootstrap (Rubin
    1981) over requests, which all of them share.
    """
    first = accepted[0]
    chances = generator_of("requests").exponential(size=(RESAMPLES, len(first.requests)))
    weights = chances * first.weights
    drawn = np.stack([each.combine(weights @ each.addends) for each in accepted], axis=1)
    gains = (drawn[:, 1:] - drawn[:, :1]) * widening(first.equal_requests)
    values = np.array([each.value for each in accepted], np.float64)
    return values, np.atleast_2d(np.cov(gains.T))


def interval(draws: Floats) -> Estimate:
    """The middle of some draws, with the interval of 95 % of them."""
    middle, low, high = quantiles(draws, (0.5, 0.025, 0.975))
    return Estimate(middle, low, high)
