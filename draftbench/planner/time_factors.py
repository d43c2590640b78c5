"""Seconds of decoding over those of its passes → the factor that predictions are multiplied by, and
its error.

In the decoder, rounds and target steps take longer or shorter than their passes did when they were
timed alone. What rounds take beyond their passes is estimated apart (`measured.Overheads`). What is
left is the time factor of a configuration: seconds of plain decoding over those expected, divided
by the same quotient of its rounds. Expected are the seconds of the rounds that were decoded, so
that the luck of their acceptance is not in it.

A time factor has two errors. It varies between requests, which matters where few were decoded. And
all that one process decodes of one candidate at one k (a cell) shares a deviation that more
requests do not average out: where its memory lies, what else runs. That shows in the scatter of
time factors between the k's of a draft in one process, and between processes. The baseline of a
block is such a cell too, the same for all its k's, so that a speed-up scatters by √2 times as much.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from statistics import fmean

import numpy as np

from draftbench.acceptance.intervals import Estimate, student_quantile
from draftbench.acceptance.rounds import Floats
from draftbench.planner.costs import BlockCosts
from draftbench.planner.measured import Measurement, pass_times, steady
from draftbench.planner.recommendation import FEW_DECODED
from draftbench.records import Candidate, Key

# Cells of the kept runs at one row scatter by 1.2 % (median). As much is taken to be known of other
# machines as four degrees of freedom tell; two cells that happen to agree prove nothing.
USUAL_SCATTER, USUAL_FREEDOM = 0.012, 4
# The scatter of a speed-up is never taken to be less.
LEAST_SCATTER = 0.01
# With fewer, and fewer degrees of freedom than are taken for what is usual, that weighs more.
FEW_PROCESSES = 3
# A cell whose requests tell its factor less well than this counts less.
_SURE = 2 * USUAL_SCATTER
# A k is compared over drafts where so many were decoded at it.
_DRAFTS_TO_COMPARE = 3
# As often means of drafts and of k's are fitted in turn.
_FITTINGS = 50
# Passes alone are off by so much (sd of the logarithm) for each draft by itself: over the kept
# runs, at 1 to 16 rows, by 5 % (root mean square) and at most 14 %.
DRAFTS_DIFFER = 0.06


@dataclass(frozen=True)
class TimeFactor:
    """The time factor over all runs of a configuration, and of each process that ran enough
    requests. `error` is the standard error of its logarithm over its `requests`; `alone` is the
    factor had rounds taken nothing beyond their passes.
    """

    value: float
    by_process: Mapping[str, float]
    error: float = 0.0
    requests: int = 0
    alone: float = 1.0

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of its logarithm over requests."""
        return student_quantile(0.975, self.requests - 1) * self.error if self.requests > 1 else 0.0


@dataclass(frozen=True)
class Passes:
    """What decoding at a `batch` of rows is expected to take: by `costs`, and so many seconds of a
    round `beyond` its passes.

    `prefills` are the expected seconds of prefill without and with speculation, by response; empty
    to count decoding alone.
    """

    costs: BlockCosts
    batch: int
    beyond: float = 0.0
    prefills: Mapping[Key, Sequence[float]] = field(default_factory=dict)


def time_factor(measured: Measurement, passes: Passes) -> TimeFactor | None:
    """How much faster one configuration was than expected, relative to plain decoding; None where
    its rounds are unknown.
    """
    # By process and request, without and with speculation: seconds measured, seconds of passes,
    # rounds.
    table: defaultdict[tuple[str, str], Floats] = defaultdict(lambda: np.zeros((2, 3)))
    for side, runs in enumerate((measured.baseline, measured.runs)):
        for (t, row), sums in zip(runs, seconds_of(measured, passes, side), strict=True):
            table[row.process, t.request][side] += sums
    alone = sum(table.values(), np.zeros((2, 3)))[:, :2]
    seconds = {
        key: np.stack([sums[:, 0], sums[:, 1] + sums[:, 2] * (0.0, passes.beyond)], axis=1)
        for key, sums in table.items()
    }
    total = sum(seconds.values(), np.zeros((2, 2)))
    if not (total > 0).all():
        return None
    by_process = {}
    for process in sorted({process for process, _ in seconds}):
        rows = [sums for (name, _), sums in seconds.items() if name == process]
        if len(rows) >= FEW_DECODED and ((sums := np.sum(rows, axis=0)) > 0).all():
            by_process[process] = _factor(sums)
    requests: defaultdict[str, Floats] = defaultdict(lambda: np.zeros((2, 2)))
    for (_, request), sums in seconds.items():
        requests[request] = requests[request] + sums
    shares = np.array(list(requests.values())) / total
    influence = (shares * [[1, -1], [-1, 1]]).sum(axis=(1, 2))
    count = len(influence)
    error = math.sqrt(count / (count - 1) * float(influence @ influence)) if count > 1 else 0.0
    value = _factor(total)
    return TimeFactor(value, by_process or {"": value}, error, count, _factor(alone))


def _factor(seconds: Floats) -> float:
    (plain, steps), (rounds, passes) = seconds.tolist()
    return (plain / steps) / (rounds / passes)


def mean_factor(factors: Sequence[TimeFactor]) -> float | None:
    """The factor of a draft: the geometric mean of those of its k's, weighted by how sure each is;
    None without any.
    """
    if not factors:
        return None
    weights = [1 / (USUAL_SCATTER**2 + factor.error**2) for factor in factors]
    logs = [math.log(factor.value) for factor in factors]
    return math.exp(float(np.average(logs, weights=weights)))


def gains_by_k(drafts: Sequence[Mapping[int, TimeFactor]]) -> dict[int, float]:
    """The factor on speed-ups by which rounds at a k are faster with every draft, by k, from the
    time factors of each draft's k's; none where fewer than two k's were decoded with enough drafts
    to tell.

    A random effect of the k in addition to the mean of each draft. Its variance is the mean product
    of the deviations of two drafts at one k; the mean over drafts is shrunk by the share of its
    variance that is the effect's (Henderson 1975). Fitted without each of the kept runs' 17 cells
    that it corrects, it predicts that cell to 1.9 % instead of 3.6 % (root mean square): at 4 rows,
    where a draft's three levels gained 6 % at k = 3, to 1.8 instead of 4.6 %, at 16 rows to 2.1
    instead of 1.6 %.
    """
    count = Counter(k for factors in drafts for k in factors)
    cells = [
        {k: math.log(f.value) for k, f in factors.items() if count[k] >= _DRAFTS_TO_COMPARE}
        for factors in drafts
    ]
    # A draft with a single such k does not show whether the k or the draft differs.
    cells = [logs for logs in cells if len(logs) > 1]
    effects = {k: 0.0 for logs in cells for k in logs}
    every: defaultdict[int, list[float]] = defaultdict(list)
    # Where drafts were decoded at different k's, the means of drafts and those of k's depend on
    # each other, so they are fitted in turn.
    for _ in range(_FITTINGS):
        every.clear()
        for logs in cells:
            mean = fmean(log - effects[k] for k, log in logs.items())
            for k, log in logs.items():
                every[k].append(log - mean)
        effects = {k: fmean(offs) for k, offs in every.items()}
    by_k = {k: offs for k, offs in every.items() if len(offs) >= _DRAFTS_TO_COMPARE}
    if len(by_k) < 2:
        return {}
    squares = fmean(off**2 for offs in by_k.values() for off in offs)
    shared = fmean(one * other for offs in by_k.values() for one, other in combinations(offs, 2))
    if shared <= 0:
        return {}
    alone = max(squares - shared, 0.0)
    return {
        k: math.exp(fmean(offs) * shared / (shared + alone / len(offs))) for k, offs in by_k.items()
    }


def seconds_of(measured: Measurement, passes: Passes, side: int) -> Floats:
    """Of the steady rounds of each run without (`side` 0) or with speculation (1): seconds as
    measured, seconds of their passes, and how many rounds [runs, 3]. Prefills count by the share of
    the response that is steady.
    """
    decoding = _decoding(measured, side, passes.costs, passes.batch)
    if not passes.prefills:
        return decoding
    runs = measured.runs if side else measured.baseline
    parts = [(t, row, part) for t, row in runs if (part := steady(row)) is not None]
    shares = [(part.output_tokens - 1) / max(row.output_tokens - 1, 1) for _, row, part in parts]
    read = [row.prefills for _, row, _ in parts]
    reading = [passes.prefills[t.key][side] for t, _, _ in parts]
    prefills = np.array([read, reading, [0.0] * len(parts)])
    seconds: Floats = decoding + (np.array(shares) * prefills).T
    return seconds


# Asked for with prefills and without, and of all rounds together.
@lru_cache(maxsize=256)
def _decoding(measured: Measurement, side: int, costs: BlockCosts, batch: int) -> Floats:
    runs = measured.runs if side else measured.baseline
    parts = [(t, part) for t, row in runs if (part := steady(row)) is not None]
    spent = [part.decode_seconds for _, part in parts]
    rounds = [len(part.verify_seconds) for _, part in parts]
    return np.stack([spent, pass_times(parts, costs, batch), rounds], axis=1)


@dataclass(frozen=True)
class Scatter:
    """How much the time factors of cells differ: the relative standard deviation of one cell's
    rounds, with Student's degrees of `freedom`, from so many `cells` and at most so many
    `processes` of a draft.
    """

    sd: float = USUAL_SCATTER
    freedom: float = USUAL_FREEDOM
    cells: int = 0
    processes: int = 0

    @property
    def usual(self) -> bool:
        """Whether the usual scatter weighs more in it than what these cells show."""
        return self.freedom < 2 * USUAL_FREEDOM and self.processes < FEW_PROCESSES

    def sd_in(self, processes: int) -> float:
        """Standard deviation of the logarithm of a speed-up that was timed in so many processes."""
        return self.sd * math.sqrt(2 / processes)

    def half_width(self, processes: int, more: int = 0) -> float:
        """Half of its 95 % interval; `more` processes than now would also make the standard
        deviation better known.
        """
        return student_quantile(0.975, self.freedom + more) * self.sd_in(processes)


def scatter_of(drafts: Iterable[Sequence[TimeFactor]]) -> Scatter:
    """The scatter that the time factors of each draft's k's show, the usual scatter counted in.

    The larger of the scatter between k's in one process and that between processes counts: a
    process may deviate more than a cell, and few processes must not hide behind many cells. Where
    each draft has only one cell, the drafts are compared, whatever else they differ by.
    """
    within = between = freedom_within = 0.0
    freedom_between = cells = most = 0
    alone: list[float] = []
    for factors in drafts:
        by_process: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        for factor in factors:
            weight = min(1.0, (_SURE / factor.error) ** 2) if factor.error else 1.0
            for process, value in factor.by_process.items():
                by_process[process].append((math.log(value), weight))
            alone.append(math.log(factor.alone))
        rows = list(by_process.values())
        cells, most = cells + sum(map(len, rows)), max(most, len(rows))
        within += sum(_squares(row) for row in rows)
        freedom_within += sum(max(sum(weight for _, weight in row) - 1, 0.0) for row in rows)
        if rows:
            # The mean over m rounds of a process varies as its baseline and one m-th of a round do.
            means = [(fmean(value for value, _ in row), 1.0) for row in rows]
            between += _squares(means) / (1 + 1 / len(factors))
            freedom_between += len(rows) - 1
    sides = [(within, freedom_within)]
    if freedom_between:
        sides.append((between, freedom_between))
    if not (freedom_within or freedom_between) and len(alone) > 1:
        # Their rounds and their baselines were both timed apart.
        sides = [(_squares([(value, 1.0) for value in alone]) / 2, len(alone) - 1)]
    prior = USUAL_FREEDOM * USUAL_SCATTER**2
    variance, freedom = max(
        ((prior + squares) / (USUAL_FREEDOM + shown), USUAL_FREEDOM + shown)
        for squares, shown in sides
    )
    return Scatter(max(math.sqrt(variance), LEAST_SCATTER / math.sqrt(2)), freedom, cells, most)


def _squares(values: Sequence[tuple[float, float]]) -> float:
    """The weighted sum of squares of (value, weight) about their mean."""
    middle = float(np.average([value for value, _ in values], weights=[w for _, w in values]))
    return sum(weight * (value - middle) ** 2 for value, weight in values)


@dataclass(frozen=True)
class TimeDoubt:
    """The errors of time of a speed-up, which resampled requests do not show.

    `errors` are those of predictions from passes alone, where they were checked: predicted over
    decoded time less 1. `drafts_differ` is the standard deviation by which the next draft may be
    off in addition; `scatter` is that of configurations that were decoded.
    """

    errors: tuple[float, ...] = ()
    drafts_differ: float = 0.0
    scatter: Scatter = field(default_factory=lambda: Scatter(sd=0.0))


def time_doubt(decoded: Mapping[tuple[Candidate, int], Sequence[TimeFactor]]) -> TimeDoubt:
    """The errors at one concurrency, from the time factors of each draft and load decoded there or
    at the loads around it.
    """
    errors = tuple(1 / each.alone - 1 for factors in decoded.values() for each in factors)
    drafts = len({candidate for candidate, _ in decoded})
    # One of n errors, drawn, varies by (n - 1) / n of what drafts differ by; the next draft is off
    # by 1 + 1 / n of it.
    besides = math.sqrt(2 / drafts) if drafts else 1.0
    return TimeDoubt(errors, DRAFTS_DIFFER * besides, scatter_of(decoded.values()))


def stretched(interval: Estimate, down: float, up: float) -> Estimate:
    """An interval of a speed-up widened by an independent error: the 95 % distances `down` and `up`
    of the logarithm are combined with its own in quadrature (MOVER, Zou & Donner 2008).
    """
    if interval.low <= 0:
        return interval
    value, low, high = (math.log(end) for end in (interval.value, interval.low, interval.high))
    return Estimate(
        interval.value,
        math.exp(value - math.hypot(max(value - low, 0.0), down)),
        math.exp(value + math.hypot(max(high - value, 0.0), up)),
    )
