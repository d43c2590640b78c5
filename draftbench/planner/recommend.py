"""A run's observations → one recommendation, with its figures, reasons and doubts, for every
concurrency that is asked for. Needs no model.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import msgspec

from draftbench.acceptance.definitions import (
    Sample,
    accepted_per_drafted,
    alpha,
    mean_accepted_length,
    tokens_per_round,
)
from draftbench.acceptance.faults import near_tie_share
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.acceptance.rounds import counted_rounds
from draftbench.planner.breakeven import break_even
from draftbench.planner.caveats import caveats
from draftbench.planner.checks import checks
from draftbench.planner.choice import Cell, Certainty, Contest, cell_of
from draftbench.planner.formula import break_even_alpha
from draftbench.planner.latency import latency
from draftbench.planner.levels import (
    best_level,
    crossover,
    crossover_between,
    level_of,
    pick,
    schedule,
)
from draftbench.planner.measured import audit
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes_alone import (
    passes_only_error,
    plain_overhead,
    prediction_error,
    round_overhead,
)
from draftbench.planner.predict import entrant_of, grid
from draftbench.planner.reasons import why_not
from draftbench.planner.recommendation import (
    CheckedPrediction,
    Evaluation,
    LoadLevel,
    PredictionError,
    Recommendation,
)
from draftbench.planner.rules import rules_of_thumb
from draftbench.planner.standing import Field, Standing
from draftbench.records import Candidate
from draftbench.run_folder.run import Run


def recommend(run: Run, options: DecisionOptions | None = None) -> Recommendation:
    """Decide for one run. The headline is the answer at the first concurrency, or at the one that
    the objective chooses.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    field = Field(run, options or DecisionOptions())
    asked = tuple(dict.fromkeys(field.options.concurrency)) or field.concurrencies()
    levels = tuple(level_of(field, concurrency) for concurrency in asked)
    chosen = best_level(levels) if field.options.chooses_concurrency else None
    answer = _answer(field, field.at(chosen.concurrency if chosen else asked[0]), levels)
    return msgspec.structs.replace(
        answer, checks=checks(answer), advice=rules_of_thumb(answer, run)
    )


def _answer(field: Field, standing: Standing, levels: tuple[LoadLevel, ...]) -> Recommendation:
    observed, leader, certainty = field.observed, standing.leader, _certainty(standing)
    asked = [level.concurrency for level in levels]
    draft = leader.entrant.candidate if leader else None
    limit = crossover(field, draft) if draft else None
    return Recommendation(
        decision=standing.decision,
        choice=pick(standing.choice),
        evaluations=_candidates(observed, standing),
        requests=len({t.request for t in observed.trajectories}),
        output_tokens=sum(t.output_tokens for t in observed.trajectories),
        prediction_error=_errors(field),
        min_speedup=standing.min_speedup,
        leader=pick(leader),
        runner_up=pick(standing.contest.runner_up(leader) if leader else None),
        speedup_predicted_cross_fitted=_estimate(standing.contest.cross_fit("predicted")),
        speedup_measured_cross_fitted=_estimate(standing.contest.cross_fit("measured")),
        speedup_deciding=standing.judged,
        speedup_without_interval=_without_interval(standing),
        probability_best=certainty.probability if certainty else None,
        expected_regret=certainty.regret if certainty else None,
        requests_needed=standing.requests_needed,
        audit=audit(observed),
        near_tie_share=near_tie_share(observed),
        caveats=caveats(field, standing),
        runner=field.source.runner,
        machine=observed.manifest.environment.machine,
        drafting_mode=observed.manifest.question.mode,
        concurrency=standing.concurrency,
        objective=field.options.objective,
        levels=levels,
        schedule=schedule(field, draft, asked) if draft else (),
        crossover=limit,
        crossover_between=crossover_between(field, draft, limit) if draft else None,
        break_even=break_even(leader) if leader and standing.judged else None,
        latency=latency(leader) if leader else None,
        failures=observed.failures,
    )


def _without_interval(standing: Standing) -> float | None:
    """The leader's speed-up where its requests are too few for an interval."""
    if standing.leader is None or standing.judged is not None:
        return None
    sample = standing.leader.speedup(standing.contest.by)
    return sample.value if sample else None


def _certainty(standing: Standing) -> Certainty | None:
    """How sure the decision is; unknown without an interval. Turning down what is faster than plain
    decoding, because more was asked for, is no bet on which option is the fastest.
    """
    if standing.leader is not None and standing.judged is None:
        return None
    if standing.decision != "do_not_speculate":
        return standing.contest.certainty(standing.leader)
    return standing.contest.certainty(None) if standing.min_speedup <= 1 else None


def promising_ks(observed: Run, candidate: Candidate, batch: int = 1) -> list[int]:
    """The k's of one candidate that are worth measuring at one batch size: the best predicted one
    and its neighbours.

    Looks at replays and cost points only, so that an interrupted sweep that goes on asks for the
    same cells. Empty where the candidate's cost is unknown or nothing was replayed.
    """
    entrant = entrant_of(observed, candidate, batch=batch, measured=False)
    ks = grid(observed)
    if not entrant.laws:
        return []
    best = Contest([cell_of(entrant, k, None) for k in ks]).leader()
    if best is None:
        return []
    at = ks.index(best.k)
    return list(ks[max(at - 1, 0) : at + 2])


def _candidates(observed: Run, standing: Standing) -> tuple[Evaluation, ...]:
    figures, contest = [], standing.contest
    for candidate in dict.fromkeys(cell.entrant.candidate for cell in standing.cells):
        own = [cell for cell in standing.cells if cell.entrant.candidate == candidate]
        able = [cell for cell in own if not cell.breaks] or [replace(c, breaks=()) for c in own]
        best = Contest(able, contest.by).leader()
        basis = alpha(own[0].entrant.replays)
        rate = _estimate(basis), basis.figure.name if basis else None
        for cell in own:
            chosen = cell is standing.choice
            reason = None if chosen else why_not(cell, contest, standing.leader, observed)
            first = best is not None and cell.k == best.k
            found = _figures(cell, first, rate, reason)
            if cell.measured is None and any(other.measured for other in own):
                found = _uncorrected(found)
            whole, decode = found.speedup_end_to_end_expected, found.speedup_expected
            known = cell in contest.cells and (whole if contest.by == "whole" else decode)
            sure = contest.certainty(cell) if known else None
            chance = sure.probability if sure else None
            figures.append(msgspec.structs.replace(found, probability_best=chance))
    return tuple(figures)


def _uncorrected(figures: Evaluation) -> Evaluation:
    """Of a k that was not decoded beside others of its draft that were: no expectation."""
    unknown = dict.fromkeys(("speedup_expected", "speedup_end_to_end_expected"))
    return msgspec.structs.replace(figures, **unknown)


def _figures(
    cell: Cell, best: bool, rate: tuple[Estimate | None, str | None], reason: str | None
) -> Evaluation:
    entrant, forecast, measured = cell.entrant, cell.forecast, cell.measured
    counted, costs = (forecast.trajectories, forecast.rounds), entrant.costs
    ran = None
    if measured:
        ran = [t for t, _ in measured.runs], counted_rounds([run for _, run in measured.runs])
    predicted, whole = _estimate(cell.predicted), _estimate(forecast.end_to_end())
    ratio = costs.draft_cost_ratio(entrant.context) if costs else None
    verify = costs.verify_ratio(cell.k + 1, entrant.context) if costs else None
    least = break_even_alpha(cell.k, ratio.value, verify=verify.value) if ratio and verify else None
    return Evaluation(
        draft=entrant.candidate.draft,
        quant=entrant.candidate.quant,
        k=cell.k,
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
        speedup_expected=_estimate(cell.judged) if measured else predicted,
        speedup_end_to_end=whole,
        prediction_error=prediction_error(cell),
        memory_bytes=entrant.memory_bytes,
        reason=reason,
        round_overhead=round_overhead(cell),
        plain_overhead=plain_overhead(cell),
        speedup_end_to_end_expected=_estimate(cell.whole) if measured else whole,
        requests_measured=len(measured.speedup.requests) if measured else 0,
        break_even_alpha=least,
        concurrency=entrant.batch,
    )


def _errors(field: Field) -> PredictionError | None:
    """Over every cell that was decoded, at every batch size."""
    found, unaided = [], []
    for batch in sorted({row.batch for row in field.observed.decodes}):
        for cell in field.at(batch).cells if field.measured(batch) else ():
            error = prediction_error(cell)
            if error is None:
                continue
            name = cell.entrant.candidate
            found.append(
                CheckedPrediction(
                    draft=name.draft, quant=name.quant, k=cell.k, concurrency=batch, error=error
                )
            )
            unaided.append(abs(passes_only_error(cell) or 0.0))
    if not found:
        return None
    sizes = [abs(checked.error) for checked in found]
    return PredictionError(
        median=median(sizes),
        worst=max(sizes),
        configurations=len(sizes),
        passes_only_median=median(unaided),
        passes_only_worst=max(unaided),
        by_configuration=tuple(found),
    )


def _estimate(sample: Sample | None) -> Estimate | None:
    return None if sample is None else estimate(sample)
