"""Predicts the rounds of a draft that only an engine runs (EAGLE, MTP, the draft of a running
server), from the hazards of all its responses together at the largest k that was served.

Since all requests share these hazards, resampling requests would change no figure. So each response
also carries how much it shifts the hazards: to first order it raises h = survived / reached by (its
survived − h · its reached) / reached, and a count of rounds by that times the count's derivative.
Over all responses these shifts add up to 0.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from draftbench.acceptance.rounds import (
    Floats,
    HazardLaw,
    Rounds,
    counted_rounds,
    expected_rounds,
)
from draftbench.records import LOOKUP, Candidate, Trajectory
from draftbench.run_folder.run import Run

# Half the difference of hazards that a derivative is taken over.
_STEP = 1e-4


@dataclass(frozen=True, eq=False)
class ServedRounds:
    """What an engine showed of a draft while it served some responses with it."""

    along: tuple[Trajectory, ...]  # the responses
    hazards: Floats  # by draft position; NaN where the engine does not report its rounds
    influence: Floats  # how much each response shifts them [responses, positions]

    def laws(self) -> tuple[HazardLaw, ...]:
        """The shared hazards, for each response."""
        return self._laws_with(self.hazards)

    def _laws_with(self, hazards: Floats) -> tuple[HazardLaw, ...]:
        return tuple(HazardLaw(t.output_tokens, t.limit, hazards) for t in self.along)

    def rounds(self, k: int) -> Rounds:
        """Expected rounds of every response, with its shift of the hazards; NaN where the engine
        does not report its rounds.

        Raises:
            ValueError: k is beyond the hazards.
        """
        if np.isnan(self.hazards).any():
            shapes = expected_rounds(self._laws_with(np.zeros(len(self.hazards))), k)
            counts = {name: np.full_like(value, np.nan) for name, value in shapes.counts.items()}
            return Rounds(**counts | {"tokens": shapes.tokens}, k=k)
        counts = expected_rounds(self.laws(), k).counts
        responses = Counter(t.request for t in self.along)
        # A request is the mean of its responses, and counts as often as it occurs.
        weights = np.array([t.weight / responses[t.request] for t in self.along])
        for position in range(k):
            step = np.zeros(len(self.hazards))
            step[position] = _STEP
            more, less = (
                expected_rounds(self._laws_with(self.hazards + sign * step), k) for sign in (1, -1)
            )
            share = self.influence[:, position] / weights
            for name in counts:
                slope = weights @ (getattr(more, name) - getattr(less, name)) / (2 * _STEP)
                counts[name] = counts[name] + np.multiply.outer(share, slope)
        return Rounds(**counts, k=k)


def served_rounds(run: Run, candidate: Candidate) -> ServedRounds | None:
    """What decoding or an engine showed of a candidate at the largest k; None where it was neither
    decoded nor served.
    """
    rows = [row for row in run.decodes if row.candidate == candidate]
    largest = max((row.k for row in rows), default=0)
    if not largest:
        return None
    served = {row.key for row in rows}
    along = tuple(t for t in run.trajectories if t.key in served)
    counted = [row for row in rows if row.k == largest]
    by_round = [row for row in counted if not row.summed]
    rounds = counted_rounds(by_round) if by_round else _same_hazard(counted_rounds(counted))
    influence = np.zeros((len(along), largest))
    if not rounds.target_passes.any():
        return ServedRounds(along, np.full(largest, np.nan), influence)
    if candidate.draft == LOOKUP:  # where it finds less than k tokens, it fails at the next
        reached = np.column_stack([rounds.target_passes, rounds.survived[:, :-1]])
        rounds = replace(rounds, reached=reached)
    reached, survived = rounds.reached.sum(axis=0), rounds.survived.sum(axis=0)
    hazards = np.divide(survived, reached, out=np.zeros(largest), where=reached > 0)
    at = {t.key: row for row, t in enumerate(along)}
    shifts = rounds.survived - hazards * rounds.reached
    np.add.at(influence, [at[row.key] for row in by_round or counted], shifts)
    influence = np.divide(influence, reached, out=np.zeros_like(influence), where=reached > 0)
    return ServedRounds(along, hazards, influence)


def _same_hazard(rounds: Rounds) -> Rounds:
    """Fill in `reached` and `survived` where an engine reported only sums: every position gets the
    same hazard, the one that gives as many accepted tokens.
    """
    positions = np.arange(1, rounds.k + 1)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        few = rounds.rounds.sum() * (middle**positions).sum() < rounds.accepted.sum()
        low, high = (middle, high) if few else (low, middle)
    shares = high**positions
    survived = np.multiply.outer(rounds.accepted, shares / shares.sum())
    reached = np.column_stack([rounds.rounds, survived[:, :-1]])
    return replace(rounds, reached=reached, survived=survived)
