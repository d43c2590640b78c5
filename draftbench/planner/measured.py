"""Decoding runs → measured speed-ups, what rounds take beyond their passes, and whether the outputs
were the target's.

A candidate's runs at one k are compared with the baseline runs of the same block and batch on the
same requests: tokens per second over tokens per second, since outputs may differ in length. The
first token comes from the prefill and is not counted. Of a batch only its steady rounds count,
those with every row active: the last responses run alone and would be compared with an emptier
machine. A round's seconds are those of all its rows together.

Intervals cover the sampling of requests within the processes that ran. Rows of a batch share their
rounds, so that there they are approximate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from draftbench.acceptance.definitions import Figure, Sample, pooled, quotient
from draftbench.acceptance.rounds import Floats
from draftbench.planner.recommendation import Audit
from draftbench.records import Candidate, Decode, Trajectory
from draftbench.run_folder.run import Run

# A response: request and sample.
Key = tuple[str, int]
# Runs at one k of one batch size → seconds that their rounds' passes should take together.
Passes = Callable[[Sequence[Decode]], float]


def has_steady(row: Decode) -> bool:
    """Whether every row of the batch was active in some round."""
    return row.batch == 1 or row.batch in row.active


@lru_cache(maxsize=4096)
def steady(row: Decode) -> Decode | None:
    """The run with its steady rounds alone, as if it were a shorter response; None without any.

    A run of a batch of one is all steady.
    """
    if not has_steady(row):
        return None
    if row.batch == 1:
        return row
    kept = [at for at, active in enumerate(row.active) if active == row.batch]
    emitted = _emitted(row)

    def at_kept(values: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(values[at] for at in kept)

    drafting, verifying = at_kept(row.draft_seconds), at_kept(row.verify_seconds)
    return msgspec.structs.replace(
        row,
        proposed=at_kept(row.proposed),
        accepted=at_kept(row.accepted),
        cut=at_kept(row.cut),
        draft_seconds=drafting,
        verify_seconds=verifying,
        active=at_kept(row.active),
        decode_seconds=sum(drafting) + sum(verifying),
        output_tokens=1 + sum(emitted[at] for at in kept),
    )


def overhead(rows: Sequence[Decode], k: int, passes: Passes) -> float | None:
    """Seconds of a round beyond its passes at `k`, from the other k's of its block at the same
    batch size; None where nothing ran.

    The baseline (k = 0) has only its own runs to learn from; where nothing but the baseline ran, it
    stands for every k.

    Args:
        rows: with their steady rounds alone.
        passes: what the draft steps and target passes should have taken by the timed points; what
            the runs took longer is overhead, wherever in the round it was spent.
    """
    baseline = [row for row in rows if row.k == 0]
    others = [row for row in rows if row.k not in (0, k)]
    used = baseline if k == 0 else others or baseline
    rounds = sum(len(row.verify_seconds) for row in used)
    by_k = [[row for row in used if row.k == other] for other in sorted({r.k for r in used})]
    spent = sum(sum(row.decode_seconds for row in group) - passes(group) for group in by_k)
    return spent / rounds if rounds else None


def _emitted(row: Decode) -> list[int]:
    """Tokens that each round emitted: those it accepted and one of the target's, which the last
    round lacks where the response ended inside its proposal.
    """
    emitted = [accepted + 1 for accepted in row.accepted]
    emitted[-1] = row.output_tokens - 1 - sum(emitted[:-1])
    return emitted


SPEEDUP_MEASURED = Figure(
    name="decode speed-up, measured",
    symbol="S",
    formula="tokens per second with speculation / without, after the first token",
)
END_TO_END_MEASURED = Figure(
    name="end-to-end speed-up, measured",
    symbol="S",
    formula="a request's seconds per token without speculation / with it, prefills included",
)


@dataclass(frozen=True, eq=False)
class Measurement:
    """One candidate at one k as it ran; `runs` and those of its `baseline` with the response that
    each belongs to.
    """

    candidate: Candidate
    k: int
    speedup: Sample
    runs: tuple[tuple[Trajectory, Decode], ...]
    keys: frozenset[Key]
    end_to_end: Sample | None = None
    baseline: tuple[tuple[Trajectory, Decode], ...] = ()


def measurements(run: Run, batch: int = 1) -> dict[tuple[Candidate, int], Measurement]:
    """Every candidate and k measured at one batch size that has baseline runs beside it."""
    trajectories = {(t.request, t.sample): t for t in run.trajectories}
    groups: dict[tuple[str, int], dict[Key, list[Decode]]] = {}
    for row in run.decodes:
        counted = row.batch == batch and (row.request, row.sample) in trajectories
        if counted and has_steady(row):
            group = groups.setdefault((row.block, row.k), {})
            group.setdefault((row.request, row.sample), []).append(row)
    rates = {
        alternative: {key: _rate(runs) for key, runs in rows.items()}
        for alternative, rows in groups.items()
    }
    alternatives = {}
    for (block, k), rows in groups.items():
        first = next(iter(rows.values()))[0]
        baseline = groups.get((block, 0), {})
        both = [key for key in rows if key in baseline]
        candidate = first.candidate
        if k == 0 or candidate is None or not both:
            continue
        own = [trajectories[key] for key in both]
        table = np.array([[rates[block, side][key] for side in (k, 0)] for key in both])
        alternatives[candidate, k] = Measurement(
            candidate=candidate,
            k=k,
            speedup=_speedup(SPEEDUP_MEASURED, own, table[..., :2]),
            runs=_beside(both, trajectories, rows),
            keys=frozenset(both),
            end_to_end=_speedup(END_TO_END_MEASURED, own, _with_prefills(table)),
            baseline=_beside(both, trajectories, baseline),
        )
    return alternatives


def audit(run: Run) -> Audit | None:
    """Compare speculative outputs with the target's own; None where nothing can be compared.

    Logged responses need not be the target's own and are not compared.
    """
    own = {
        (t.request, t.sample)
        for t in run.trajectories
        if t.origin == "target" and t.sampling.temperature == 0
    }
    worst: dict[Key, int] = {}
    for row in run.decodes:
        key = (row.request, row.sample)
        if row.k > 0 and key in own:
            found = 0 if row.first_difference is None else 1 if row.tie else 2
            worst[key] = max(found, worst.get(key, 0))
    kinds = list(worst.values())
    if not kinds:
        return None
    return Audit(
        requests=len(kinds),
        identical=kinds.count(0),
        near_ties=kinds.count(1),
        faults=kinds.count(2),
    )


def _beside(
    keys: Sequence[Key],
    trajectories: Mapping[Key, Trajectory],
    runs: Mapping[Key, Sequence[Decode]],
) -> tuple[tuple[Trajectory, Decode], ...]:
    return tuple((trajectories[key], run) for key in keys for run in runs[key])


def _rate(rows: Sequence[Decode]) -> tuple[float, float, float]:
    """Tokens, decode seconds and prefill seconds: means over the runs of one request, each a
    response's steady part; the prefill counts by the share of the response that is steady.
    """
    parts = [(row, part) for row in rows if (part := steady(row)) is not None]
    sums = (
        sum(part.output_tokens - 1 for _, part in parts),
        sum(part.decode_seconds for _, part in parts),
        sum(
            (row.prefill_seconds + (row.draft_prefill_seconds or 0.0))
            * (part.output_tokens - 1)
            / max(row.output_tokens - 1, 1)
            for row, part in parts
        ),
    )
    tokens, seconds, prefills = (total / len(parts) for total in sums)
    return tokens, seconds, prefills


def _with_prefills(rates: Floats) -> Floats:
    """Tokens and all seconds [..., 2] of tokens, decode and prefill seconds [..., 3]."""
    return np.stack([rates[..., 0], rates[..., 1] + rates[..., 2]], axis=-1)


def _speedup(figure: Figure, trajectories: Sequence[Trajectory], rates: Floats) -> Sample:
    """Ratio of tokens per second, each a ratio of sums, from [requests, with and without, 2]."""
    return pooled(figure, trajectories, rates.reshape(len(rates), 4), ratio_of_rates)


def ratio_of_rates(sums: Floats) -> Floats:
    """The speed-up from sums [..., 4] of tokens, seconds, baseline tokens, baseline seconds."""
    rates = quotient(sums[..., :2]), quotient(sums[..., 2:])
    return quotient(np.stack(rates, axis=-1))
