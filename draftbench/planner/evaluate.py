"""The alternatives of a decision → `Evaluation`s: figures with intervals, and why each was not
chosen. Also how far off predictions were.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean, median

import numpy as np

from draftbench.acceptance.candidate_rounds import counted_along, runs_at
from draftbench.acceptance.definitions import (
    Sample,
    accepted_per_drafted,
    alpha,
    mean_accepted_length,
    tokens_per_round,
)
from draftbench.acceptance.intervals import Estimate, estimates
from draftbench.planner.cells import Cell
from draftbench.planner.decide import (
    HARDLY_MORE_LOSS,
    Alternative,
    DecisionAt,
    Evaluator,
)
from draftbench.planner.recommendation import (
    CheckedPrediction,
    Evaluation,
    PredictionError,
)
from draftbench.records import SELF, Decode, Trajectory
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run


def evaluations(run: Run, decided: DecisionAt) -> tuple[Evaluation, ...]:
    """Every candidate at every k, in the order in which they were measured."""
    samples: dict[Alternative, dict[str, Sample | None]] = {}
    best_of_each = []
    for candidate in dict.fromkeys(each.candidate for each in decided.alternatives):
        at_every_k = [each for each in decided.alternatives if each.candidate == candidate]
        # Because of memory, another k may lead among all candidates than within one draft.
        best = decided.leader
        if best is None or best.candidate != candidate:
            best = decided.evaluator.at(decided.concurrency, candidate).best_of_draft
        best_of_each.append(best)
        rate = alpha(at_every_k[0].along.replays)
        samples |= {each: {"alpha": rate} | _samples(each) for each in at_every_k}
    # All at once, since requests are drawn once for the figures that are computed together.
    intervals = iter(estimates([each for of in samples.values() for each in of.values()]))
    found = []
    for each, of in samples.items():
        figures = {name: next(intervals) for name in of}
        alone = {name: each.value for name, each in of.items() if each and not figures[name]}
        found.append(_evaluation(each, decided, run, figures, alone, each in best_of_each))
    return tuple(found)


@remembered
def _answers(alternative: Alternative) -> list[tuple[Trajectory, Decode]]:
    """A serving engine's answers with this configuration, whether there is a baseline or not."""
    run, concurrency = alternative.evaluator.run, alternative.configuration.concurrency
    return runs_at(run, alternative.candidate, alternative.k, concurrency) if run.served else []


def _samples(alternative: Alternative) -> dict[str, Sample | None]:
    """The figures of one configuration whose intervals come from drawn requests."""
    measured, along = alternative.measured, alternative.along
    counted = None
    if measured:
        counted = measured.counted
    elif answers := _answers(alternative):
        counted = counted_along(answers)
    # A draft that cannot be replayed has the engine's τ at k's that were started, and at others the
    # τ that follows from the positions that the engine counted.
    expected = along.trajectories, along.at(alternative.k)
    replayed = expected if along.replays else counted or expected
    return {
        "mean_accepted_length": mean_accepted_length(*replayed),
        "tokens_per_round": tokens_per_round(*replayed),
        "accepted_per_drafted": accepted_per_drafted(*replayed),
        "mean_accepted_length_measured": mean_accepted_length(*counted) if counted else None,
        "accepted_per_drafted_measured": accepted_per_drafted(*counted) if counted else None,
        "speedup_measured": measured.speedup if measured else None,
    }


def _evaluation(
    alternative: Alternative,
    decided: DecisionAt,
    run: Run,
    figures: Mapping[str, Estimate | None],
    alone: Mapping[str, float | None],
    best: bool,
) -> Evaluation:
    """One configuration with its figures.

    Args:
        figures: those of `_samples` and the candidate's α, by field.
        alone: values that have no interval, by field.
        best: whether this is the candidate's best k.
    """
    along, block, k = alternative.along, alternative.block, alternative.k
    measured, configuration = alternative.measured, alternative.configuration
    ratio = block.draft_cost_ratio(along.context) if block else None
    verify = block.verify_ratio(k + 1, along.context) if block else None
    competes, evaluator = alternative in decided.competing, decided.evaluator
    beside = evaluator.cells.get(configuration.at(0), ())
    counted, most = _experts_read(alternative, evaluator.source.run)
    return Evaluation(
        draft=alternative.candidate.draft,
        quant=alternative.candidate.quant,
        k=k,
        draft_cost_ratio=ratio,
        verify_ratio=verify,
        speedup_predicted=alternative.estimate(alternative.predicted()),
        best=best,
        speedup_expected=alternative.expected,
        speedup_end_to_end=alternative.estimate(alternative.predicted("end_to_end")),
        prediction_error=alternative.prediction_error,
        memory_bytes=alternative.memory_bytes,
        reason=None if alternative is decided.choice else why_not(alternative, decided, run),
        speedup_end_to_end_expected=alternative.estimate(alternative.log("end_to_end")),
        requests=alternative.requests,
        requests_served=len({row.request for _, row in _answers(alternative)}),
        requests_measured=len(measured.speedup.requests) if measured else 0,
        probability_best=decided.probability(alternative)
        if competes and decided.deciding
        else None,
        round_overhead=_over_passes(alternative.cells),
        plain_overhead=_over_passes(beside) if measured else None,
        acceptance_luck=alternative.acceptance_luck,
        breaks=decided.breaks.get(configuration, ()),
        drawn_to_others=alternative.drawn_to_others,
        interval_from=alternative.interval_from,
        experts_read=counted,
        experts_read_at_most=most,
        concurrency=configuration.concurrency,
        alpha_without_interval=alone.get("alpha"),
        tokens_per_round_without_interval=alone.get("tokens_per_round"),
        **figures,
    )


def _over_passes(cells: Sequence[Cell]) -> float | None:
    """Measured seconds over the seconds of their passes; None where either is unknown."""
    known = [float(cell.log[0]) for cell in cells if cell.promise == "passes"]
    return math.exp(mean(known)) if known else None


def _experts_read(alternative: Alternative, timed: Run | None) -> tuple[float | None, float | None]:
    """How many of the target's experts the timed passes over k + 1 tokens read in a layer, linear
    between timed sizes; and how many they could read at most.
    """
    facts = timed.facts_of(None) if timed else None
    if timed is None or facts is None or facts.mixture is None:
        return None, None
    concurrency, tokens = alternative.configuration.concurrency, alternative.k + 1
    counts = defaultdict[int, list[float]](list)
    for point in timed.costs:
        if (
            point.experts_read is not None
            and point.candidate is None
            and (point.block, point.concurrency) == (str(alternative.candidate), concurrency)
        ):
            counts[point.new_tokens].append(point.experts_read)
    sizes = sorted(counts)
    if not sizes:
        return None, None
    counted = float(np.interp(tokens, sizes, [mean(counts[size]) for size in sizes]))
    return counted, facts.mixture.most_read(concurrency * tokens)


def why_not(alternative: Alternative, decided: DecisionAt, run: Run) -> str:
    """Why an alternative lost to plain decoding, to another k of its draft, or to another draft;
    for the leader, why it was not chosen.
    """
    leader, speed = decided.leader, alternative.value(decided.by)
    if alternative.candidate.draft == SELF:
        return "a control: the target as its own draft is never recommended"
    if broken := decided.breaks.get(alternative.configuration):
        return "; ".join(broken)
    if speed is None or leader is None or (best := leader.value(decided.by)) is None:
        return f"its speed is unknown: {why_unknown(alternative, run)}"
    if speed <= 1:
        return f"no faster than plain decoding: {_economy(alternative, decided, speed)}"
    if alternative is leader:
        least = decided.min_speedup
        reaches = "does not reach" if speed < least else "may not reach"
        missed = f"{reaches} the {least:g}× asked for"
        if least == 1:
            missed = "may be no faster than plain decoding"
        return f"{missed}: {_economy(alternative, decided, speed)}"
    lost, of_leader = decided.loss(alternative), decided.loss(leader)
    if abs(lost - of_leader) <= HARDLY_MORE_LOSS:
        return _tie(alternative, leader, (speed, best), lost - of_leader)
    if speed > best:
        return (
            f"less certain: {speed:.2f}× is expected, but it would lose {lost:.1%} of the best "
            f"speed on average, {leader.name} {of_leader:.1%}"
        )
    return f"slower: {_economy(alternative, decided, speed, best)}"


def _tie(
    alternative: Alternative, leader: Alternative, speeds: tuple[float, float], more: float
) -> str:
    """What decided between the leader and an alternative whose expected loss is hardly larger, by
    `more`, or smaller (below 0).
    """
    this, best = (f"{speed:.2f}×" for speed in speeds)
    both = this if this == best else f"{this} against {best}"
    tie = f"about as good, {both}"
    if f"{-more:.1%}" > "0.0%" and more < 0:
        tie += f" and {-more:.1%} less expected regret"
    memory, leaders_memory = alternative.memory_bytes, leader.memory_bytes
    if memory == leaders_memory:
        why = "drafts fewer tokens" if leader.k < alternative.k else "is the faster one"
    else:
        why = "needs less memory" if memory is not None else "is the one whose memory is known"
    name = f"k = {leader.k}" if alternative.candidate == leader.candidate else leader.name
    return f"{tie}; {name} {why}"


def _economy(
    alternative: Alternative, decided: DecisionAt, speed: float, best: float | None = None
) -> str:
    """An expected speed-up, next to the leader's; if prefills do not count, also its tokens per
    round and what a round costs.
    """
    # A third digit if two do not tell them apart.
    digits = 2 if best is None or f"{speed:.2f}" != f"{best:.2f}" else 3
    against = "" if best is None else f" against {best:.{digits}f}×"
    figure = f"{speed:.{digits}f}× expected{against}"
    if decided.by == "end_to_end":
        return f"{figure}, both prefills included"
    tokens = alternative.tokens_per_round
    if tokens is None or speed <= 0:
        return figure
    figure = f"{figure}; a round produces {tokens:.2f} tokens"
    # Noise, or other loads with speculation than without, can make a round look cheaper than a
    # step.
    steps = f"in the time of {tokens / speed:.2f} target steps"
    return figure if tokens < speed else f"{figure} {steps}"


def why_unknown(alternative: Alternative, run: Run) -> str:
    """Why the speed of a configuration is unknown."""
    candidate = alternative.candidate
    if alternative.log() is not None:
        return "its prefill was not timed"
    if alternative.note is not None:
        return alternative.note
    if alternative.block is not None:
        return "passes as long were not timed"
    if alternative.measured is not None:
        return f"{len(alternative.measured.speedup.requests)} decoded requests are too few to tell"
    if run.manifest.question.engine:
        return "replayed, but no server that drafts with it was timed"
    facts = run.facts_of(candidate)
    if facts is not None and not facts.has_kernel:
        return f"no fast kernel for {candidate.quant} on this device"
    failed = [f.reason for f in run.failures if f.candidate == candidate]
    return failed[-1] if failed else "step times were not measured"


def prediction_errors(evaluator: Evaluator) -> PredictionError | None:
    """The prediction errors of every decoded configuration, at every concurrency."""
    decoded = [
        (each, error)
        for concurrency in sorted({row.concurrency for row in evaluator.run.decodes})
        if evaluator.measured(concurrency)
        for each in evaluator.alternatives(concurrency)
        if (error := each.prediction_error) is not None
    ]
    if not decoded:
        return None
    sizes = [abs(error) for _, error in decoded]
    passes = (each.error_with(0.0) for each, _ in decoded if each.block)
    passes_only = [abs(error) for error in passes if error is not None]
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
                concurrency=each.configuration.concurrency,
                error=error,
            )
            for each, error in decoded
        ),
    )
