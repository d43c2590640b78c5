"""Decide for one run: speculate or not, with which configuration, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from draftbench.acceptance.faults import near_tie_share
from draftbench.acceptance.intervals import estimate
from draftbench.planner.alternatives import alternatives_of
from draftbench.planner.at_concurrency import Evaluator, LoadDecision
from draftbench.planner.caveats import caveats, checks
from draftbench.planner.cost_sources import engine_name
from draftbench.planner.evaluate import break_even, evaluations, prediction_errors
from draftbench.planner.latency import latency, slo_kept
from draftbench.planner.loads import crossover, level_of, schedule
from draftbench.planner.options import DecisionOptions
from draftbench.planner.predict import draft_lengths, predict, predictor_of
from draftbench.planner.rank import TIMING_NOISE, Confidence, Ranking
from draftbench.planner.recommendation import LoadLevel, Recommendation
from draftbench.planner.rules import rules_of_thumb
from draftbench.planner.texts import audit
from draftbench.records import Candidate
from draftbench.run_folder.run import Run


def recommend(run: Run, options: DecisionOptions | None = None) -> Recommendation:
    """Decide for one run. The headline is the answer at the first concurrency; for throughput and
    cost it is the answer with the most tokens per second, which at one price are also the most
    tokens per dollar.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    evaluator = Evaluator(run, options or DecisionOptions())
    asked = tuple(dict.fromkeys(evaluator.options.concurrency)) or evaluator.concurrencies()
    levels = tuple(level_of(evaluator, concurrency) for concurrency in asked)
    headline = levels[0]
    if evaluator.options.objective in ("throughput", "cost"):
        headline = max(levels, key=_answered_rate)
    decided = evaluator.at(headline.concurrency)
    ranking, leader = decided.ranking, decided.leader
    confidence = _confidence(decided)
    draft = leader.candidate if leader else None
    paying = crossover(evaluator, draft) if draft else None
    larger = decided.larger_sweep
    alone = leader.speedup(ranking.by) if leader and decided.deciding is None else None
    answer = Recommendation(
        decision=decided.decision,
        choice=headline.choice,
        evaluations=evaluations(run, decided),
        requests=len({t.request for t in run.trajectories}),
        output_tokens=sum(t.output_tokens for t in run.trajectories),
        prediction_error=prediction_errors(evaluator),
        min_speedup=decided.min_speedup,
        leader=headline.leader,
        runner_up=headline.runner_up,
        speedup_predicted_cross_fitted=estimate(ranking.cross_fit("predicted")),
        speedup_measured_cross_fitted=estimate(ranking.cross_fit("measured")),
        speedup_deciding=decided.deciding,
        speedup_without_interval=alone.value if alone else None,
        probability_best=confidence.probability if confidence else None,
        expected_regret=confidence.regret if confidence else None,
        requests_needed=larger.requests if larger and larger.enough else None,
        timing_doubt=math.expm1(max(decided.doubt)) if decided.doubt else None,
        audit=audit(run),
        near_tie_share=near_tie_share(run),
        caveats=caveats(evaluator, decided),
        runner=evaluator.source.runner,
        machine=run.manifest.environment.machine,
        drafting_mode=run.manifest.question.mode,
        concurrency=decided.concurrency,
        objective=evaluator.options.objective,
        levels=levels,
        schedule=schedule(evaluator, draft, asked) if draft else (),
        crossover=paying.limit if paying else None,
        break_even=break_even(leader) if leader and decided.deciding else None,
        latency=latency(leader, run) if leader else None,
        crossover_between=paying.between if paying else None,
        crossover_gaps=paying.gaps if paying else (),
        failures=run.failures,
        engine=engine_name(run) if run.manifest.question.engine else None,
        arrivals=None if evaluator.foreign else _arrivals(run),
        costs_from=(evaluator.source.runner or "an unknown runner") if evaluator.foreign else None,
        slo_kept=slo_kept(run, leader, decided.concurrency, evaluator.options.slo),
        settled_by=decided.settled_by,
        larger_sweep=larger,
    )
    return msgspec.structs.replace(
        answer, checks=checks(answer), advice=rules_of_thumb(answer, run)
    )


def _arrivals(run: Run) -> str | None:
    question = run.manifest.question
    if question.arrivals != "log":
        return None if question.arrivals == "closed" else f"{question.arrivals}/s"
    scale = question.time_scale or 1.0
    return "the log's pace" if scale == 1 else f"the log's pace ×{scale:g}"


def _answered_rate(level: LoadLevel) -> float:
    """Tokens per second if a level's answer is followed; unknown ones come last."""
    speculates = level.decision == "speculate"
    rate = level.tokens_per_second if speculates else level.tokens_per_second_plain
    return -1.0 if rate is None else rate


def _confidence(decided: LoadDecision) -> Confidence | None:
    """How sure the decision is; unknown without an interval, and where speculation is turned down
    although it is faster, since more was asked for: plain decoding is then not meant to be fastest.
    """
    if decided.leader is not None and decided.deciding is None:
        return None
    if decided.decision != "do_not_speculate":
        return decided.ranking.confidence(decided.leader)
    return decided.ranking.confidence(None) if decided.min_speedup <= 1 else None


def promising_ks(run: Run, candidate: Candidate, batch: int = 1) -> list[int]:
    """The k's of one candidate that are worth decoding at one batch size: the best predicted one
    and its neighbours.

    Looks at replays and cost points only, so that a sweep that resumes asks for the same k's. Empty
    where the candidate's cost is unknown or nothing was replayed.
    """
    predictor = predictor_of(replace(run, decodes=()), candidate, batch=batch)
    ks = draft_lengths(run) if predictor.laws else ()
    best = Ranking(alternatives_of(predictor, ks, {})).best
    if best is None:
        return []
    at = ks.index(best.k)
    return list(ks[max(at - 1, 0) : at + 2])


def next_start(
    run: Run, candidate: Candidate, concurrency: int = 1, ks: Sequence[int] = ()
) -> int | None:
    """The k that a serving engine should be started with next, None where another start would
    change nothing.

    First the smallest of `ks`, then the largest: together they show what a drafted token costs. A
    draft that only the engine runs begins with the largest, which shows the hazards of all smaller
    ones. Then the k that is predicted best, as long as it was not started and is predicted to be
    better by more than timing noise. A k that cannot reach plain decoding is not started.
    """
    ks = sorted(ks) or draft_lengths(run)
    predictor = predictor_of(run, candidate, batch=concurrency)
    runs = [row for row in run.decodes if (row.candidate, row.batch) == (candidate, concurrency)]
    started = {row.k for row in runs}
    replayed = any(replay.candidate == candidate for replay in run.replays)
    for k in (ks[0], ks[-1]) if replayed else (ks[-1], ks[0]):
        if len(started) < 2 and k not in started:
            return k
    speeds = {}
    for k in filter(predictor.reaches, ks):
        served = predictor.served if k in started else None
        decoding = (
            served.decoding(predictor.rounds(k)) if served else predict(predictor, k).decoding
        )
        if decoding is not None:
            plain, speculative = predictor.weights @ decoding
            speeds[k] = plain / speculative
    if not speeds:
        return None
    best = max(speeds, key=lambda k: speeds[k])
    fastest_started = max((speeds[k] for k in started if k in speeds), default=0.0)
    if fastest_started >= (1 - TIMING_NOISE) * speeds[best]:
        return None
    ranking = Ranking(alternatives_of(predictor, (best,), {}))
    predicted = ranking.expected(ranking.alternatives[0], "predicted")
    return None if predicted and predicted.high < 1 + TIMING_NOISE else best
