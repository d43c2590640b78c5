"""From what a draft gained on small parts of the data to what it will gain on all of it.

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

from collections.abc import Sequence

import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import RESAMPLES, Estimate, generator_of, quantiles, widening
from draftbench.acceptance.rounds import Floats

# The exponents, all as likely beforehand.
_BETAS = np.linspace(-1.0, 1.5, 26)
# How much two trainings on as much data differ (sd), on a grid.
_NOISES = np.geomspace(0.003, 0.03, 8)
# What an e-fold more data adds (sd), before anything was trained, and what the largest part does.
_SLOPE, _LEVEL = 0.01, 0.3


def gain_draws(parts: Sequence[float], accepted: Sequence[Sample], most: float = 1.0) -> Floats:
    """Draws of what is gained by training on all of the data.

    Args:
        parts: the shares of the data that were trained on, growing.
        accepted: the rate before training and after each part, on the same requests.
        most: the greatest rate that there can be.
    """
    original, covariance = _rates(accepted)
    gains = original[1:] - original[0]
    x, unit = np.log(np.array([*parts, 1.0]) / parts[-1]), np.array([_LEVEL, _SLOPE])
    chances, options = [], []
    for beta in _BETAS.tolist():
        slope = x if abs(beta) < 1e-9 else -np.expm1(-beta * x) / beta
        design = np.stack([np.ones_like(x), slope], axis=1) * unit
        known, wanted = design[:-1], design[-1]
        for noise in _NOISES.tolist():
            error = covariance + noise**2 * np.eye(len(parts))
            inverse = np.linalg.inv(known @ known.T + error)
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
