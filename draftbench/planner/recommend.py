"""Decide for one run: speculate or not, with which configuration, and how sure that is; what every
configuration brings, and why it was not chosen.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np

from draftbench.acceptance.candidate_rounds import counted_in, runs_at
from draftbench.acceptance.definitions import (
    Sample,
    accepted_per_drafted,
    alpha,
    mean_accepted_length,
    tokens_per_round,
)
from draftbench.acceptance.faults import near_tie_share
from draftbench.acceptance.intervals import estimates
from draftbench.drafts.kinds import parts_of
from draftbench.drafts.stopping import STOP_RULES
from draftbench.planner.by_context import by_context
from draftbench.planner.caveats import caveats, checks, on_times
from draftbench.planner.cells import Cell
from draftbench.planner.concurrencies import at_concurrency, crossover, schedule
from draftbench.planner.cost_sources import engine_name
from draftbench.planner.decide import HARDLY_MORE_LOSS, TIMING_NOISE, DecisionAt, decide
from draftbench.planner.evaluator import Evaluator, Kind
from draftbench.planner.evidence import Evidence
from draftbench.planner.headroom import better_draft, headroom
from draftbench.planner.latency import latency, slo_kept
from draftbench.planner.options import DecisionOptions
from draftbench.planner.other_rules import foresight, moving_average
from draftbench.planner.output_check import audit
from draftbench.planner.recommendation import (
    FASTER_BY_LUCK,
    NEAR_TIES,
    TOSS_UP,
    CheckedPrediction,
    Configuration,
    Evaluation,
    OnEngine,
    PredictionError,
    Recommendation,
    Stopping,
    StoppingBounds,
)
from draftbench.planner.settle import larger_sweep, next_sweep, settled_by
from draftbench.planner.stop_choice import bounds
from draftbench.records import SELF, Candidate, DraftingMode, StopKind
from draftbench.run_folder.run import Run


def recommend(run: Run, options: DecisionOptions | None = None) -> Recommendation:
    """Decide for one run. The headline is the answer at the first concurrency; for throughput and
    cost it is the one with the most tokens per second, which at a given price are also the most
    tokens per dollar.
    """
    evaluator = Evaluator(run, options or DecisionOptions())
    concurrencies = dict.fromkeys(evaluator.options.concurrency or evaluator.concurrencies())
    loads = [at_concurrency(evaluator, concurrency) for concurrency in concurrencies]
    headline = loads[0]
    if evaluator.options.objective in ("throughput", "cost"):
        # The most tokens per second if the answer at a load is followed; unknown ones come last.
        waits = [
            at.seconds_per_token if at.decision == "speculate" else at.seconds_per_token_plain
            for at in loads
        ]
        paces = [
            at.concurrency / wait if wait else -1.0 for at, wait in zip(loads, waits, strict=True)
        ]
        headline = loads[int(np.argmax(paces))]
    decided = evaluator.at(headline.concurrency)
    leader, refused = decided.leader, decided.decision == "do_not_speculate"
    # If more than 1× is required, plain decoding may be chosen without being the fastest.
    sure = decided.deciding is not None and not (refused and decided.min_speedup > 1)
    draft = leader.candidate if leader else None
    limit, between, gaps = crossover(evaluator, draft) if draft else (None, None, ())
    option = None if refused else leader
    alone = decided.table.value(leader) if leader and not decided.deciding else None
    evaluated, ceiling = evaluations(evaluator, decided), None
    error = prediction_errors(evaluator)
    doubts = caveats(evaluator, decided, error)
    remedy = settled_by(evaluator, decided, doubts)
    larger = larger_sweep(evaluator, decided) if remedy == "sample" else None
    requests = len({t.request for t in run.trajectories})
    question, samples = run.manifest.question, any(t.sampling.temperature for t in run.trajectories)
    if question.mode is DraftingMode.GREEDY and question.responses == "target" and samples:
        # The α of the target as its own draft, if no greedy draft can be expected to reach more,
        # since the target sampled. A draft can still be luckier.
        rates = {each.candidate: each.alpha.value for each in evaluated if each.alpha}
        own = rates.get(Candidate(draft=SELF), 1.0)
        ceiling = own if max(rates.values(), default=1.0) == own < NEAR_TIES else None
    arrivals = None  # a constant number in flight
    if question.arrivals != "closed" and not evaluator.foreign:
        scale = question.time_scale or 1.0
        at_pace = "the log's pace" if scale == 1 else f"the log's pace ×{scale:g}"
        arrivals = at_pace if question.arrivals == "log" else f"{question.arrivals}/s"
    answer = Recommendation(
        decision=decided.decision,
        choice=headline.choice,
        evaluations=evaluated,
        requests=requests,
        output_tokens=sum(t.output_tokens for t in run.trajectories),
        prediction_error=error,
        min_speedup=decided.min_speedup,
        leader=headline.leader,
        runner_up=headline.runner_up,
        speedup_deciding=decided.deciding,
        speedup_without_interval=alone,
        probability_best=decided.probability(option) if sure else None,
        expected_regret=decided.loss(option) if sure else None,
        audit=audit(run),
        near_tie_share=near_tie_share(run),
        caveats=doubts,
        runner=evaluator.source.runner,
        drafting_mode=question.mode,
        concurrency=decided.concurrency,
        objective=evaluator.options.objective,
        prefills_counted=evaluator.by == "end_to_end",
        by_concurrency=tuple(loads),
        schedule=schedule(evaluator, draft, list(concurrencies)) if draft else (),
        crossover=limit,
        latency=latency(evaluator.evidence(leader), run) if leader else None,
        crossover_between=between,
        crossover_gaps=gaps,
        failures=run.failures,
        engine=engine_name(run) if question.engine else None,
        arrivals=arrivals,
        costs_from=evaluator.source.runner if evaluator.foreign else None,
        passes_given=evaluator.source.passes_given,
        slo_kept=slo_kept(run, leader, decided.concurrency, evaluator.options.slo),
        settled_by=remedy,
        larger_sweep=larger,
        next_sweep=next_sweep(
            remedy,
            larger,
            concurrency=decided.concurrency,
            requests=requests,
            distinct=run.manifest.traffic.distinct,
            engine=question.engine,
        ),
        ceiling_alpha=ceiling,
        headroom=(better := headroom(evaluator, decided, evaluated, ceiling)),
        better_draft=better_draft(headline.choice, run.candidates, better, requests),
        best_of_each=best_of_each(evaluated, headline.leader, evaluator.by),
        stopping=stopping(evaluator, decided),
        stopping_bounds=stopping_bounds(evaluator, decided),
        on_engines=tuple(on_engines(decided)),
        by_context=by_context(evaluator.evidence(leader)) if leader else (),
        runner_up_faster=decided.chance(decided.runner_up, leader)
        if leader and decided.runner_up and decided.deciding
        else None,
    )
    checked = (*checks(answer), *on_times(evaluator, answer))
    return msgspec.structs.replace(answer, checks=checked)


def evaluations(evaluator: Evaluator, decided: DecisionAt) -> tuple[Evaluation, ...]:
    """Every candidate at every k, in the order in which they were measured."""
    run, concurrency, table = evaluator.run, decided.concurrency, decided.table
    samples: dict[Configuration, dict[str, Sample | None]] = {}
    bests, answered = set[Configuration | None](), dict[Configuration, int]()
    rates: dict[Candidate, Sample | None] = {}
    for each in decided.configurations:
        evidence, candidate = evaluator.evidence(each), each.candidate
        measured, rounds = evidence.measured, evidence.rounds
        if candidate not in rates:
            rates[candidate] = alpha(rounds.replays)
            # Memory breaks ties, so a draft may lead at another k than the best among its own.
            led = decided.leader is not None and decided.leader.candidate == candidate
            bests.add(decided.leader if led else decided.alone(candidate).best_of_draft)
        # A serving engine's answers, whether there is a baseline or not.
        answers = runs_at(run, candidate, each.length, concurrency) if run.served else []
        answered[each] = len({row.request for _, row in answers})
        counted = counted_in(answers) if answers else None
        counted = measured.counted if measured else counted
        # A draft that cannot be replayed has the engine's τ at k's that were started, and at
        # others the τ that follows from the positions that the engine counted.
        computed = rounds.trajectories, rounds.at(*each.length)
        replayed = computed if rounds.replays else counted or computed
        samples[each] = {
            "alpha": rates[candidate],
            "mean_accepted_length": mean_accepted_length(*replayed),
            "tokens_per_round": tokens_per_round(*replayed),
            "accepted_per_drafted": accepted_per_drafted(*replayed),
            "mean_accepted_length_measured": counted and mean_accepted_length(*counted),
            "accepted_per_drafted_measured": counted and accepted_per_drafted(*counted),
            "speedup_measured": measured.speedup if measured else None,
        }
    # All at once, since requests are drawn once for the figures that are computed together.
    intervals = iter(estimates([sample for of in samples.values() for sample in of.values()]))
    decoding, whole = (evaluator.table(concurrency, by) for by in ("expected", "end_to_end"))
    prefills = evaluator.by == "end_to_end"
    found = []
    for each, of in samples.items():
        column = table.column[each]
        figures: dict[str, Any] = {name: next(intervals) for name in of}
        alone = {name: sample.value for name, sample in of.items() if sample and not figures[name]}
        evidence = evaluator.evidence(each)
        rounds, block, measured = evidence.rounds, evidence.block, evidence.measured
        sure = decided.deciding and each in decided.competing
        experts, experts_at_most = _experts_read(evaluator, each)
        plain_cells = evaluator.cells.get(each.at(0), ()) if measured else ()
        predicted = evaluator.predicted(each), evaluator.predicted(each, "end_to_end")
        expected = decoding.estimate(each), whole.estimate(each)
        # By what ranks, and unless its decoding contradicts it.
        ranked = expected[prefills] or predicted[prefills]
        ran = figures["speedup_measured"]
        slower = ran is not None and ran.value < 1
        found.append(
            Evaluation(
                draft=each.draft,
                quant=each.quant,
                k=each.k,
                stop=each.stop,
                draft_cost_ratio=block.draft_cost_ratio(rounds.context) if block else None,
                verify_ratio=block.verify_ratio(each.k + 1, rounds.context) if block else None,
                speedup_predicted=predicted[0],
                best=each in bests,
                speedup_expected=expected[0],
                speedup_end_to_end=predicted[1],
                prediction_error=evidence.prediction_error,
                memory_bytes=table.memory[column],
                reason=None if each == decided.choice else why_not(evaluator, evidence, decided),
                speedup_end_to_end_expected=expected[1],
                requests=evidence.requests,
                requests_served=answered[each],
                requests_measured=len(measured.speedup.requests) if measured else 0,
                probability_best=decided.probability(each) if sure else None,
                round_overhead=_over_passes(evidence.cells),
                plain_overhead=_over_passes(plain_cells),
                acceptance_luck=evidence.acceptance_luck,
                breaks=tuple(decided.breaks.get(each, ())),
                drawn_to_others=math.expm1(decoding.shrunk[0, column]) if evidence.timed else None,
                interval_from=evidence.interval_from,
                experts_read=experts,
                experts_read_at_most=experts_at_most,
                concurrency=each.concurrency,
                alpha_without_interval=alone.get("alpha"),
                tokens_per_round_without_interval=alone.get("tokens_per_round"),
                replayed=bool(rounds.replays),
                not_run=each in decided.not_run,
                clearly_faster=decide(ranked, 1.0) == "speculate" and not slower,
                **figures,
            )
        )
    return tuple(found)


def stopping(evaluator: Evaluator, decided: DecisionAt) -> Stopping | None:
    """What the best rule brings the leader's draft; None if no rule can be followed."""
    if decided.leader is None:
        return None
    table, own = decided.table, decided.alone(decided.leader.candidate)
    fixed, rule = (
        own.best_of([each for each in own.competing if (each.stop is None) == without])
        for without in (True, False)
    )
    if fixed is None or rule is None:
        return None
    speed, evidence = table.value(fixed) or 0.0, evaluator.evidence(fixed)
    most = average = None
    if evidence.block is not None and not parts_of(fixed.candidate):
        at = evidence.rounds, evidence.block, fixed.k
        ahead = foresight(*at)
        most = None if ahead is None else speed * ahead
        if decided.concurrency == 1 and (gain := moving_average(*at)):
            average = speed * gain
    return Stopping(
        fixed=fixed,
        rule=rule,
        speedup_fixed=speed,
        speedup_rule=table.value(rule) or 0.0,
        speedup_foresight=most,
        speedup_moving_average=average,
    )


def on_engines(decided: DecisionAt) -> Iterator[OnEngine]:
    """The decision among what each engine follows, if the leader stops a draft by a rule."""
    if decided.leader is None or decided.leader.stop is None:
        return
    follows: dict[str | None, list[StopKind]] = {
        rule.engine: [kind] for kind, rule in STOP_RULES.items() if rule.engine
    }
    for engine, kinds in {**follows, None: []}.items():
        at = decided.following(kinds)
        speed = decided.table.value(at.leader) if at.leader else None
        yield OnEngine(engine=engine, decision=at.decision, leader=at.leader, speedup=speed)


def stopping_bounds(evaluator: Evaluator, decided: DecisionAt) -> StoppingBounds | None:
    """Between which speed-ups a rule would bring the leader's draft, where that is not known."""
    leader = decided.leader
    evidence = evaluator.evidence(leader) if leader else None
    if leader is None or evidence is None or evidence.block is None:
        return None
    if evaluator.options.stops == ():
        return None
    rounds, speed = evidence.rounds, decided.table.value(leader) or 0.0
    if leader.stop or rounds.knows_confidences:
        return None
    found = bounds(rounds, evidence.block, decided.concurrency, leader.k)
    if found is None or found[1] < 1 + HARDLY_MORE_LOSS:
        return None
    return StoppingBounds(fixed=leader, low=speed * found[0], high=speed * found[1])


def best_of_each(
    evaluated: Sequence[Evaluation], leader: Configuration | None, by: Kind
) -> tuple[Configuration, ...]:
    """Each candidate at its best k or, if its speed is unknown, at the k at which a server answered
    most requests, else the largest. The leader comes first, then the others by the speed-up that
    ranks them, the control last.
    """
    best: dict[Candidate, Evaluation] = {}
    for each in evaluated:
        shown = best.setdefault(each.candidate, each)
        if (each.best, each.requests_served) >= (shown.best, shown.requests_served):
            best[each.candidate] = each

    def order(each: Evaluation) -> tuple[bool, bool, float]:
        speed = each.ranked(prefills_counted=by == "end_to_end")
        return each.configuration != leader, each.draft == SELF, -(speed.value if speed else 0.0)

    return tuple(each.configuration for each in sorted(best.values(), key=order))


def _over_passes(cells: Sequence[Cell]) -> float | None:
    """Measured seconds over the seconds of their passes; None where either is unknown."""
    known = [float(cell.log_slowdown[0]) for cell in cells if cell.predicted_by == "passes"]
    return math.exp(mean(known)) if known else None


def _experts_read(evaluator: Evaluator, own: Configuration) -> tuple[float | None, float | None]:
    """How many of the target's experts the timed passes over k + 1 tokens read in a layer, linear
    between timed sizes; and how many they could read at most.
    """
    facts, counts = evaluator.run.facts_of(None), defaultdict[int, list[float]](list)
    if facts is None or facts.mixture is None or evaluator.foreign:
        return None, None
    for point in evaluator.run.costs:
        at = point.candidate, point.block, point.concurrency
        if point.experts_read is not None and at == (None, str(own.candidate), own.concurrency):
            counts[point.new_tokens].append(point.experts_read)
    if not counts:
        return None, None
    sizes, tokens = sorted(counts), own.k + 1
    counted = float(np.interp(tokens, sizes, [mean(counts[size]) for size in sizes]))
    return counted, facts.mixture.most_read(own.concurrency * tokens)


def why_not(evaluator: Evaluator, evidence: Evidence, decided: DecisionAt) -> str:
    """Why a configuration lost to plain decoding, to another k of its draft, or to another draft;
    for the leader, why it was not chosen.
    """
    own, leader, table = evidence.configuration, decided.leader, decided.table
    speed = table.value(own)
    if own.draft == SELF:
        return "a control: the target as its own draft is never recommended"
    if broken := decided.breaks.get(own):
        return "; ".join(broken)
    if speed is None:
        return f"its speed is unknown: {evidence.why_unknown(evaluator.run)}"
    if own in decided.not_run:
        return f"{speed:.2f}× predicted, but {decided.not_run[own]}"
    if leader is None or (best := table.value(leader)) is None:
        return f"its speed is unknown: {evidence.why_unknown(evaluator.run)}"
    # What it brings, with a third digit if two do not tell the speeds apart.
    digits = 3 if leader != own and f"{speed:.2f}" == f"{best:.2f}" else 2
    brings, against = f"{speed:.{digits}f}× expected", f" against {best:.{digits}f}×"
    prefills = ", both prefills included" * (evaluator.by == "end_to_end")
    if speed <= 1:
        return f"no faster than plain decoding: {speed:.2f}× expected{prefills}"
    if own == leader:
        least = decided.min_speedup
        reaches = "does not reach" if speed < least else "may not reach"
        missed = f"{reaches} the {least:g}× asked for"
        if least == 1:
            missed = f"not clearly {TIMING_NOISE:.0%} faster than plain decoding"
        return f"{missed}: {brings}{prefills}"
    lost, of_leader = decided.loss(own), decided.loss(leader)
    if abs(lost - of_leader) <= HARDLY_MORE_LOSS:
        same = f"{speed:.2f}" == f"{best:.2f}"
        both = f"{speed:.2f}×" if same else f"{speed:.2f}× against {best:.2f}×"
        name = str(leader.length) if own.candidate == leader.candidate else str(leader)
        memory, its_memory = (table.memory[table.column[each]] for each in (own, leader))
        if memory == its_memory:
            why = "drafts fewer tokens" if leader.k < own.k else "is the faster one"
        else:
            known = memory is not None
            why = "needs less memory" if known else "is the one whose memory is known"
        return f"about as good, {both}; {name} {why}"
    if speed > best:
        return (
            f"less certain: {speed:.2f}× is expected, but on average it would lose {lost:.1%} of "
            f"the best speed, {leader} only {of_leader:.1%}"
        )
    chance = decided.chance(own, leader)
    how = "slower" if chance < FASTER_BY_LUCK else "probably slower"
    if chance >= TOSS_UP:
        how = f"{chance:.0%} likely to be the faster one"
    return f"{how}: {brings}{against}{prefills}"


def prediction_errors(evaluator: Evaluator) -> PredictionError | None:
    """The prediction errors of every decoded configuration, at every concurrency."""
    decoded = [
        (evidence, evidence.prediction_error)
        for concurrency in sorted({row.concurrency for row in evaluator.run.decodes})
        if evaluator.measured(concurrency)
        for each in evaluator.seconds(concurrency).configurations
        if (evidence := evaluator.evidence(each)).prediction_error is not None
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
                draft=own.draft,
                quant=own.quant,
                k=own.k,
                concurrency=own.concurrency,
                stop=own.stop,
                error=error,
            )
            for own, error in ((each.configuration, error) for each, error in decoded)
        ),
    )
