"""What was observed of one configuration: the rounds of its responses, its timed passes, and its
decoding; and what follows from these alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.intervals import MIN_REQUESTS
from draftbench.acceptance.rounds import Floats
from draftbench.planner.cells import ROUND, Cell, Measurement
from draftbench.planner.passes import Block
from draftbench.planner.recommendation import Configuration, IntervalParts
from draftbench.planner.seconds import in_seconds
from draftbench.records import Key
from draftbench.run_folder.run import Run

# How far a 95% interval reaches, in standard deviations.
REACH = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence:
    """What was observed of a configuration.

    `note` says why its costs are unknown, or between which loads they are interpolated. `timed`:
    whether its speed after the first token is known; `requests` says over how many, and
    `effective_requests` as how many equally long ones they count. `log_slowdown` is the logarithm
    by which its rounds take longer than their passes, estimated without its own timings; None if
    the others say nothing about it. `variance_by_cause` is that of its log speed-up: requests with
    their timed passes, the noise of timed cells, and not having been decoded; None if the speed
    that ranks is unknown.
    """

    configuration: Configuration
    rounds: CandidateRounds
    block: Block | None
    measured: Measurement | None
    decoded: frozenset[Key]  # the responses on which its draft was decoded at any load
    cells: tuple[Cell, ...]  # its decoding, where enough requests were decoded
    note: str | None
    timed: bool
    requests: int
    effective_requests: float
    log_slowdown: float | None
    variance_by_cause: tuple[float, float, float] | None

    @property
    def interval_from(self) -> IntervalParts | None:
        """Half of the 95% interval that would remain if each part were the only one."""
        if self.variance_by_cause is None or self.requests < MIN_REQUESTS:
            return None
        return IntervalParts(*(REACH * np.sqrt(self.variance_by_cause)).tolist())

    @cached_property
    def measured_rows(self) -> list[int]:
        """The rows of its decoded responses among all of them."""
        at, keys = self.rounds.row_of, self.measured.keys if self.measured else ()
        return sorted(at[key] for key in keys if key in at)

    @property
    def seconds_by_response(self) -> tuple[Floats, Floats] | None:
        """The seconds of each response without the draft and with it, as passes predict them; None
        where rounds or costs are unknown.
        """
        length, concurrency = self.configuration.length, self.configuration.concurrency
        if not (self.timed and self.rounds.knows(*length)):
            return None
        at = self.rounds, self.block or ROUND, concurrency
        return in_seconds(*at, None)[0], in_seconds(*at, *length)[0]

    @property
    def by_drawn_passes(self) -> Floats:
        """The log speed-up that resampled passes predict [draws]."""
        assert self.block is not None
        at = self.rounds, self.block, self.configuration.concurrency
        return np.log(in_seconds(*at, None)[1] / in_seconds(*at, *self.configuration.length)[1])[1:]

    @property
    def prediction_error(self) -> float | None:
        """Predicted over measured speed-up minus 1, on the measured requests."""
        return None if self.log_slowdown is None else self.error_with(self.log_slowdown)

    def error_with(self, log_slowdown: float) -> float | None:
        """The prediction error if rounds take that much longer than their passes."""
        measured = self.measured and self.measured.speedup.value
        seconds = self.seconds_by_response
        if not measured or seconds is None:
            return None
        rows = self.measured_rows
        plain, rounds = self.rounds.weights[rows] @ np.stack(seconds, axis=1)[rows]
        return float(plain / rounds * math.exp(-log_slowdown) / measured - 1) if rounds else None

    @property
    def acceptance_luck(self) -> float | None:
        """Decoded tokens per round over those that replay expects for the same responses, minus 1;
        None without replays. It is shown but corrects nothing.

        It differs from 0 where decoded outputs differ from the replayed ones or drafts are sampled.
        """
        if self.measured is None or not self.rounds.replays:
            return None
        (_, decoded), replayed = self.measured.counted, self.rounds.at(*self.configuration.length)
        rows, passes = self.measured_rows, decoded.target_passes.sum()
        expected = replayed.target_passes[rows].sum()
        if not (passes > 0 and expected > 0):
            return None
        tokens = decoded.tokens.sum() / passes, replayed.tokens[rows].sum() / expected
        return float(tokens[0] / tokens[1] - 1)

    def why_unknown(self, run: Run) -> str:
        """Why its speed is unknown."""
        if self.timed:
            return "its prefill was not timed"
        if self.note is not None:
            return self.note
        if self.block is not None:
            return "passes as long were not timed"
        if self.measured is not None:
            return f"{len(self.measured.speedup.requests)} decoded requests are too few to tell"
        if run.manifest.question.engine:
            return "replayed, but no server that drafts with it was timed"
        candidate = self.configuration.candidate
        facts = run.facts_of(candidate)
        if facts is not None and not facts.has_kernel:
            return f"no fast kernel for {candidate.quant} on this device"
        failed = [f.reason for f in run.failures if f.candidate == candidate]
        return failed[-1] if failed else "step times were not measured"
