"""What is known of each configuration: its rounds, its passes, its decoding, its memory, and its
speed-up in the evaluator's draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.definitions import tokens_per_round
from draftbench.acceptance.intervals import (
    MIN_REQUESTS,
    Estimate,
    quantiles,
)
from draftbench.acceptance.rounds import Floats
from draftbench.memory import Footprint, bytes_to_serve, format_size
from draftbench.planner.cells import (
    ROUND,
    Cell,
    Measurement,
    in_seconds,
)
from draftbench.planner.effects import EngineDesign
from draftbench.planner.latency import tail_ratio
from draftbench.planner.passes import Block
from draftbench.planner.recommendation import (
    Configuration,
    IntervalParts,
)
from draftbench.records import LOOKUP, SELF, Candidate
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

if TYPE_CHECKING:
    from draftbench.planner.evaluator import Evaluator

# How far a 95% interval reaches, in standard deviations.
REACH = NormalDist().inv_cdf(0.975)

# The speed-up by which candidates are ranked: of decoding, or with both prefills included.
Kind = Literal["expected", "end_to_end"]
# The variance of a log speed-up by cause: requests with their timed passes, the noise of timed
# cells, and not having been decoded.
VarianceByCause = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Alternative:
    """A configuration that may be chosen, and what is known about it. `note` says why its costs are
    unknown, or between which loads they are interpolated; `equal` is the number of equally long
    requests that would carry as much information as its own.
    """

    evaluator: Evaluator
    configuration: Configuration
    rounds: CandidateRounds  # the rounds of its responses
    block: Block | None
    measured: Measurement | None
    cells: tuple[Cell, ...]  # its decoding, where enough requests were decoded
    note: str | None
    memory_bytes: int | None
    requests: int = 0
    equal: float = 0.0
    variance_by_cause: VarianceByCause | None = None
    column: int | None = None  # its place in `Evaluator.promised`

    def __str__(self) -> str:
        return str(self.configuration)

    @property
    def candidate(self) -> Candidate:
        return self.configuration.candidate

    @property
    def k(self) -> int:
        return self.configuration.k

    def log_speedup(self, by: Kind = "expected") -> Floats | None:
        """The draws of its log speed-up [1 + draws]; None where unknown."""
        if self.column is None:
            return None
        return self.evaluator.log_speedups(self.configuration.concurrency, by)[self.column]

    def value(self, by: Kind) -> float | None:
        """The expected speed-up."""
        log = self.log_speedup(by)
        return None if log is None else math.exp(log[0])

    def estimate(self, log: Floats | None) -> Estimate | None:
        """A speed-up with its 95% interval; None with fewer than five requests."""
        if log is None or self.requests < MIN_REQUESTS:
            return None
        return Estimate(*np.exp([log[0], *quantiles(log[1:], (0.025, 0.975))]).tolist())

    @property
    def interval_from(self) -> IntervalParts | None:
        """Half of the 95% interval that would remain if each part were the only one."""
        variances = self.variance_by_cause
        if variances is None or self.requests < MIN_REQUESTS:
            return None
        return IntervalParts(*(REACH * np.sqrt(variances)).tolist())

    @cached_property
    def expected(self) -> Estimate | None:
        """The expected speed-up of decoding with its interval."""
        return self.estimate(self.log_speedup())

    @cached_property
    def tokens_per_round(self) -> float | None:
        """As replayed, over all requests; None where rounds are unknown."""
        rounds = self.rounds
        if not rounds.knows(self.k):
            return None
        return tokens_per_round(rounds.trajectories, rounds.at(self.k)).value

    @cached_property
    def measured_rows(self) -> list[int]:
        """The rows of its decoded responses among all of them."""
        at, keys = self.rounds.row_of, self.measured.keys if self.measured else ()
        return sorted(at[key] for key in keys if key in at)

    @property
    def promised_by_response(self) -> tuple[Floats, Floats, Floats, Floats] | None:
        """By response: seconds without and with the draft as timed passes predict them, tokens, and
        weights; None where rounds or costs are unknown.
        """
        if self.log_speedup() is None or not self.rounds.knows(self.k):
            return None
        at = self.rounds, self.block or ROUND, self.configuration.concurrency
        plain, rounds = in_seconds(*at, None)[0], in_seconds(*at, self.k)[0]
        return plain, rounds, self.rounds.at(self.k).tokens, self.rounds.weights

    @property
    def timing(self) -> Floats:
        """The promised log speed-up by resampled passes [draws]."""
        assert self.block is not None
        at = self.rounds, self.block, self.configuration.concurrency
        return np.log(in_seconds(*at, None)[1] / in_seconds(*at, self.k)[1])[1:]

    @cached_property
    def extra_log_time_predicted(self) -> float | None:
        """δ according to the other cells: how much longer than promised its rounds take, as a
        logarithm; None if they say nothing about it.
        """
        own, evaluator = self.configuration, self.evaluator
        if self.column is None or own in evaluator.effects.design.alone:
            return None
        design = evaluator.effects.design
        if isinstance(design, EngineDesign) and not design.started_beside(own):
            return None
        step = evaluator.promised(own.concurrency).step[self.column]
        return evaluator.effects.slower(own, float(step), own if self.cells else None)

    def predicted(self, by: Kind = "expected") -> Floats | None:
        """Its log speed-up as the other cells predict it, with draws over requests alone [1 +
        draws]; None where unknown.
        """
        concurrency, at = self.configuration.concurrency, self.column
        if self.extra_log_time_predicted is None or at is None:
            return None
        here = self.evaluator.promised(concurrency)
        rounds = here.rounds[0, at] * np.exp(self.extra_log_time_predicted)
        sides = np.stack([here.plain[0, at], rounds])
        sides += here.prefills[0, at] if by == "end_to_end" else 0.0
        requests = self.evaluator.logs_by_cause(concurrency, by).requests[:, at]
        log = np.log(sides[0] / sides[1]) + np.append(0.0, requests)
        return log if np.isfinite(log).all() else None

    @cached_property
    def prediction_error(self) -> float | None:
        """Predicted over measured speed-up minus 1, on the measured requests."""
        predicted = self.extra_log_time_predicted
        return None if predicted is None else self.error_with(predicted)

    def error_with(self, extra_log_time: float) -> float | None:
        """The prediction error if rounds take longer than promised by this logarithm."""
        measured = self.measured and self.measured.speedup.value
        promised = self.promised_by_response
        if not measured or promised is None:
            return None
        *sides, _, weights = promised
        rows = self.measured_rows
        plain, rounds = weights[rows] @ np.stack(sides, axis=1)[rows]
        return float(plain / rounds * math.exp(-extra_log_time) / measured - 1) if rounds else None

    @cached_property
    def acceptance_luck(self) -> float | None:
        """Decoded tokens per round over those that replay expects for the same responses, minus 1;
        None without replays. It is shown but corrects nothing.

        It differs from 0 where decoded outputs differ from the replayed ones or drafts are sampled.
        """
        if self.measured is None or not self.rounds.replays:
            return None
        (_, decoded), replayed = self.measured.counted, self.rounds.at(self.k)
        rows, passes = self.measured_rows, decoded.target_passes.sum()
        expected = replayed.target_passes[rows].sum()
        if not (passes > 0 and expected > 0):
            return None
        tokens = decoded.tokens.sum() / passes, replayed.tokens[rows].sum() / expected
        return float(tokens[0] / tokens[1] - 1)

    @cached_property
    def not_run(self) -> str | None:
        """Why it cannot be chosen, though its speed may be predicted: a running server drafts at
        the k that it was started with. None if it can.
        """
        run = self.evaluator.run
        if self.evaluator.foreign or not run.manifest.question.running:
            return None
        own = {row.k for row in run.served if row.candidate == self.candidate}
        if not own or self.k in own:
            return None
        ks = ", ".join(map(str, sorted(own)))
        return f"the server that was measured drafts with k = {ks}: start one with k = {self.k}"

    @cached_property
    def broken_limits(self) -> tuple[str, ...]:
        """Which limits of the user and of the engine it breaks, or may break: sentences."""
        run, limits, own = self.evaluator.run, self.evaluator.options, self.configuration
        question, broken = run.manifest.question, list[str]()
        if question.engine is not None:
            from draftbench.models.engine_rules import fewest_drafted, too_short

            fewest = fewest_drafted(question.engine, own.draft, question.lookup_shortest)
            if own.k < fewest:
                broken.append(too_short(question.engine, fewest))
        if (most := limits.max_memory) is not None:
            at_once = question.max_concurrency or own.concurrency
            needed = memory_needed(run, self.candidate, at_once)
            if needed is None:
                broken.append("its memory is unknown, so it cannot be shown to keep --max-memory")
            elif needed > most:
                over = max(needed / most - 1, 0.01)  # 0% would keep it
                broken.append(
                    f"it needs {format_size(needed)} with its target, {over:.0%} over "
                    f"--max-memory ({format_size(most)})"
                )
        if (limit := limits.max_p99_ratio) is not None:
            tail = tail_ratio(self)
            if tail is None:
                broken.append(
                    "its latency is unknown, so it cannot be shown to keep --max-p99-ratio"
                )
            elif tail[0] > limit:
                over = max(tail[0] / limit - 1, 0.01)
                broken.append(
                    f"a request's time per output token grows to {tail[0]:.2f} times that of plain "
                    f"decoding ({tail[1]}), {over:.0%} over --max-p99-ratio ({limit:g})"
                )
        return tuple(broken)

    @property
    def why_unknown(self) -> str:
        """Why its speed is unknown."""
        run = self.evaluator.run
        if self.log_speedup() is not None:
            return "its prefill was not timed"
        if self.note is not None:
            return self.note
        if self.block is not None:
            return "passes as long were not timed"
        if self.measured is not None:
            return f"{len(self.measured.speedup.requests)} decoded requests are too few to tell"
        if run.manifest.question.engine:
            return "replayed, but no server that drafts with it was timed"
        facts = run.facts_of(self.candidate)
        if facts is not None and not facts.has_kernel:
            return f"no fast kernel for {self.candidate.quant} on this device"
        failed = [f.reason for f in run.failures if f.candidate == self.candidate]
        return failed[-1] if failed else "step times were not measured"


def memory_needed(run: Run, candidate: Candidate, concurrency: int) -> float | None:
    """Bytes that target and draft take at a concurrency, with the traffic's longest context and the
    largest k; None unless facts of both are known.
    """
    target, draft = run.facts_of(None), _footprint(run, candidate)
    if target is None or draft is None:
        return None
    return bytes_to_serve(
        Footprint(target.weight_bytes, target.kv_bytes_per_token),
        draft,
        concurrency=concurrency,
        context=_longest_context(run),
        k=max(run.manifest.question.ks),
        vocabulary=target.vocab_size,
    )


def draft_memory(run: Run, candidate: Candidate) -> int | None:
    """Bytes of a draft's weights and its cache at the traffic's longest context."""
    draft, tokens = _footprint(run, candidate), _longest_context(run)
    if draft is None:
        return None
    facts = run.facts_of(None if candidate.draft == SELF else candidate)
    if facts is not None:
        tokens = min(tokens, facts.context_length)
    return int(draft.weight_bytes + tokens * draft.cache_bytes_per_token)


def _footprint(run: Run, candidate: Candidate) -> Footprint | None:
    """A draft's weights and cache; None if its facts are unknown. The target as its own draft adds
    a second cache, prompt lookup nothing.
    """
    if candidate.draft == LOOKUP:
        return Footprint(0, 0)
    facts = run.facts_of(None if candidate.draft == SELF else candidate)
    if facts is None:
        return None
    return Footprint(0 if candidate.draft == SELF else facts.weight_bytes, facts.kv_bytes_per_token)


@remembered
def _longest_context(run: Run) -> int:
    """Tokens of the longest prompt with its response."""
    return max((t.prompt_tokens + t.output_tokens for t in run.trajectories), default=0)
