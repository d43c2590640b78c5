"""Decisions at single concurrencies → the answer at each, k by concurrency, and up to which load
speculation pays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile, pairwise

from draftbench.acceptance.intervals import estimate
from draftbench.planner.at_concurrency import Evaluator, LoadDecision
from draftbench.planner.rank import Alternative
from draftbench.planner.recommendation import Configuration, LoadLevel, ScheduleEntry
from draftbench.records import Candidate

_SECONDS_AN_HOUR = 3600


def level_of(evaluator: Evaluator, concurrency: int) -> LoadLevel:
    """One concurrency's answer."""
    decided, price = evaluator.at(concurrency), evaluator.options.price_per_hour
    leader = decided.leader
    known = any(each.predictor.timed for each in decided.alternatives)
    plain_rate, rate, plain_time, time = _rates_and_times(leader)

    def per_dollar(rate: float | None) -> float | None:
        return rate * _SECONDS_AN_HOUR / price if rate is not None and price else None

    return LoadLevel(
        concurrency=decided.concurrency,
        decision=decided.decision if known else None,
        k=decided.k,
        choice=configuration_of(decided.choice),
        leader=configuration_of(leader),
        runner_up=configuration_of(decided.ranking.runner_up(leader) if leader else None),
        speedup_predicted=estimate(leader.predicted if leader else None),
        speedup_measured=estimate(leader.speedup("measured") if leader else None),
        speedup_expected=estimate(leader.expected if leader else None),
        prediction_error=leader.prediction_error if leader else None,
        tokens_per_second_plain=plain_rate,
        tokens_per_second=rate,
        seconds_per_token_plain=plain_time,
        seconds_per_token=time,
        tokens_per_dollar_plain=per_dollar(plain_rate),
        tokens_per_dollar=per_dollar(rate),
        costs=_note(decided, foreign=evaluator.foreign),
        speedup_deciding=decided.deciding,
    )


def _rates_and_times(leader: Alternative | None) -> tuple[float | None, ...]:
    """Without and with speculation: tokens per second of all rows, and seconds per output token of
    a request, the first one and its prefill included where known.
    """
    if leader is None or leader.prediction.decoding is None:
        return None, None, None, None
    prediction, weights = leader.prediction, leader.predictor.weights
    tokens, seconds = prediction.rounds.tokens, leader.prediction.decoding
    plain_rate = leader.predictor.batch * float(weights @ tokens / (weights @ seconds[:, 0]))
    speed = leader.expected.value if leader.expected else None
    rate = speed and plain_rate * speed
    if prediction.total is not None:
        tokens, seconds = leader.predictor.lengths, prediction.total
        speed = leader.end_to_end.value if leader.end_to_end else None
    plain_time = float(weights @ seconds[:, 0] / (weights @ tokens))
    return plain_rate, rate, plain_time, plain_time / speed if speed else None


def _note(decided: LoadDecision, *, foreign: bool) -> str | None:
    """On the costs of the leader where there is one; else what holds for all."""
    if decided.leader is None:
        notes = dict.fromkeys(c.predictor.note for c in decided.alternatives if c.predictor.note)
        return "; ".join(notes) or None
    predictor = decided.leader.predictor
    known = any(seconds is not None for seconds in predictor.overheads.values())
    bare = (
        None
        if known or foreign or predictor.served
        else "of passes alone: nothing was decoded there"
    )
    return "; ".join(note for note in (predictor.note, bare) if note) or None


def schedule(
    evaluator: Evaluator, candidate: Candidate, asked: Sequence[int]
) -> tuple[ScheduleEntry, ...]:
    """The best k of one draft at every concurrency that was timed or asked for."""
    timed = evaluator.source.batches(candidate)
    return tuple(
        ScheduleEntry(concurrency=c, k=evaluator.at(c, candidate).k, timed=c in timed)
        for c in sorted({*timed, *asked})
    )


def crossover(evaluator: Evaluator, candidate: Candidate) -> int | None:
    """The largest concurrency at which one draft clearly pays, its speed-up above the asked one
    with its interval.

    Timed batch sizes first; between the last that pays and the next, those that are interpolated,
    taken to pay less the more rows there are. A smaller one that is not clear (noise, few requests)
    does not hide a larger one that is. 0: it clearly pays at none; None: at the largest too.
    """

    def pays(concurrency: int) -> bool:
        return evaluator.at(concurrency, candidate).decision == "speculate"

    timed = list(dropwhile(lambda rows: not pays(rows), evaluator.source.batches(candidate)))
    if not timed:
        return 0
    for low, high in pairwise(timed):
        if not pays(high):
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if pays(middle) else (low, middle)
            return low
    return None


def configuration_of(alternative: Alternative | None) -> Configuration | None:
    """The name of an alternative."""
    if alternative is None:
        return None
    candidate, predictor = alternative.candidate, alternative.predictor
    return Configuration(candidate.draft, candidate.quant, alternative.k, predictor.batch)
