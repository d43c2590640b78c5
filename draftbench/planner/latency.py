"""Decoding runs → how long users wait: distributions with and without speculation.

Two quantities are shown: a request's time per output token, and the gap between the chunks of a
stream (each round delivers one chunk, so the gap is the round's seconds). Gaps between tokens are
not, since with several tokens a round most of them are 0. A percentile is given where the sample
supports it (p99 needs 100 values); below, the largest value stands in, and is called so.

Does not know queueing, the network, nor what other requests' prompts take between two rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from draftbench.planner.measured import steady
from draftbench.planner.rank import Alternative
from draftbench.planner.recommendation import Distribution, Latency, Side
from draftbench.records import Decode


def latency(alternative: Alternative) -> Latency | None:
    """The measured waits of an alternative; None where it was not decoded."""
    if alternative.measured is None:
        return None
    plain = _side([row for _, row in alternative.measured.baseline])
    speculative = _side([row for _, row in alternative.measured.runs])
    if plain is None or speculative is None:
        return None
    ratio, of = _tail(plain.time_per_output_token, speculative.time_per_output_token)
    return Latency(
        draft=alternative.candidate.draft,
        quant=alternative.candidate.quant,
        k=alternative.k,
        concurrency=alternative.predictor.batch,
        plain=plain,
        speculative=speculative,
        p99_ratio=ratio,
        p99_ratio_of=of,
    )


def tail_ratio(alternative: Alternative) -> tuple[float, str] | None:
    """The p99 of a request's time per output token with speculation over without, and what it is
    of: as measured, else as predicted for all requests; None where neither is known.
    """
    found = latency(alternative)
    if found is not None:
        return found.p99_ratio, f"{found.p99_ratio_of}, measured"
    decoding, tokens = alternative.prediction.decoding, alternative.prediction.rounds.tokens
    if decoding is None or not tokens.any():
        return None
    paces = decoding[tokens > 0] / tokens[tokens > 0][:, None]
    plain, speculative = (_distribution("", column) for column in paces.T)
    ratio, of = _tail(plain, speculative)
    return ratio, f"{of}, predicted"


def _side(rows: Sequence[Decode]) -> Side | None:
    parts = [part for row in rows if (part := steady(row)) is not None]
    paces = [p.decode_seconds / (p.output_tokens - 1) for p in parts if p.output_tokens > 1]
    if not paces:
        return None
    rounds = [
        draft + verify
        for part in parts
        for draft, verify in zip(part.draft_seconds, part.verify_seconds, strict=True)
    ]
    # Every row of a batch records the rounds that all rows share: one copy of each counts.
    gaps = sorted(rounds, reverse=True)[:: rows[0].batch]
    first = [row.prefill_seconds + (row.draft_prefill_seconds or 0.0) for row in rows]
    return Side(
        time_per_output_token=_distribution("request: time per output token", paces),
        chunk_gap=_distribution("stream: gap between chunks", gaps),
        time_to_first_token=_distribution("request: time to first token", first),
    )


def _distribution(of: str, values: npt.ArrayLike) -> Distribution:
    sample = np.asarray(values, dtype=np.float64)
    p50, p90, p99 = (
        float(np.percentile(sample, q)) if len(sample) * (100 - q) >= 100 else None
        for q in (50, 90, 99)
    )
    return Distribution(
        of=of, values=len(sample), p50=p50, p90=p90, p99=p99, largest=float(sample.max())
    )


def _tail(plain: Distribution, speculative: Distribution) -> tuple[float, str]:
    if plain.p99 is not None and speculative.p99 is not None:
        return speculative.p99 / plain.p99, "p99"
    values = min(plain.values, speculative.values)
    return speculative.largest / plain.largest, f"the largest of {values}"
