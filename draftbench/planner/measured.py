"""Decoding runs → measured speed-ups, and the drift of plain decoding.

A candidate's runs at one k are compared with the baseline runs of the same block and concurrency on the
same requests: tokens per second over tokens per second, since outputs may differ in length. The
first token comes from the prefill and is not counted. Of several rows only their steady rounds count,
those with every row active: the last responses run alone and would be compared with an emptier
machine. A round's seconds are those of all its rows together.

Intervals cover the sampling of requests within the processes that ran. Rows side by side share their
rounds, so that there they are approximate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import compress
from statistics import fmean, median
from typing import NamedTuple

import msgspec
import numpy as np

from draftbench.acceptance.candidate_rounds import Along, counted_along
from draftbench.acceptance.definitions import Figure, Sample, pooled, quotient
from draftbench.acceptance.rounds import Floats
from draftbench.records import Candidate, Decode, Key, Trajectory
from draftbench.run_folder.run import Run

SPEEDUP = Figure(
    name="speed-up",
    symbol="S",
    formula="tokens per second with speculation / without",
)


def steady(row: Decode) -> Decode | None:
    """The run with its steady rounds alone, as if it were a shorter response; None without any.

    A run at concurrency 1 is all steady.
    """
    return row if row.concurrency == 1 else _steady_rounds(row)


@lru_cache(maxsize=4096)
def _steady_rounds(row: Decode) -> Decode | None:
    kept = [active == row.concurrency for active in row.active]
    if not any(kept):
        return None
    # A round emits what it accepted and one token of the target's, which the last round lacks
    # where the response ended inside its proposal.
    emitted = [accepted + 1 for accepted in row.accepted]
    emitted[-1] = row.output_tokens - 1 - sum(emitted[:-1])
    by_round = ("proposed", "accepted", "cut", "draft_seconds", "verify_seconds", "active")
    parts = {name: tuple(compress(getattr(row, name), kept)) for name in by_round}
    return msgspec.structs.replace(
        row,
        **parts,
        decode_seconds=sum(parts["draft_seconds"]) + sum(parts["verify_seconds"]),
        output_tokens=1 + sum(compress(emitted, kept)),
    )


class TimedRun(NamedTuple):
    """A decoding run along a response, whole and with its `steady` rounds alone."""

    response: Trajectory
    row: Decode
    steady: Decode

    @property
    def steady_share(self) -> float:
        """How much of the response its steady rounds wrote; as much of a prefill counts."""
        return (self.steady.output_tokens - 1) / max(self.row.output_tokens - 1, 1)


def timed_runs(run: Run, rows: Iterable[Decode]) -> list[TimedRun]:
    """Those of the decoding runs that have steady rounds."""
    return [
        TimedRun(run.responses[row.key], row, part)
        for row in rows
        if (part := steady(row)) is not None
    ]


@dataclass(frozen=True, eq=False)
class Measurement:
    """One candidate at one k as it was decoded, on the responses `keys`: its `runs` and those of
    the `baseline`.
    """

    speedup: Sample
    runs: tuple[TimedRun, ...]
    keys: frozenset[Key]
    end_to_end: Sample | None = None
    baseline: tuple[TimedRun, ...] = ()

    @cached_property
    def counted(self) -> Along:
        """The responses of the runs, and the rounds that were counted along them."""
        return counted_along([(each.response, each.row) for each in self.runs])


def measurements(run: Run, concurrency: int = 1) -> dict[tuple[Candidate, int], Measurement]:
    """Every candidate and k decoded at one concurrency on requests that have a baseline run too."""
    groups: dict[tuple[str, int], dict[Key, list[TimedRun]]] = {}
    rows = (
        row for row in run.decodes_by_concurrency.get(concurrency, ()) if row.key in run.responses
    )
    for each in timed_runs(run, rows):
        of_group = groups.setdefault((each.row.block, each.row.k), {})
        of_group.setdefault(each.row.key, []).append(each)
    sums = {
        group: {key: _sums(runs) for key, runs in by_key.items()}
        for group, by_key in groups.items()
    }
    measured = {}
    for (block, k), by_key in groups.items():
        baseline = groups.get((block, 0), {})
        both = [key for key in by_key if key in baseline]
        candidate = next(iter(by_key.values()))[0].row.candidate
        if k == 0 or candidate is None or not both:
            continue
        # [responses, with and without, tokens and seconds of decoding and of prefills]
        table = np.array([[sums[block, side][key] for side in (k, 0)] for key in both])
        with_prefills = np.stack([table[..., 0], table[..., 1] + table[..., 2]], axis=-1)
        responses = [run.responses[key] for key in both]
        speedup, end_to_end = (
            pooled(SPEEDUP, responses, rates.reshape(len(both), 4), ratio_of_rates)
            for rates in (table[..., :2], with_prefills)
        )
        speculative, plain = (
            tuple(each for key in both for each in runs[key]) for runs in (by_key, baseline)
        )
        measured[candidate, k] = Measurement(
            speedup, speculative, frozenset(both), end_to_end, plain
        )
    return measured


def _sums(runs: Sequence[TimedRun]) -> tuple[float, float, float]:
    """Tokens, decode seconds and prefill seconds: means over the steady parts of the runs of one
    response.
    """
    return (
        fmean(each.steady.output_tokens - 1 for each in runs),
        fmean(each.steady.decode_seconds for each in runs),
        fmean(each.row.prefills * each.steady_share for each in runs),
    )


def ratio_of_rates(sums: Floats) -> Floats:
    """The speed-up from sums [..., 4] of tokens, seconds, baseline tokens, baseline seconds."""
    rates = quotient(sums[..., :2]), quotient(sums[..., 2:])
    return quotient(np.stack(rates, axis=-1))


class Drift(NamedTuple):
    """How the baseline's seconds per token changed from its first run to its last.

    `change` is relative (0.1: 10 % slower at the end), `doubt` half of its 95 % interval by the
    scatter of all runs about the trend; a change below it says nothing.
    """

    change: float
    doubt: float


def baseline_drift(decodes: Sequence[Decode], *, by_start: bool = False) -> Drift | None:
    """The trend of plain decoding: the median slope between any two baseline runs of one request
    (Theil 1950, Sen 1968), in log seconds per token over the order of the runs, or with `by_start`
    over the order of the servers' starts. None where no request has two baseline runs.

    Every candidate has baseline runs of the same requests, minutes apart, which differ by the
    machine alone. Ratios within a candidate's block cancel most of a trend; costs and comparisons
    across blocks do not.
    """
    # Observations are appended, after a resume too, so their order is that of time. A pause has no
    # length in it: the change is that from the first run to the last, whenever it came about.
    parts = [part for row in decodes if row.k == 0 and (part := steady(row)) is not None]
    order = [part for part in parts if part.output_tokens > 1 and part.decode_seconds > 0]
    starts = list(dict.fromkeys(row.process for row in order))
    places = [starts.index(row.process) for row in order] if by_start else list(range(len(order)))
    runs: defaultdict[tuple[Key, int], list[tuple[int, float]]] = defaultdict(list)
    for at, row in zip(places, order, strict=True):
        pace = math.log(row.decode_seconds / (row.output_tokens - 1))
        runs[row.key, row.concurrency].append((at, pace))
    slopes = [
        (later - earlier) / (j - i)
        for points in runs.values()
        for n, (i, earlier) in enumerate(points)
        for j, later in points[n + 1 :]
        if j > i
    ]
    if not slopes:
        return None
    slope = median(slopes)
    repeated = [points for points in runs.values() if len(points) > 1]
    residuals, squares = [], 0.0
    for points in repeated:
        offsets = [pace - slope * at for at, pace in points]
        middle = median(offsets)
        residuals += [abs(offset - middle) for offset in offsets]
        center = fmean(at for at, _ in points)
        squares += sum((at - center) ** 2 for at, _ in points)
    # The standard error of a least-squares slope with an offset for each request. The deviation of
    # the residuals is that by their median (1.4826: of a normal law), widened for the offsets.
    widening = len(residuals) / (len(residuals) - len(repeated))
    error = 1.4826 * median(residuals) * math.sqrt(widening / squares)
    last = max(places)
    return Drift(math.expm1(slope * last), math.expm1(2 * error * last))
