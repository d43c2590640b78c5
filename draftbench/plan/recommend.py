"""A run's observations → one recommendation, with its figures, reasons and doubts.

Speculate where the speed-up of the best cell lies above the asked one with its whole interval, do
not where it lies at or below, and say "inconclusive" between. Needs no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from draftbench.acceptance.definitions import (
    Sample,
    accepted_per_drafted,
    alpha,
    mean_accepted_length,
    tokens_per_round,
)
from draftbench.acceptance.intervals import Estimate, estimate, requests_needed
from draftbench.acceptance.rounds import counted_rounds
from draftbench.plan.caveats import caveats, near_tie_share
from draftbench.plan.choice import TIMING_NOISE, Cell, Contest, cell_of
from draftbench.plan.measured import audit, measured_cells
from draftbench.plan.predict import entrant_of, grid
from draftbench.plan.reasons import why_not
from draftbench.plan.recommendation import (
    CellFigures,
    Decision,
    Pick,
    PredictionError,
    Recommendation,
)
from draftbench.records import SELF, Candidate
from draftbench.store.observed import Observed


def recommend(observed: Observed, *, min_speedup: float = 1.0) -> Recommendation:
    """Decide for one run.

    Args:
        min_speedup: the speed-up from which speculation is worth having.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    cells = _cells(observed)
    contest = Contest([cell for cell in cells if cell.entrant.candidate.draft != SELF])
    leader = contest.leader()
    # Decided on requests that did not choose; the winner's own figures are flattered by winning.
    sample = contest.cross_fit("judged") or (leader.judged if leader else None)
    judged = _estimate(sample)
    decision = _decide(judged, min_speedup)
    choice = leader if decision == "speculate" else None
    certainty = contest.certainty(None if decision == "do_not_speculate" else leader)
    doubts = caveats(observed, cells, leader)
    return Recommendation(
        decision=decision,
        choice=_pick(choice),
        candidates=_candidates(observed, cells, contest, choice),
        requests=len({t.request for t in observed.trajectories}),
        output_tokens=sum(t.output_tokens for t in observed.trajectories),
        prediction_error=_errors(observed, cells),
        min_speedup=min_speedup,
        leader=_pick(leader),
        runner_up=_pick(contest.runner_up(leader) if leader else None),
        choice_speedup_predicted=_estimate(contest.cross_fit("predicted")),
        choice_speedup_measured=_estimate(contest.cross_fit("measured")),
        probability_best=certainty.probability if certainty else None,
        expected_regret=certainty.regret if certainty else None,
        requests_needed=_needed(sample, judged, min_speedup),
        audit=audit(observed),
        near_tie_share=near_tie_share(observed),
        caveats=(*_of_the_leader(contest, leader, min_speedup), *doubts),
        runner=_runner(observed),
        machine=observed.manifest.environment.machine,
        drafting_mode=observed.manifest.question.mode,
    )


def best_cells(observed: Observed, candidate: Candidate) -> list[int]:
    """The k's of one candidate that are worth measuring: the best predicted one and its neighbours.

    Looks at replays and cost points only, so that an interrupted sweep that goes on asks for the
    same cells. Empty where the candidate's cost is unknown or nothing was replayed.
    """
    entrant = entrant_of(observed, candidate, measured=False)
    ks = grid(observed)
    if not entrant.laws:
        return []
    best = Contest([cell_of(entrant, k, None) for k in ks]).leader()
    if best is None:
        return []
    at = ks.index(best.k)
    return list(ks[max(at - 1, 0) : at + 2])


def _cells(observed: Observed) -> list[Cell]:
    """Every candidate at every k of the grid."""
    measured = measured_cells(observed)
    return [
        cell_of(entrant, k, measured.get((entrant.candidate, k)))
        for entrant in (entrant_of(observed, candidate) for candidate in observed.candidates)
        if entrant.laws
        for k in grid(observed)
    ]


def _decide(judged: Estimate | None, min_speedup: float) -> Decision:
    least = min_speedup * (1 + TIMING_NOISE)
    if judged is None or judged.low <= least < judged.high:
        return "inconclusive"
    return "speculate" if judged.low > least else "do_not_speculate"


def _needed(sample: Sample | None, judged: Estimate | None, min_speedup: float) -> int | None:
    """How many requests would settle what is inconclusive."""
    if sample is None or judged is None or judged.value == min_speedup:
        return None
    if _decide(judged, min_speedup) != "inconclusive":
        return None
    return requests_needed(sample, abs(judged.value - min_speedup) / judged.value)


def _candidates(
    observed: Observed, cells: Sequence[Cell], contest: Contest, choice: Cell | None
) -> tuple[CellFigures, ...]:
    figures, leader = [], contest.leader()
    for candidate in dict.fromkeys(cell.entrant.candidate for cell in cells):
        own = [cell for cell in cells if cell.entrant.candidate == candidate]
        best = Contest(own).leader()
        basis = alpha(own[0].entrant.replays)
        rate = _estimate(basis), basis.figure.name if basis else None
        for cell in own:
            reason = None if cell is choice else why_not(cell, contest, leader, observed)
            figures.append(_figures(cell, cell is best, rate, reason))
    return tuple(figures)


def _figures(
    cell: Cell, best: bool, rate: tuple[Estimate | None, str | None], reason: str | None
) -> CellFigures:
    entrant, forecast = cell.entrant, cell.forecast
    counted = forecast.trajectories, forecast.rounds
    ran = None
    if cell.measured is not None:
        ran = (
            [trajectory for trajectory, _ in cell.measured.runs],
            counted_rounds([decode for _, decode in cell.measured.runs]),
        )
    costs = entrant.costs
    return CellFigures(
        draft=entrant.candidate.draft,
        quant=entrant.candidate.quant,
        k=cell.k,
        alpha=rate[0],
        mean_accepted_length=_estimate(mean_accepted_length(*counted)),
        draft_cost_ratio=costs.draft_cost_ratio(entrant.context) if costs else None,
        verify_ratio=costs.verify_ratio(cell.k + 1, entrant.context) if costs else None,
        speedup_predicted=_estimate(cell.predicted),
        speedup_measured=_estimate(cell.measured.speedup if cell.measured else None),
        best=best,
        alpha_basis=rate[1],
        tokens_per_round=_estimate(tokens_per_round(*counted)),
        accepted_per_drafted=_estimate(accepted_per_drafted(*counted)),
        mean_accepted_length_measured=_estimate(mean_accepted_length(*ran) if ran else None),
        accepted_per_drafted_measured=_estimate(accepted_per_drafted(*ran) if ran else None),
        speedup_expected=_estimate(cell.judged),
        speedup_end_to_end=_estimate(forecast.end_to_end()),
        prediction_error=_error(cell),
        memory_bytes=entrant.memory_bytes,
        reason=reason,
    )


def _error(cell: Cell) -> float | None:
    """Predicted over measured less 1, on the requests that were measured."""
    if cell.measured is None:
        return None
    predicted = cell.forecast.speedup(only=cell.measured.keys)
    if predicted is None or not predicted.value or not cell.measured.speedup.value:
        return None
    return predicted.value / cell.measured.speedup.value - 1


def _errors(observed: Observed, cells: Sequence[Cell]) -> PredictionError | None:
    sizes = [abs(error) for cell in cells if (error := _error(cell)) is not None]
    if not sizes:
        return None
    bare = {
        candidate: entrant_of(observed, candidate, measured=False)
        for candidate in {cell.entrant.candidate for cell in cells if cell.measured is not None}
    }
    unaided = [
        abs(error)
        for cell in cells
        if cell.measured is not None
        and (error := _error(cell_of(bare[cell.entrant.candidate], cell.k, cell.measured)))
        is not None
    ]
    return PredictionError(
        median=median(sizes),
        worst=max(sizes),
        cells=len(sizes),
        passes_only_median=median(unaided),
        passes_only_worst=max(unaided),
    )


def _of_the_leader(contest: Contest, leader: Cell | None, min_speedup: float) -> list[str]:
    """What must be said of the cell that came out first."""
    if leader is None:
        return ["no candidate's speed is known: nothing was timed, or no level has a kernel here"]
    found = [
        f"{cell.name} is faster than {leader.name} by less than timing noise; "
        "the smaller draft, then the smaller k, is preferred"
        for cell in contest.faster_ties(leader)
    ]
    predicted, judged = _estimate(leader.predicted), _estimate(leader.judged)
    if leader.measured is None:
        found.append(f"{leader.name} was not measured: its speed-up is a prediction")
    if judged is None:
        found.append(f"{leader.name}: too few requests for an interval of its speed-up")
    elif predicted and _decide(predicted, min_speedup) != _decide(judged, min_speedup):
        found.append(
            f"{leader.name}: predicted {predicted.value:.2f}, {judged.value:.2f} after "
            "measuring; judged by the measurement"
        )
    return found


def _runner(observed: Observed) -> str | None:
    """What ran the target's passes: costs belong to it."""
    timed = next((point.runner for point in observed.costs if point.draft is None), None)
    facts = observed.facts_of(None)
    return timed or (facts.runner if facts else None)


def _pick(cell: Cell | None) -> Pick | None:
    if cell is None:
        return None
    candidate = cell.entrant.candidate
    return Pick(draft=candidate.draft, quant=candidate.quant, k=cell.k)


def _estimate(sample: Sample | None) -> Estimate | None:
    return None if sample is None else estimate(sample)
