"""Decoding runs → measured speed-ups, and whether the outputs were the target's own.

A cell's runs are compared with the baseline runs of the same block and batch on the same requests:
tokens per second over tokens per second, since outputs may differ in length. The first token comes
from the prefill and is not counted. Of a batch only its steady rounds count, those with every row
active: the last responses run alone and would be compared with an emptier machine.

Intervals cover the sampling of requests within the processes that ran. Rows of a batch share their
rounds, so that there they are approximate: requests that ran side by side are not independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from draftbench.acceptance.definitions import Figure, Sample, pooled, quotient
from draftbench.acceptance.rounds import Floats
from draftbench.planner.predict import Key
from draftbench.planner.recommendation import Audit
from draftbench.planner.steady import has_steady, steady
from draftbench.records import Candidate, Decode, Trajectory
from draftbench.run_folder.run import Run

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


def measurements(observed: Run, batch: int = 1) -> dict[tuple[Candidate, int], Measurement]:
    """Every candidate and k measured at one batch size that has baseline runs beside it."""
    trajectories = {(t.request, t.sample): t for t in observed.trajectories}
    groups: dict[tuple[str, int], dict[Key, list[Decode]]] = {}
    for row in observed.decodes:
        counted = row.batch == batch and (row.request, row.sample) in trajectories
        if counted and has_steady(row):
            group = groups.setdefault((row.block, row.k), {})
            group.setdefault((row.request, row.sample), []).append(row)
    rates = {
        cell: {key: _rate(runs) for key, runs in rows.items()} for cell, rows in groups.items()
    }
    cells = {}
    for (block, k), rows in groups.items():
        first = next(iter(rows.values()))[0]
        baseline = groups.get((block, 0), {})
        both = [key for key in rows if key in baseline]
        candidate = first.candidate
        if k == 0 or candidate is None or not both:
            continue
        own = [trajectories[key] for key in both]
        table = np.array([[rates[block, side][key] for side in (k, 0)] for key in both])
        cells[candidate, k] = Measurement(
            candidate=candidate,
            k=k,
            speedup=_speedup(SPEEDUP_MEASURED, own, table[..., :2]),
            runs=_beside(both, trajectories, rows),
            keys=frozenset(both),
            end_to_end=_speedup(END_TO_END_MEASURED, own, _with_prefills(table)),
            baseline=_beside(both, trajectories, baseline),
        )
    return cells


def audit(observed: Run) -> Audit | None:
    """Compare speculative outputs with the target's own; None where nothing can be compared.

    Logged responses need not be the target's own and are not compared.
    """
    own = {
        (t.request, t.sample)
        for t in observed.trajectories
        if t.origin == "target" and t.sampling.temperature == 0
    }
    worst: dict[Key, int] = {}
    for row in observed.decodes:
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
