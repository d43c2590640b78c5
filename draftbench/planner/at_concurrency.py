"""Rank all candidates at one concurrency and decide: speculate, do not, or inconclusive.

Speculate where the whole interval of the best configuration's speed-up lies above the asked one, do
not where it lies at or below. Every concurrency is decided by its own costs, overheads and
measurements; acceptance is the same at all of them. The interval of a best configuration that was
not decoded is widened by the errors that such predictions had where others were decoded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import MIN_REQUESTS, Estimate, estimate
from draftbench.memory import Footprint, bytes_to_serve, format_size
from draftbench.models.drafting import fewest_drafted, too_short
from draftbench.planner.alternatives import (
    KINDS,
    Alternative,
    Kind,
    carried_over,
    corrected,
    uncorrected,
)
from draftbench.planner.cost_sources import costs_in
from draftbench.planner.latency import tail_ratio
from draftbench.planner.measured import Measurement, measurements
from draftbench.planner.options import DecisionOptions
from draftbench.planner.predict import (
    Predictor,
    asked_ks,
    draft_footprint,
    longest_context,
    replayed,
)
from draftbench.planner.rank import TIMING_NOISE, Ranking
from draftbench.planner.recommendation import Decision
from draftbench.planner.time_factors import TimeDoubt, TimeFactor, gains_by_k, time_doubt
from draftbench.records import SELF, Candidate
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

# A speed-up may exceed the tokens of a round by as much: noise, and the luck of the requests that
# were decoded.
_OVER_TOKENS = 1.25


def broken_limits(alternative: Alternative, limits: DecisionOptions, run: Run) -> tuple[str, ...]:
    """In words, the limits of the user and of the engine that an alternative does not keep, or
    cannot be shown to keep.
    """
    broken, question = [], run.manifest.question
    fewest = fewest_drafted(question.engine, alternative.candidate.draft, question.lookup_shortest)
    if alternative.k < fewest:
        broken.append(too_short(fewest))
    if (most := limits.max_memory) is not None:
        at_once = question.slots or alternative.predictor.batch
        needed = memory_needed(run, alternative.candidate, at_once)
        if needed is None:
            broken.append("its memory is unknown, so it cannot be shown to keep --max-memory")
        elif needed > most:
            broken.append(
                f"it needs {format_size(needed)} with its target, {needed / most - 1:.0%} over "
                f"--max-memory ({format_size(most)})"
            )
    if (limit := limits.max_p99_ratio) is not None:
        tail = tail_ratio(alternative)
        if tail is None:
            broken.append("its latency is unknown, so it cannot be shown to keep --max-p99-ratio")
        elif tail[0] > limit:
            broken.append(
                f"a request's time per output token grows to {tail[0]:.2f} times that of plain "
                f"decoding ({tail[1]}), {tail[0] / limit - 1:.0%} over --max-p99-ratio ({limit:g})"
            )
    return tuple(broken)


def memory_needed(run: Run, candidate: Candidate, concurrency: int) -> float | None:
    """Bytes that target and draft take at a concurrency, the traffic's longest context and the
    largest k; None without the facts of both.
    """
    target, draft = run.facts_of(None), draft_footprint(run, candidate)
    if target is None or draft is None:
        return None
    return bytes_to_serve(
        Footprint(target.weight_bytes, target.kv_bytes_per_token),
        draft,
        concurrency=concurrency,
        context=longest_context(run),
        k=max(run.manifest.question.ks),
        vocabulary=target.vocab_size,
    )


@dataclass(frozen=True, eq=False)
class LoadDecision:
    """The alternatives at one concurrency and the decision between them.

    `foreign` costs come from elsewhere, so that nothing that is decoded corrects them.
    `has_baseline` is false where only servers that draft answered. `rows` are those of the traffic,
    of which the run answered a sample.
    """

    concurrency: int
    alternatives: tuple[Alternative, ...]
    ranking: Ranking
    min_speedup: float
    foreign: bool
    has_baseline: bool
    rows: int

    @cached_property
    def leader(self) -> Alternative | None:
        """The best alternative; None where no speed is known."""
        return self.ranking.best

    @cached_property
    def sample(self) -> Sample | None:
        """The deciding speed-up: the best of several looks better than it is, so it is taken from
        requests that did not choose it, where there are any. None where the leader's requests are
        too few for an interval, or so unequal that they count as too few.
        """
        of_leader = self.leader.speedup(self.ranking.by) if self.leader else None
        if of_leader is None or estimate(of_leader) is None:
            return None
        if round(of_leader.equal_requests) < MIN_REQUESTS:
            return None
        return self.ranking.cross_fit() or of_leader

    @cached_property
    def deciding(self) -> Estimate | None:
        """The deciding speed-up, reduced by the luck of timing that the best of several has on
        average, its interval widened by the errors that requests do not show.
        """
        interval = estimate(self.sample)
        if interval is None or self.leader is None:
            return None
        less = math.exp(-self.ranking.luck)
        reduced = Estimate(interval.value * less, interval.low * less, interval.high * less)
        return self.ranking.doubted(reduced, self.leader, leads=True)

    @property
    def doubt(self) -> tuple[float, float] | None:
        """The part of the deciding interval that is due to errors of time: how far the speed-up may
        be below and above its value, as distances of the logarithm.
        """
        if self.leader is None or self.deciding is None:
            return None
        return self.ranking.doubt(self.leader, leads=True)

    @cached_property
    def impossible(self) -> str | None:
        """Why the deciding speed-up cannot be true; None where it can. A round takes at least as
        long as a target step, so no speed-up exceeds the tokens of a round.
        """
        if self.leader is None or self.deciding is None:
            return None
        speed, most = self.deciding.value, self.leader.tokens_per_round
        if most is None or speed <= _OVER_TOKENS * most:
            return None
        return f"{speed:.2f}× is impossible with {most:.2f} tokens per round"

    @cached_property
    def decision(self) -> Decision:
        """Whether to speculate at this concurrency; not where no configuration keeps the limits."""
        considered = self.ranking.considered
        if considered and all(each.breaks for each in considered):
            return "do_not_speculate"
        if self.impossible:
            return "inconclusive"
        return decide(self.deciding, self.min_speedup)

    @property
    def choice(self) -> Alternative | None:
        """The leader, where the decision is to speculate."""
        return self.leader if self.decision == "speculate" else None

    @property
    def k(self) -> int | None:
        """The draft length that is chosen; 0: do not speculate, None: open."""
        if self.choice is not None:
            return self.choice.k
        return 0 if self.decision == "do_not_speculate" else None


def decide(expected: Estimate | None, min_speedup: float) -> Decision:
    """Compare the interval of a speed-up with the asked one plus timing noise."""
    asked = min_speedup * (1 + TIMING_NOISE)
    if expected is None or expected.low <= asked < expected.high:
        return "inconclusive"
    return "speculate" if expected.low > asked else "do_not_speculate"


class Evaluator:
    """Decisions of one run at any concurrency, each computed once. With costs from elsewhere
    (`foreign`) the run's decoding does not count.
    """

    def __init__(self, run: Run, options: DecisionOptions) -> None:
        self.run, self.options = run, options
        self.foreign = options.costs is not None
        self.source = options.costs or costs_in(run)
        self.by: Kind = "end_to_end" if options.objective == "latency" else "expected"
        self.ks = asked_ks(run)

    @remembered
    def at(self, concurrency: int, only: Candidate | None = None) -> LoadDecision:
        """The decision with so many active rows, among all candidates or the k's of one."""
        # The target as its own draft is shown where it is asked for, and never chosen.
        shown = concurrency in (*self.options.concurrency, *self.concurrencies())
        candidates = [c for c in self.run.candidates if shown or c.draft != SELF]
        alternatives = tuple(
            each
            for candidate in ([only] if only else candidates)
            for each in self._at_every_k(concurrency, candidate)
        )
        considered = [each for each in alternatives if only or each.candidate.draft != SELF]
        traffic = self.run.manifest.traffic
        return LoadDecision(
            concurrency,
            alternatives,
            Ranking(considered, self.by, self._doubt_at(concurrency)),
            self.options.min_speedup,
            self.foreign,
            self.run.has_baseline,
            rows=traffic.rows - traffic.merged - sum(traffic.dropped.values()),
        )

    def concurrencies(self) -> tuple[int, ...]:
        """Those that the run asked about; with costs from elsewhere, those timed there."""
        if self.foreign:
            return tuple(sorted({b for c in self.run.candidates for b in self.source.batches(c)}))
        if self.run.manifest.question.arrivals != "closed":
            return (1,)  # requests that came at their times are of one load, which counts as 1
        return tuple(sorted(self.run.manifest.question.batches))

    @remembered
    def measured(self, concurrency: int) -> dict[tuple[Candidate, int], Measurement]:
        """What was decoded by the runner that costs come from."""
        return {} if self.foreign else measurements(self.run, concurrency)

    @remembered
    def _doubt_at(self, concurrency: int) -> TimeDoubt:
        """The errors of time that decoding there showed, or where nothing was decoded, decoding at
        the loads next to it.
        """
        decoded = [] if self.foreign else sorted({row.batch for row in self.run.decodes})
        below = [rows for rows in decoded if rows <= concurrency][-1:]
        above = [rows for rows in decoded if rows >= concurrency][:1]
        factors: dict[tuple[Candidate, int], list[TimeFactor]] = {}
        for rows in dict.fromkeys(below + above):
            for candidate in self._timed_and_decoded(rows):
                at_every_k = self._at_every_k(rows, candidate)
                times = [time for each in at_every_k if (time := each.time_factor(self.by))]
                if times:
                    factors[candidate, rows] = times
        return time_doubt(factors)

    def _timed_and_decoded(self, concurrency: int) -> list[Candidate]:
        """The candidates whose passes were timed and that were decoded with so many rows. (One that
        was only decoded there lies between two timed loads and needs the errors of these first.)
        """
        decoded = {candidate for candidate, _ in self.measured(concurrency)}
        timed = (c for c in self.run.candidates if concurrency in self.source.batches(c))
        return [candidate for candidate in timed if candidate in decoded]

    @remembered
    def _at_every_k(self, concurrency: int, candidate: Candidate) -> tuple[Alternative, ...]:
        """A candidate at every k that the run asked about, corrected by what was decoded."""
        found: Sequence[Alternative] = corrected(
            self._uncorrected(concurrency, candidate), self._gains_by_k(concurrency)
        )
        if found and found[0].predictor.interpolated:
            batches = self.source.batches(candidate)
            low, high = next((a, b) for a, b in pairwise(batches) if a < concurrency < b)
            fewer, more = (self._at_every_k(rows, candidate) for rows in (low, high))
            errors = self._doubt_at(concurrency).errors
            found = carried_over(found, fewer, more, self.by, errors)
        return tuple(
            replace(each, breaks=broken_limits(each, self.options, self.run)) for each in found
        )

    @remembered
    def _uncorrected(self, concurrency: int, candidate: Candidate) -> tuple[Alternative, ...]:
        """The same without corrections."""
        predictor = self._replayed(candidate).at(concurrency, self.source)
        measured = self.measured(concurrency)
        return uncorrected(
            predictor,
            [k for k in self.ks if predictor.along.reaches(k)],
            {k: decoded for (of, k), decoded in measured.items() if of == candidate},
        )

    @remembered
    def _replayed(self, candidate: Candidate) -> Predictor:
        return replayed(self.run, candidate)

    @remembered
    def _gains_by_k(self, concurrency: int) -> Mapping[Kind, Mapping[int, float]]:
        """By how much rounds at each k are faster, whatever the draft (`gains_by_k`)."""
        drafts = [
            self._uncorrected(concurrency, candidate)
            for candidate in self._timed_and_decoded(concurrency)
        ]
        return {
            kind: gains_by_k(
                [{a.k: time for a in ks if (time := a.time_factor(kind))} for ks in drafts]
            )
            for kind in KINDS
        }
