"""Decisions at single concurrencies → the answer at each, k by concurrency, and up to what load
speculation pays.

The rate of plain decoding at a load is one figure, whichever draft it is compared with. But the
target is timed and decoded again with every candidate, and the machine changes meanwhile: in one
run a step of 16 rows took 0.17 to 0.23 s. If the rate were taken from the leader, it would change
whenever another draft leads at the next load. So it is the geometric mean over candidates, or over
the decoded ones if there are any. A step of more rows never takes less time than one of fewer, and
between two timed loads steps rise as the passes do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from statistics import geometric_mean

import numpy as np

from draftbench.acceptance.intervals import estimate
from draftbench.planner.decide import DecisionAt
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.output_check import texts_at
from draftbench.planner.recommendation import AtConcurrency, Configuration, ScheduleEntry
from draftbench.records import Candidate
from draftbench.remembered import remembered

_SECONDS_AN_HOUR = 3600


def at_concurrency(evaluator: Evaluator, concurrency: int) -> AtConcurrency:
    """One concurrency's answer."""
    decided, price = evaluator.at(concurrency), evaluator.options.price_per_hour
    leader, plain = decided.leader, plain_decoding(evaluator, concurrency)
    evidence, expected = None, evaluator.table(concurrency, "expected")
    if leader:
        evidence = evaluator.evidence(leader)
    speedup = expected.value(leader) if leader else None
    plain_range: tuple[float, float] | None = None
    plain_rate = rate = plain_time = time = None
    # How many requests were decoded together is known only if their number is constant.
    if plain and (evaluator.foreign or evaluator.run.manifest.question.arrivals == "closed"):
        plain_rate = concurrency / plain.step
        rate = plain_rate * speedup if speedup else None
        if steps := plain.by_candidate:
            plain_range = concurrency / max(steps), concurrency / min(steps)
    if plain:
        plain_time = plain.token or plain.step
        of_time = (
            evaluator.table(concurrency, "end_to_end").value(leader)
            if leader and plain.token
            else speedup
        )
        time = plain_time / of_time if of_time else None
    per_dollar = [
        concurrency / each * _SECONDS_AN_HOUR / price if plain_rate and each and price else None
        for each in (plain_time, time)
    ]
    known = bool(expected.known)
    return AtConcurrency(
        concurrency=decided.concurrency,
        decision=decided.decision if known else None,
        k=decided.k,
        choice=decided.choice,
        leader=leader,
        runner_up=decided.runner_up,
        speedup_predicted=evaluator.predicted(leader) if leader else None,
        speedup_measured=estimate(
            evidence.measured.speedup if evidence and evidence.measured else None
        ),
        speedup_expected=expected.estimate(leader) if leader else None,
        prediction_error=evidence.prediction_error if evidence else None,
        tokens_per_second_plain=plain_rate,
        tokens_per_second=rate,
        seconds_per_token_plain=plain_time,
        seconds_per_token=time,
        tokens_per_dollar_plain=per_dollar[0],
        tokens_per_dollar=per_dollar[1],
        costs=_note_on_costs(evaluator, decided),
        speedup_deciding=decided.deciding,
        plain_range=plain_range,
        texts=texts_at(evaluator.run, concurrency),
        between=evaluator.source.around(leader.candidate, concurrency) if leader else None,
    )


def _note_on_costs(evaluator: Evaluator, decided: DecisionAt) -> str | None:
    """What to know about the leader's costs; without a leader, about every candidate's."""
    leader, load = decided.leader, decided.concurrency
    if leader is None:
        candidates = dict.fromkeys(each.candidate for each in decided.configurations)
        notes = (evaluator.source.note(candidate, load) for candidate in candidates)
        return "; ".join(dict.fromkeys(filter(None, notes))) or None
    note = evaluator.source.note(leader.candidate, load)
    found = [note] if note else []
    if note and any(c.configuration.candidate == leader.candidate for c in evaluator.effects.cells):
        found.append("corrected by what was decoded there")
    elif not (evaluator.foreign or evaluator.effects.cells):
        found.append("from pass timings alone: nothing was decoded")
    return "; ".join(found) or None


@dataclass(frozen=True)
class PlainDecoding:
    """Seconds of decoding without speculation at one load.

    `step` is a target step of all rows, `by_candidate` that step as measured with each candidate,
    empty between timed loads. `token` is a request's seconds, with its prefill, over its tokens;
    None if the prefill was not timed.
    """

    step: float
    by_candidate: tuple[float, ...]
    token: float | None


def plain_decoding(evaluator: Evaluator, concurrency: int) -> PlainDecoding | None:
    """Seconds of decoding without speculation; None if no pass is known at this load."""
    timed = set(chain(*map(evaluator.source.concurrencies, evaluator.run.candidates)))
    by_concurrency = {at: steps for at in sorted(timed) if (steps := _steps(evaluator, at))}
    low = max((at for at in by_concurrency if at <= concurrency), default=None)
    high = min((at for at in by_concurrency if at >= concurrency), default=None)
    if low is None or high is None:
        return None

    def slowest_up_to(most: int) -> float:  # more rows never take less time
        return max(geometric_mean(steps) for at, steps in by_concurrency.items() if at <= most)

    step, above = slowest_up_to(low), slowest_up_to(high)
    if low < high:
        known = [_passes(evaluator, at) for at in (low, concurrency, high)]
        common = [each for each in known[0] if all(each in steps for steps in known)]
        if not common:
            return None
        fewer, here, more = (sum(steps[each] for each in common) for steps in known)
        straight = (concurrency - low) / (high - low)
        step += (above - step) * ((here - fewer) / (more - fewer) if more > fewer else straight)
    return PlainDecoding(step, by_concurrency.get(concurrency, ()), _token(evaluator, low, step))


def _passes(evaluator: Evaluator, concurrency: int) -> dict[Candidate, float]:
    """Seconds of a step next to each candidate, by timed passes alone; 1 on an engine."""
    here = evaluator.seconds(concurrency)
    return {
        each.candidate: float(here.plain[0, at] / here.tokens[at])
        for at, each in enumerate(here.configurations)
        if here.tokens[at] > 0
    }


@remembered
def _steps(evaluator: Evaluator, concurrency: int) -> tuple[float, ...]:
    """Seconds of a step next to each candidate; if any were decoded, next to those alone."""
    passes, effects = _passes(evaluator, concurrency), evaluator.effects
    if not passes:
        return ()
    first = [Configuration.of(each, evaluator.ks[0], concurrency) for each in passes]
    longer = effects.longer(first, np.ones(len(first)))[0][:, 0]
    seconds = np.array(list(passes.values())) * np.exp(longer)
    steps = dict(zip(passes, seconds.tolist(), strict=True))
    if evaluator.on_engine:  # one server for all
        return tuple(dict.fromkeys(steps.values()))
    timed = (cell.configuration for cell in effects.cells)
    decoded = {c.candidate for c in timed if (c.k, c.concurrency) == (0, concurrency)}
    return tuple(steps[each] for each in steps if each in decoded) or tuple(steps.values())


def _token(evaluator: Evaluator, concurrency: int, step: float) -> float | None:
    """Seconds of a request over its tokens if a step takes `step`; the geometric mean over
    candidates.
    """
    here, of_candidates = evaluator.seconds(concurrency), {}
    for at, each in enumerate(here.configurations):
        prefill, tokens, requests = here.prefills[0, at, 0], here.tokens[at], here.responses[at]
        if math.isfinite(prefill):
            seconds = prefill + step * tokens
            of_candidates[each.candidate] = float(seconds / (tokens + requests))
    return geometric_mean(of_candidates.values()) if of_candidates else None


def schedule(
    evaluator: Evaluator, candidate: Candidate, concurrencies: Sequence[int]
) -> tuple[ScheduleEntry, ...]:
    """The k of one draft at each of these concurrencies, at timed ones, and wherever it changes.
    At the others the k before is kept as long as it is as good.
    """
    timed = _timed_concurrencies(evaluator, candidate)
    entries: list[ScheduleEntry] = []
    for concurrency in sorted({*_known_concurrencies(evaluator, candidate), *concurrencies}):
        answer = _answer_with(evaluator, candidate, concurrency)
        k, stop = answer.k, answer.choice.stop if answer.choice else None
        shown = concurrency in timed or concurrency in concurrencies
        if k and entries and not shown:
            near = answer.as_good(answer.competing)
            as_good = {(each.k, each.stop) for each in near if each.candidate == candidate}
            before = entries[-1].k, entries[-1].stop
            k, stop = before if before in as_good else (k, stop)
        if shown or (k, stop) != (entries[-1].k, entries[-1].stop):
            timed_here = concurrency in timed
            entries.append(ScheduleEntry(concurrency=concurrency, k=k, timed=timed_here, stop=stop))
    return tuple(entries)


def _answer_with(evaluator: Evaluator, candidate: Candidate, concurrency: int) -> DecisionAt:
    """The decision on this draft alone, except where the overall answer is to use this draft, or
    not to speculate although this draft alone would pay.
    """
    answer = evaluator.at(concurrency)
    if answer.leader is not None and answer.leader.candidate == candidate:
        return answer
    alone = answer.alone(candidate)
    pays_alone = alone.decision == "speculate" and answer.decision != "speculate"
    return answer if pays_alone else alone


def _known_concurrencies(evaluator: Evaluator, candidate: Candidate) -> Sequence[int]:
    """Every concurrency at which the speed of a draft is known: all from the smallest timed one to
    the largest; on a serving engine only the served ones.
    """
    timed = evaluator.source.concurrencies(candidate)
    if not timed or candidate in evaluator.source.served:
        return _timed_concurrencies(evaluator, candidate)
    return range(timed[0], timed[-1] + 1)


def _timed_concurrencies(evaluator: Evaluator, candidate: Candidate) -> Sequence[int]:
    """The loads at which a draft's passes were timed; if there are none, where it was decoded."""
    decoded = () if evaluator.foreign else evaluator.run.decodes
    return evaluator.source.concurrencies(candidate) or sorted(
        {row.concurrency for row in decoded if row.candidate == candidate}
    )


def crossover(
    evaluator: Evaluator, candidate: Candidate
) -> tuple[int | None, tuple[int, int] | None, tuple[tuple[int, int], ...]]:
    """The largest load at which a draft clearly pays, its whole interval above `min_speedup` (0: at
    no load; None: at the largest timed one too); the timed loads around it, if it was not timed;
    and the ranges below it where the draft does not clearly pay.
    """
    known = _known_concurrencies(evaluator, candidate)
    evaluator.prepare(known)
    paying = [at for at in known if _answer_with(evaluator, candidate, at).decision == "speculate"]
    if not paying:
        return 0, None, ()
    limit, timed = paying[-1], _timed_concurrencies(evaluator, candidate)
    between = None
    if limit not in timed:
        between = max(c for c in timed if c < limit), min(c for c in timed if c > limit)
    gaps = []
    for pays, together in groupby(
        known[: known.index(limit)], key=lambda concurrency: concurrency in paying
    ):
        first, *rest = together
        if not pays:
            gaps.append((first, (rest or [first])[-1]))
    return None if limit == timed[-1] else limit, between, tuple(gaps)
