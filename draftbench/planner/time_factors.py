"""Seconds of decoding over those of its passes → the factor that predictions are multiplied by, and
its error.

In the decoder, rounds and target steps take longer or shorter than their passes did when these were
timed alone. What a round takes beyond its passes is estimated first (`measured.Overheads`). The
time factor of a configuration is what remains:

    (seconds of plain decoding / seconds of its passes) / (seconds of rounds / seconds expected)

where expected are the passes and overheads of the very rounds that were decoded, so that the luck
of their acceptance is not in it.

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
from draftbench.planner.measured import Measurement, pass_times
from draftbench.planner.recommendation import FEW_DECODED
from draftbench.records import Candidate, Key

# Cells of the kept runs at one row scatter by 1.2 % (median). For other machines that counts as
# much as four degrees of freedom of their own; two cells that happen to agree prove nothing.
USUAL_SCATTER, USUAL_FREEDOM = 0.012, 4
# The scatter of a speed-up is never taken to be less.
LEAST_SCATTER = 0.01
# Fewer processes than these do not show how much they differ.
FEW_PROCESSES = 3
# A cell whose requests tell its factor less well than this counts less.
_SURE = 2 * USUAL_SCATTER
# A k is compared over drafts where so many were decoded at it.
_DRAFTS_TO_COMPARE = 3
# How often the means of drafts and of k's are fitted in turn.
_FITTINGS = 50
# By how much drafts differ in the error of predictions from passes alone (sd of the logarithm):
# over the kept runs, at 1 to 16 rows, 5 % (root mean square) and at most 14 %.
DRAFTS_DIFFER = 0.06


@dataclass(frozen=True)
class TimeFactor:
    """The time factor over all runs of a configuration, and by process where it decoded enough
    requests. `error` is the standard error of its logarithm over its `requests`; `passes_only` is
    the factor if rounds were expected to take nothing beyond their passes.
    """

    value: float
    by_process: Mapping[str, float]
    error: float = 0.0
    requests: int = 0
    passes_only: float = 1.0

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of its logarithm over requests."""
        return student_quantile(0.975, self.requests - 1) * self.error if self.requests > 1 else 0.0


@dataclass(frozen=True)
class Passes:
    """How long decoding `batch` rows should take: by the `costs` of passes, and by the seconds that
    a round takes `beyond` its passes.

    `prefills` are the timed seconds of prefill without and with speculation, by response; empty to
    count decoding alone.
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
        for each, sums in zip(runs, seconds_of(measured, passes, side), strict=True):
            table[each.row.process, each.row.request][side] += sums
    passes_only = sum(table.values(), np.zeros((2, 3)))[:, :2]
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
    # The standard error of the logarithm over requests, by the influence of each.
    shares = np.array(list(requests.values())) / total
    influence = (shares * [[1, -1], [-1, 1]]).sum(axis=(1, 2))
    count = len(influence)
    error = math.sqrt(count / (count - 1) * float(influence @ influence)) if count > 1 else 0.0
    value = _factor(total)
    return TimeFactor(value, by_process or {"": value}, error, count, _factor(passes_only))


def _factor(seconds: Floats) -> float:
    """The time factor from seconds [2, 2]: without and with speculation, measured and expected."""
    (plain, steps), (rounds, passes) = seconds.tolist()
    return (plain / steps) / (rounds / passes)


def mean_factor(factors: Sequence[TimeFactor]) -> float | None:
    """The geometric mean of the factors of a draft's k's, weighted by how sure each is."""
    if not factors:
        return None
    weights = [1 / (USUAL_SCATTER**2 + factor.error**2) for factor in factors]
    logs = [math.log(factor.value) for factor in factors]
    return math.exp(float(np.average(logs, weights=weights)))


def gains_by_k(drafts: Sequence[Mapping[int, TimeFactor]]) -> dict[int, float]:
    """By k, how much faster rounds are at this k than at others, whatever the draft: a factor on
    speed-ups, from the time factors of each draft's k's. Empty where fewer than two k's were
    decoded with enough drafts to tell.

    A model with a mean for each draft and a random effect for each k. The variance of the effects
    is the mean product of the deviations of two drafts at one k; the mean over drafts is shrunk by
    the share of its variance that is the effect's (Henderson 1975). Fitted without each of the
    kept runs' 17 cells that it corrects, it predicts that cell to 1.9 % instead of 3.6 % (root mean
    square): at 4 rows, where a draft's three levels gained 6 % at k = 3, to 1.8 instead of 4.6 %,
    at 16 rows to 2.1 instead of 1.6 %.
    """
    count = Counter(k for factors in drafts for k in factors)
    logs_of_drafts = [
        {k: math.log(f.value) for k, f in factors.items() if count[k] >= _DRAFTS_TO_COMPARE}
        for factors in drafts
    ]
    # A draft with a single such k does not show whether the k or the draft differs.
    logs_of_drafts = [logs for logs in logs_of_drafts if len(logs) > 1]
    effects = {k: 0.0 for logs in logs_of_drafts for k in logs}
    deviations: defaultdict[int, list[float]] = defaultdict(list)
    # Where drafts were decoded at different k's, the means of drafts and those of k's depend on
    # each other, so they are fitted in turn.
    for _ in range(_FITTINGS):
        deviations.clear()
        for logs in logs_of_drafts:
            mean = fmean(log - effects[k] for k, log in logs.items())
            for k, log in logs.items():
                deviations[k].append(log - mean)
        effects = {k: fmean(of_k) for k, of_k in deviations.items()}
    by_k = {k: of_k for k, of_k in deviations.items() if len(of_k) >= _DRAFTS_TO_COMPARE}
    if len(by_k) < 2:
        return {}
    variance = fmean(value**2 for of_k in by_k.values() for value in of_k)
    of_effect = fmean(one * other for of_k in by_k.values() for one, other in combinations(of_k, 2))
    if of_effect <= 0:
        return {}
    of_drafts = max(variance - of_effect, 0.0)
    return {
        k: math.exp(fmean(of_k) * of_effect / (of_effect + of_drafts / len(of_k)))
        for k, of_k in by_k.items()
    }


def seconds_of(measured: Measurement, passes: Passes, side: int) -> Floats:
    """Of each run without (`side` 0) or with speculation (1), its steady rounds alone: measured
    seconds, seconds of their passes, and how many rounds [runs, 3]; with prefills, as far as these
    count.
    """
    decoding = _decoding(measured, side, passes.costs, passes.batch)
    if not passes.prefills:
        return decoding
    runs = measured.runs if side else measured.baseline
    prefills = [(each.row.prefills, passes.prefills[each.row.key][side], 0.0) for each in runs]
    shares = np.array([each.steady_share for each in runs])
    seconds: Floats = decoding + shares[:, None] * np.array(prefills)
    return seconds


# Asked for with prefills and without, and of all rounds together.
@lru_cache(maxsize=256)
def _decoding(measured: Measurement, side: int, costs: BlockCosts, batch: int) -> Floats:
    runs = measured.runs if side else measured.baseline
    spent = [each.steady.decode_seconds for each in runs]
    rounds = [len(each.steady.verify_seconds) for each in runs]
    return np.stack([spent, pass_times(runs, costs, batch), rounds], axis=1)


@dataclass(frozen=True)
class Scatter:
    """How much the time factors of cells differ: the standard deviation of the logarithm of one
    cell's seconds and its degrees of `freedom`, from so many `cells` and at most so many
    `processes` of a draft.
    """

    sd: float = USUAL_SCATTER
    freedom: float = USUAL_FREEDOM
    cells: int = 0
    processes: int = 0

    @property
    def usual(self) -> bool:
        """Whether the scatter that is usual weighs more in it than what these cells show."""
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
    """The scatter that the time factors of each draft's k's show, combined with the usual scatter.

    The larger of the scatter between k's in one process and that between processes counts: a
    process may deviate more than a cell, and few processes must not hide behind many cells. Where
    each draft has only one cell, the drafts are compared, whatever else they differ by.
    """
    drafts = list(drafts)
    # Of each draft, by process: the logarithm of each k's factor, and its weight.
    cells = [_by_process(factors) for factors in drafts]
    within = [_about_mean(process) for processes in cells for process in processes]
    # The mean over m rounds of a process varies as its baseline and one m-th of a round do.
    between = [
        _about_mean([(fmean(log for log, _ in p), 1.0) for p in processes], 1 + 1 / len(factors))
        for factors, processes in zip(drafts, cells, strict=True)
        if processes
    ]
    sides = [within, between] if any(freedom for _, freedom in between) else [within]
    alone = [(math.log(f.passes_only), 1.0) for factors in drafts for f in factors]
    if len(alone) > 1 and not any(freedom for side in sides for _, freedom in side):
        # Each varies as two cells do, its rounds and its baseline.
        sides = [[_about_mean(alone, 2)]]
    prior = USUAL_FREEDOM * USUAL_SCATTER**2
    variance, freedom = max(
        ((prior + squares) / (USUAL_FREEDOM + shown), USUAL_FREEDOM + shown)
        for squares, shown in (map(sum, zip((0.0, 0.0), *side, strict=True)) for side in sides)
    )
    sd = max(math.sqrt(variance), LEAST_SCATTER / math.sqrt(2))
    return Scatter(
        sd,
        freedom,
        cells=sum(len(process) for processes in cells for process in processes),
        processes=max(map(len, cells), default=0),
    )


def _by_process(factors: Sequence[TimeFactor]) -> list[list[tuple[float, float]]]:
    """The cells of a draft in each process, one for each k: (logarithm, weight)."""
    by_process: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    for factor in factors:
        weight = min(1.0, (_SURE / factor.error) ** 2) if factor.error else 1.0
        for process, value in factor.by_process.items():
            by_process[process].append((math.log(value), weight))
    return list(by_process.values())


def _about_mean(values: Sequence[tuple[float, float]], cells: float = 1.0) -> tuple[float, float]:
    """The weighted sum of squares of (value, weight) about their mean, where a value varies as so
    many `cells` do, and its degrees of freedom.
    """
    weights = [weight for _, weight in values]
    middle = float(np.average([value for value, _ in values], weights=weights))
    squares = sum(weight * (value - middle) ** 2 for value, weight in values)
    return squares / cells, max(sum(weights) - 1, 0.0)


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
    errors = tuple(1 / f.passes_only - 1 for factors in decoded.values() for f in factors)
    drafts = len({candidate for candidate, _ in decoded})
    # Of the variance by which drafts differ, 1 + 1 / n is between the next draft and the mean of n;
    # one of their n errors, drawn, has (n - 1) / n of it already, which leaves 2 / n.
    left = math.sqrt(2 / drafts) if drafts else 1.0
    return TimeDoubt(errors, DRAFTS_DIFFER * left, scatter_of(decoded.values()))


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
