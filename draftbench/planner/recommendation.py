"""The answer of `recommend`: the records that it prints as JSON and that every report renders.

A figure is {value, low, high} at 95%, or null for unknown. Reports show these records and compute
nothing.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.caveat_kinds import CAVEATS, FEW_DECODED, CaveatKind
from draftbench.records import SELF, Candidate, DraftingMode, DraftLength, Failure, Record, StopRule

Decision = Literal["speculate", "do_not_speculate", "inconclusive"]
Objective = Literal["speedup", "latency", "throughput", "cost"]
# What to run next: the same sweep to its end, or again on a quiet machine where a figure is
# impossible. Or what settles an open decision: timing a server without speculation, timing drafts
# that were only replayed, decoding the leader (at every k, if its draft was decoded at others),
# timing this load, or a larger sweep.
Remedy = Literal["resuming", "quiet", "baseline", "timing", "decoding", "every-k", "load", "sample"]
# A larger sweep is advised if it settles an open decision with this probability.
SETTLES = 0.9
# Above this α of `self`, near ties alone can explain why it is below 1.
NEAR_TIES = 0.98
# A pick is a toss-up if the runner-up is at least this likely to be faster.
TOSS_UP = 0.25
# Under this chance to be the faster one a configuration is slower, not only probably so.
FASTER_BY_LUCK = 0.05


@lru_cache(maxsize=1024)
def _candidate(draft: str, quant: str) -> Candidate:
    return Candidate(draft=draft, quant=quant)


class Configuration(Record, frozen=True):
    """A candidate at one draft length, which a rule may `stop` short of, and one concurrency."""

    draft: str
    quant: str
    k: int
    concurrency: int = 1
    stop: StopRule | None = None  # None: every round drafts k tokens

    @staticmethod
    def of(
        candidate: Candidate, k: int, concurrency: int, stop: StopRule | None = None
    ) -> Configuration:
        return Configuration(candidate.draft, candidate.quant, k, concurrency, stop)

    def at(self, k: int) -> Configuration:
        """The same at another k, without a rule; 0 is decoding without a draft."""
        return Configuration(self.draft, self.quant, k, self.concurrency)

    @property
    def candidate(self) -> Candidate:
        """The draft at its quantization level."""
        return _candidate(self.draft, self.quant)

    @property
    def configuration(self) -> Configuration:
        """The configuration without figures."""
        return Configuration(self.draft, self.quant, self.k, self.concurrency, self.stop)

    @property
    def length(self) -> DraftLength:
        """How many tokens a round drafts."""
        return DraftLength(self.k, self.stop)

    def __str__(self) -> str:
        return f"{self.candidate} at {self.length}"


class IntervalParts(Record, frozen=True):
    """Half of a log speed-up's 95% interval if each cause were the only one."""

    requests: float  # of the traffic, with the visits of timed passes
    cells: float  # the noise of timed cells
    undecoded: float  # not having been decoded at this draft, k or concurrency


class Evaluation(Configuration, frozen=True, kw_only=True):
    """A configuration with its figures: predicted, measured and expected.

    Intervals of `draft_cost_ratio` and `verify_ratio` are over timing repeats, all others over
    requests; those of expected speed-ups also include timing errors. Speed-ups count what follows
    the first token, except `…_end_to_end…`, which include both prefills.

    The expected speed-up is what passes predict for all requests, corrected by how much longer or
    shorter decoding takes. That is learned from all timed cells, most of all from the
    configuration's own; if it has none, the others still say something, and the interval is wider.
    So the measured requests' `acceptance_luck` is not part of it. Estimates of several drafts that
    are closer than their errors are shrunk together. The predicted speed-up is the same without the
    configuration's own cell, and not shrunk.
    """

    alpha: Estimate | None
    mean_accepted_length: Estimate | None  # τ, from replay; else as counted, or by position counts
    draft_cost_ratio: Estimate | None  # c at the traffic's mean context
    verify_ratio: Estimate | None  # v(k+1) at the traffic's mean context
    speedup_predicted: Estimate | None  # by passes and other cells, for all its `requests`
    speedup_measured: Estimate | None  # from decoding; includes a drift of the machine
    best: bool  # whether this is the candidate's best k; false for all where its speed is unknown
    tokens_per_round: Estimate | None  # from replay; else as counted, or by position counts
    accepted_per_drafted: Estimate | None  # from replay; else as counted, or by position counts
    mean_accepted_length_measured: Estimate | None  # counted while decoding
    accepted_per_drafted_measured: Estimate | None  # counted while decoding
    speedup_expected: Estimate | None  # predicted, corrected by what was measured
    speedup_end_to_end: Estimate | None  # predicted, both prefills included
    prediction_error: float | None  # predicted / measured speed-up - 1, on the same requests
    memory_bytes: int | None  # the draft's weights and, for the longest request, its cache
    reason: str | None  # why it was not chosen
    speedup_end_to_end_expected: Estimate | None  # expected, both prefills included
    requests_measured: int  # how many were decoded
    probability_best: float | None = None  # of being the best or as good, plain decoding included
    round_overhead: float | None = None  # seconds of decoding rounds over those of their passes
    plain_overhead: float | None = None  # the same for steps without speculation
    acceptance_luck: float | None = None  # tokens per round, decoded over replayed, minus 1
    breaks: tuple[str, ...] = ()  # sentences on the limits that it exceeds
    drawn_to_others: float | None = None  # relative change of the expected speed-up by other drafts
    interval_from: IntervalParts | None = None  # of the speed-up that candidates are ranked by
    experts_read: float | None = None  # by a target pass over k+1 tokens in a layer, counted
    experts_read_at_most: float | None = None  # if each token chose its experts independently
    requests: int = 0  # for which its rounds are known
    requests_served: int = 0  # answered by a serving engine at this k, with or without a baseline
    alpha_without_interval: float | None = None  # the value alone, where there is no interval
    tokens_per_round_without_interval: float | None = None  # likewise
    replayed: bool = False  # whether its rounds are from replay; else from what was counted
    not_run: bool = False  # whether it cannot be chosen: a running server drafts at another k
    clearly_faster: bool = False  # than plain decoding, and decoding does not contradict it

    @property
    def k_is_a_placeholder(self) -> bool:
        """Whether this k stands for all: no speed is known at any k, and this one did not run."""
        return not (self.best or self.requests_served or self.requests_measured)

    def ranked(self, *, prefills_counted: bool) -> Estimate | None:
        """The speed-up that ranks it: the expected one, else the predicted one."""
        if prefills_counted:
            return self.speedup_end_to_end_expected or self.speedup_end_to_end
        return self.speedup_expected or self.speedup_predicted

    @property
    def slower_with_prefills(self) -> str | None:
        """A sentence, if requests get slower though decoding gets faster."""
        decoding, whole = self.speedup_expected, self.speedup_end_to_end_expected
        if not decoding or not whole or decoding.low <= 1 or whole.high >= 1:
            return None
        return (
            f"counting both prefills, requests get slower: {whole.value:.2f}× ({whole.low:.2f}–"
            f"{whole.high:.2f}); --objective latency, throughput or cost decides by that"
        )

    @property
    def measured_apart(self) -> bool:
        """Whether the measured speed-up and the expected one lie outside each other's interval, or
        one of them does: other timings contradict this one.
        """
        measured, expected = self.speedup_measured, self.speedup_expected
        if measured is None or expected is None:
            return False
        inside = (measured.low <= expected.value <= measured.high) and (
            expected.low <= measured.value <= expected.high
        )
        return not inside

    @property
    def corrected(self) -> bool:
        """Whether enough requests were decoded to correct the prediction."""
        return self.requests_measured >= FEW_DECODED


class CheckedPrediction(Configuration, frozen=True, kw_only=True):
    """A measured configuration: `error` is predicted over measured speed-up, minus 1."""

    error: float


class PredictionError(Record, frozen=True):
    """How far predicted speed-ups are off measured ones: absolute relative errors over the measured
    configurations at all concurrencies.

    Predictions use all cells except the configuration's own; those of `passes_only_…` use timed
    passes alone, as if nothing had been decoded.
    """

    median: float  # over the configurations
    worst: float  # the largest
    configurations: int  # how many were measured
    passes_only_median: float | None  # None if no such prediction can be made
    passes_only_worst: float | None
    by_configuration: tuple[CheckedPrediction, ...] = ()  # each measured configuration


class TextsAtLoad(Record, frozen=True):
    """A serving engine's answers at temperature 0, and how many differ from the texts that it wrote
    without speculation, one request at a time.
    """

    load: str  # closed: a constant number in flight; open: requests at their times of arrival
    answers: int  # with speculation
    differ: int  # of these
    plain_answers: int  # without speculation
    plain_differ: int  # of these


class AtConcurrency(Record, frozen=True):
    """The answer at one concurrency. Speed-ups are the leader's.

    Rates are tokens per second of all rows while they decode; times are seconds per output token of
    a request, including its prefills if those were timed. Without speculation they do not depend on
    the leader; with it they follow from these and the leader's speed-up.
    """

    concurrency: int
    decision: Decision | None  # None if the costs at this concurrency are unknown
    k: int | None  # of the choice; 0: do not speculate, None: open
    choice: Configuration | None  # None unless the decision is to speculate
    leader: Configuration | None  # ranks first
    runner_up: Configuration | None
    speedup_predicted: Estimate | None  # by passes and other cells
    speedup_measured: Estimate | None  # from decoding; includes a drift of the machine
    speedup_expected: Estimate | None  # predicted, corrected by what was measured
    prediction_error: float | None
    tokens_per_second_plain: float | None  # without speculation, all rows
    tokens_per_second: float | None  # with speculation, all rows
    seconds_per_token_plain: float | None  # of one request, without speculation
    seconds_per_token: float | None  # of one request, with speculation
    tokens_per_dollar_plain: float | None  # at the given price, prefills included if timed
    tokens_per_dollar: float | None  # the same with speculation
    costs: str | None  # why costs are unknown, interpolated (between which loads) or uncorrected
    speedup_deciding: Estimate | None  # the one that decides
    plain_range: tuple[float, float] | None = None  # tokens per second without, beside each draft
    texts: TextsAtLoad | None = None  # how many texts speculation changes; None: unknown
    between: tuple[int, int] | None = None  # the timed loads around it if costs are interpolated


class AtContext(Record, frozen=True):
    """What the leader brings on the requests of one range of contexts."""

    contexts: str  # the range, in tokens
    mean: float  # context in tokens, over all decoding steps there
    longest: int  # tokens of the longest request, with its response
    requests: int
    tokens_per_round: float
    draft_cost_ratio: Estimate | None  # c at the mean context
    verify_ratio: Estimate | None  # v(k+1) at the mean context
    speedup_predicted: Estimate | None  # None: too few requests


class ScheduleEntry(Record, frozen=True):
    """From this concurrency on, draft `k` tokens; 0: do not speculate, None: open."""

    concurrency: int
    k: int | None
    timed: bool = True  # whether passes were timed there, not interpolated or unknown
    stop: StopRule | None = None  # the rule that may end a round before


class Audit(Record, frozen=True):
    """Requests decoded with speculation at temperature 0, by where the output first differs from
    the target's: nowhere, at a near tie (its two best tokens are within numeric noise), or at
    another place (`faults`). On a serving engine only requests that ran alone count.
    """

    requests: int
    identical: int  # requests decoded to the target's own output
    near_ties: int  # requests whose output differs at a near tie only
    faults: int
    unknown: int = 0  # the server reports no log-probabilities, which would show near ties


class Reach(Record, frozen=True):
    """What a draft needs for a speed-up of decoding."""

    k: int
    tokens_per_round: float
    alpha: float | None  # None for a draft without an α by position
    speedup: float  # S


class Headroom(Record, frozen=True):
    """What a better draft at this one's cost would bring, at the measured draft lengths. If the
    draft pays off or wins already, `to_pay` or `to_win` is less than it has.
    """

    draft: str
    quant: str
    alpha: float | None  # as it is
    speedup: float  # as it is, at its fastest k
    most: Reach  # of the best possible draft
    to_pay: Reach | None  # to reach `min_speedup`; None: no draft at this cost does
    to_win: Reach | None  # to be as fast as the best other draft; None: no draft at this cost is
    best_of_others: float  # speed-up of the fastest other draft, at least `min_speedup`

    @property
    def candidate(self) -> Candidate:
        """The draft at its quantization level."""
        return Candidate(draft=self.draft, quant=self.quant)


class Distribution(Record, frozen=True):
    """Seconds; a percentile is None if less than one value lies beyond it."""

    values: int  # how many
    p50: float | None  # median
    p90: float | None  # 90th percentile
    p99: float | None  # 99th percentile
    largest: float  # largest value


class Side(Record, frozen=True):
    """The same requests with or without speculation."""

    time_per_output_token: Distribution  # a request's mean after its first token
    chunk_gap: Distribution | None  # time between two deliveries of a stream
    time_to_first_token: Distribution  # with a draft, both prefills


class Latency(Configuration, frozen=True, kw_only=True):
    """Measured waits of one configuration, with speculation and without."""

    plain: Side  # without speculation
    speculative: Side  # with speculation
    p99_ratio: float  # p99 of a request's time per output token, with speculation over without
    p99_ratio_of: str  # whether p99s or the largest values are compared


class Slo(Record, frozen=True):
    """The most seconds that a request may take; None: no limit."""

    ttft: float | None = None  # to the first token
    tpot: float | None = None  # for each output token after it, on average
    e2e: float | None = None  # to the last token


class SloKept(Record, frozen=True):
    """The share of requests that kept the limits; failed ones count as not."""

    slo: Slo  # the limits that were given
    plain: Estimate | None  # without speculation
    speculative: Estimate | None  # with speculation, as the leader


class Caveat(Record, frozen=True):
    """What a reader must know before trusting a figure."""

    kind: CaveatKind  # what it is about
    text: str  # the whole sentence
    decisive: bool = False  # a longer or quieter run could change the decision
    short: str = ""  # the same in few words with the advice; a decisive one gives only the reason
    candidates: tuple[str, ...] = ()  # whose figures it concerns; none: everybody's

    def concerns(self, candidate: Candidate) -> bool:
        """Whether figures of this candidate rest on what is doubtful."""
        return not self.candidates or str(candidate) in self.candidates


class LargerSweep(Record, frozen=True):
    """A new sweep that may settle an open decision."""

    requests: int
    processes: int  # on a serving engine: starts
    chance: float  # how often such sweeps settle it
    distinct: int | None = None  # requests of the traffic, if it has fewer than that

    @property
    def enough(self) -> bool:
        """Whether it is advised."""
        return self.chance >= SETTLES


class Stopping(Record, frozen=True):
    """What ending a round where the draft is unsure brings the leader's draft, beside a fixed k."""

    fixed: Configuration  # its best without a rule
    rule: Configuration  # its best with one
    speedup_fixed: float  # S of the best without a rule
    speedup_rule: float  # S of the best with one
    speedup_foresight: float | None  # S if every round drafted just what will be accepted
    speedup_moving_average: float | None  # S if k followed SGLang's moving average, for one request


class OnEngine(Record, frozen=True):
    """What an engine can do of it, at this answer's concurrency: fixed k's, and the rules by which
    it stops a draft.
    """

    engine: str | None  # None: every engine that stops no draft
    decision: Decision  # speculate, do_not_speculate or inconclusive
    leader: Configuration | None  # ranks first there
    speedup: float | None  # S of the leader


class StoppingBounds(Record, frozen=True):
    """Between which speed-ups a rule to stop by would bring the leader's draft, whose confidences
    off the path were not replayed: S if it drafts on in vain there, and if it stops at once.
    """

    fixed: Configuration  # its best without a rule
    low: float  # S if it drafts in vain up to k after each wrong token
    high: float  # S if it stops after each wrong token


class NextSweep(Record, frozen=True):
    """The sweep to run next, or the next one worth trying."""

    flags: dict[str, str] | None  # where it differs from the last; None: it takes another server
    resumes: bool = False  # whether it resumes the last one
    advised: bool = True  # whether it is likely to settle the decision with the traffic at hand


class BetterDraft(Record, frozen=True):
    """What training a draft could change."""

    nearest: Headroom | None  # the draft that needs the least to win; None: none can
    most: float  # speed-up of the best draft at these costs
    behind_lookup: bool  # whether a draft behind prompt lookup, whose gain is unknown, was measured


class Recommendation(Record, frozen=True):
    """Whether to speculate and how, at `concurrency`.

    `speedup_deciding` is the expected one, with both prefills if `prefills_counted`. The best of
    several drafts looks better than it is, so all are shrunk together as far as their errors reach.
    The decision is to speculate if the whole interval lies above `min_speedup` plus 2%, and not to
    if it lies below: interleaved runs of one process differ by 2%. `schedule` gives k by
    concurrency for the leader's draft, since an engine loads one draft: where it leads, the k of
    `by_concurrency`, elsewhere that of a decision on it alone, but it never speculates where
    `by_concurrency` says not to. At loads neither asked about nor timed it keeps the k before while
    that is as good.
    """

    decision: Decision  # speculate, do_not_speculate or inconclusive
    choice: Configuration | None  # None unless the decision is to speculate
    evaluations: tuple[Evaluation, ...]  # one entry per candidate and k
    requests: int
    output_tokens: int
    prediction_error: PredictionError | None
    min_speedup: float
    leader: Configuration | None  # ranks first, whatever the decision
    runner_up: Configuration | None
    speedup_deciding: Estimate | None  # compared with `min_speedup`; None: too few requests
    speedup_without_interval: float | None  # the value alone, where there is no interval
    probability_best: float | None  # that the decision is best, by the draws of all intervals
    expected_regret: float | None  # share of the best speed lost on average, by the same draws
    audit: Audit | None  # decoded output compared with the target's
    near_tie_share: float | None  # of output positions: two best tokens within numeric noise
    caveats: tuple[Caveat, ...]  # reasons to trust figures less
    runner: str | None
    drafting_mode: DraftingMode  # greedy, sampled or sampled-temperature-only
    concurrency: int
    objective: Objective  # what candidates were ranked by
    prefills_counted: bool  # whether both prefills are in what ranks and decides
    by_concurrency: tuple[AtConcurrency, ...]  # every concurrency that was asked for
    schedule: tuple[ScheduleEntry, ...]
    crossover: int | None  # largest concurrency that clearly pays; 0: none, None: the largest timed
    latency: Latency | None  # the leader's
    crossover_between: tuple[int, int] | None = None  # the timed loads around an interpolated one
    crossover_gaps: tuple[tuple[int, int], ...] = ()  # ranges below it that do not clearly pay
    failures: tuple[Failure, ...] = ()  # what could not be measured, and why
    checks: tuple[str, ...] = ()  # how far the figures can be trusted, in sentences
    engine: str | None = None  # the serving engine with its version; None: built-in decoder
    arrivals: str | None = None  # when requests came, in words; None: a constant number in flight
    costs_from: str | None = None  # the runner whose times `--costs` gave; None: this run
    passes_given: tuple[int, ...] = ()  # tokens of its passes, if others are interpolated
    slo_kept: SloKept | None = None  # by the leader; None if no limits were given
    settled_by: Remedy | None = None  # what to run next; None: nothing would settle more
    larger_sweep: LargerSweep | None = None  # the sweep that would, or the next worth trying
    ceiling_alpha: float | None = None  # of `self`, if it is below 1 because requests sample
    runner_up_faster: float | None = None  # how likely it is faster than the leader
    headroom: tuple[Headroom, ...] = ()  # what better drafts at the same costs would bring
    best_of_each: tuple[Configuration, ...] = ()  # each candidate at its best k, the leader first
    better_draft: BetterDraft | None = None  # None: training could not change the answer
    next_sweep: NextSweep | None = None  # None: no sweep would settle more
    stopping: Stopping | None = None  # None: no rule could be followed
    on_engines: tuple[OnEngine, ...] = ()  # where the leader stops a draft; none: as it is here
    stopping_bounds: StoppingBounds | None = None  # where confidences were replayed in part
    by_context: tuple[AtContext, ...] = ()  # the leader by context; none: unknown

    @property
    def provisional(self) -> str:
        """Why a longer or quieter run could change the decision; empty if nothing suggests that."""
        return "; ".join(dict.fromkeys(c.short or c.text for c in self.caveats if c.decisive))

    @property
    def urgent_caveats(self) -> list[Caveat]:
        """What a first screen must say besides what makes the answer provisional or, where no speed
        is known, besides why: the most urgent first.
        """
        known = self.leader is not None
        rest = [
            caveat
            for caveat in self.caveats
            if CAVEATS[caveat.kind].urgent
            and (not caveat.decisive if known else caveat.kind != "failed")
        ]
        by_urgency = list(CAVEATS)
        return sorted(rest, key=lambda caveat: by_urgency.index(caveat.kind))

    @property
    def doubts(self) -> list[CaveatKind]:
        """The kinds of caveats that make the answer provisional."""
        return list(dict.fromkeys(caveat.kind for caveat in self.caveats if caveat.decisive))

    @property
    def control_below_one(self) -> Literal["temperature > 0", "near ties"] | None:
        """Where the target as its own draft is rejected; None if it is not to speak of, or if
        neither explains it.
        """
        if self.ceiling_alpha is not None:
            return "temperature > 0"
        of_self = (each.alpha for each in self.evaluations if each.draft == SELF)
        alpha = next(filter(None, of_self), None)
        return "near ties" if alpha and NEAR_TIES <= alpha.value < 0.995 else None

    @property
    def only_one_pays(self) -> bool:
        """Whether a draft was chosen, and the runner-up is no faster than decoding without one."""
        if self.choice is None or self.runner_up is None:
            return False
        speed = self.ranked_by(self.evaluation_of(self.runner_up))
        return speed is not None and speed.value <= 1

    @property
    def leading_evaluation(self) -> Evaluation | None:
        """The leader with its figures; None where no speed is known."""
        return None if self.leader is None else self.evaluation_of(self.leader)

    @property
    def toss_up(self) -> bool:
        """Whether the pick between the leader and the runner-up is little more than chance."""
        return (self.runner_up_faster or 0.0) >= TOSS_UP

    def best_of(self, candidate: Candidate) -> Evaluation | None:
        """A candidate at its best k; None where its speed is unknown."""
        return next((e for e in self.evaluations if e.candidate == candidate and e.best), None)

    @property
    def by_candidate(self) -> list[Evaluation]:
        """The figures of each candidate at its best k, the leader first."""
        return [self.evaluation_of(each) for each in self.best_of_each]

    def ranked_by(self, each: Evaluation) -> Estimate | None:
        """The speed-up that the objective compares."""
        return each.ranked(prefills_counted=self.prefills_counted)

    def evaluation_of(self, configuration: Configuration) -> Evaluation:
        """The figures of a configuration at this answer's concurrency."""
        return next(e for e in self.evaluations if e.configuration == configuration)
