"""Decoding runs → how long users wait: distributions with and without speculation.

Besides the time to the first token, two quantities are shown: a request's time per output token,
and the gap between the chunks of a stream. Each round delivers one chunk, so the gap is the seconds
of a round, or on a serving engine the time between two deliveries. Gaps between tokens are not
shown: with several tokens per round most are 0. A percentile is given if the sample supports it
(p99 needs 100 values); otherwise the largest value takes its place, and is named as such.

The built-in decoder has no queue, no network and no prompts of other requests between two rounds.
A serving engine has all of these, so only its answers are checked against limits (`slo_kept`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import sqrt
from statistics import NormalDist, fmean

import numpy as np
import numpy.typing as npt

from draftbench.acceptance.intervals import Estimate, quantiles
from draftbench.planner.cells import TimedRun
from draftbench.planner.decide import TIMING_NOISE
from draftbench.planner.evidence import Evidence
from draftbench.planner.recommendation import (
    Configuration,
    Distribution,
    Latency,
    Side,
    Slo,
    SloKept,
)
from draftbench.records import Served
from draftbench.run_folder.run import Run
from draftbench.run_folder.served import chunk_gaps


def latency(evidence: Evidence, run: Run) -> Latency | None:
    """The measured waits of a configuration; None if it was not decoded."""
    measured, shown = evidence.measured, evidence.configuration
    if measured is None:
        return None
    sides, served = [], _answers(run, shown, shown.concurrency)
    for runs, answers in zip((measured.baseline, measured.runs), served, strict=True):
        paces = _paces(runs)
        if not paces:
            return None
        streams = [
            chunk_gaps(row) for row in answers if row.error is None and row.key in measured.keys
        ]
        # Every row of a batch records the rounds that all rows share: count one copy of each.
        parts = (zip(r.steady.draft_seconds, r.steady.verify_seconds, strict=True) for r in runs)
        gaps = sorted((d + v for part in parts for d, v in part), reverse=True)
        gaps = gaps[:: runs[0].row.concurrency]
        if streams:
            gaps = [] if None in streams else [gap for each in streams for gap in each or ()]
        sides.append(
            Side(
                time_per_output_token=_distribution(paces),
                chunk_gap=_distribution(gaps) if gaps else None,
                time_to_first_token=_distribution([each.row.prefills for each in runs]),
            )
        )
    plain, speculative = sides
    ratio, compared = _tail(plain.time_per_output_token, speculative.time_per_output_token)
    return Latency(
        draft=shown.draft,
        quant=shown.quant,
        k=shown.k,
        concurrency=shown.concurrency,
        stop=shown.stop,
        plain=plain,
        speculative=speculative,
        p99_ratio=ratio,
        p99_ratio_of=compared,
    )


def tail_ratio(evidence: Evidence, expected: float | None) -> tuple[float, str] | None:
    """The p99 of a request's time per output token, with speculation over without, as measured or
    else as expected, and what was compared; None where unknown. The expected ratio is taken over
    the requests on which the draft was decoded at any load, so that the answers at different loads
    cover the same requests; over all if it was not decoded.
    """
    measured = evidence.measured
    if measured is not None:
        plain, speculative = map(_paces, (measured.baseline, measured.runs))
        if plain and speculative:
            ratio, compared = _tail(_distribution(plain), _distribution(speculative))
            return ratio, f"{compared}, measured"
    seconds = evidence.seconds_by_response
    if seconds is None or expected is None:
        return None
    of, decoded = evidence.rounds, evidence.decoded
    tokens = of.at(*evidence.configuration.length).tokens
    counted = (tokens > 0) & [not decoded or each.key in decoded for each in of.trajectories]
    if not counted.any():
        return None
    paces = (each[counted] / tokens[counted] for each in seconds)
    ratio, compared = _tail(*map(_distribution, paces))
    without, rounds = (float(of.weights @ each) for each in seconds)
    return ratio * (without / rounds / expected), f"{compared}, predicted"


def _answers(run: Run, leader: Configuration | None, concurrency: int) -> tuple[list[Served], ...]:
    """A serving engine's answers at a load, without speculation and with the leader; if no speed-up
    is known, with the only draft that answered.
    """
    here = run.answers_at(concurrency)
    drafted = {(row.candidate, row.length) for row in here if row.candidate is not None}
    shown = (leader.candidate, leader.length) if leader else None
    if leader is None and len(drafted) == 1:
        shown = drafted.pop()
    return (
        [row for row in here if row.candidate is None],
        [row for row in here if (row.candidate, row.length) == shown],
    )


def _paces(runs: Sequence[TimedRun]) -> list[float]:
    """Seconds per output token in each run's steady rounds."""
    parts = [each.steady for each in runs]
    return [p.decode_seconds / (p.output_tokens - 1) for p in parts if p.output_tokens > 1]


def _distribution(values: npt.ArrayLike) -> Distribution:
    sample = np.asarray(values, dtype=np.float64)
    p50, p90, p99 = (
        quantiles(sample, [q / 100])[0] if len(sample) * (100 - q) >= 100 else None
        for q in (50, 90, 99)
    )
    return Distribution(values=len(sample), p50=p50, p90=p90, p99=p99, largest=float(sample.max()))


def _tail(plain: Distribution, speculative: Distribution) -> tuple[float, str]:
    """The ratio of the p99s, or of the largest values if there are too few; and which it is."""
    if plain.p99 is not None and speculative.p99 is not None:
        return speculative.p99 / plain.p99, "p99"
    values = min(plain.values, speculative.values)
    return speculative.largest / plain.largest, f"the largest of {values}"


def longer_tail(plain: Distribution, speculative: Distribution) -> tuple[str, float, float] | None:
    """The p99, or the largest value if there are too few, without and with speculation; None unless
    it is longer with it by more than timing noise.
    """
    end, was, now = "largest value", plain.largest, speculative.largest
    if plain.p99 and speculative.p99:
        end, was, now = "p99", plain.p99, speculative.p99
    return (end, was, now) if now > was * (1 + TIMING_NOISE) else None


def slo_kept(
    run: Run, leader: Configuration | None, concurrency: int, slo: Slo | None
) -> SloKept | None:
    """The share of an engine's requests that kept the limits, without speculation and with the
    leader; None if no engine answered or no limits are given.
    """
    plain, speculative = _answers(run, leader, concurrency)
    if slo is None or not (plain or speculative):
        return None
    return SloKept(slo=slo, plain=_share(plain, slo), speculative=_share(speculative, slo))


def _share(rows: Iterable[Served], slo: Slo) -> Estimate | None:
    """The mean over requests of the share of a request's answers that kept the limits, with
    Wilson's interval (1927), which keeps a width if all or none did. A request counts once however
    often it was asked: asking again says nothing about other requests.
    """
    answers: defaultdict[str, list[bool]] = defaultdict(list)
    for row in rows:
        answers[row.request].append(keeps(row, slo))
    if not answers:
        return None
    n, z = len(answers), NormalDist().inv_cdf(0.975)
    share = fmean(fmean(kept) for kept in answers.values())
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z * sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    return Estimate(share, max(0.0, middle - half), min(1.0, middle + half))


def keeps(row: Served, slo: Slo) -> bool:
    """Whether one answer was complete and within the limits."""
    if row.error is not None or not row.arrivals:
        return False
    first, last = row.arrivals[0], row.arrivals[-1]
    later = row.output_tokens - row.chunks[0]
    taken = {"ttft": first, "tpot": (last - first) / later if later else 0.0, "e2e": last}
    limits = {name: getattr(slo, name) for name in taken}
    return all(taken[name] <= limit for name, limit in limits.items() if limit is not None)
