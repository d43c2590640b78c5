"""Rank all candidates at one concurrency and decide: speculate, do not, or inconclusive; then k by
concurrency, and up to which load speculation pays.

Speculate where the speed-up of the best configuration lies above the asked one with its whole
interval, do not where it lies at or below. Every concurrency is decided by its own costs, overheads
and measurements; acceptance is the same at all of them. The interval of a best configuration that
was not decoded is stretched to what such predictions were off by where others were decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import dropwhile, pairwise

import msgspec
import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import Estimate, estimate, requests_needed
from draftbench.memory import format_size
from draftbench.planner.cost_sources import CostSource, RunCosts
from draftbench.planner.latency import tail_ratio
from draftbench.planner.measured import Measurement, measurements
from draftbench.planner.memory import memory_plan
from draftbench.planner.options import DecisionOptions
from draftbench.planner.predict import Predictor, draft_lengths, replayed
from draftbench.planner.rank import (
    TIMING_NOISE,
    Alternative,
    Kind,
    Ranking,
    alternative_of,
)
from draftbench.planner.recommendation import Configuration, Decision, LoadLevel, ScheduleEntry
from draftbench.records import SELF, Candidate
from draftbench.run_folder.run import Run

_SECONDS_AN_HOUR = 3600


def broken(alternative: Alternative, limits: DecisionOptions, run: Run) -> tuple[str, ...]:
    """The limits that an alternative does not keep, or cannot be shown to keep."""
    found = []
    if limits.max_memory is not None:
        found.append(_memory(alternative, limits.max_memory, run))
    if limits.max_p99_ratio is not None:
        found.append(_tail(alternative, limits.max_p99_ratio))
    return tuple(text for text in found if text)


def memory_needed(run: Run, candidate: Candidate, concurrency: int) -> float | None:
    """Bytes of target and draft at a concurrency, the traffic's longest context and largest k; None
    without the facts of both.
    """
    plan = memory_plan(run, candidate, 0.0)
    if plan is None:
        return None
    return msgspec.structs.replace(plan, concurrency=concurrency).bytes_needed


def _memory(alternative: Alternative, limit: float, run: Run) -> str | None:
    needed = memory_needed(run, alternative.candidate, alternative.predictor.batch)
    if needed is None:
        return "its memory is unknown, so it cannot be shown to keep --max-memory"
    if needed <= limit:
        return None
    return (
        f"it needs {format_size(needed)} with its target, {needed / limit - 1:.0%} over "
        f"--max-memory ({format_size(limit)})"
    )


def _tail(alternative: Alternative, limit: float) -> str | None:
    found = tail_ratio(alternative)
    if found is None:
        return "its latency is unknown, so it cannot be shown to keep --max-p99-ratio"
    ratio, of = found
    if ratio <= limit:
        return None
    return (
        f"a request's time per output token grows to {ratio:.2f} times that of plain decoding "
        f"({of}), {ratio / limit - 1:.0%} over --max-p99-ratio ({limit:g})"
    )


@dataclass(frozen=True, eq=False)
class LoadDecision:
    """The alternatives at one concurrency and the decision between them."""

    concurrency: int
    alternatives: tuple[Alternative, ...]
    ranking: Ranking
    min_speedup: float

    @cached_property
    def leader(self) -> Alternative | None:
        """The best alternative; None where no speed is known."""
        return self.ranking.best

    @cached_property
    def sample(self) -> Sample | None:
        """What decides: the best one's figures are flattered by chance, so its speed-up is taken
        from requests that did not choose it, where there are such. None where its own requests are
        too few for an interval.
        """
        if self.leader is None or _estimate(self.leader.speedup(self.ranking.by)) is None:
            return None
        return self.ranking.cross_fit(self.ranking.by) or self.leader.speedup(self.ranking.by)

    @cached_property
    def deciding(self) -> Estimate | None:
        """The deciding speed-up with its interval, stretched where it is a prediction alone."""
        if self._interval is None or self.leader is None or self.leader.corrected:
            return self._interval
        return _doubted(self._interval, self.ranking.errors)

    @cached_property
    def _interval(self) -> Estimate | None:
        """Over requests."""
        return None if self.sample is None else estimate(self.sample)

    @cached_property
    def decision(self) -> Decision:
        """Whether to speculate at this concurrency; not where nobody keeps the limits."""
        considered = self.ranking.considered
        if considered and all(each.breaks for each in considered):
            return "do_not_speculate"
        return decide(self.deciding, self.min_speedup)

    @property
    def choice(self) -> Alternative | None:
        """The leader where the answer is to speculate."""
        return self.leader if self.decision == "speculate" else None

    @property
    def requests_needed(self) -> int | None:
        """How many requests would settle what is inconclusive; None where requests cannot."""
        interval, least = self._interval, self.min_speedup
        if self.sample is None or interval is None or interval.value == least:
            return None
        if {self.decision, decide(interval, least)} != {"inconclusive"}:
            return None
        return requests_needed(self.sample, abs(interval.value - least) / interval.value)


class Evaluator:
    """One run's candidates, at any concurrency. Where costs come from elsewhere, this run's own
    decoding does not count.
    """

    def __init__(self, run: Run, options: DecisionOptions) -> None:
        self.run, self.options = run, options
        self.source: CostSource = options.costs or RunCosts(run)
        self.foreign = options.costs is not None
        self.by: Kind = "end_to_end" if options.objective == "latency" else "expected"
        self._predictors: dict[Candidate, Predictor] = {}
        self._decoded: dict[int, dict[tuple[Candidate, int], Measurement]] = {}
        self._alternatives: dict[int, tuple[Alternative, ...]] = {}
        self._errors: dict[int, tuple[float, ...]] = {}
        self._decisions: dict[tuple[int, Candidate | None], LoadDecision] = {}

    def at(self, concurrency: int, only: Candidate | None = None) -> LoadDecision:
        """Who leads with so many active rows, among all candidates or the k's of one."""
        key = concurrency, only
        if key not in self._decisions:
            alternatives, by = self._of(concurrency, only), self.by
            considered = [each for each in alternatives if only or each.candidate.draft != SELF]
            ranking = Ranking(considered, by, self._errors_at(concurrency))
            self._decisions[key] = LoadDecision(
                concurrency, alternatives, ranking, self.options.min_speedup
            )
        return self._decisions[key]

    def concurrencies(self) -> tuple[int, ...]:
        """Those that the run asked about; with costs from elsewhere, those timed there."""
        if not self.foreign:
            return tuple(sorted(self.run.manifest.question.batches))
        timed = {batch for c in self.run.candidates for batch in self.timed(c)}
        return tuple(sorted(timed))

    def timed(self, candidate: Candidate) -> tuple[int, ...]:
        """The concurrencies that this candidate was timed at."""
        return self.source.batches(candidate)

    @property
    def timing(self) -> Run | None:
        """The run whose machine the costs are of; None for an engine's own step times."""
        return self.source.run if isinstance(self.source, RunCosts) else None

    def measured(self, concurrency: int) -> dict[tuple[Candidate, int], Measurement]:
        """What was decoded by the runner that costs come from."""
        if concurrency not in self._decoded:
            found = {} if self.foreign else measurements(self.run, concurrency)
            self._decoded[concurrency] = found
        return self._decoded[concurrency]

    def _errors_at(self, concurrency: int) -> tuple[float, ...]:
        """What predictions from passes alone were off by, of all that was decoded there."""
        if concurrency not in self._errors:
            decoded = self._of(concurrency) if self.measured(concurrency) else ()
            errors = (each.passes_only_error(self.by) for each in decoded if each.corrected)
            self._errors[concurrency] = tuple(error for error in errors if error is not None)
        return self._errors[concurrency]

    def _of(self, concurrency: int, only: Candidate | None = None) -> tuple[Alternative, ...]:
        """Every candidate, or one, at every k that the run asked about."""
        if only and concurrency not in self._alternatives and not self.measured(concurrency):
            return self._made(concurrency, (only,))
        if concurrency not in self._alternatives:
            self._alternatives[concurrency] = self._made(concurrency, self.run.candidates)
        alternatives = self._alternatives[concurrency]
        return tuple(each for each in alternatives if only in (None, each.candidate))

    def _made(self, concurrency: int, candidates: Sequence[Candidate]) -> tuple[Alternative, ...]:
        measured = self.measured(concurrency)
        found = []
        for candidate in candidates:
            predictor = self._predictor(candidate)
            if not predictor.laws:
                continue
            predictor = predictor.at(concurrency, self.source, draft_lengths(self.run))
            for k in draft_lengths(self.run):
                alternative = alternative_of(predictor, k, measured.get((candidate, k)))
                limits = broken(alternative, self.options, self.run)
                found.append(replace(alternative, breaks=limits) if limits else alternative)
        return tuple(found)

    def _predictor(self, candidate: Candidate) -> Predictor:
        if candidate not in self._predictors:
            self._predictors[candidate] = replayed(self.run, candidate)
        return self._predictors[candidate]


def _doubted(interval: Estimate, errors: Sequence[float]) -> Estimate:
    """An interval stretched to what a speed-up would be if its prediction were off by `errors`."""
    if not errors:
        return interval
    low = min(interval.low, interval.low / (1 + max(errors)))
    high = max(interval.high, interval.high / (1 + min(errors)))
    return Estimate(interval.value, low, high)


def decide(expected: Estimate | None, min_speedup: float) -> Decision:
    """A speed-up with its interval against the asked one and timing noise."""
    least = min_speedup * (1 + TIMING_NOISE)
    if expected is None or expected.low <= least < expected.high:
        return "inconclusive"
    return "speculate" if expected.low > least else "do_not_speculate"


def level_of(evaluator: Evaluator, concurrency: int) -> LoadLevel:
    """One concurrency's answer."""
    decided = evaluator.at(concurrency)
    leader, price_per_hour = decided.leader, evaluator.options.price_per_hour
    rates = _rates(leader)
    dollars = [_per_dollar(rate, price_per_hour) for rate in rates]
    times = _times(leader)
    known = any(each.predictor.costs is not None for each in decided.alternatives)
    return LoadLevel(
        concurrency=decided.concurrency,
        decision=decided.decision if known else None,
        k=_k(decided),
        choice=configuration_of(decided.choice),
        leader=configuration_of(leader),
        runner_up=configuration_of(decided.ranking.runner_up(leader) if leader else None),
        speedup_predicted=_estimate(leader.predicted if leader else None),
        speedup_measured=_estimate(leader.speedup("measured") if leader else None),
        speedup_expected=_estimate(leader.expected if leader else None),
        prediction_error=leader.prediction_error if leader else None,
        tokens_per_second_plain=rates[0],
        tokens_per_second=rates[1],
        seconds_per_token_plain=times[0],
        seconds_per_token=times[1],
        tokens_per_dollar_plain=dollars[0],
        tokens_per_dollar=dollars[1],
        costs=_note(decided, foreign=evaluator.foreign),
        speedup_deciding=decided.deciding,
    )


def best_level(levels: Sequence[LoadLevel]) -> LoadLevel | None:
    """The level with the most tokens per second of the machine, by its own answer; at one price
    that is the one with the most tokens per dollar. None where no rate is known.
    """
    known = [(rate, level) for level in levels if (rate := _answered_rate(level)) is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def schedule(
    evaluator: Evaluator, candidate: Candidate, asked: Sequence[int]
) -> tuple[ScheduleEntry, ...]:
    """The best k of one draft at every concurrency that was timed or asked for."""
    timed = evaluator.timed(candidate)
    return tuple(
        ScheduleEntry(concurrency=c, k=_k(evaluator.at(c, candidate)), timed=c in timed)
        for c in sorted({*timed, *asked})
    )


def crossover(evaluator: Evaluator, candidate: Candidate) -> int | None:
    """The largest concurrency at which one draft clearly pays, its speed-up above the asked one
    with its interval.

    Timed batch sizes first; between the last that pays and the next, those that are interpolated,
    taken to pay less the more rows there are. A smaller one that is not clear (noise, few requests)
    does not hide a larger one that is. 0: it clearly pays at none; None: at the largest too.
    """

    def pays(concurrency: int) -> bool:
        return evaluator.at(concurrency, candidate).decision == "speculate"

    timed = list(dropwhile(lambda rows: not pays(rows), evaluator.timed(candidate)))
    if not timed:
        return 0
    for low, high in pairwise(timed):
        if not pays(high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if pays(middle) else (low, middle)
            return low
    return None


def crossover_between(
    evaluator: Evaluator, candidate: Candidate, crossover: int | None
) -> tuple[int, int] | None:
    """The timed concurrencies around an interpolated crossover."""
    timed = evaluator.timed(candidate)
    if not crossover or crossover in timed:
        return None
    return max(c for c in timed if c < crossover), min(c for c in timed if c > crossover)


def configuration_of(alternative: Alternative | None) -> Configuration | None:
    """The name of an alternative."""
    if alternative is None:
        return None
    return Configuration(
        draft=alternative.candidate.draft,
        quant=alternative.candidate.quant,
        k=alternative.k,
        concurrency=alternative.predictor.batch,
    )


def _k(decided: LoadDecision) -> int | None:
    if decided.choice is not None:
        return decided.choice.k
    return 0 if decided.decision == "do_not_speculate" else None


def _rates(leader: Alternative | None) -> tuple[float | None, float | None]:
    """Tokens per second of all rows, without and with speculation."""
    if leader is None or leader.prediction.decoding is None:
        return None, None
    weights = np.array([t.weight for t in leader.prediction.trajectories])
    tokens, seconds = leader.prediction.rounds.tokens, leader.prediction.decoding[:, 0]
    plain = leader.predictor.batch * float(weights @ tokens / (weights @ seconds))
    speed = leader.expected.value if leader.expected else None
    return plain, speed and plain * speed


def _times(leader: Alternative | None) -> tuple[float | None, float | None]:
    """Seconds per output token of a request, the first one and its prefill included where known."""
    if leader is None or leader.prediction.decoding is None:
        return None, None
    weights = np.array([t.weight for t in leader.prediction.trajectories])
    tokens = np.array([t.output_tokens for t in leader.prediction.trajectories])
    whole, sample = leader.prediction.total, leader.end_to_end
    if whole is None:
        whole, sample = leader.prediction.decoding, leader.expected
        tokens = leader.prediction.rounds.tokens
    plain = float(weights @ whole[:, 0] / (weights @ tokens))
    speed = sample.value if sample else None
    return plain, plain / speed if speed else None


def _answered_rate(level: LoadLevel) -> float | None:
    chosen = level.decision == "speculate"
    return level.tokens_per_second if chosen else level.tokens_per_second_plain


def _per_dollar(rate: float | None, price_per_hour: float | None) -> float | None:
    if rate is None or price_per_hour is None:
        return None
    return rate * _SECONDS_AN_HOUR / price_per_hour


def _note(decided: LoadDecision, *, foreign: bool) -> str | None:
    """Of the leader where there is one; else what holds for all."""
    if decided.leader is None:
        notes = dict.fromkeys(c.predictor.note for c in decided.alternatives if c.predictor.note)
        return "; ".join(notes) or None
    predictor = decided.leader.predictor
    known = any(seconds is not None for seconds in predictor.overheads.values())
    bare = None if known or foreign else "of passes alone: nothing was decoded there"
    return "; ".join(note for note in (predictor.note, bare) if note) or None


def _estimate(sample: Sample | None) -> Estimate | None:
    return None if sample is None else estimate(sample)
