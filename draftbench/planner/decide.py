"""The model's draws → the decision at one concurrency: speculate, do not, or inconclusive.

Every figure comes from the same draws of log speed-ups (`effects`): intervals, probability,
expected regret, and what would settle an open answer. The configuration with the least expected
regret leads, or a smaller draft that loses hardly more. The answer is to speculate if the whole
interval of the leader's speed-up lies above the required minimum plus timing noise, and not to if
it lies below.

The best of several drafts tends to be the luckiest one. So the true speed-ups of drafts are taken
to be normal around their mean with an unknown spread: estimates that differ by no more than their
errors are shrunk together, those far apart hardly move (Gelman, Hill & Yajima 2012).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds, candidate_rounds
from draftbench.acceptance.definitions import tokens_per_round
from draftbench.acceptance.intervals import (
    MIN_REQUESTS,
    RESAMPLES,
    Estimate,
    generator_of,
    quantiles,
)
from draftbench.acceptance.rounds import Floats
from draftbench.memory import Footprint, bytes_to_serve, format_size
from draftbench.planner.cells import (
    ROUND,
    Cell,
    DrawnRequests,
    Measurement,
    Promised,
    TimedRun,
    cells_of,
    in_seconds,
    ks_of,
    measurements,
    promised,
)
from draftbench.planner.cost_sources import costs_in
from draftbench.planner.effects import BuiltInDesign, Effects, EngineDesign, reshaped
from draftbench.planner.latency import tail_ratio
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes import PASS_DRAWS, Block, between
from draftbench.planner.recommendation import (
    FEW_DECODED,
    SETTLES,
    Configuration,
    Decision,
    IntervalParts,
    LargerSweep,
    Remedy,
)
from draftbench.records import LOOKUP, SELF, Candidate, Key
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run, to_decode

# Interleaved runs of one process differ by 1.6 points on their own: closer speeds are a tie.
TIMING_NOISE = 0.02
# A smaller draft or k leads if it is expected to lose at most this much more of the best speed: on
# few requests a larger k is often just lucky.
HARDLY_MORE_LOSS = TIMING_NOISE / 2
# How much drafts differ (sd of log speed-ups): half-Cauchy with this scale, on a grid.
DRAFTS_DIFFER, _AMONG = 0.2, np.geomspace(0.005, 0.64, 8)
# A speed-up may exceed the tokens per round by this factor: noise, and lucky decoded requests.
OVER_TOKENS = 1.25
# A sweep is advised up to this many times the requests; if none of these would settle it, the next
# one to try has this many times the requests.
_MOST_TIMES, _NEXT_TIMES = 50, 10
# A sweep with a 90% chance of settling it is still enlarged while doubling it adds more than this
# to the chance. The 90% are an average over possible truths: where the truth was 4% away from the
# required speed-up, the first size that reached them settled only 68% of simulations; this rule
# settles 90%.
_HARDLY_MORE = 0.01
_NORMAL = NormalDist()
_REACH = _NORMAL.inv_cdf(0.975)

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
    candidate: Candidate
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
        return IntervalParts(*(_REACH * np.sqrt(variances)).tolist())

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
    def broken_limits(self) -> tuple[str, ...]:
        """The limits of user and engine that it breaks or cannot be shown to keep, in words."""
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


class Evaluator:
    """Decides for one run at any concurrency, each once. The `effects` say how much longer than
    promised decoding takes, learned from all timed cells. With costs from elsewhere (`foreign`) the
    run's own decoding does not count.
    """

    def __init__(self, run: Run, options: DecisionOptions) -> None:
        self.run, self.options = run, options
        self.foreign = options.costs is not None
        self.source = options.costs or costs_in(run)
        self.on_engine = bool(self.source.served)  # whether costs are seconds of an engine's rounds
        self.by: Kind = "end_to_end" if options.objective == "latency" else "expected"
        self.ks = ks_of(run)
        timed, blocks, engine = self.source.run, self.source.blocks, self.on_engine
        # With the costs of another run, its requests are resampled too.
        runs = filter(None, (run, timed))
        self.drawn = DrawnRequests(row.request for each in runs for row in each.trajectories)
        cells = cells_of(timed, run.candidates, blocks, self.drawn) if timed else []
        loads = {*chain(*blocks.values()), *(cell.configuration.concurrency for cell in cells)}
        every = sorted(loads)
        design = EngineDesign(cells, self.ks) if engine else BuiltInDesign(cells, every)
        known = [
            Configuration.of(candidate, k, concurrency)
            for candidate in run.candidates
            for concurrency in every
            for k in self.ks
            if not engine or concurrency in self.source.concurrencies(candidate)
        ]
        self.effects = Effects(cells, design, known)
        self.cells: dict[Configuration, tuple[Cell, ...]] = {}
        for cell in cells if not self.foreign else ():
            self.cells[cell.configuration] = (*self.cells.get(cell.configuration, ()), cell)

    @cached_property
    def can_be_timed(self) -> bool:
        """Whether the built-in decoder can time a draft that did not fail, and none is to be tried
        again first. The speed of a simulated level says nothing about the level, and the target as
        its own draft is a control.
        """
        run = self.run
        failed = {failure.candidate for failure in run.failures}

        def simulated(model: Candidate | None) -> bool:
            return (facts := run.facts_of(model)) is not None and not facts.has_kernel

        return (
            run.manifest.question.engine is None
            and not any(failure.tried_again for failure in run.failures)
            and not simulated(None)
            and any(
                each.draft != SELF and each not in failed and not simulated(each)
                for each in run.candidates
            )
        )

    def concurrencies(self) -> tuple[int, ...]:
        """The loads that the run was asked for; with costs from elsewhere, those timed there."""
        if self.foreign:
            timed = chain(*map(self.source.concurrencies, self.run.candidates))
            return tuple(sorted(set(timed)))
        if self.run.manifest.question.arrivals != "closed":
            return (1,)  # requests sent at their times of arrival make one load, which counts as 1
        return tuple(sorted(self.run.manifest.question.concurrency))

    @remembered
    def measured(self, concurrency: int) -> dict[tuple[Candidate, int], Measurement]:
        """The run's measured speed-ups; none with costs from elsewhere."""
        return {} if self.foreign else measurements(self.run, concurrency)

    @remembered
    def decoded(self, candidate: Candidate) -> frozenset[Key]:
        """The responses on which a candidate was decoded at any load."""
        decodes = () if self.foreign else self.run.decodes
        return frozenset(row.key for row in decodes if row.candidate == candidate)

    @remembered
    def promised(self, concurrency: int) -> Promised:
        """What the timed passes promise for every candidate at a load."""
        cells, alone = self.cells, dict[Configuration, Sequence[TimedRun]]()
        for (of, k), measurement in self.measured(concurrency).items():
            configuration = Configuration.of(of, k, concurrency)
            if configuration in cells and configuration in self.effects.design.alone:
                alone[configuration] = measurement.runs
        by_tokens_alone, every = {c.candidate for c in alone}, {}
        for candidate in self.run.candidates:
            block = self._block(candidate, concurrency)
            served = concurrency in self.source.served.get(candidate, ())
            if block or (served and candidate not in by_tokens_alone):
                every[candidate] = block
        return promised(
            self.run, every, concurrency, self.ks, alone, self.drawn, foreign=self.foreign
        )

    @remembered
    def alternatives(self, concurrency: int) -> tuple[Alternative, ...]:
        """Every candidate at every k that the run was asked for, if anything is known there."""
        here, variances = self.promised(concurrency), self._variances_by_cause(concurrency)
        column_of = {each: column for column, each in enumerate(here.configurations)}
        found = []
        for candidate in self.run.candidates:
            rounds, measured = candidate_rounds(self.run, candidate), self.measured(concurrency)
            block, memory = self._block(candidate, concurrency), draft_memory(self.run, candidate)
            note = self.source.note(candidate, concurrency)
            for k in self.ks:
                if not (rounds.reaches(k) or (candidate, k) in measured):
                    continue
                configuration = Configuration.of(candidate, k, concurrency)
                at = column_of.get(configuration)
                found.append(
                    Alternative(
                        evaluator=self,
                        configuration=configuration,
                        candidate=candidate,
                        rounds=rounds,
                        block=block,
                        measured=measured.get((candidate, k)),
                        cells=self.cells.get(configuration, ()),
                        note=note,
                        memory_bytes=memory,
                        requests=0 if at is None else int(here.requests[at]),
                        equal=0.0 if at is None else float(here.equal[at]),
                        variance_by_cause=None if at is None else variances[at],
                        column=at,
                    )
                )
        return tuple(found)

    @remembered
    def log_speedups(self, concurrency: int, by: Kind) -> list[Floats | None]:
        """The draws of every log speed-up [1 + draws], by column; None where unknown."""
        every = self.logs_by_cause(concurrency, by).every + self.among_drafts(concurrency, by)
        return [log if np.isfinite(log).all() else None for log in np.ascontiguousarray(every.T)]

    @remembered
    def _slowdown(self, concurrency: int) -> tuple[Floats, Floats, Floats]:
        here = self.promised(concurrency)
        return self.effects.longer(here.configurations, here.step)

    @remembered
    def logs_by_cause(self, concurrency: int, by: Kind) -> _LogsByCause:
        """The log speed-ups, split by cause: what draws of requests add, what draws of time add,
        and the estimates with both. Draws of requests are scaled to Student's t, with n the number
        of equally long requests.
        """
        here, prefills = self.promised(concurrency), by == "end_to_end"
        seconds, equal = np.stack([here.plain, here.rounds], axis=-1), here.equal
        if self.on_engine:  # its rounds are known from the answered requests alone
            cells = [c for c in self.effects.cells if c.configuration.concurrency == concurrency]
            equal = np.minimum(equal, min((cell.equal for cell in cells), default=math.inf))

        def logs(rows: slice, longer: Floats) -> Floats:
            with np.errstate(divide="ignore", invalid="ignore"):
                sides = np.log(seconds[rows]) + longer
                if prefills:
                    sides = np.logaddexp(sides, np.log(here.prefills[rows]))
                return np.asarray(sides[..., 0] - sides[..., 1], np.float64)

        estimate, by_requests, by_time = self._slowdown(concurrency)
        middle = logs(slice(0, 1), estimate[None])[0]
        requests, time = logs(slice(1, None), by_requests), logs(slice(0, 1), by_time) - middle
        n = np.maximum(equal, MIN_REQUESTS)
        normal, square = generator_of("student").standard_normal((RESAMPLES, 1)), 2 / (9 * (n - 1))
        # χ² over its degrees of freedom (Wilson & Hilferty 1931).
        spread = np.maximum(1 - square + normal * np.sqrt(square), 0.05) ** 3
        requests = (requests - requests.mean(axis=0)) * np.sqrt((n + 1) / (n - 1) / spread)
        return _LogsByCause(
            requests, time, np.concatenate([middle[None], middle + requests + time])
        )

    def simulated_timings(self, timed: Sequence[Alternative]) -> Floats:
        """The log speed-ups that one more timing of each alternative would show, without the draws
        of requests [draws, alternatives].
        """
        found, noises = [], np.array([each.noise for each in self.effects.grid])
        normal, noise = generator_of("cells").standard_normal, noises[self.effects.given]
        # An engine's server without a draft is not started again for each.
        beside = 0.0 if self.on_engine else noise * normal(len(noise))
        for each in timed:
            concurrency = each.configuration.concurrency
            passes = each.timing if each.block else np.zeros(PASS_DRAWS)
            passes = np.tile(passes, RESAMPLES // PASS_DRAWS)
            time = self.logs_by_cause(concurrency, "expected").time[:, each.column]
            found.append(time + passes + noise * normal(len(noise)) - beside)
        return np.stack(found, axis=1)

    @remembered
    def _block(self, candidate: Candidate, concurrency: int) -> Block | None:
        return between(self.source.blocks.get(candidate, {}), concurrency)

    def _variances_by_cause(self, concurrency: int) -> list[VarianceByCause | None]:
        """The variance of every log speed-up by cause, by column; decoding it removes the last."""
        here, logs = self.promised(concurrency), self.logs_by_cause(concurrency, self.by)
        chances, grid = self.effects.chances, self.effects.grid
        noise = 2 * float(chances @ [each.noise**2 for each in grid])
        found: list[VarianceByCause | None] = []
        timed = {cell.configuration for cell in self.effects.cells}
        for each, requests, time in zip(
            here.configurations, logs.requests.var(axis=0), logs.time.var(axis=0), strict=True
        ):
            undecoded = 0.0 if each in timed else float(time**2 / (time + noise))
            known = math.isfinite(time)
            found.append((float(requests), float(time) - undecoded, undecoded) if known else None)
        return found

    @remembered
    def among_drafts(self, concurrency: int, by: Kind) -> Floats:
        """What shrinking each draw toward the mean over drafts adds to it [1 + draws,
        configurations]: true speed-ups at the best k are taken to be normal, their spread unknown.
        """
        logs, best = self.logs_by_cause(concurrency, by).every, dict[Candidate, int]()
        configurations = self.promised(concurrency).configurations
        for at, each in enumerate(configurations):
            known = each.candidate.draft != SELF and math.isfinite(logs[0, at])
            if known and logs[0, at] > logs[0, best.get(each.candidate, at)] - 1e-12:
                best[each.candidate] = at
        columns = list(best.values())
        if len(columns) < 2:
            return np.zeros_like(logs)
        estimates, draws = logs[0, columns], logs[1:, columns]
        count = len(columns)
        error = np.cov(draws.T) + 1e-10 * np.eye(count)
        one, options, pulls, shapes = np.ones(count), [], [], []
        for sd in _AMONG.tolist():
            inverse = np.linalg.inv(error + sd**2 * np.eye(count))
            precision = one @ inverse @ one
            off = estimates - one @ inverse @ estimates / precision
            log = np.linalg.slogdet(inverse)[1] - math.log(precision) - off @ inverse @ off
            options.append(log / 2 + math.log(sd) - math.log1p((sd / DRAFTS_DIFFER) ** 2))
            # Given the spread, the true speed-ups have the mean estimate - error · inverse · off.
            pull = -error @ inverse @ (np.eye(count) - np.outer(one, one @ inverse) / precision)
            pulls.append(pull)
            shapes.append(reshaped(error, error + pull @ error) - np.eye(count))
        chances = np.exp(np.array(options) - max(options))
        chances /= chances.sum()
        chosen = generator_of("among drafts").choice(len(chances), p=chances, size=RESAMPLES)
        moved = np.zeros((RESAMPLES + 1, count + 1))  # the last column, of the control, stays 0
        moved[0, :-1] = sum(c * pull for c, pull in zip(chances, pulls, strict=True)) @ estimates
        for at, pull in enumerate(pulls):
            rows = np.flatnonzero(chosen == at)
            moved[1 + rows, :-1] = (draws[rows] - estimates) @ shapes[at].T + pull @ estimates
        drafts = list(best)
        own = [drafts.index(c.candidate) if c.candidate in best else -1 for c in configurations]
        return moved[:, own]

    @remembered
    def at(self, concurrency: int, only: Candidate | None = None) -> DecisionAt:
        """The decision at one load, among all candidates or for one candidate alone."""
        every = self.alternatives(concurrency)
        return DecisionAt(self, concurrency, [a for a in every if only in (None, a.candidate)])


class _LogsByCause(NamedTuple):
    """Draws of log speed-ups: what drawn requests and drawn times add to them [draws,
    configurations], and the estimates with both [1 + draws, configurations].
    """

    requests: Floats
    time: Floats
    every: Floats


class DecisionAt:
    """The alternatives at one concurrency, and the decision between them."""

    def __init__(
        self, evaluator: Evaluator, concurrency: int, alternatives: Sequence[Alternative]
    ) -> None:
        self.evaluator, self.concurrency, self.alternatives = evaluator, concurrency, alternatives
        self.by, self.min_speedup = evaluator.by, evaluator.options.min_speedup
        # The limits that alternatives break, in words.
        self.breaks: dict[Configuration, tuple[str, ...]] = {}
        # Those of known speed that keep the limits, without the control, by name.
        self.competing: list[Alternative] = []
        # The log speed-ups of plain decoding, 0, and of every competing one [draws, 1 + competing].
        logs = [np.zeros(RESAMPLES)]
        for each in sorted(alternatives, key=str):
            if each.broken_limits:
                self.breaks[each.configuration] = each.broken_limits
            elif each.candidate.draft != SELF and (log := each.log_speedup(self.by)) is not None:
                self.competing.append(each)
                logs.append(log[1:])
        self._drawn: Floats = np.stack(logs, axis=1)
        # Their speeds as shares of the best in each draw.
        self._shares: Floats = np.exp(self._drawn - self._drawn.max(axis=1, keepdims=True))

    def gain(self, timed: Sequence[Alternative]) -> float:
        """How much faster the choice is expected to be, as a logarithm, if these are timed once
        more before it is made (the knowledge gradient of correlated beliefs, Frazier et al. 2009).
        """
        if not timed:
            return 0.0
        timings = self.evaluator.simulated_timings(timed)
        shown, expected = timings - timings.mean(axis=0), self._drawn.mean(axis=0)
        learned = np.linalg.lstsq(shown, self._drawn - expected, rcond=None)[0]
        return float((expected + shown @ learned).max(axis=1).mean() - expected.max())

    def loss(self, choice: Alternative | None) -> float:
        """The share of the best speed that a choice loses on average; None: plain decoding."""
        return float(1 - self._shares[:, self._column(choice)].mean())

    def probability(self, choice: Alternative | None) -> float:
        """How often a choice is the best or ties with it."""
        return float((self._shares[:, self._column(choice)] >= 1 - TIMING_NOISE).mean())

    def chance(self, one: Alternative, other: Alternative) -> float:
        """How likely the first is the faster one."""
        faster = self._drawn[:, self._column(one)] > self._drawn[:, self._column(other)]
        return float(faster.mean())

    def _column(self, choice: Alternative | None) -> int:
        return 0 if choice is None else 1 + self.competing.index(choice)

    @cached_property
    def leader(self) -> Alternative | None:
        """The alternative that ranks first; None where no speed is known."""
        return self.best_of(self.competing)

    def as_good(self, some: Sequence[Alternative]) -> list[Alternative]:
        """The alternatives within HARDLY_MORE_LOSS of the best that pay off as surely as it."""
        losses = {each: self.loss(each) for each in some}
        best = min(losses, key=losses.__getitem__, default=None)
        if best is None:
            return []
        near = [each for each in some if losses[each] <= losses[best] + HARDLY_MORE_LOSS]
        return [each for each in near if self._pays(each)] if self._pays(best) else near

    def best_of(self, some: Sequence[Alternative]) -> Alternative | None:
        """Of those as good as the best: the draft of least memory, then its smallest k."""
        near = self.as_good(some)
        losses = {each: self.loss(each) for each in near}
        least: dict[Candidate, float] = {}
        for each in near:
            least[each.candidate] = min(losses[each], least.get(each.candidate, 1.0))

        def size(each: Alternative) -> tuple[float, float, int]:
            memory = math.inf if each.memory_bytes is None else each.memory_bytes
            return memory, least[each.candidate], each.k

        return min(near, key=size, default=None)

    def _pays(self, each: Alternative) -> bool:
        return decide(each.estimate(each.log_speedup(self.by)), self.min_speedup) == "speculate"

    @property
    def best_of_draft(self) -> Alternative | None:
        """The leader; the fastest where nothing competes (the control, or limits are broken)."""
        known = [a for a in self.alternatives if a.log_speedup(self.by) is not None]
        return self.leader or max(known, key=lambda a: a.value(self.by) or 0.0, default=None)

    @cached_property
    def runner_up(self) -> Alternative | None:
        """The fastest other candidate, at the k that leads among its own."""
        leader, at = self.leader, self.evaluator.at
        candidates = dict.fromkeys(each.candidate for each in self.competing)
        bests = [at(self.concurrency, each).leader for each in candidates]
        others = [each for each in bests if each and leader and each.candidate != leader.candidate]
        return max(others, key=lambda each: each.value(self.by) or 0.0, default=None)

    @cached_property
    def deciding(self) -> Estimate | None:
        """The deciding speed-up; None where the leader has too few requests for an interval, or so
        unequal ones that they count as too few.
        """
        leader = self.leader
        if leader is None or round(leader.equal) < MIN_REQUESTS:
            return None
        return leader.estimate(leader.log_speedup(self.by))

    @cached_property
    def impossible(self) -> str | None:
        """Why the deciding speed-up cannot be true; None where it can. A round takes at least as
        long as a target step, so no speed-up exceeds the tokens per round.
        """
        if self.leader is None or self.deciding is None:
            return None
        speed, most = self.deciding.value, self.leader.tokens_per_round
        if most is None or speed <= OVER_TOKENS * most:
            return None
        return f"{speed:.2f}× is impossible with {most:.2f} tokens per round"

    @cached_property
    def decision(self) -> Decision:
        """Whether to speculate at this concurrency: no, if no configuration keeps the limits."""
        shown = [a for a in self.alternatives if a.candidate.draft != SELF]
        if shown and all(a.configuration in self.breaks for a in shown):
            return "do_not_speculate"
        return "inconclusive" if self.impossible else decide(self.deciding, self.min_speedup)

    @property
    def choice(self) -> Alternative | None:
        """The leader if the decision is to speculate."""
        return self.leader if self.decision == "speculate" else None

    @property
    def k(self) -> int | None:
        """The chosen draft length; 0: do not speculate, None: open."""
        if self.choice is not None:
            return self.choice.k
        return 0 if self.decision == "do_not_speculate" else None

    def chance_unchanged(self, learned: float, left: float) -> float:
        """How likely more requests leave the answer as it is: the same decision, and no choice that
        is faster by more than timing noise. Time is not measured again (preposterior analysis,
        Raiffa & Schlaifer 1961).

        Args:
            learned: the variance of the new mean, as a share of today's variance from requests.
            left: the share of today's that remains.
        """
        leader, deciding = self.leader, self.deciding
        if leader is None or deciding is None:
            return 0.0
        logs, own = self.evaluator.logs_by_cause(self.concurrency, self.by), self._column(leader)
        columns = np.array([each.column for each in self.competing], np.int64)
        shown = math.sqrt(learned) * logs.requests[:, columns]
        then = self._drawn.mean(axis=0) + np.insert(shown, 0, 0.0, axis=1)  # nothing of plain
        pick = 0 if self.decision == "do_not_speculate" else own
        as_good = then[:, 1:].max(axis=1) - then[:, pick] <= math.log1p(TIMING_NOISE)
        doubt = math.sqrt(left) * logs.requests[:, leader.column] + logs.time[:, leader.column]
        low, high = quantiles(doubt - doubt.mean(), (0.025, 0.975))
        beyond = then[:, own] - math.log(faster_than(self.min_speedup))
        same = {
            "speculate": beyond + low > 0,
            "do_not_speculate": beyond + high <= 0,
            "inconclusive": (beyond + low <= 0) & (beyond + high > 0),
        }[self.decision]
        return float((same & as_good).mean())

    @cached_property
    def settled_by(self) -> Remedy | None:
        """What to measure to settle an open decision; None if nothing would."""
        leader, run = self.leader, self.evaluator.run
        if not (run.has_baseline or self.evaluator.foreign):
            return "baseline"
        if self.decision != "inconclusive" or self.impossible:
            return None
        if leader is None:
            replayed = run.manifest.effort.measure == "replay" and self.evaluator.can_be_timed
            asked = self.concurrency in run.manifest.question.concurrency
            return "timing" if replayed and asked else None
        if leader.cells or self.evaluator.on_engine or self.evaluator.foreign:
            return "sample"
        if leader.note:
            return "load"
        enough = len(to_decode(leader.rounds.trajectories, FEW_DECODED)) >= FEW_DECODED
        if not enough:
            return "sample"
        # A sweep keeps to the k's of a draft that it began with, unless it decodes at all of them.
        begun = {(own.candidate, own.concurrency) for own in self.evaluator.cells if own.k}
        return "every-k" if (leader.candidate, self.concurrency) in begun else "decoding"

    @cached_property
    def larger_sweep(self) -> LargerSweep | None:
        """The smallest sweep that settles an open decision in nine of ten cases, or the next one
        worth trying; None if a larger sample is not what it takes.

        More requests narrow the requests' part of the interval, more processes the cells' part. The
        truth lies somewhere in the present interval, and the next estimate around it (assurance,
        O'Hagan, Stevens & Campbell 2005): taking the present estimate as the truth would promise
        too much.
        """
        leader, run, deciding = self.leader, self.evaluator.run, self.deciding
        if (
            self.settled_by != "sample"
            or leader is None
            or deciding is None
            or not leader.variance_by_cause
        ):
            return None
        requests, cells, undecoded = leader.variance_by_cause
        least = faster_than(self.min_speedup)
        now = max(len(leader.cells), 1)  # processes, or starts of an engine
        if requests <= 1e-12:
            return None
        distance = math.log(deciding.value / least)
        # As wide as the interval is on the side of the required speed-up.
        end = deciding.low if distance > 0 else deciding.high
        total = requests + cells + undecoded
        scale = (math.log(deciding.value / end) / _REACH) ** 2 / total
        distinct = run.manifest.traffic.distinct
        given = any(not facts.started for facts in run.engines)
        more = (1, 3, 5) if leader.cells and not (self.evaluator.foreign or given) else ()
        counts = [now, *(count for count in more if count > now)]

        def chance(times: float, count: int) -> float:
            new = requests / times + cells * now / count + undecoded
            spread, half = math.sqrt(scale * (total + new)), _REACH * math.sqrt(scale * new)
            return sum(
                _NORMAL.cdf((end - half) / spread) for end in (abs(distance), -abs(distance))
            )

        def enough(times: float, count: int) -> bool:
            return chance(times, count) >= max(SETTLES, chance(2 * times, count) - _HARDLY_MORE)

        def sweep(times: float, count: int) -> LargerSweep:
            larger = math.ceil(times * leader.requests)
            few = distinct if larger > distinct else None
            return LargerSweep(larger, count, chance(times, count), few)

        steps = np.exp(np.linspace(0, math.log(_MOST_TIMES), 200)).tolist()
        settling = [
            sweep(next((t for t in steps if enough(t, count)), float(_MOST_TIMES)), count)
            for count in counts
            if chance(_MOST_TIMES, count) >= SETTLES
        ]
        if settling:
            return min(
                settling, key=lambda each: (bool(each.distinct), each.requests * each.processes)
            )
        most = float(_NEXT_TIMES)
        if distinct > leader.requests:
            most = min(most, distinct / leader.requests)
        return sweep(most, counts[min(1, len(counts) - 1)])


def faster_than(speedup: float) -> float:
    """The least speed-up that counts as faster."""
    return speedup * (1 + TIMING_NOISE)


def decide(expected: Estimate | None, min_speedup: float) -> Decision:
    """Compare the interval of a speed-up with the required minimum plus timing noise."""
    least = faster_than(min_speedup)
    if expected is None or expected.low <= least < expected.high:
        return "inconclusive"
    return "speculate" if expected.low > least else "do_not_speculate"
