"""Decide for one run: speculate or not, with which configuration, and how sure that is."""

from __future__ import annotations

import msgspec

from draftbench.acceptance.faults import near_tie_share
from draftbench.planner.caveats import caveats, checks
from draftbench.planner.concurrencies import at_concurrency, crossover, schedule
from draftbench.planner.cost_sources import engine_name
from draftbench.planner.decide import Evaluator
from draftbench.planner.evaluate import evaluations, prediction_errors
from draftbench.planner.headroom import headroom
from draftbench.planner.latency import latency, slo_kept
from draftbench.planner.options import DecisionOptions
from draftbench.planner.output_check import audit
from draftbench.planner.recommendation import NEAR_TIES, AtConcurrency, Evaluation, Recommendation
from draftbench.records import SELF, DraftingMode
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
        headline = max(loads, key=_answered_rate)
    decided = evaluator.at(headline.concurrency)
    leader, refused = decided.leader, decided.decision == "do_not_speculate"
    # If more than 1× is required, plain decoding may be chosen without being the fastest.
    sure = decided.deciding is not None and not (refused and decided.min_speedup > 1)
    draft = leader.candidate if leader else None
    limit, between, gaps = crossover(evaluator, draft) if draft else (None, None, ())
    option = None if refused else leader
    answer = Recommendation(
        decision=decided.decision,
        choice=headline.choice,
        evaluations=(evaluated := evaluations(run, decided)),
        requests=len({t.request for t in run.trajectories}),
        output_tokens=sum(t.output_tokens for t in run.trajectories),
        prediction_error=prediction_errors(evaluator),
        min_speedup=decided.min_speedup,
        leader=headline.leader,
        runner_up=headline.runner_up,
        speedup_deciding=decided.deciding,
        speedup_without_interval=leader.value(decided.by)
        if leader and not decided.deciding
        else None,
        probability_best=decided.probability(option) if sure else None,
        expected_regret=decided.loss(option) if sure else None,
        audit=audit(run),
        near_tie_share=near_tie_share(run),
        caveats=caveats(evaluator, decided),
        runner=evaluator.source.runner,
        drafting_mode=run.manifest.question.mode,
        concurrency=decided.concurrency,
        objective=evaluator.options.objective,
        by_concurrency=tuple(loads),
        schedule=schedule(evaluator, draft, list(concurrencies)) if draft else (),
        crossover=limit,
        latency=latency(leader, run) if leader else None,
        crossover_between=between,
        crossover_gaps=gaps,
        failures=run.failures,
        engine=engine_name(run) if run.manifest.question.engine else None,
        arrivals=None if evaluator.foreign else _arrivals(run),
        costs_from=(evaluator.source.runner or "an unknown runner") if evaluator.foreign else None,
        slo_kept=slo_kept(run, leader, decided.concurrency, evaluator.options.slo),
        settled_by=decided.settled_by,
        larger_sweep=decided.larger_sweep,
        ceiling_alpha=(ceiling := _ceiling(run, evaluated)),
        headroom=headroom(decided, evaluated, ceiling),
        runner_up_faster=decided.chance(decided.runner_up, leader)
        if leader and decided.runner_up and decided.deciding
        else None,
    )
    return msgspec.structs.replace(answer, checks=checks(answer))


def _ceiling(run: Run, evaluated: tuple[Evaluation, ...]) -> float | None:
    """The α of the target as its own greedy draft, if no greedy draft can be expected to reach
    more: on responses that the target sampled. A draft can still be luckier.
    """
    question = run.manifest.question
    samples = any(t.sampling.temperature > 0 for t in run.trajectories)
    if question.mode is not DraftingMode.GREEDY or question.responses != "target" or not samples:
        return None
    rates = {each.draft: each.alpha.value for each in evaluated if each.alpha}
    own = rates.get(SELF)
    return own if own is not None and own == max(rates.values()) and own < NEAR_TIES else None


def _arrivals(run: Run) -> str | None:
    """A phrase for when requests came; None if a constant number was in flight."""
    question = run.manifest.question
    if question.arrivals != "log":
        return None if question.arrivals == "closed" else f"{question.arrivals}/s"
    scale = question.time_scale or 1.0
    return "the log's pace" if scale == 1 else f"the log's pace ×{scale:g}"


def _answered_rate(at: AtConcurrency) -> float:
    """Tokens per second if the answer at a load is followed; -1, the worst, if unknown."""
    speculates = at.decision == "speculate"
    rate = at.tokens_per_second if speculates else at.tokens_per_second_plain
    return -1.0 if rate is None else rate
