"""How the estimates of several drafts are shrunk together: the best of several tends to be the
luckiest one.

The true speed-ups of drafts at their best k are taken to be normal around their mean with an
unknown spread: estimates that differ by no more than their errors are shrunk together, those far
apart hardly move (Gelman, Hill & Yajima 2012).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from draftbench.acceptance.intervals import generator_of
from draftbench.acceptance.rounds import Floats
from draftbench.planner.effects import reshaped
from draftbench.planner.recommendation import Configuration
from draftbench.records import SELF, Candidate

# How much drafts differ (sd of log speed-ups): half-Cauchy with this scale, on a grid.
DRAFTS_DIFFER, _SPREADS = 0.2, np.geomspace(0.005, 0.64, 8)


def shrinkage(configurations: Sequence[Configuration], logs: Floats) -> Floats:
    """What shrinking adds to each draw of the log speed-ups at one load [1 + draws,
    configurations]; the control and single drafts stay as they are.
    """
    best = dict[Candidate, int]()
    for column, each in enumerate(configurations):
        known = each.draft != SELF and math.isfinite(logs[0, column])
        if known and logs[0, column] > logs[0, best.get(each.candidate, column)] - 1e-12:
            best[each.candidate] = column
    columns, count = list(best.values()), len(best)
    if count < 2:
        return np.zeros_like(logs)
    estimates, draws, one = logs[0, columns], logs[1:, columns], np.eye(count)
    error = np.cov(draws.T) + 1e-10 * one
    # At each spread [spreads, …]: the drafts' precisions, their mean, and how likely it is.
    inverse = np.linalg.inv(error + np.multiply.outer(_SPREADS**2, one))
    precision = inverse.sum(axis=(1, 2))
    shares = inverse.sum(axis=1, keepdims=True) / precision[:, None, None]
    off = estimates - shares @ estimates
    fit = np.einsum("si,sij,sj->s", off, inverse, off)
    log = (np.linalg.slogdet(inverse)[1] - np.log(precision) - fit) / 2
    log += np.log(_SPREADS) - np.log1p((_SPREADS / DRAFTS_DIFFER) ** 2)
    chances = np.exp(log - log.max())
    chances /= chances.sum()
    # Given the spread, the true speed-ups have the mean estimate - error · inverse · off.
    pulls = -error @ inverse @ (one - shares)
    shapes = reshaped(error, error + pulls @ error) - one
    chosen = generator_of("among drafts").choice(len(chances), p=chances, size=len(draws))
    moved = np.zeros((len(logs), count + 1))  # the last column, of the control, stays 0
    moved[0, :-1] = np.tensordot(chances, pulls, 1) @ estimates
    for at, (pull, shape) in enumerate(zip(pulls, shapes, strict=True)):
        rows = np.flatnonzero(chosen == at)
        moved[1 + rows, :-1] = (draws[rows] - estimates) @ shape.T + pull @ estimates
    place = {candidate: at for at, candidate in enumerate(best)}
    return moved[:, [place.get(each.candidate, -1) for each in configurations]]
