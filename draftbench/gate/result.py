"""The verdict of the gate as records, which `--format json` prints as they are."""

from __future__ import annotations

from draftbench.acceptance.intervals import Estimate
from draftbench.gate.metrics import TIMED, Limit
from draftbench.gate.noninferiority import Verdict
from draftbench.records import Record

RESULT_SCHEMA_VERSION = 1
EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3}


class FigureValue(Record, frozen=True):
    """A figure of one run over the paired requests; the ends are None if they are unknown."""

    value: float
    low: float | None = None
    high: float | None = None


class Check(Record, frozen=True):
    """One metric against its limit, over all requests (`segment` None) or over those of a segment.

    `difference` is new - old, as a fraction of old if `limit.relative`. `sample` counts
    requests, for `draft_cost_ratio` timed repeats. `improved` says that even the worse end of the
    interval is better than before (over all requests only). `smallest_detectable_drop` is in the
    unit of the limit. `holm_p` is a segment's p-value of a drop within the limit, adjusted for the
    number of segments and metrics. `more_processes` says that a time is inconclusive because a run
    has fewer than three processes.
    """

    metric: str
    segment: str | None
    sample: int
    old: FigureValue  # of the baseline
    new: FigureValue  # of the judged run
    difference: Estimate | None
    limit: Limit  # the limit that was set
    verdict: Verdict
    improved: bool
    requests_needed: int | None  # how many requests would settle it
    smallest_detectable_drop: float | None
    holm_p: float | None = None
    more_processes: bool = False
    obstacle: str | None = None  # why it cannot pass, whatever its figures say

    @property
    def detects(self) -> str | None:
        """The smallest drop that would be detected, in two digits."""
        drop = self.smallest_detectable_drop
        return None if drop is None else self.limit.amount(float(f"{drop:.2g}"))


class TextCheck(Record, frozen=True):
    """Whether a serving engine writes with speculation what it writes without, at temperature 0 and
    one request at a time. Texts that differ at a near tie count as the same.
    """

    requests: int  # compared
    differ: int  # differ from the text without speculation
    unknown: int  # of those that differ: no margin says whether it is a near tie
    near_ties: int  # differ at a near tie only, not among those that differ
    plain_requests: int  # answered twice without speculation
    plain_differ: int  # of those answered twice: the two texts differ
    baseline_differ: int | None  # differ with speculation in the baseline; None: unknown
    against_baseline: bool  # the text without speculation is the baseline's
    verdict: Verdict


class AnswerCheck(Record, frozen=True):
    """Whether a serving engine left more requests unanswered than in the baseline. Requests that
    only one of the two runs answered decide.
    """

    requests: int  # asked in both runs
    unanswered: int  # in the judged run: not answered, or not every time
    baseline_unanswered: int  # in the baseline
    reasons: dict[str, int]  # what went wrong in the judged run, and how often
    requests_needed: int | None  # how many at this share would fail; None: no more than before
    verdict: Verdict


class PayoffCheck(Record, frozen=True):
    """Whether another draft than the baseline's still pays: a draft that is accepted more often may
    cost more than that brings. Speed-ups are the expected ones at the same k and load; None:
    unknown.
    """

    old: Estimate | None  # of the baseline's draft
    new: Estimate | None  # of the judged draft
    elsewhere: bool  # whether they are of different machines, runners or loads
    verdict: Verdict
    old_end_to_end: Estimate | None = None  # the baseline's with both prefills
    new_end_to_end: Estimate | None = None  # the judged draft's with both prefills

    @property
    def faster(self) -> bool:
        """Whether the judged draft is the faster one."""
        return bool(self.old and self.new and self.new.value > self.old.value)

    @property
    def slower_with_prefills(self) -> Estimate | None:
        """The judged draft's speed-up of whole requests, if they get slower."""
        whole = self.new_end_to_end
        return whole if whole and whole.high < 1 else None


class Change(Record, frozen=True):
    """A fact about what was tested that differs, where both runs record it."""

    fact: str  # what differs
    old: str  # in the baseline
    new: str  # in the judged run


class GateResult(Record, frozen=True):
    """The gate's answer.

    `question` is a hash of what was asked: figures with the same one can be shown in one series.
    `faults` are suspected faults that the baseline did not have; they fail the gate whatever the
    checks say.
    """

    schema_version: int
    verdict: Verdict
    exit_code: int  # of the command
    old: str  # the baseline
    new: str  # the judged run
    mode: str
    k: int
    question: str
    requests: int
    checks: tuple[Check, ...]  # one entry per metric and segment
    changes: tuple[Change, ...]  # what differs in what was tested
    faults: tuple[str, ...]
    notes: tuple[str, ...]  # what to keep in mind
    texts: TextCheck | None = None  # of a serving engine; None: no texts to compare
    answers: AnswerCheck | None = None  # None: every request was answered
    payoff: PayoffCheck | None = None  # None: the same draft, or one of the same size
    doubts: tuple[str, ...] = ()  # why figures of either run cannot be relied on

    @property
    def timed(self) -> bool:
        """Whether times were judged, not acceptance alone."""
        return any(check.metric in TIMED for check in self.checks)

    @property
    def pooled(self) -> tuple[Check, ...]:
        """The checks over all requests."""
        return tuple(check for check in self.checks if check.segment is None)

    @property
    def segments(self) -> tuple[Check, ...]:
        """The checks of single segments."""
        return tuple(check for check in self.checks if check.segment is not None)
