"""Decisions at single concurrencies → the answer at each, k by concurrency, and up to which load
speculation pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from draftbench.acceptance.intervals import estimate
from draftbench.planner.alternatives import Alternative
from draftbench.planner.at_concurrency import Evaluator, LoadDecision
from draftbench.planner.plain import PlainDecoding, plain_decoding
from draftbench.planner.recommendation import Configuration, LoadLevel, ScheduleEntry
from draftbench.planner.texts import texts_at
from draftbench.records import Candidate

_SECONDS_AN_HOUR = 3600


def level_of(evaluator: Evaluator, concurrency: int) -> LoadLevel:
    """One concurrency's answer."""
    decided, price = evaluator.at(concurrency), evaluator.options.price_per_hour
    leader, plain = decided.leader, plain_decoding(evaluator, concurrency)
    known = any(each.predictor.timed for each in decided.alternatives)
    # How many requests decoded together is known where their number is constant.
    opened = not evaluator.foreign and evaluator.run.manifest.question.arrivals != "closed"
    plain_rate = concurrency / plain.step if plain and not opened else None
    plain_time = plain.token or plain.step if plain else None
    speed = leader.expected if leader else None
    pace = leader.end_to_end if leader and plain and plain.token else speed

    def times(rate: float | None, factor: float | None) -> float | None:
        return rate * factor if rate is not None and factor else None

    rate = times(plain_rate, speed.value if speed else None)
    time = plain_time / pace.value if plain_time and pace and pace.value else None
    hourly = _SECONDS_AN_HOUR / price if price else None
    return LoadLevel(
        concurrency=decided.concurrency,
        decision=decided.decision if known else None,
        k=decided.k,
        choice=configuration_of(decided.choice),
        leader=configuration_of(leader),
        runner_up=configuration_of(decided.ranking.runner_up(leader) if leader else None),
        speedup_predicted=estimate(leader.predicted if leader else None),
        speedup_measured=estimate(leader.speedup("measured") if leader else None),
        speedup_expected=decided.ranking.expected(leader, "expected") if leader else None,
        prediction_error=leader.prediction_error if leader else None,
        tokens_per_second_plain=plain_rate,
        tokens_per_second=rate,
        seconds_per_token_plain=plain_time,
        seconds_per_token=time,
        tokens_per_dollar_plain=times(plain_rate, hourly),
        tokens_per_dollar=times(rate, hourly),
        costs=_note(decided, foreign=evaluator.foreign),
        speedup_deciding=decided.deciding,
        plain_range=None if opened else _range(plain, concurrency),
        texts=texts_at(evaluator.run, concurrency),
    )


def _range(plain: PlainDecoding | None, concurrency: int) -> tuple[float, float] | None:
    if plain is None or not plain.blocks:
        return None
    return concurrency / max(plain.blocks), concurrency / min(plain.blocks)


def _note(decided: LoadDecision, *, foreign: bool) -> str | None:
    """A note on the costs of the leader, or without one on those of all."""
    leader = decided.leader
    if leader is None:
        every = (each.predictor.note for each in decided.alternatives)
        return "; ".join(dict.fromkeys(filter(None, every))) or None
    predictor, corrected = leader.predictor, leader.expected is not leader.predicted
    known = bool(predictor.overheads.spent)
    notes = [predictor.note] if predictor.note else []
    if predictor.spread and corrected:
        notes.append("corrected by what was decoded there")
    elif not (foreign or corrected or predictor.served or known):
        notes.append("from pass timings alone: nothing was decoded there")
    return "; ".join(notes) or None


def schedule(
    evaluator: Evaluator, candidate: Candidate, asked: Sequence[int]
) -> tuple[ScheduleEntry, ...]:
    """The k of one draft at every concurrency that was timed or asked for, and at every other where
    it changes.
    """
    timed = _timed_loads(evaluator, candidate)
    found: list[ScheduleEntry] = []
    for rows in sorted({*_known_loads(evaluator, candidate), *asked}):
        k = _answer_with(evaluator, candidate, rows).k
        if rows in timed or rows in asked or k != found[-1].k:
            found.append(ScheduleEntry(concurrency=rows, k=k, timed=rows in timed))
    return tuple(found)


def _answer_with(evaluator: Evaluator, candidate: Candidate, concurrency: int) -> LoadDecision:
    """The decision at a load for one draft: the answer itself where the draft leads it, or where
    the draft alone would pay but the answer is not to speculate; else the decision on it alone.
    """
    answer, alone = evaluator.at(concurrency), evaluator.at(concurrency, candidate)
    leads = answer.leader is not None and answer.leader.candidate == candidate
    if leads or (alone.decision == "speculate" and answer.decision != "speculate"):
        return answer
    return alone


def _known_loads(evaluator: Evaluator, candidate: Candidate) -> Sequence[int]:
    """Every concurrency at which the speed of a draft is known: all from the smallest timed one to
    the largest, but on a serving engine only those that were served.
    """
    timed = evaluator.source.batches(candidate)
    if not timed or candidate in evaluator.source.served:
        return _timed_loads(evaluator, candidate)
    return range(timed[0], timed[-1] + 1)


def _timed_loads(evaluator: Evaluator, candidate: Candidate) -> Sequence[int]:
    """Where the passes of a draft were timed, or if nowhere, where it was decoded."""
    decoded = () if evaluator.foreign else evaluator.run.decodes
    return evaluator.source.batches(candidate) or sorted(
        {row.batch for row in decoded if row.candidate == candidate}
    )


@dataclass(frozen=True)
class Crossover:
    """Up to how many rows a draft clearly pays: the whole interval of its speed-up is above the
    asked one.

    `limit` is 0 where it pays at no load, None where it does at the largest timed one too.
    `between` are the timed loads around a limit that was not timed, `gaps` the ranges below it
    where the draft does not clearly pay.
    """

    limit: int | None
    between: tuple[int, int] | None
    gaps: tuple[tuple[int, int], ...]


def crossover(evaluator: Evaluator, candidate: Candidate) -> Crossover:
    """The crossover over every load at which the costs of a draft are known. A load where it is
    unclear whether the draft pays does not hide a larger one where it clearly does.
    """
    known = _known_loads(evaluator, candidate)
    paying = [
        rows for rows in known if _answer_with(evaluator, candidate, rows).decision == "speculate"
    ]
    if not paying:
        return Crossover(0, None, ())
    limit, timed = paying[-1], _timed_loads(evaluator, candidate)
    between = None
    if limit not in timed:
        between = max(c for c in timed if c < limit), min(c for c in timed if c > limit)
    gaps = []
    for pays, run in groupby(known[: known.index(limit)], key=lambda rows: rows in paying):
        first, *rest = run
        if not pays:
            gaps.append((first, (rest or [first])[-1]))
    return Crossover(None if limit == timed[-1] else limit, between, tuple(gaps))


def configuration_of(alternative: Alternative | None) -> Configuration | None:
    """The configuration that an alternative is of."""
    if alternative is None:
        return None
    candidate, predictor = alternative.candidate, alternative.predictor
    return Configuration(candidate.draft, candidate.quant, alternative.k, predictor.batch)
