"""Verdicts over time in a JSONL file → is there a slow drift that every single gate let pass?

Figures of one question over the same requests form a series. Its trend is a straight line by least
squares with Student's interval; runs are taken to differ independently around it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from draftbench.acceptance.intervals import Estimate
from draftbench.errors import RunFolderError
from draftbench.gate.limits import TIMED, Limit
from draftbench.gate.noninferiority import TAIL, Verdict, student_quantile
from draftbench.gate.result import RESULT_SCHEMA_VERSION, Check, GateResult, Level
from draftbench.records import Record
from draftbench.run_folder.lines import MAX_LINE_BYTES, append_line, whole_lines
from draftbench.run_folder.schema import refuse_newer
from draftbench.safe_files import json_without_controls

# Two points are one comparison, which the gate has judged; a line has a spread from three on, and a
# useful one from five.
MIN_CHAIN, MIN_RUNS = 3, 5

# Beyond any figure of a run.
_MOST = 1e15
# Above it, exp overflows.
_MOST_EXPONENT = 700.0
# Every line begins so.
_BEGIN = b'{"schema_version":'


class HistoryEntry(Record, frozen=True):
    """One verdict: figures of the run that was judged, by metric."""

    schema_version: int
    created: str
    candidate: str
    question: str
    verdict: Verdict
    figures: dict[str, Level]


class Trend(Record, frozen=True):
    """How a metric went from the first of `runs` passing runs to the last, in the unit of `limit`;
    negative where it got worse. `chained` is the last against the first, `total` the change along
    a fitted line, None under five runs.
    """

    metric: str
    runs: int
    since: str
    chained: float
    total: Estimate | None
    limit: Limit

    @property
    def drifting(self) -> bool:
        """Passing runs went further together than one may: the last against the first, or along a
        line that surely falls and by half of the limit at least (less is no matter yet).
        """
        if self.chained < -self.limit.value:
            return True
        total = self.total
        return total is not None and total.high < 0 and total.value <= -self.limit.value / 2

    def __str__(self) -> str:
        unit, scale = ("%", 100) if self.limit.relative else ("", 1)
        words = f"{scale * self.chained:.3g}{unit}"
        if self.total is not None:
            total = self.total
            value, low, high = (scale * x for x in (total.value, total.low, total.high))
            words = f"{value:.3g}{unit} [{low:.3g}, {high:.3g}]"
        return (
            f"{self.metric} changed by {words} over {self.runs} passing runs since {self.since}, "
            f"against a limit of {scale * self.limit.value:.3g}{unit} for one"
        )


def record_verdict(path: Path, result: GateResult, created: str) -> GateResult:
    """Append the verdict to the history; the result comes back with any drift among its notes.

    Raises:
        RunFolderError: the file cannot be written, or holds something else; it is as it was before.
    """
    entry = HistoryEntry(
        schema_version=RESULT_SCHEMA_VERSION,
        created=created,
        candidate=result.new,
        question=result.question,
        verdict=result.verdict,
        figures={check.metric: check.new for check in result.pooled},
    )
    _check_figures(entry, "this verdict", "it is not recorded; look at the run that it is about")
    before, unended = _read(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if unended:  # appending would take it for a torn line
            with path.open("ab") as stream:
                stream.write(b"\n")
        append_line(path, [entry])
    except (OSError, RunFolderError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        raise RunFolderError(
            f"cannot write the history `{path}`: {reason}", hint="take another --history"
        ) from error
    found = trends((*before, entry), result.pooled)
    said = tuple(f"slow drift: {trend}" for trend in found if trend.drifting)
    return msgspec.structs.replace(result, notes=(*said, *result.notes))


def read_history(path: Path) -> tuple[HistoryEntry, ...]:
    """All entries, oldest first; none where there is no file yet.

    Raises:
        RunFolderError: no plain file, a line that is no entry, or one of a newer draftbench.
    """
    return _read(path)[0]


def _read(path: Path) -> tuple[tuple[HistoryEntry, ...], bool]:
    """All entries, and whether the last lost only its newline."""
    try:
        lines = list(whole_lines(path))
        end = lines[-1][0] + len(lines[-1][1]) if lines else 0
        rest = _behind(path, end)
    except (OSError, RunFolderError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.message
        raise RunFolderError(
            f"cannot read the history `{path}`: {reason}",
            hint="take another --history; it must be a plain file and no link",
        ) from error
    texts = [line for _, line in lines]
    unended = bool(rest) and not _torn(rest)
    if unended:
        texts.append(rest)
    return tuple(_entry(f"`{path}` line {n}", line) for n, line in enumerate(texts, 1)), unended


def _behind(path: Path, end: int) -> bytes:
    """What stands behind the last newline of a file that need not exist."""
    try:
        with path.open("rb") as stream:
            stream.seek(end)
            return stream.read(MAX_LINE_BYTES)
    except FileNotFoundError:
        return b""


def _torn(rest: bytes) -> bool:
    """Whether a kill cut an entry short; anything else without a newline is somebody's text."""
    try:
        msgspec.json.decode(rest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return rest.startswith(_BEGIN) or _BEGIN.startswith(rest)
    return False


def series(entries: Sequence[HistoryEntry]) -> tuple[HistoryEntry, ...]:
    """The entries of the newest one's question, oldest first: figures that may be compared."""
    return tuple(entry for entry in entries if entry.question == entries[-1].question)


def trends(entries: Sequence[HistoryEntry], checks: Sequence[Check]) -> tuple[Trend, ...]:
    """Trends over the passing runs of the newest entry's question, of metrics with enough of them.

    Times are left out, they differ by machine.
    """
    passed = [entry for entry in series(entries) if entry.verdict == "pass"]
    found = []
    for check in checks:
        having = [entry for entry in passed if check.metric in entry.figures]
        if check.metric in TIMED or len(having) < MIN_CHAIN:
            continue
        relative = check.limit.relative
        values = [entry.figures[check.metric].value for entry in having]
        enough = len(having) >= MIN_RUNS and (not relative or min(values) > 0)
        found.append(
            Trend(
                metric=check.metric,
                runs=len(having),
                since=having[0].created,
                chained=_chained(values, relative=relative),
                total=fitted_change(values, relative=relative) if enough else None,
                limit=check.limit,
            )
        )
    return tuple(found)


def _chained(values: Sequence[float], *, relative: bool) -> float:
    first, last = values[0], values[-1]
    if not relative:
        return last - first
    return last / first - 1 if first > 0 else 0.0


def fitted_change(values: Sequence[float], *, relative: bool) -> Estimate:
    """Fitted change from the first value to the last with its 95 % interval; three values or more.

    On the logarithm and given as a fraction if `relative`.
    """
    series = np.log(values) if relative else np.array(values, dtype=np.float64)
    count = len(series)
    at = np.arange(count) - (count - 1) / 2
    spread = float(at @ at)
    slope = float(at @ series) / spread
    residuals = series - series.mean() - slope * at
    error = math.sqrt(float(residuals @ residuals) / (count - 2) / spread)
    half = student_quantile(1 - TAIL, count - 2) * error
    ends = [(count - 1) * s for s in (slope, slope - half, slope + half)]
    if not relative:
        return Estimate(*ends)
    return Estimate(*(math.expm1(min(end, _MOST_EXPONENT)) for end in ends))


def _entry(where: str, line: bytes) -> HistoryEntry:
    try:
        line = json_without_controls(line)
        refuse_newer(line, RESULT_SCHEMA_VERSION, where)
        entry = msgspec.json.decode(line, type=HistoryEntry)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunFolderError(
            f"{where} is no verdict: {error}",
            hint="the history is a file of its own, one JSON object a line; remove that line",
        ) from error
    _check_figures(entry, where, "the file was edited; remove that line")
    return entry


def _check_figures(entry: HistoryEntry, where: str, hint: str) -> None:
    """Refuse what no run can have; an end of an interval that is not finite is kept as unknown."""
    for metric, level in entry.figures.items():
        ends = [end for end in (level.low, level.high) if end is not None and math.isfinite(end)]
        if not all(abs(x) <= _MOST for x in (level.value, *ends)):
            raise RunFolderError(f"{where}: no run has a {metric} of {level.value:g}", hint=hint)
