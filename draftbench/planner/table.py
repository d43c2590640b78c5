"""What a decision at one load is made from: configurations with the draws of their log speed-ups, a
column each.

`evaluator` fills it from a run; numbers alone will do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from draftbench.acceptance.intervals import MIN_REQUESTS, Estimate, quantiles
from draftbench.acceptance.rounds import Floats, Ints
from draftbench.planner.recommendation import Configuration


@dataclass(frozen=True, eq=False, kw_only=True)
class Table:
    """Configurations at one load, a column each.

    `logs` are draws of their log speed-ups [1 + draws, configurations]: row 0 is the estimate, NaN
    is unknown. `by_requests` and `by_time` [draws, configurations] are what drawn requests and
    drawn times add to it, `shrunk` [1 + draws, configurations] what the other drafts do. `requests`
    [configurations] is over how many it is known, `effective_requests` as how many equally long
    ones they count.
    """

    concurrency: int
    configurations: Sequence[Configuration]
    logs: Floats
    by_requests: Floats
    by_time: Floats
    shrunk: Floats
    requests: Ints
    effective_requests: Floats
    tokens_per_round: Floats  # NaN: unknown
    memory: Sequence[int | None]  # bytes of the draft

    @cached_property
    def column(self) -> dict[Configuration, int]:
        return {each: column for column, each in enumerate(self.configurations)}

    @cached_property
    def known(self) -> list[Configuration]:
        """The configurations whose speed is known."""
        finite: list[int] = np.flatnonzero(np.isfinite(self.logs).all(axis=0)).tolist()
        return [self.configurations[column] for column in finite]

    def value(self, configuration: Configuration) -> float | None:
        """The speed-up; None where it is unknown."""
        log = float(self.logs[0, self.column[configuration]])
        return math.exp(log) if math.isfinite(log) else None

    def estimate(self, configuration: Configuration) -> Estimate | None:
        """The speed-up with its 95% interval."""
        column = self.column[configuration]
        return estimate_of(self.logs[:, column], int(self.requests[column]))

    def tokens(self, configuration: Configuration) -> float | None:
        """Tokens per round, as replay expects or as counted; None where they are unknown."""
        tokens = float(self.tokens_per_round[self.column[configuration]])
        return tokens if math.isfinite(tokens) else None


def estimate_of(log: Floats, requests: int) -> Estimate | None:
    """A speed-up with its 95% interval from draws of its logarithm [1 + draws]; None where it is
    unknown or over fewer than five requests.
    """
    if requests < MIN_REQUESTS or not np.isfinite(log).all():
        return None
    return Estimate(*np.exp([log[0], *quantiles(log[1:], (0.025, 0.975))]).tolist())
