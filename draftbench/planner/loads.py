"""Decisions at single concurrencies → the answer at each, k by concurrency, and up to which load
speculation pays.

The rate of plain decoding at a load is one figure, whichever draft it is compared with. The target
is timed and decoded anew with every candidate, on the machine as it is by then: in one run a step
of 16 rows took 0.17 to 0.23 s. If the rate were the leader's, it would change whenever the leader
changes from one load to the next. So it is the geometric mean over candidates, of those with
decoding if there are any. A step of more rows never takes less time than one of fewer, and between
two timed loads steps rise as the passes do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import geometric_mean

from draftbench.acceptance.intervals import estimate
from draftbench.planner.alternatives import Alternative
from draftbench.planner.at_concurrency import Evaluator, LoadDecision
from draftbench.planner.output_check import texts_at
from draftbench.planner.predict import Prediction
from draftbench.planner.recommendation import AtLoad, Configuration, ScheduleEntry
from draftbench.records import Candidate

_SECONDS_AN_HOUR = 3600


def at_load(evaluator: Evaluator, concurrency: int) -> AtLoad:
    """One concurrency's answer."""
    decided, price = evaluator.at(concurrency), evaluator.options.price_per_hour
    ranking, leader = decided.ranking, decided.leader
    known = any(each.predictor.costs or each.predictor.round_costs for each in decided.alternatives)
    plain = plain_decoding(evaluator, concurrency)
    # How many requests decoded together is known where their number is constant.
    in_flight = evaluator.foreign or evaluator.run.manifest.question.arrivals == "closed"
    plain_rate = concurrency / plain.step if plain and in_flight else None
    plain_range = None
    if plain and plain.by_candidate and in_flight:
        plain_range = (
            concurrency / max(plain.by_candidate),
            concurrency / min(plain.by_candidate),
        )
    plain_time = plain.token or plain.step if plain else None
    speedup = leader.expected if leader else None
    speedup_of_time = leader.end_to_end if leader and plain and plain.token else speedup

    def times(rate: float | None, factor: float | None) -> float | None:
        return rate * factor if rate is not None and factor else None

    rate = times(plain_rate, speedup.value if speedup else None)
    time = None
    if plain_time and speedup_of_time and speedup_of_time.value:
        time = plain_time / speedup_of_time.value
    hours_per_dollar = _SECONDS_AN_HOUR / price if price else None
    return AtLoad(
        concurrency=decided.concurrency,
        decision=decided.decision if known else None,
        k=decided.k,
        choice=configuration_of(decided.choice),
        leader=configuration_of(leader),
        runner_up=configuration_of(ranking.runner_up(leader) if leader else None),
        speedup_predicted=estimate(leader.predicted if leader else None),
        speedup_measured=estimate(leader.measured.speedup if leader and leader.measured else None),
        speedup_expected=ranking.expected(leader, "expected") if leader else None,
        prediction_error=leader.prediction_error if leader else None,
        tokens_per_second_plain=plain_rate,
        tokens_per_second=rate,
        seconds_per_token_plain=plain_time,
        seconds_per_token=time,
        tokens_per_dollar_plain=times(plain_rate, hours_per_dollar),
        tokens_per_dollar=times(rate, hours_per_dollar),
        costs=_note_on_costs(decided),
        speedup_deciding=decided.deciding,
        plain_range=plain_range,
        texts=texts_at(evaluator.run, concurrency),
    )


def configuration_of(alternative: Alternative | None) -> Configuration | None:
    """An alternative without its figures."""
    if alternative is None:
        return None
    candidate, predictor = alternative.candidate, alternative.predictor
    return Configuration(candidate.draft, candidate.quant, alternative.k, predictor.batch)


def _note_on_costs(decided: LoadDecision) -> str | None:
    """What to know of the leader's costs, or without a leader of all."""
    leader = decided.leader
    if leader is None:
        notes = (each.predictor.note for each in decided.alternatives)
        return "; ".join(dict.fromkeys(filter(None, notes))) or None
    predictor, corrected = leader.predictor, leader.expected is not leader.predicted
    found = [predictor.note] if predictor.note else []
    if predictor.interpolated and corrected:
        found.append("corrected by what was decoded there")
    elif not (decided.foreign or corrected or predictor.round_costs or predictor.overheads.spent):
        found.append("from pass timings alone: nothing was decoded there")
    return "; ".join(found) or None


@dataclass(frozen=True)
class PlainDecoding:
    """Seconds of decoding without speculation at one load.

    `step` is a target step of all rows, `by_candidate` the same as measured with each candidate,
    empty between timed loads. `token` is a request's seconds, with its prefill, over its tokens;
    None where the prefill was not timed.
    """

    step: float
    by_candidate: tuple[float, ...]
    token: float | None


def plain_decoding(evaluator: Evaluator, concurrency: int) -> PlainDecoding | None:
    """Seconds of decoding without speculation; None where no pass is known at this load."""
    timed = {rows for each in evaluator.run.candidates for rows in evaluator.source.batches(each)}
    by_rows = {rows: steps for rows in sorted(timed) if (steps := _steps(evaluator, rows))}
    low = max((rows for rows in by_rows if rows <= concurrency), default=None)
    high = min((rows for rows in by_rows if rows >= concurrency), default=None)
    if low is None or high is None:
        return None
    step, step_above = (
        max(geometric_mean(steps) for rows, steps in by_rows.items() if rows <= end)
        for end in (low, high)
    )
    if low < high:
        share = _share_of_rise(evaluator, low, concurrency, high)
        if share is None:
            return None
        step += share * (step_above - step)
    return PlainDecoding(step, by_rows.get(concurrency, ()), _token(evaluator, low, step))


def _one_each(evaluator: Evaluator, rows: int) -> dict[Candidate, Alternative]:
    """One alternative of every candidate whose speed is known, whatever its k."""
    first: dict[Candidate, Alternative] = {}
    for each in evaluator.at(rows).alternatives:
        if each.prediction.decoding is not None and each.prediction.rounds.tokens.any():
            first.setdefault(each.candidate, each)
    return first


def _steps(evaluator: Evaluator, rows: int) -> tuple[float, ...]:
    """Seconds of a step with every candidate, of those with decoding if there are any."""
    known = _one_each(evaluator, rows).values()
    decoded = [
        each
        for each in known
        if each.predictor.round_costs or each.predictor.overheads.of_others(0) is not None
    ]
    return tuple(_step(each, each.prediction) for each in decoded or known)


def _step(alternative: Alternative, prediction: Prediction) -> float:
    assert prediction.decoding is not None
    weights = alternative.predictor.weights
    return float(weights @ prediction.decoding[:, 0] / (weights @ prediction.rounds.tokens))


def _share_of_rise(evaluator: Evaluator, low: int, rows: int, high: int) -> float | None:
    """How much of the rise in pass times from one timed load to the next is reached at so many
    rows; None where passes are unknown.
    """
    passes = [
        {
            candidate: _step(each, each.passes_only)
            for candidate, each in _one_each(evaluator, load).items()
        }
        for load in (low, rows, high)
    ]
    known = set.intersection(*map(set, passes))
    if not known:
        return None
    fewer, here, more = (sum(steps[each] for each in known) for steps in passes)
    return (here - fewer) / (more - fewer) if more > fewer else (rows - low) / (high - low)


def _token(evaluator: Evaluator, rows: int, step: float) -> float | None:
    """Seconds of a request over its tokens where a step takes `step`; the geometric mean over
    candidates.
    """
    of_candidates = []
    for each in _one_each(evaluator, rows).values():
        weights, prefills = each.predictor.weights, each.prediction.prefills
        if prefills is not None:
            seconds = weights @ (prefills[:, 0] + step * each.prediction.rounds.tokens)
            of_candidates.append(float(seconds / (weights @ each.predictor.lengths)))
    return geometric_mean(of_candidates) if of_candidates else None


def schedule(
    evaluator: Evaluator, candidate: Candidate, asked: Sequence[int]
) -> tuple[ScheduleEntry, ...]:
    """The k of one draft at every concurrency that was timed or asked for, and at every other where
    it changes.
    """
    timed = _timed_loads(evaluator, candidate)
    entries: list[ScheduleEntry] = []
    for rows in sorted({*_known_loads(evaluator, candidate), *asked}):
        k = _answer_with(evaluator, candidate, rows).k
        if rows in timed or rows in asked or k != entries[-1].k:
            entries.append(ScheduleEntry(concurrency=rows, k=k, timed=rows in timed))
    return tuple(entries)


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
    if not timed or candidate in evaluator.source.round_costs:
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
    for pays, loads in groupby(known[: known.index(limit)], key=lambda rows: rows in paying):
        first, *rest = loads
        if not pays:
            gaps.append((first, (rest or [first])[-1]))
    return Crossover(None if limit == timed[-1] else limit, between, tuple(gaps))
