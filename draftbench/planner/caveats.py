"""A run and a decision → what a reader must know before trusting the figures: one list of caveats,
one threshold each, and sentences on what was checked. Caveats concern the leader, a serving engine,
the sample, the machine, the outputs, or a candidate.

A decisive caveat says that a longer or quieter run could change the decision. What holds for every
run (all times come from one process, so restarts can differ by more than an interval says) is
documented once and not listed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from draftbench.acceptance.candidate_rounds import CandidateRounds
from draftbench.acceptance.definitions import by_tokens
from draftbench.acceptance.intervals import FEW_REQUESTS, MIN_REQUESTS, Estimate
from draftbench.planner.caveat_kinds import (
    FEW_DECODED,
    MISSED_LONG,
    OVER_TOKENS,
    PREDICTION_ERROR,
    PREDICTION_ERROR_OF_ONE,
    UNCERTAIN_STEPS,
    UNCERTAIN_TIMES,
    WHOLE_LOAD,
    CaveatKind,
)
from draftbench.planner.cost_sources import engine_name
from draftbench.planner.decide import DecisionAt, decide
from draftbench.planner.doubts import doubts, of_each
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.evidence import Evidence
from draftbench.planner.passes import Block
from draftbench.planner.recommendation import Caveat, PredictionError, Recommendation
from draftbench.records import LONGER, SELF, Candidate
from draftbench.run_folder.served import MOST_CACHED, cached_share, clock_contradicts

# Decisive caveats after which no figure of acceptance can be trusted.
_BASIC: tuple[CaveatKind, ...] = ("contradiction", "control-failed", "replay-disagreement")


def caveats(
    evaluator: Evaluator, decided: DecisionAt, error: PredictionError | None
) -> tuple[Caveat, ...]:
    """Every caveat once: the decisive ones first, led by those that put acceptance in doubt. One
    that holds for several candidates names them all. `error` is that of predicted speed-ups.
    """
    run, target = evaluator.run, evaluator.run.facts_of(None)
    found = [
        *_of_leader(evaluator, decided),
        *_of_engine(evaluator, decided),
        *_of_sample(evaluator, decided),
        *doubts(evaluator),
        *_of_candidates(evaluator, decided),
        *(Caveat("model", f"target: {text}") for text in (target.caveats if target else ())),
    ]
    # What sets plain decoding apart from all rounds says more than the errors that it causes.
    explained = any(each.kind == "baseline-mismatch" for each in found)
    if error and error.median > PREDICTION_ERROR and not explained:
        off = f"measured speed-ups differ from predicted ones by {error.median:.0%}"
        text = f"{off} (median of {error.configurations}): the table's may be as far off; see --all"
        found.append(Caveat("prediction-error", text, decisive=True, short=off))
    else:
        found += _of_contradicted_predictions(evaluator, decided)
    for failure in run.failures:
        if failure.candidate is not None:
            text = f"{failure.candidate} was not fully measured: {failure.reason}"
            if failure.stage == "pair":
                text = f"{failure.reason}, so it was refused"
            found.append(Caveat("failed", text))
    return tuple(sorted(dict.fromkeys(found), key=lambda c: (not c.decisive, c.kind not in _BASIC)))


def _of_contradicted_predictions(evaluator: Evaluator, decided: DecisionAt) -> Iterator[Caveat]:
    """Configurations that ran much faster or slower than all other timings suggest; the expected
    speed-up mostly takes that for noise. Decisive for the leader, and for what ran faster.
    """
    leader = decided.leader
    decoding = evaluator.table(decided.concurrency, "expected")
    best = decoding.value(leader) if leader else None  # prefill excluded, as in what ran
    for each in decided.configurations:
        evidence = evaluator.evidence(each)
        error, measured = evidence.prediction_error, evidence.measured
        ran = measured and measured.speedup.value
        if error is None or not ran or abs(error) <= PREDICTION_ERROR_OF_ONE:
            continue
        short = f"{each} was measured at {ran:.2f}×, not the predicted {ran * (1 + error):.2f}×"
        decisive = each == leader or (best is not None and ran > best)
        text = f"{short}: something disturbed one of the two; repeat the sweep on a quiet machine"
        yield Caveat("prediction-error", text, decisive=decisive, short=short)


def _of_leader(evaluator: Evaluator, decided: DecisionAt) -> Iterator[Caveat]:
    leader, found, least = decided.leader, decided.deciding, decided.min_speedup
    if leader is None:
        yield Caveat("no-speed", _no_speed(evaluator, decided))
        return
    evidence = evaluator.evidence(leader)
    if decided.impossible:
        yield Caveat(
            "impossible",
            f"{decided.impossible}, since a round takes at least one target step: something "
            "disturbed decoding without speculation; repeat the sweep on a quiet machine",
            decisive=True,
            short=decided.impossible,
        )
    if evidence.block and not evidence.note and evidence.block.target.slow_step:
        tokens, several, one = evidence.block.target.slow_step
        times = one / several
        less = found and Estimate(found.value / times, found.low / times, found.high / times)
        speed = f"the speed-up is up to {times:.2f} times too high"
        yield Caveat(
            "slow-step",
            f"a pass over {tokens} tokens takes {1e3 * several:.3g} ms, one over 1 token "
            f"{1e3 * one:.3g} ms: this library's one-token step is slow, so {speed}",
            decisive=decide(less, least) != decide(found, least),
            short=f"a step without a draft is slower than a pass over {tokens} tokens: {speed}",
        )
    if found is None:
        few = ""
        if evidence.requests >= MIN_REQUESTS:
            few = f"{evidence.requests} requests of such unequal length count as only "
            few += f"{evidence.effective_requests:.0f}"
        text = f"{leader}: {few + ', too few' if few else 'too few requests'} to decide by"
        yield Caveat("too-few", text, decisive=bool(few), short=few)


def _no_speed(evaluator: Evaluator, decided: DecisionAt) -> str:
    """Why no candidate's speed is known, by reason."""
    table, run = decided.table, evaluator.run
    every = [evaluator.evidence(each) for each in decided.configurations]
    known = [
        each.configuration
        for each in every
        if each.configuration not in decided.not_run and (each.timed or each.measured)
    ]
    if breaking := [each for each in known if each in decided.breaks]:
        memory = {each: table.memory[table.column[each]] for each in breaking}
        least = min(breaking, key=lambda each: (memory[each] is None, memory[each]))
        named = f"{least}: {'; '.join(decided.breaks[least])}"
        return f"none of the timed candidates keeps the limits ({named})"
    whys = {f.candidate: f.reason for f in run.failures if f.candidate}
    # What was decoded, if on too few requests, says more than what was not.
    for each in sorted(every, key=lambda each: each.measured is None):
        if each.configuration.draft != SELF:
            whys.setdefault(each.configuration.candidate, each.why_unknown(run))
    names: dict[str, list[str]] = defaultdict(list)
    for candidate, why in whys.items():
        names[why].append(str(candidate))
    named = "; ".join(f"{', '.join(of)}: {why}" for why, of in names.items())
    return f"no candidate's speed is known ({named or 'nothing was timed'})"


def _of_engine(evaluator: Evaluator, decided: DecisionAt) -> Iterator[Caveat]:
    """Caveats of a run on a serving engine; none if costs come from elsewhere."""
    run, concurrency = evaluator.run, decided.concurrency
    shown = [evaluator.evidence(each) for each in decided.configurations]
    question, traffic = run.manifest.question, run.manifest.traffic
    if question.engine is None or evaluator.foreign:
        return
    if traffic.constrained and run.replays:
        share = 1 - traffic.constrained / traffic.requests
        yield Caveat(
            "structured-output",
            f"{traffic.constrained} of {traffic.requests} requests have structured output: what "
            "the engine measured includes its grammar, but drafts are replayed without it, so α, "
            f"which counts all requests, holds only for the other {share:.0%}",
        )
    # A sample of the log that is sent at the log's times is a lighter load than the log.
    answers, rows, scale = len(run.trajectories), traffic.rows, question.time_scale or 1.0
    if question.arrivals == "log" and 0 < answers * scale < WHOLE_LOAD * rows:
        short = f"requests came at {answers * scale / rows:.0%} of the log's load"
        yield Caveat(
            "thinned-log",
            f"{short}: {answers} answers for its {rows} rows, at --time-scale {scale:g}; "
            f"--time-scale {rows / answers:.3g} would match the log's rate",
            decisive=True,
            short=short,
        )
    timed = {each.configuration.candidate for each in shown if each.timed or each.measured}
    candidates = dict.fromkeys(each.configuration.candidate for each in shown)
    names = [str(each) for each in candidates if each not in timed]
    if timed and names:
        yield Caveat(
            "not-timed",
            f"{', '.join(names)}: replayed but not timed in {engine_name(run)}, so it is unknown "
            "whether it pays there",
        )
    for each in shown:
        runs, k = each.measured.runs if each.measured else (), each.configuration.k
        if runs and k and not any(timed_run.row.proposed for timed_run in runs):
            yield Caveat(
                "untold-rounds",
                f"{engine_name(run)} reports nothing about its drafting: its acceptance is "
                f"unknown, and that it drafts {k} tokens a round is taken from --k",
            )
    here = run.answers_at(concurrency)
    shares = {
        word: cached_share(row for row in here if (row.k > 0) == drafting)
        for word, drafting in (("without", False), ("with", True))
    }
    most = max(shares.values())
    if most > MOST_CACHED:
        sides = ", ".join(f"{share:.0%} {word} speculation" for word, share in shares.items())
        # Whether requests wait for each other's prefills.
        waits = concurrency > 1 or question.arrivals != "closed"
        yield Caveat(
            "cached-prompts",
            f"the server had prompts cached ({sides}): times to the first token are too short, and "
            "requests waited less for each other's prompts; switch its prefix cache off",
            decisive=waits or evaluator.options.objective == "latency",
            short=f"up to {most:.0%} of the prompts were cached",
        )


def _of_sample(evaluator: Evaluator, decided: DecisionAt) -> Iterator[Caveat]:
    run, leader = evaluator.run, decided.leader
    measured = evaluator.evidence(leader).measured if leader else None
    replayed = by_tokens(run.trajectories)
    counts: list[tuple[CaveatKind, int, float, str]] = []
    requests = len(replayed.requests)
    # A draft that only an engine runs has no requests besides the decoded ones.
    if run.replays or not measured:
        counts.append(("few-requests", requests, replayed.equal_requests, ""))
    decoded = len(measured.speedup.requests) if measured else 0
    if decoded and (decoded < requests or not counts):
        # Judged by number: as many as a sweep decodes by default are enough, whatever their
        # lengths.
        were = " was decoded" if decoded == 1 else " were decoded"
        counts.append(("few-decoded", decoded, decoded, were))
    for kind, count, equal, were in counts:
        if round(equal) < FEW_REQUESTS:
            short = f"only {'one request' if count == 1 else f'{count} requests'}{were}"
            if count >= FEW_REQUESTS:
                short += f", so unequal in length that they count as {equal:.0f}"
            effect = f"under {FEW_REQUESTS}, intervals are rough"
            if decoded == count < FEW_DECODED:
                effect = f"under {FEW_DECODED}, they do not correct the prediction"
            yield Caveat(kind, f"{short}; {effect}", decisive=True, short=short)
    longer = run.manifest.traffic.longer
    if longer is not None and longer.share >= MISSED_LONG:
        yield Caveat(
            "longer-prompts",
            f"{longer.share:.0%} of the traffic has prompts over {LONGER} times as long as any "
            f"measured (up to {longer.longest:,} characters against {longer.drawn:,}), for which "
            "the answer may differ",
        )


def _of_candidates(evaluator: Evaluator, decided: DecisionAt) -> Iterator[Caveat]:
    found, costs = [], {}
    for candidate in dict.fromkeys(each.candidate for each in decided.configurations):
        at_every_k = [
            evaluator.evidence(each)
            for each in decided.configurations
            if each.candidate == candidate
        ]
        one = at_every_k[0]
        costs[candidate] = one.block.draft_cost_ratio(one.rounds.context) if one.block else None
        found += [
            (candidate, caveat) for caveat in _of_candidate(evaluator, at_every_k, costs[candidate])
        ]
    yield from of_each(found)
    # A level that is slower by more than timing noise: another sweep would not help it.
    for candidate, c in costs.items():
        unquantized = costs.get(Candidate(draft=candidate.draft))
        if candidate.quant != "none" and c and unquantized and c.low > unquantized.high:
            yield Caveat(
                "no-fast-kernel",
                f"{candidate} is slower than the unquantized draft (c {c.value:.2f} instead of "
                f"{unquantized.value:.2f}): {candidate.quant} saves no time here",
                candidates=(str(candidate),),
            )


def _of_candidate(
    evaluator: Evaluator, at_every_k: Sequence[Evidence], c: Estimate | None
) -> Iterator[Caveat]:
    """Caveats of one candidate without its name; `c` is its draft cost ratio, if known."""
    one, candidate = at_every_k[0], at_every_k[0].configuration.candidate
    if facts := evaluator.run.facts_of(candidate):
        yield from (Caveat("model", text) for text in facts.caveats)
    if c and c.high > UNCERTAIN_TIMES * c.low and c.high - c.low > UNCERTAIN_STEPS:
        uncertain = f"c could be anything from {c.low:.2f} to {c.high:.2f}"
        advice = "repeat the sweep on a quiet machine, in another --out"
        yield Caveat(
            "uncertain-cost",
            f"{uncertain}, because repeats of one pass took very different times: {advice}",
            short=f"{uncertain}: {advice}",
        )
    speeds = [each.measured.speedup.value or 0.0 for each in at_every_k if each.measured]
    if candidate.draft == SELF and (most := max(speeds, default=0.0)) > OVER_TOKENS:
        short = f"{most:.2f}× is impossible for the target as its own draft"
        yield Caveat(
            "impossible",
            f"{short}, which takes a target step for each token: something disturbed decoding "
            "without speculation; repeat the sweep on a quiet machine",
            decisive=True,
            short=short,
        )
    largest = max(each.configuration.k for each in at_every_k)
    for text in beyond_timed(one.rounds, one.block, largest) if one.block else ():
        yield Caveat("outside-timed-range", text)


def beyond_timed(rounds: CandidateRounds, block: Block, largest_k: int) -> tuple[str, ...]:
    """Sentences on costs that predictions take from outside the timed range."""
    contexts, prompts = rounds.contexts, rounds.prompts
    longest = min(largest_k + 1, block.longest or largest_k + 1)
    used = (
        ("target passes", block.target, longest, contexts),
        # A step reads two tokens after a fully accepted round; a file gives one time for both.
        ("draft steps", block.draft, 1 if block.longest or block.catch_up else 2, contexts),
        ("draft blocks", block.block, 1, contexts),
        ("prefills", block.prefill, prompts, 0),
        ("draft prefills", block.draft_prefill, prompts, 0),
    )
    sentences = [
        f"{what} were not timed at the size or context of {missed} of {len(prompts)} responses; "
        "the nearest timed ones are used"
        for what, passes, size, context in used
        if passes is not None and (missed := int((~passes.covers(size, context)).sum()))
        if block.longest is None
    ]
    if longest <= largest_k:
        sentences.append(
            f"passes over more than {longest} tokens were not timed, so the speed of k ≥ {longest} "
            "is unknown"
        )
    return tuple(sentences)


def checks(answer: Recommendation) -> tuple[str, ...]:
    """Sentences on what was checked (predictions against measurements, outputs against the target)
    and on what was measured.
    """
    found = []
    error, outputs, every = answer.prediction_error, answer.audit, answer.evaluations
    if error is not None:
        found.append(predictions_off(error))
    rounds = [e.round_overhead for e in every if e.round_overhead is not None]
    plain = [e.plain_overhead for e in every if e.plain_overhead is not None]
    if rounds and plain:
        found.append(
            f"While decoding, rounds took {median(rounds):.2f} times as long as their passes timed "
            f"alone (median; at most {max(rounds):.2f}), steps without speculation "
            f"{median(plain):.2f} times as long. Only the difference affects the speed-up."
        )
    if luck := [e.acceptance_luck for e in every if e.acceptance_luck is not None]:
        found.append(
            f"Tokens per round while decoding differed by {min(luck):+.1%} to {max(luck):+.1%} "
            "from what replay expects for the same requests. The expected speed-up rests on replay."
        )
    if answer.by_context:
        longest = answer.by_context[-1].longest
        found.append(
            f"The longest request has {longest:,} tokens with its response: beyond is unknown."
        )
    if outputs is not None:
        share = answer.near_tie_share
        ties = "" if share is None else f" ({share:.1%} of the target's tokens are near ties)"
        kinds = (
            (outputs.near_ties, f"only at near ties{ties}"),
            (outputs.faults, "with no near tie to explain it"),
            (outputs.unknown, "for an unknown cause"),
        )
        differing = "".join(
            f", {count} differ{'s' * (count == 1)} {how}" for count, how in kinds if count
        )
        found.append(
            "Output check at temperature 0, over every decoded draft and k: "
            f"{outputs.identical} of {outputs.requests} answers are identical to the target's"
            f"{differing}."
        )
    for at in answer.by_concurrency:
        # At one request at a time, answers with speculation are those of the output check.
        texts, plainly = at.texts, "without speculation"
        if texts and (texts.load != "closed" or at.concurrency > 1):
            sent = "sent at their times of arrival"
            if texts.load == "closed":
                sent = f"with {at.concurrency} requests in flight"
            found.append(
                f"At temperature 0, {sent}, {texts.differ} of {texts.answers} answers with "
                f"speculation and {texts.plain_differ} of {texts.plain_answers} without it differ "
                f"from those to single requests {plainly}."
            )
        elif texts and texts.plain_answers:
            changed = f"{texts.plain_differ} of {texts.plain_answers}"
            found.append(f"Asked again, the server {plainly} changed {changed} answers.")
    if answer.ceiling_alpha is not None:
        found.append(
            "Upper bound: even a perfect greedy draft reaches only α = "
            f"{answer.ceiling_alpha:.2f} here, because some requests sample."
        )
    if stopping := answer.stopping:
        others = ""
        if stopping.speedup_moving_average:
            others += f"; SGLang's moving average {stopping.speedup_moving_average:.2f}×"
        if stopping.speedup_foresight:
            others += f"; a perfect rule would bring {stopping.speedup_foresight:.2f}×"
        found.append(
            f"With {stopping.fixed.candidate}, the best fixed k brings "
            f"{stopping.speedup_fixed:.2f}×; the best rule, {stopping.rule.length}, "
            f"{stopping.speedup_rule:.2f}×{others}."
        )
    if within := answer.stopping_bounds:
        found.append(
            f"How sure {within.fixed.candidate} is after a wrong token was not replayed: stopping "
            f"after an unsure token would bring about {within.low:.2f}× to {within.high:.2f}×. A "
            "sweep with --stop confidence tells which."
        )
    timed = "costs of" if answer.costs_from else "timed with"
    found.append(
        f"{answer.requests} request{'s' * (answer.requests > 1)}, {answer.output_tokens} output "
        f"tokens; {answer.drafting_mode} drafting; {timed} {answer.runner or 'an unknown runner'}."
    )
    return tuple(found)


def on_times(evaluator: Evaluator, answer: Recommendation) -> Iterator[str]:
    """Sentences on what times leave out, and by whose clock they are."""
    timed = evaluator.source.run
    if any(at.concurrency > 1 for at in answer.by_concurrency) and not evaluator.on_engine:
        text = "Above concurrency 1, prefill of other requests is not modelled"
        if timed and any(row.concurrency > 1 for row in timed.decodes):
            text += ", and concurrent requests share rounds, so measured intervals are approximate"
        yield f"{text}: for loads that matter, sweep with --engine."
    if timed and (factor := clock_contradicts(timed.served)):
        shown = f"A server's own clock shows {factor:.2f} times what the client saw"
        yield f"{shown}: all times are the client's."


def predictions_off(error: PredictionError) -> str:
    """A sentence on how far off predicted speed-ups were."""
    median, worst = error.passes_only_median, error.passes_only_worst
    count, alone = error.configurations, ""
    if median is not None and worst is not None:
        alone = f" (from pass timings alone: {median:.1%}, {worst:.1%})"
    return (
        f"Prediction error over {count} measured configuration{'s' * (count > 1)}: median "
        f"{error.median:.1%}, max {error.worst:.1%}{alone}."
    )
