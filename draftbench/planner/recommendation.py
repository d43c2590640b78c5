"""The answer of `recommend`, as it is written to JSON.

Every figure is {value, low, high} at 95 % or null for unknown. The first fields of
`Recommendation` and `CellFigures` are a contract that scripts read.
"""

from __future__ import annotations

import msgspec

from draftbench.acceptance.intervals import Estimate
from draftbench.planner.breakeven import BreakEven
from draftbench.planner.latency import Latency
from draftbench.planner.measured import Audit
from draftbench.planner.standing import Decision
from draftbench.records import Candidate, DraftingMode


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the answer: frozen, compared by its fields."""


class Pick(Answer, frozen=True):
    """A draft, its quantization level and a draft length."""

    draft: str
    quant: str
    k: int

    @property
    def candidate(self) -> Candidate:
        """The draft at its quantization level."""
        return Candidate(draft=self.draft, quant=self.quant)


class CellFigures(Answer, frozen=True):
    """One candidate at one k.

    `draft_cost_ratio` and `verify_ratio`, v(k+1), hold at the traffic's mean context; their
    intervals are over timing repeats, all others over requests. `accepted_per_drafted` and
    `mean_accepted_length` come from replay, the figures `…_measured` were counted in decoding runs.

    The speed-ups count what follows the first token, except those `…_end_to_end…`, which have both
    prefills in them. `…_predicted` is replay times timed passes, over all requests that were
    replayed; `…_measured` is from decoding runs, over the `requests_measured` that were decoded;
    `…_expected`, by which candidates are ranked, is the prediction for all requests times what
    measuring some showed it to be off by: the measurement where everything was measured, and the
    prediction where no k of the draft was. Where other k's of the draft were measured and this one
    was not it is None: this k does not compete, and its prediction, which nothing corrected, is not
    comparable with theirs. `prediction_error` is predicted over measured speed-up less 1, on the
    measured requests. `round_overhead` is what the measured rounds took over what their draft steps
    and target passes should have by the timed points, `plain_overhead` the same of the plain steps
    decoded beside them: what both have in common cancels in a speed-up.

    Memory is the draft's weights at its level and its cache for the longest request, of one row;
    not a second copy of weights that draftbench's own runner may keep.
    `best` marks the candidate's best k, and none where its speed is unknown.
    `reason` says why it was not chosen. `probability_best` is how often it is the best or as good,
    plain decoding included, over resampled requests, timing samples and, for candidates that were
    not decoded, the errors of predictions from passes alone; None where it does not compete or has
    no interval.
    """

    draft: str
    quant: str
    k: int
    alpha: Estimate | None
    mean_accepted_length: Estimate | None
    draft_cost_ratio: Estimate | None
    verify_ratio: Estimate | None
    speedup_predicted: Estimate | None
    speedup_measured: Estimate | None
    best: bool
    alpha_basis: str | None
    tokens_per_round: Estimate | None
    accepted_per_drafted: Estimate | None
    mean_accepted_length_measured: Estimate | None
    accepted_per_drafted_measured: Estimate | None
    speedup_expected: Estimate | None
    speedup_end_to_end: Estimate | None
    prediction_error: float | None
    memory_bytes: int | None
    reason: str | None
    speedup_end_to_end_expected: Estimate | None
    requests_measured: int
    probability_best: float | None = None
    round_overhead: float | None = None
    plain_overhead: float | None = None

    @property
    def candidate(self) -> Candidate:
        """The draft at its quantization level."""
        return Candidate(draft=self.draft, quant=self.quant)


class CheckedCell(Answer, frozen=True):
    """One measured cell: `error` is predicted over measured speed-up less 1."""

    draft: str
    quant: str
    k: int
    batch: int
    error: float

    @property
    def candidate(self) -> Candidate:
        """The draft at its quantization level."""
        return Candidate(draft=self.draft, quant=self.quant)


class PredictionError(Answer, frozen=True):
    """Size of the relative error of predicted against measured speed-up over the measured cells, at
    all batch sizes.

    `median` and `worst` are of predictions that know what a round takes beyond its passes from the
    candidate's other decoded cells; `passes_only_…` are of predictions from timed passes alone, as
    for a candidate that was not decoded.
    """

    median: float
    worst: float
    cells: int
    passes_only_median: float
    passes_only_worst: float
    by_cell: tuple[CheckedCell, ...] = ()


class Level(Answer, frozen=True):
    """The answer at one concurrency, the number of active decoding rows.

    `k` is that of the choice, 0 where plain decoding is the answer, None where that is open.
    `decision` is None where the costs at this concurrency are unknown; `costs` says why, between
    which batch sizes they were interpolated, or that no decoding run stands behind them, and is
    None where there is nothing to say. Speed-ups are the leader's, `speedup_expected` too as among
    the candidates; `speedup_deciding` is what `decision` goes by (see the recommendation). Rates
    and times are those of the costs, of plain decoding and of the leader: tokens per second of all
    rows while they decode, seconds per output token of a request, with its prefills where those
    were timed.
    """

    concurrency: int
    decision: Decision | None
    k: int | None
    choice: Pick | None
    leader: Pick | None
    runner_up: Pick | None
    speedup_predicted: Estimate | None
    speedup_measured: Estimate | None
    speedup_expected: Estimate | None
    prediction_error: float | None
    tokens_per_second_plain: float | None
    tokens_per_second: float | None
    seconds_per_token_plain: float | None
    seconds_per_token: float | None
    tokens_per_dollar_plain: float | None
    tokens_per_dollar: float | None
    costs: str | None
    speedup_deciding: Estimate | None


class Step(Answer, frozen=True):
    """An entry of the schedule: from `concurrency` rows on, draft `k` tokens; 0: do not speculate,
    None: open.
    """

    concurrency: int
    k: int | None


class StoppedCell(Answer, frozen=True):
    """One draft that stops before the first token whose confidence is below `stop_below`, k at
    most, as it was measured on `requests`.
    """

    draft: str
    quant: str
    k: int
    stop_below: float
    requests: int
    tokens_per_round: Estimate | None
    speedup_measured: Estimate | None

    @property
    def candidate(self) -> Candidate:
        """The draft at its quantization level."""
        return Candidate(draft=self.draft, quant=self.quant)


class Recommendation(Answer, frozen=True):
    """Whether to speculate and how.

    `choice` is null unless the decision is to speculate; `leader` is the cell that came out first
    either way. A winner's figures are flattered by its winning; the speed-ups here are not, but
    cross-fitted: of the act of choosing, each fifth of the requests seen through the cell that the
    others choose. `speedup_predicted_cross_fitted` and `speedup_measured_cross_fitted` count what
    follows the first token. `speedup_deciding` is the expected one, and what is held against the
    asked speed-up: with both prefills where the objective is latency, its interval stretched by the
    errors of predictions from passes alone where the leader was not decoded. Where the leader's
    requests are too few for an interval there is none, and `speedup_without_interval` is what they
    came to. `probability_best` and `expected_regret` are those of the decision over resampled
    requests, plain decoding included; `requests_needed` would settle an inconclusive one.
    `near_tie_share` is the share of output positions whose two best target tokens are within
    numeric noise.

    All of this holds at `concurrency`; `levels` has every concurrency that was asked for. With the
    leader's draft alone, which is what an engine loads, `schedule` gives k by concurrency and
    `crossover` the largest at which speculation still pays: 0 where it never does, None where it
    does at the largest that was timed. `break_even` and `latency` are the leader's. `stopped` are
    drafts that stop when unsure, where the run decoded such; none of them is chosen. `provisional`
    says in a few words each why the decision may not last: a run that is not finished, few
    requests, a busy or drifting machine; empty where there is nothing of the kind, and where the
    decision is inconclusive.
    """

    decision: Decision
    choice: Pick | None
    candidates: tuple[CellFigures, ...]
    requests: int
    output_tokens: int
    prediction_error: PredictionError | None
    min_speedup: float
    leader: Pick | None
    runner_up: Pick | None
    speedup_predicted_cross_fitted: Estimate | None
    speedup_measured_cross_fitted: Estimate | None
    speedup_deciding: Estimate | None
    speedup_without_interval: float | None
    probability_best: float | None
    expected_regret: float | None
    requests_needed: int | None
    audit: Audit | None
    near_tie_share: float | None
    caveats: tuple[str, ...]
    runner: str | None
    machine: str
    drafting_mode: DraftingMode
    concurrency: int
    objective: str
    levels: tuple[Level, ...]
    schedule: tuple[Step, ...]
    crossover: int | None
    break_even: BreakEven | None
    latency: Latency | None
    stopped: tuple[StoppedCell, ...] = ()
    provisional: tuple[str, ...] = ()
