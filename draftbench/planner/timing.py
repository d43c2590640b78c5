"""Timing samples drawn anew → how a predicted speed-up moves with the noise of its costs.

The rounds of the traffic are pooled at its mean context, as c and v are shown; overheads and
prefills stay as they are. Repeats of one candidate's block move together, those of two candidates
apart, as they were timed.
"""

from __future__ import annotations

import zlib
from dataclasses import fields, replace

import numpy as np

from draftbench.acceptance.rounds import Floats, Rounds
from draftbench.planner.costs import BlockCosts
from draftbench.planner.passes import pass_seconds, plain_seconds
from draftbench.planner.predict import Entrant, Forecast


def timing_factors(entrant: Entrant, forecast: Forecast, draws: int, *, whole: bool) -> Floats:
    """Speed-up under redrawn costs over that under their medians [draws]; 1 at unknown cost.

    Args:
        whole: of the end-to-end speed-up instead of that of decoding.
    """
    if entrant.costs is None:
        return np.ones(draws)
    weights = entrant.weights
    rounds = _pooled(forecast.rounds, weights)
    prefills = np.zeros(2)
    if whole and forecast.prefills is not None:
        prefills = weights @ forecast.prefills
    found = _speed(entrant, entrant.costs.redrawn, rounds, prefills)
    factors = found / _speed(entrant, entrant.costs, rounds, prefills)
    generator = np.random.Generator(
        np.random.Philox(key=zlib.crc32(str(entrant.candidate).encode()))
    )
    drawn: Floats = factors[generator.integers(len(factors), size=draws)]
    return drawn


def _speed(entrant: Entrant, costs: BlockCosts, rounds: Rounds, prefills: Floats) -> Floats:
    """The speed-up of the pooled rounds, [draws] or [1]."""
    context = np.array([entrant.context])
    overheads = [entrant.overheads.get(k) or 0.0 for k in (0, rounds.k)]
    plain = plain_seconds(costs, rounds.tokens, context) + rounds.tokens * overheads[0]
    passes = pass_seconds(costs, rounds, context, entrant.batch)
    speculative = passes + (rounds.rounds + rounds.plain) * overheads[1]
    return ((plain + prefills[0]) / (speculative + prefills[1])).reshape(-1)


def _pooled(rounds: Rounds, weights: Floats) -> Rounds:
    """All responses as one, each by its weight."""
    counts = [field.name for field in fields(Rounds) if field.name != "k"]
    sums = {name: (weights @ getattr(rounds, name))[None] for name in counts}
    return replace(rounds, **sums)
