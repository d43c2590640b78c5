"""The alternatives of a decision → `Evaluation`s: figures with intervals, and why each was not
chosen. Also how far predictions were off, and how much acceptance may fall.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from draftbench.acceptance.candidate_rounds import counted_along, runs_at
from draftbench.acceptance.definitions import (
    Sample,
    accepted_per_drafted,
    alpha,
    mean_accepted_length,
    tokens_per_round,
)
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.acceptance.rounds import PositionLaw, Rounds
from draftbench.planner.alternatives import Alternative
from draftbench.planner.at_concurrency import Evaluator, LoadDecision
from draftbench.planner.formula import break_even_alpha
from draftbench.planner.predict import predict
from draftbench.planner.rank import TIMING_NOISE, Ranking
from draftbench.planner.recommendation import (
    BreakEven,
    CheckedPrediction,
    Evaluation,
    PredictionError,
)
from draftbench.records import SELF
from draftbench.run_folder.run import Run

_PRECISION = 1e-3


def evaluations(run: Run, decided: LoadDecision) -> tuple[Evaluation, ...]:
    """Every candidate at every k, in the order in which they were measured."""
    found, ranking = [], decided.ranking
    for candidate in dict.fromkeys(each.candidate for each in decided.alternatives):
        at_every_k = [each for each in decided.alternatives if each.candidate == candidate]
        # Within timing noise another k may lead among all candidates than among those of one draft.
        best = decided.leader
        if best is None or best.candidate != candidate:
            keeping = [each for each in at_every_k if not each.breaks]
            limitless = [replace(each, breaks=()) for each in at_every_k]
            best = Ranking(keeping or limitless, ranking.by).best
        rate = alpha(at_every_k[0].predictor.along.replays)
        corrected = any(each.corrected for each in at_every_k)
        for each in at_every_k:
            of_engine = each.predictor.round_costs is not None
            comparable = each.corrected or not corrected or of_engine
            is_best = best is not None and each.k == best.k
            found.append(_evaluation(each, decided, run, rate, best=is_best, comparable=comparable))
    return tuple(found)


def _evaluation(
    alternative: Alternative,
    decided: LoadDecision,
    run: Run,
    rate: Sample | None,
    *,
    best: bool,
    comparable: bool,
) -> Evaluation:
    """The figures of one configuration.

    Args:
        rate: α of its candidate.
        best: whether this is the candidate's best k.
        comparable: whether its expected speed-up may be compared with those of other k's.
    """
    predictor, prediction, k = alternative.predictor, alternative.prediction, alternative.k
    measured, costs, ranking = alternative.measured, predictor.costs, decided.ranking
    # Those of a serving engine, with or without a baseline.
    answers = runs_at(run, alternative.candidate, k, predictor.batch) if run.served else []
    while_decoding = None
    if measured:
        while_decoding = measured.counted
    elif answers:
        while_decoding = counted_along(answers)
    # A draft that cannot be replayed has the engine's τ at k's that were started, at others that of
    # the positions that it counted.
    along = prediction.trajectories, prediction.rounds
    replayed = along if predictor.along.replays else while_decoding or along

    def figure(of: Callable[..., Sample], rounds: tuple[Any, Rounds] | None) -> Estimate | None:
        return estimate(of(*rounds) if rounds else None)

    ratio = predictor.draft_cost_ratio
    verify = costs.verify_ratio(k + 1, predictor.context) if costs else None
    needed = break_even_alpha(k, ratio.value, verify=verify.value) if ratio and verify else None
    expected = expected_end_to_end = None
    if comparable:
        expected = ranking.expected(alternative, "expected")
        expected_end_to_end = ranking.expected(alternative, "end_to_end")
    deciding = expected_end_to_end if ranking.by == "end_to_end" else expected
    competes = alternative in ranking.alternatives and deciding is not None
    confidence = ranking.confidence(alternative) if competes else None
    return Evaluation(
        draft=alternative.candidate.draft,
        quant=alternative.candidate.quant,
        k=k,
        alpha=estimate(rate),
        mean_accepted_length=figure(mean_accepted_length, replayed),
        draft_cost_ratio=ratio,
        verify_ratio=verify,
        speedup_predicted=estimate(alternative.predicted),
        speedup_measured=estimate(measured.speedup if measured else None),
        best=best,
        tokens_per_round=figure(tokens_per_round, replayed),
        accepted_per_drafted=figure(accepted_per_drafted, replayed),
        mean_accepted_length_measured=figure(mean_accepted_length, while_decoding),
        accepted_per_drafted_measured=figure(accepted_per_drafted, while_decoding),
        speedup_expected=expected,
        speedup_end_to_end=estimate(prediction.end_to_end()),
        prediction_error=alternative.prediction_error,
        memory_bytes=predictor.memory_bytes,
        reason=None if alternative is decided.choice else why_not(alternative, decided, run),
        speedup_end_to_end_expected=expected_end_to_end,
        requests_served=len({row.request for _, row in answers}),
        requests_measured=len(measured.speedup.requests) if measured else 0,
        probability_best=confidence.probability if confidence else None,
        round_overhead=alternative.round_overhead,
        plain_overhead=alternative.plain_overhead,
        break_even_alpha=needed,
        acceptance_luck=alternative.acceptance_luck,
        concurrency=predictor.batch,
    )


def why_not(alternative: Alternative, decided: LoadDecision, run: Run) -> str:
    """Why an alternative lost: to plain decoding, to another k of its draft, or to another draft;
    of the leader, why it is not chosen.
    """
    ranking, leader = decided.ranking, decided.leader
    speed = _value(alternative, ranking)
    if alternative.candidate.draft == SELF:
        return "a control: the target as its own draft is never recommended"
    if alternative.breaks:
        return "; ".join(alternative.breaks)
    if speed is None or leader is None or (best := _value(leader, ranking)) is None:
        return f"its speed is unknown: {why_unknown(alternative, run)}"
    if alternative not in ranking.alternatives:
        where = "on too few requests" if alternative.measured else "at this k"
        return f"not decoded {where}: this draft is judged by its other k's"
    if speed <= 1:
        return f"no faster than plain decoding: {_economy(alternative, ranking, speed)}"
    if alternative is leader:
        asked = decided.min_speedup
        reaches = "does not reach" if speed < asked else "may not reach"
        missed = f"{reaches} the {asked:g}× asked for"
        if asked == 1:
            missed = "may be no faster than plain decoding"
        return f"{missed}: {_economy(alternative, ranking, speed)}"
    if ranking.ties(alternative):
        return _tie(alternative, leader, (speed, best))
    if speed > best:
        most = f"{max(ranking.errors_of(alternative)):+.0%}"
        if alternative.predictor.interpolated:
            return f"not timed at this load: {speed:.2f}× is interpolated and may be {most} off"
        return (
            f"not decoded: {speed:.2f}× is predicted, but predictions of others were off by up to "
            f"{most} when decoded"
        )
    return f"slower: {_economy(alternative, ranking, speed, best)}"


def _value(alternative: Alternative, ranking: Ranking) -> float | None:
    """The speed-up that the ranking goes by."""
    sample = alternative.speedup(ranking.by)
    return None if sample is None else sample.value


def _tie(alternative: Alternative, leader: Alternative, speeds: tuple[float, float]) -> str:
    """What decided between an alternative and the leader that is as fast, as `Ranking` picks."""
    this, best = (f"{speed:.2f}×" for speed in speeds)
    both = this if this == best else f"{this} and {best}"
    tie = f"as fast within timing noise ({TIMING_NOISE:.0%}): {both}"
    memory, leaders_memory = alternative.predictor.memory_bytes, leader.predictor.memory_bytes
    if memory == leaders_memory:
        why = "drafts fewer tokens" if leader.k < alternative.k else "is the faster one"
    else:
        why = "needs less memory" if memory is not None else "is the one whose memory is known"
    name = f"k = {leader.k}" if alternative.candidate == leader.candidate else leader.name
    return f"{tie}; {name} {why}"


def _economy(
    alternative: Alternative, ranking: Ranking, speed: float, best: float | None = None
) -> str:
    """An expected speed-up, next to the leader's; for decoding alone also its tokens per round and
    what a round costs.
    """
    # More digits where two do not tell them apart.
    digits = 2 if best is None or f"{speed:.2f}" != f"{best:.2f}" else 3
    against = "" if best is None else f" against {best:.{digits}f}×"
    figure = f"{speed:.{digits}f}× expected{against}"
    if ranking.by == "end_to_end":
        return f"{figure}, both prefills included"
    tokens = alternative.tokens_per_round
    if tokens is None or speed <= 0:
        return figure
    figure = f"{figure}, {tokens:.2f} tokens per round"
    # At other loads with and without, or by noise, a round may seem to cost less than a step.
    return (
        figure if tokens < speed else f"{figure} at the cost of {tokens / speed:.2f} target steps"
    )


def why_unknown(alternative: Alternative, run: Run) -> str:
    """Why the speed of a configuration is unknown."""
    candidate, predictor = alternative.candidate, alternative.predictor
    if predictor.costs is not None:
        return "its prefill was not timed"
    if predictor.note is not None:
        return predictor.note
    if alternative.measured is not None:
        return f"{len(alternative.measured.speedup.requests)} decoded requests are too few to tell"
    if run.manifest.question.engine:
        return "replayed, but no server that drafts with it was timed"
    facts = run.facts_of(candidate)
    if facts is not None and not facts.has_kernel:
        return f"no fast kernel for {candidate.quant} on this device"
    failed = [f.reason for f in run.failures if f.candidate == candidate]
    return failed[-1] if failed else "its steps were not timed"


def prediction_errors(evaluator: Evaluator) -> PredictionError | None:
    """Over every configuration that was decoded, at every concurrency."""
    decoded = [
        (each, error)
        for concurrency in sorted({row.batch for row in evaluator.run.decodes})
        if evaluator.measured(concurrency)
        for each in evaluator.at(concurrency).alternatives
        if (error := each.prediction_error) is not None
    ]
    if not decoded:
        return None
    sizes = [abs(error) for _, error in decoded]
    passes_only = [
        abs(error)
        for each, _ in decoded
        if each.predictor.round_costs is None and (error := each.passes_only_error()) is not None
    ]
    return PredictionError(
        median=median(sizes),
        worst=max(sizes),
        configurations=len(sizes),
        passes_only_median=median(passes_only) if passes_only else None,
        passes_only_worst=max(passes_only, default=None),
        by_configuration=tuple(
            CheckedPrediction(
                draft=each.candidate.draft,
                quant=each.candidate.quant,
                k=each.k,
                concurrency=each.predictor.batch,
                error=error,
            )
            for each, error in decoded
        ),
    )


def break_even(alternative: Alternative) -> BreakEven | None:
    """The factor on every acceptance probability (capped at 1), to a thousandth, at which
    speculation only breaks even. Where the configuration was measured, its speed-up keeps its ratio
    to the prediction.

    None for prompt lookup, whose acceptance has no law per position, and at unknown speed.
    """
    along = alternative.predictor.along
    laws = [law for law in along.laws if isinstance(law, PositionLaw)]
    expected = alternative.expected.value if alternative.expected else None
    predicted = alternative.predicted.value if alternative.predicted else None
    if len(laws) < len(along.laws) or not expected or not predicted:
        return None

    def pays(scaling: float) -> bool:
        scaled = tuple(replace(x, accept=np.minimum(1.0, scaling * x.accept)) for x in laws)
        predictor = replace(alternative.predictor, along=replace(along, laws=scaled))
        sample = predict(predictor, alternative.k).speedup()
        value = sample.value if sample else None
        return value is not None and value * expected / predicted >= 1

    low, high = 0.0, 1.0
    if expected < 1:
        positive = [float(a) for law in laws for a in law.accept if a > 0]
        low, high = 1.0, 1 / min(positive, default=1.0)
        if not pays(high):
            return BreakEven(scaling=None, margin=None)
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return BreakEven(scaling=high, margin=1 - high)
