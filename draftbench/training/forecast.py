"""The forecast: the draft is trained on small parts of the data, and what they gain on held-out
requests says what all of it will.

The rate of acceptance over the part x of the data is taken to be a power law,

    α(x) = α∞ - b · x^(-β)

written as a + s · φ(x) with φ(x) = (1 - (x/x₁)^(-β)) / β, where a is what the largest part x₁
reaches and s what an e-fold more data adds there. Published curves have β above 0; but small parts
are few steps, after which gains may still grow faster than the logarithm of the data, with β as low
as -1, where they grow as the data do. Given β and how much two trainings on the same data differ,
everything is normal: the gains of the parts have the covariance of the held-out requests, which
they share, and noise of their own; the gain that is forecast is proven on other requests, as noisy
as these. Both unknowns are drawn from a grid by their likelihood.

Of the original and the trained draft the better is used, so that no gain is below 0.
"""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import RESAMPLES, Estimate, generator_of, quantiles, widening
from draftbench.acceptance.rounds import Floats
from draftbench.decoder.device import device_words
from draftbench.errors import UsageError
from draftbench.training.examples import tokens_of
from draftbench.training.fit import LOOKS_AN_EPOCH, Progress, fit, writing
from draftbench.training.outcome import Forecast, Part, Reached
from draftbench.training.plan import Plan

# The shares of the data that are trained on, the smallest first: of much data less than a tenth.
# Of little they are larger, since parts teach something only by how many steps they are apart.
PARTS = (0.005, 0.01, 0.02, 0.04)
LEAST_STEPS = (1, 2, 4, 8)
# The largest that a part may be, and how few parts show a curve.
LARGEST, LEAST_PARTS = 0.5, 3
# The exponents, all as likely beforehand.
_BETAS = np.linspace(-1.0, 1.5, 26)
# How much two trainings on as much data differ (sd), on a grid.
_NOISES = np.geomspace(0.003, 0.03, 8)
# What an e-fold more data adds (sd), on a grid: from drafts that are fitted to halves of drafts.
_SLOPES = np.geomspace(0.003, 0.1, 8)
# What the largest part adds (sd), before anything was trained.
_LEVEL = 0.3


def forecast(plan: Plan, work: Path, progress: Progress) -> Forecast:
    """Train on the parts, each from the original, and look ahead.

    Args:
        work: a folder for what is trained meanwhile.

    Raises:
        UsageError: there is too little data for parts.
    """
    train, settings = plan.examples.train, plan.settings
    sizes = part_sizes(len(train), settings.batch)
    parts, accepted, look = list[Part](), [plan.original], 0.0
    for number, size in enumerate(sizes, 1):
        progress.note(f"forecast: part {number} of {len(sizes)}")
        draft, begun = plan.in_training(), time.monotonic()
        fit(draft, train[:size], settings, work, progress)
        seconds = time.monotonic() - begun
        with writing(work):
            draft.save(work / "part")
        del draft
        gc.collect()
        saved = time.monotonic()
        accepted.append(plan.replayer.along(work / "part", plan.examples.stop))
        look = time.monotonic() - saved
        shutil.rmtree(work / "part")
        share = tokens_of(train[:size]) / plan.examples.tokens
        parts.append(Part(share, size, accepted[-1].rate.value or 0.0, seconds))
    original = plan.original.rate.value or 0.0
    rates = [each.rate for each in accepted]
    draws = gain_draws([part.share for part in parts], rates, max(plan.most, original))
    speeds = plan.speeds
    return Forecast(
        rate=original,
        parts=tuple(parts),
        gain=interval(draws),
        before=Reached(*speeds.now) if speeds else None,
        after=Reached(*speeds.at(plan.original, original + draws)) if speeds else None,
        fastest=speeds.fastest if speeds else None,
        requests=len(plan.original.rate.requests),
        tokens=plan.examples.tokens,
        seconds=_seconds_of_all(parts) + LOOKS_AN_EPOCH * settings.epochs * look,
        device=device_words(plan.device),
    )


def part_sizes(responses: int, batch: int) -> list[int]:
    """How many responses each part has."""
    wanted = (
        max(round(share * responses), steps * batch)
        for share, steps in zip(PARTS, LEAST_STEPS, strict=True)
    )
    sizes = [size for size in wanted if size <= LARGEST * responses]
    if len(sizes) >= LEAST_PARTS:
        return sizes
    fits = int(LARGEST * responses / LEAST_STEPS[LEAST_PARTS - 1])
    raise UsageError(
        f"{responses} responses to train on, {batch} a step, are too few to forecast from",
        hint=f"`--batch {fits}` is enough steps; better sweep more of the traffic",
    )


def _seconds_of_all(parts: Sequence[Part]) -> float:
    """Of training on all of the data, without what every training takes to begin."""
    first, last = parts[0], parts[-1]
    if last.share > first.share and last.seconds > first.seconds:
        return (last.seconds - first.seconds) / (last.share - first.share)
    return last.seconds / last.share


def gain_draws(parts: Sequence[float], accepted: Sequence[Sample], most: float = 1.0) -> Floats:
    """Draws of what is gained by training on all of the data.

    Args:
        parts: the shares of the data that were trained on, growing.
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
