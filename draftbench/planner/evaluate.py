"""The alternatives of a decision → their figures as they are printed: estimates with intervals, the
reason why each was not chosen, how far predictions were off, and where acceptance breaks even.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from draftbench.acceptance.definitions import (
    Sample,
    accepted_per_drafted,
    alpha,
    mean_accepted_length,
    tokens_per_round,
)
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.acceptance.rounds import PositionLaw, counted_rounds
from draftbench.planner.at_concurrency import Evaluator, LoadDecision
from draftbench.planner.formula import break_even_alpha
from draftbench.planner.predict import predict
from draftbench.planner.rank import TIMING_NOISE, Alternative, Ranking
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
        own = [each for each in decided.alternatives if each.candidate == candidate]
        able = [each for each in own if not each.breaks] or [replace(a, breaks=()) for a in own]
        best = Ranking(able, ranking.by).best
        basis = alpha(own[0].predictor.replays)
        rate = _estimate(basis), basis.figure.name if basis else None
        costs, context = own[0].predictor.costs, own[0].predictor.context
        ratio = costs.draft_cost_ratio(context) if costs else None
        corrected = any(each.corrected for each in own)
        for each in own:
            found.append(
                _evaluation(
                    each,
                    ranking,
                    rate,
                    ratio,
                    best=best is not None and each.k == best.k,
                    comparable=each.corrected or not corrected,
                    reason=None if each is decided.choice else why_not(each, decided, run),
                )
            )
    return tuple(found)


def _evaluation(
    alternative: Alternative,
    ranking: Ranking,
    rate: tuple[Estimate | None, str | None],
    ratio: Estimate | None,
    *,
    best: bool,
    comparable: bool,
    reason: str | None,
) -> Evaluation:
    """The figures of one configuration.

    Args:
        rate: α of its candidate, and what it is the mean of.
        ratio: c of its candidate.
        comparable: whether its expected speed-up may be compared with those of other k's.
    """
    predictor, prediction = alternative.predictor, alternative.prediction
    measured, costs = alternative.measured, predictor.costs
    counted, ran = (prediction.trajectories, prediction.rounds), None
    if measured:
        ran = [t for t, _ in measured.runs], counted_rounds([row for _, row in measured.runs])
    predicted, end_to_end = _estimate(alternative.predicted), _estimate(prediction.end_to_end())
    verify = costs.verify_ratio(alternative.k + 1, predictor.context) if costs else None
    needed = None
    if ratio and verify:
        needed = break_even_alpha(alternative.k, ratio.value, verify=verify.value)
    expected, expected_end_to_end = predicted, end_to_end
    if alternative.corrected:
        expected = _estimate(alternative.expected)
        expected_end_to_end = _estimate(alternative.end_to_end)
    elif not comparable:
        expected = expected_end_to_end = None
    deciding = expected_end_to_end if ranking.by == "end_to_end" else expected
    competes = alternative in ranking.alternatives and deciding is not None
    confidence = ranking.confidence(alternative) if competes else None
    return Evaluation(
        draft=alternative.candidate.draft,
        quant=alternative.candidate.quant,
        k=alternative.k,
        alpha=rate[0],
        mean_accepted_length=_estimate(mean_accepted_length(*counted)),
        draft_cost_ratio=ratio,
        verify_ratio=verify,
        speedup_predicted=predicted,
        speedup_measured=_estimate(measured.speedup if measured else None),
        best=best,
        alpha_basis=rate[1],
        tokens_per_round=_estimate(tokens_per_round(*counted)),
        accepted_per_drafted=_estimate(accepted_per_drafted(*counted)),
        mean_accepted_length_measured=_estimate(mean_accepted_length(*ran) if ran else None),
        accepted_per_drafted_measured=_estimate(accepted_per_drafted(*ran) if ran else None),
        speedup_expected=expected,
        speedup_end_to_end=end_to_end,
        prediction_error=alternative.prediction_error,
        memory_bytes=predictor.memory_bytes,
        reason=reason,
        speedup_end_to_end_expected=expected_end_to_end,
        requests_measured=len(measured.speedup.requests) if measured else 0,
        probability_best=confidence.probability if confidence else None,
        round_overhead=alternative.round_overhead,
        plain_overhead=alternative.plain_overhead,
        break_even_alpha=needed,
        concurrency=predictor.batch,
    )


def why_not(alternative: Alternative, decided: LoadDecision, run: Run) -> str:
    """Why an alternative lost: to plain decoding, to another k of its draft, or to another draft.
    For the leader itself the answer says what it is worth.
    """
    ranking, leader = decided.ranking, decided.leader
    speed = _value(alternative, ranking)
    if alternative.candidate.draft == SELF:
        return "a control: the target as its own draft is never recommended"
    if alternative.breaks:
        return "; ".join(alternative.breaks)
    if speed is None or leader is None or (best := _value(leader, ranking)) is None:
        return f"its speed is unknown: {_unknown_speed(alternative, run)}"
    if alternative not in ranking.alternatives:
        return "not decoded: this draft is judged by the k's that were"
    if speed <= 1:
        return f"no faster than plain decoding: {_economy(alternative, ranking, speed)}"
    if alternative is leader:
        return f"not clearly above the asked speed-up: {_economy(alternative, ranking, speed)}"
    if not alternative.corrected and (1 - TIMING_NOISE) * speed > best:
        return (
            f"not decoded: {speed:.2f}× is predicted, but such predictions were off by up to "
            f"{max(ranking.errors):+.0%} where others were decoded"
        )
    if speed >= (1 - TIMING_NOISE) * best:
        preferred = "k" if alternative.candidate == leader.candidate else "draft"
        verdict = f"a tie with {leader.name} ({best:.2f})"
        if speed > best:
            return f"{verdict}, which has the smaller {preferred}"
        return f"{verdict}, no faster"
    return f"slower: {_economy(alternative, ranking, speed)}"


def _economy(alternative: Alternative, ranking: Ranking, speed: float) -> str:
    """The two halves of a decode speed-up; with prefills it has more."""
    if ranking.by == "end_to_end":
        return f"{speed:.2f}× with both prefills"
    prediction = alternative.prediction
    tokens = tokens_per_round(prediction.trajectories, prediction.rounds).value
    if tokens is None or speed <= 0:
        return f"{speed:.2f}×"
    return (
        f"{speed:.2f}×, {tokens:.2f} tokens per round at the cost of {tokens / speed:.2f} target "
        "steps"
    )


def _value(alternative: Alternative, ranking: Ranking) -> float | None:
    """The speed-up that the ranking goes by."""
    sample = alternative.speedup(ranking.by)
    return None if sample is None else sample.value


def _unknown_speed(alternative: Alternative, run: Run) -> str:
    candidate = alternative.candidate
    if alternative.predictor.costs is not None:
        return "its prefill was not timed"
    if alternative.predictor.note is not None:
        return alternative.predictor.note
    facts = run.facts_of(candidate)
    if facts is not None and not facts.has_kernel:
        return f"no fast kernel for {candidate.quant} on this device"
    failed = [f.reason for f in run.failures if f.candidate == candidate]
    return failed[-1] if failed else "its steps were not timed"


def prediction_errors(evaluator: Evaluator) -> PredictionError | None:
    """Over every configuration that was decoded, at every concurrency."""
    checked, alone = [], []
    for concurrency in sorted({row.batch for row in evaluator.run.decodes}):
        if not evaluator.measured(concurrency):
            continue
        for each in evaluator.at(concurrency).alternatives:
            error = each.prediction_error
            if error is None:
                continue
            checked.append(
                CheckedPrediction(
                    draft=each.candidate.draft,
                    quant=each.candidate.quant,
                    k=each.k,
                    concurrency=concurrency,
                    error=error,
                )
            )
            passes_only = each.passes_only_error()
            if passes_only is not None:
                alone.append(abs(passes_only))
    if not checked:
        return None
    sizes = [abs(each.error) for each in checked]
    return PredictionError(
        median=median(sizes),
        worst=max(sizes),
        configurations=len(sizes),
        passes_only_median=median(alone) if alone else None,
        passes_only_worst=max(alone, default=None),
        by_configuration=tuple(checked),
    )


def break_even(alternative: Alternative) -> BreakEven | None:
    """How much acceptance may fall before speculation only breaks even: one factor on every
    acceptance probability (capped at 1), to a thousandth, through the recursion of rounds. Where
    the configuration was measured, its speed-up keeps the ratio to its prediction.

    None for prompt lookup, whose acceptance has no law per position, and at unknown speed.
    """
    laws = [law for law in alternative.predictor.laws if isinstance(law, PositionLaw)]
    expected = alternative.expected.value if alternative.expected else None
    predicted = alternative.predicted.value if alternative.predicted else None
    if len(laws) < len(alternative.predictor.laws) or not expected or not predicted:
        return None

    def pays(scaling: float) -> bool:
        predictor = alternative.predictor.accepting(_scaled(laws, scaling))
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


def _scaled(laws: Sequence[PositionLaw], scaling: float) -> list[PositionLaw]:
    return [replace(law, accept=np.minimum(1.0, scaling * law.accept)) for law in laws]


def _estimate(sample: Sample | None) -> Estimate | None:
    return None if sample is None else estimate(sample)
