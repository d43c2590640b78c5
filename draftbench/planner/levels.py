"""Standings → the answer at each concurrency, the schedule batch → k, and the crossover."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile, pairwise

import numpy as np

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.planner.choice import Cell
from draftbench.planner.passes_alone import prediction_error
from draftbench.planner.recommendation import Configuration, LoadLevel, ScheduleEntry
from draftbench.planner.standing import Field, Standing
from draftbench.records import Candidate

_SECONDS_AN_HOUR = 3600


def level_of(field: Field, concurrency: int) -> LoadLevel:
    """One concurrency's answer."""
    standing = field.at(concurrency)
    leader, price_per_hour = standing.leader, field.options.price_per_hour
    rates = _rates(leader)
    dollars = [_per_dollar(rate, price_per_hour) for rate in rates]
    times = _times(leader)
    known = any(cell.entrant.costs is not None for cell in standing.cells)
    return LoadLevel(
        concurrency=standing.concurrency,
        decision=standing.decision if known else None,
        k=_k(standing),
        choice=pick(standing.choice),
        leader=pick(leader),
        runner_up=pick(standing.contest.runner_up(leader) if leader else None),
        speedup_predicted=_estimate(leader.predicted if leader else None),
        speedup_measured=_estimate(leader.speedup("measured") if leader else None),
        speedup_expected=_estimate(leader.judged if leader else None),
        prediction_error=prediction_error(leader) if leader else None,
        tokens_per_second_plain=rates[0],
        tokens_per_second=rates[1],
        seconds_per_token_plain=times[0],
        seconds_per_token=times[1],
        tokens_per_dollar_plain=dollars[0],
        tokens_per_dollar=dollars[1],
        costs=_note(standing, foreign=field.foreign),
        speedup_deciding=standing.judged,
    )


def best_level(levels: Sequence[LoadLevel]) -> LoadLevel | None:
    """The level with the most tokens per second of the machine, by its own answer; at one price
    that is the one with the most tokens per dollar. None where no rate is known.
    """
    known = [(rate, level) for level in levels if (rate := _answered_rate(level)) is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else None


def schedule(field: Field, candidate: Candidate, asked: Sequence[int]) -> tuple[ScheduleEntry, ...]:
    """The best k of one draft at every concurrency that was timed or asked for."""
    timed = field.timed(candidate)
    return tuple(
        ScheduleEntry(concurrency=c, k=_k(field.at(c, candidate)), timed=c in timed)
        for c in sorted({*timed, *asked})
    )


def crossover(field: Field, candidate: Candidate) -> int | None:
    """The largest concurrency at which one draft clearly pays, its speed-up above the asked one
    with its interval.

    Timed batch sizes first; between the last that pays and the next, those that are interpolated,
    taken to pay less the more rows there are. A smaller one that is not clear (noise, few requests)
    does not hide a larger one that is. 0: it clearly pays at none; None: at the largest too.
    """

    def pays(concurrency: int) -> bool:
        return field.at(concurrency, candidate).decision == "speculate"

    timed = list(dropwhile(lambda rows: not pays(rows), field.timed(candidate)))
    if not timed:
        return 0
    for low, high in pairwise(timed):
        if not pays(high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if pays(middle) else (low, middle)
            return low
    return None


def crossover_between(
    field: Field, candidate: Candidate, crossover: int | None
) -> tuple[int, int] | None:
    """The timed concurrencies around an interpolated crossover."""
    timed = field.timed(candidate)
    if not crossover or crossover in timed:
        return None
    return max(c for c in timed if c < crossover), min(c for c in timed if c > crossover)


def pick(cell: Cell | None) -> Configuration | None:
    """A cell by its name."""
    if cell is None:
        return None
    candidate, concurrency = cell.entrant.candidate, cell.entrant.batch
    return Configuration(
        draft=candidate.draft, quant=candidate.quant, k=cell.k, concurrency=concurrency
    )


def _k(standing: Standing) -> int | None:
    if standing.choice is not None:
        return standing.choice.k
    return 0 if standing.decision == "do_not_speculate" else None


def _rates(leader: Cell | None) -> tuple[float | None, float | None]:
    """Tokens per second of all rows, without and with speculation."""
    if leader is None or leader.forecast.decoding is None:
        return None, None
    weights = np.array([t.weight for t in leader.forecast.trajectories])
    tokens, seconds = leader.forecast.rounds.tokens, leader.forecast.decoding[:, 0]
    plain = leader.entrant.batch * float(weights @ tokens / (weights @ seconds))
    speed = leader.judged.value if leader.judged else None
    return plain, speed and plain * speed


def _times(leader: Cell | None) -> tuple[float | None, float | None]:
    """Seconds per output token of a request, the first one and its prefill included where known."""
    if leader is None or leader.forecast.decoding is None:
        return None, None
    weights = np.array([t.weight for t in leader.forecast.trajectories])
    tokens = np.array([t.output_tokens for t in leader.forecast.trajectories])
    whole, sample = leader.forecast.whole, leader.whole
    if whole is None:
        whole, sample = leader.forecast.decoding, leader.judged
        tokens = leader.forecast.rounds.tokens
    plain = float(weights @ whole[:, 0] / (weights @ tokens))
    speed = sample.value if sample else None
    return plain, plain / speed if speed else None


def _answered_rate(level: LoadLevel) -> float | None:
    chosen = level.decision == "speculate"
    return level.tokens_per_second if chosen else level.tokens_per_second_plain


def _per_dollar(rate: float | None, price_per_hour: float | None) -> float | None:
    if rate is None or price_per_hour is None:
        return None
    return rate * _SECONDS_AN_HOUR / price_per_hour


def _note(standing: Standing, *, foreign: bool) -> str | None:
    """Of the leader where there is one; else what holds for all."""
    if standing.leader is None:
        notes = dict.fromkeys(c.entrant.note for c in standing.cells if c.entrant.note)
        return "; ".join(notes) or None
    entrant = standing.leader.entrant
    known = any(seconds is not None for seconds in entrant.overheads.values())
    bare = None if known or foreign else "of passes alone: nothing was decoded there"
    return "; ".join(note for note in (entrant.note, bare) if note) or None


def _estimate(sample: Sample | None) -> Estimate | None:
    return None if sample is None else estimate(sample)
