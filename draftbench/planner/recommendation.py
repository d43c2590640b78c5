"""The answer of `recommend`: the records that it prints as JSON and that every report renders.

A figure is {value, low, high} at 95 %, or null for unknown. Reports show these records and compute
nothing.
"""

from __future__ import annotations

from typing import Literal

from draftbench.acceptance.intervals import Estimate
from draftbench.records import SELF, Candidate, DraftingMode, Failure, Record

Decision = Literal["speculate", "do_not_speculate", "inconclusive"]
# One noisy request of so few would decide what the predictions of all others are corrected by.
FEW_DECODED = 5
Objective = Literal["speedup", "latency", "throughput", "cost"]


class Configuration(Record, frozen=True):
    """A candidate at one draft length and one concurrency (active decoding rows)."""

    draft: str
    quant: str
    k: int
    concurrency: int = 1

    @property
    def candidate(self) -> Candidate:
        """The draft at its quantization level."""
        return Candidate(draft=self.draft, quant=self.quant)

    @property
    def configuration(self) -> Configuration:
        """What figures are of, without the figures."""
        return Configuration(self.draft, self.quant, self.k, self.concurrency)

    def __str__(self) -> str:
        return f"{self.candidate} at k = {self.k}"


class Evaluation(Configuration, frozen=True, kw_only=True):
    """A configuration with its figures: predicted, measured and expected.

    `draft_cost_ratio` and `verify_ratio`, v(k+1), hold at the traffic's mean context; their
    intervals are over timing repeats, all others over requests. `accepted_per_drafted` and
    `mean_accepted_length` come from replay, the figures `…_measured` were counted while decoding.
    `break_even_alpha` is the α from which this k pays at this c and v(k+1), by the closed form.

    The speed-ups count what follows the first token, except those `…_end_to_end…`, which include
    both prefills. `…_predicted` is replay times timed passes, over all replayed requests;
    `…_measured` is from decoding the `requests_measured`; `…_expected`, by which candidates are
    ranked, is the prediction for all requests times measured over predicted for the measured ones.
    Where no k of the draft was measured on at least five requests it is the prediction; where
    others of its k's were and this one was not it is None, and this k does not compete.
    `prediction_error` is predicted over measured speed-up less 1, on the measured requests.
    `round_overhead` is what decoding rounds took over the timed seconds of their passes,
    `plain_overhead` the same of the target steps decoded beside them: what both have in common
    cancels in a speed-up.

    `memory_bytes` are the draft's weights at its level and its cache for the longest request, of
    one row. `best` marks the candidate's best k, and none where its speed is unknown. `reason` says
    why it was not chosen. `probability_best` is how often it is the best or as good, plain decoding
    included, over resampled requests and timings; None where it does not compete or has no
    interval.
    """

    alpha: Estimate | None
    mean_accepted_length: Estimate | None
    draft_cost_ratio: Estimate | None
    verify_ratio: Estimate | None
    speedup_predicted: Estimate | None
    speedup_measured: Estimate | None
    best: bool
    alpha_basis: str | None  # which definition of α this is
    tokens_per_round: Estimate | None
    accepted_per_drafted: Estimate | None
    mean_accepted_length_measured: Estimate | None
    accepted_per_drafted_measured: Estimate | None
    speedup_expected: Estimate | None
    speedup_end_to_end: Estimate | None  # predicted, both prefills included
    prediction_error: float | None  # predicted over measured speed-up less 1, on the same requests
    memory_bytes: int | None
    reason: str | None
    speedup_end_to_end_expected: Estimate | None
    requests_measured: int
    probability_best: float | None = None
    round_overhead: float | None = None
    plain_overhead: float | None = None
    break_even_alpha: float | None = None

    @property
    def corrected(self) -> bool:
        """Whether enough requests were decoded to correct the prediction."""
        return self.requests_measured >= FEW_DECODED


class CheckedPrediction(Configuration, frozen=True, kw_only=True):
    """One measured configuration: `error` is predicted over measured speed-up less 1."""

    error: float


class PredictionError(Record, frozen=True):
    """Size of the relative error of predicted against measured speed-ups, over the measured
    `configurations` at all concurrencies.

    `median` and `worst` are of predictions that know a round's overhead from the candidate's other
    decoded k's; `passes_only_…` are of predictions from timed passes alone, as for a candidate that
    was not decoded, and null where no such prediction can be made.
    """

    median: float
    worst: float
    configurations: int
    passes_only_median: float | None
    passes_only_worst: float | None
    by_configuration: tuple[CheckedPrediction, ...] = ()  # each measured configuration


class LoadLevel(Record, frozen=True):
    """The answer at one concurrency, the number of active decoding rows.

    `k` is that of the choice, 0 where plain decoding is the answer, None where that is open.
    `decision` is None where the costs at this concurrency are unknown; `costs` says why, or between
    which timed concurrencies they were interpolated, or that nothing was decoded there. Speed-ups
    are the leader's; `speedup_deciding` is what `decision` goes by. Rates and times follow from the
    costs, for plain decoding and for the leader: tokens per second of all rows while they decode,
    seconds per output token of a request, including its prefills where those were timed.
    """

    concurrency: int
    decision: Decision | None
    k: int | None
    choice: Configuration | None  # the pick; None unless the decision is to speculate
    leader: Configuration | None  # the cell that came out first
    runner_up: Configuration | None
    speedup_predicted: Estimate | None  # S from replay and timed passes
    speedup_measured: Estimate | None  # S timed while decoding
    speedup_expected: Estimate | None  # measured where it was, else predicted and corrected
    prediction_error: float | None
    tokens_per_second_plain: float | None  # without speculation, all rows
    tokens_per_second: float | None  # with speculation, all rows
    seconds_per_token_plain: float | None  # of one request, without speculation
    seconds_per_token: float | None  # of one request, with speculation
    tokens_per_dollar_plain: float | None  # at the given price, without speculation
    tokens_per_dollar: float | None  # at the given price, with speculation
    costs: str | None
    speedup_deciding: Estimate | None


class ScheduleEntry(Record, frozen=True):
    """From `concurrency` rows on, draft `k` tokens; 0: do not speculate, None: open. `timed` says
    whether passes were timed at this concurrency rather than interpolated or unknown.
    """

    concurrency: int
    k: int | None
    timed: bool = True


class Audit(Record, frozen=True):
    """Requests decoded with speculation at temperature 0, by how the output first differs from the
    target's: not at all, at a near tie (its two best tokens are within numeric noise), or at
    another place (`faults`).
    """

    requests: int
    identical: int  # requests decoded to the target's own output
    near_ties: int  # requests whose output differs at a near tie only
    faults: int


class BreakEven(Record, frozen=True):
    """`scaling` is the factor on every acceptance probability at which the speed-up is 1, None
    where no scaling makes it pay; `margin` is 1 - `scaling`, negative where acceptance would have
    to grow.
    """

    scaling: float | None
    margin: float | None


class Distribution(Record, frozen=True):
    """Seconds; a percentile is None where fewer than one value lies beyond it."""

    of: str  # what the values are of
    values: int  # how many
    p50: float | None  # median
    p90: float | None  # 90th percentile
    p99: float | None  # 99th percentile
    largest: float  # largest value


class Side(Record, frozen=True):
    """The same requests with or without speculation."""

    time_per_output_token: Distribution  # a request's mean after its first token
    chunk_gap: Distribution  # time between two deliveries of a stream
    time_to_first_token: Distribution  # both prefills where there is a draft


class Latency(Configuration, frozen=True, kw_only=True):
    """Measured waits of one configuration beside its baseline.

    `p99_ratio` is the p99 of a request's time per output token with speculation over that without,
    `p99_ratio_of` says whether it is of p99 or of the largest.
    """

    plain: Side  # without speculation
    speculative: Side  # with speculation
    p99_ratio: float
    p99_ratio_of: str


class Caveat(Record, frozen=True):
    """What a reader must know before trusting a figure. A `decisive` one may change the decision: a
    longer or quieter run could answer differently; `short` says it in a few words.
    """

    kind: str
    text: str  # the whole sentence
    decisive: bool = False
    short: str = ""


class Advice(Record, frozen=True):
    """A rule of thumb that fits this run: what it says, why, and who says so."""

    rule: str  # name of the rule
    sentence: str  # what it says of this run
    reason: str
    source: str


class Recommendation(Record, frozen=True):
    """Whether to speculate and how.

    `choice` is null unless the decision is to speculate; `leader` is the configuration that ranks
    first either way. The first in a ranking is flattered by chance, so the speed-ups here are
    cross-validated: chosen on some requests, evaluated on the others.
    `speedup_predicted_cross_fitted` and `speedup_measured_cross_fitted` count what follows the
    first token. `speedup_deciding` is held against `min_speedup`: the expected speed-up, with both
    prefills where the objective is latency, its interval stretched by the errors of predictions
    from passes alone where the leader was not decoded. Where there are too few requests for an
    interval it is null, and `speedup_without_interval` is the bare value. `probability_best` and
    `expected_regret` are those of the decision over resampled requests, plain decoding included;
    `requests_needed` would settle an inconclusive one. `near_tie_share` is the share of output
    positions whose two best target tokens are within numeric noise.

    All of this holds at `concurrency`; `levels` has every concurrency that was asked for. With the
    leader's draft alone, which is what an engine loads, `schedule` gives k by concurrency and
    `crossover` the largest at which speculation clearly pays: 0 where it never does, None where it
    does at the largest that was timed. Where it was interpolated, `crossover_between` are the timed
    concurrencies around it. `break_even` and `latency` are the leader's. `checks` are sentences on
    how far the figures can be trusted, `caveats` what speaks against them, `advice` at most three
    rules of thumb.
    """

    decision: Decision  # speculate, do_not_speculate or inconclusive
    choice: Configuration | None
    evaluations: tuple[Evaluation, ...]  # one entry per candidate and k
    requests: int
    output_tokens: int
    prediction_error: PredictionError | None
    min_speedup: float
    leader: Configuration | None
    runner_up: Configuration | None
    speedup_predicted_cross_fitted: Estimate | None
    speedup_measured_cross_fitted: Estimate | None
    speedup_deciding: Estimate | None
    speedup_without_interval: float | None
    probability_best: float | None
    expected_regret: float | None
    requests_needed: int | None
    audit: Audit | None  # decoded output against the target's own
    near_tie_share: float | None
    caveats: tuple[Caveat, ...]
    runner: str | None
    machine: str  # digest of platform, processor, cores, threads and accelerator
    drafting_mode: DraftingMode  # greedy, sampled or sampled-temperature-only
    concurrency: int
    objective: Objective  # what candidates were ranked by
    levels: tuple[LoadLevel, ...]
    schedule: tuple[ScheduleEntry, ...]
    crossover: int | None
    break_even: BreakEven | None
    latency: Latency | None
    crossover_between: tuple[int, int] | None = None
    failures: tuple[Failure, ...] = ()  # what could not be measured, and why
    checks: tuple[str, ...] = ()
    advice: tuple[Advice, ...] = ()

    @property
    def decisive_caveats(self) -> tuple[Caveat, ...]:
        """Why the decision is provisional; empty where nothing is known to speak against it."""
        return tuple(caveat for caveat in self.caveats if caveat.decisive)

    @property
    def leading_evaluation(self) -> Evaluation | None:
        """The leader with its figures; None where no speed is known."""
        return None if self.leader is None else self.evaluation_of(self.leader)

    @property
    def by_candidate(self) -> list[Evaluation]:
        """One evaluation per candidate: its best k, or its smallest where the speed is unknown; the
        leader first, the others by their expected or else predicted speed-up, the control last.
        """
        best: dict[Candidate, Evaluation] = {}
        for each in self.evaluations:
            if each.candidate not in best or (each.best and not best[each.candidate].best):
                best[each.candidate] = each

        def order(each: Evaluation) -> tuple[bool, bool, float]:
            speed = each.speedup_expected or each.speedup_predicted
            first = each.configuration == self.leader
            return not first, each.draft == SELF, -(speed.value if speed else 0.0)

        return sorted(best.values(), key=order)

    def evaluation_of(self, configuration: Configuration) -> Evaluation:
        """The figures of a configuration at this answer's concurrency."""
        return next(e for e in self.evaluations if e.configuration == configuration)
