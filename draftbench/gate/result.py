"""The verdict of the gate as records: plain values that go to JSON as they are."""

from __future__ import annotations

from draftbench.acceptance.intervals import Estimate
from draftbench.gate.limits import TIMED, Limit
from draftbench.gate.noninferiority import Verdict
from draftbench.records import Record

RESULT_SCHEMA_VERSION = 1
EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3}


class FigureValue(Record, frozen=True):
    """A figure of one run over the paired requests; the ends are None where they are unknown."""

    value: float
    low: float | None = None
    high: float | None = None


class Check(Record, frozen=True):
    """One metric against its limit, over all requests (`segment` None) or over those of a segment.

    `difference` is new against old: a fraction of old if `limit.relative`, else absolute. `sample`
    counts requests, for `draft_cost_ratio` timed repeats. `improved` says, over all requests only,
    that even the bad end of the interval is better than before. `smallest_detectable_drop` is in
    the unit of the limit. `holm_p` is a segment's p-value of a drop within the limit, adjusted for
    the number of segments and metrics. Times of under three processes on a side cannot fail:
    `more_processes` would tell.
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

    def amount(self, value: float) -> str:
        """A change in the unit of the limit."""
        return f"{100 * value:.2g}%" if self.limit.relative else f"{value:.2g}"


class TextCheck(Record, frozen=True):
    """Whether a serving engine writes with speculation what it writes without, at temperature 0 and
    one request at a time. Near ties count as the same text.
    """

    requests: int  # compared
    differ: int  # of these
    unknown: int  # of these, where no margin says whether it is a near tie
    near_ties: int  # that differ at a near tie alone, not counted among these
    plain_requests: int  # answered without speculation twice
    plain_differ: int  # of these
    baseline_differ: int | None  # in the baseline; None: unknown
    against_baseline: bool  # the text without speculation is the baseline's
    verdict: Verdict


class Change(Record, frozen=True):
    """A fact about the thing tested that both runs know and that differs."""

    fact: str  # what differs
    old: str  # before
    new: str  # now


class GateResult(Record, frozen=True):
    """The gate's answer.

    `question` identifies what was asked: figures of one question may stand in one series. `faults`
    are suspected faults that the baseline did not show: they fail the gate whatever the checks say.
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
    changes: tuple[Change, ...]  # what differs in the thing tested
    faults: tuple[str, ...]
    notes: tuple[str, ...]  # what to keep in mind
    texts: TextCheck | None = None  # of a serving engine; None: there was nothing to judge

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


class HistoryEntry(Record, frozen=True):
    """One line of a history: a verdict with the figures of the run that was judged, by metric."""

    schema_version: int
    created: str
    candidate: str
    question: str  # identifies what was asked
    verdict: Verdict
    figures: dict[str, FigureValue]  # each metric's figure of the judged run, with its interval
