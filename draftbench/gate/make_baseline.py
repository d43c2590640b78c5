"""A run → its baseline: which candidate, draft length and load are kept, and what they did on each
request.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from statistics import fmean, median

import msgspec
import numpy as np

from draftbench.acceptance.candidate_rounds import (
    CandidateRounds,
    candidate_rounds,
    counted_in,
    runs_at,
)
from draftbench.acceptance.definitions import (
    Sample,
    alpha,
    alpha_of_rounds,
    mean_accepted_length,
    survival,
    tokens_per_round,
)
from draftbench.acceptance.faults import DOUBLED, SuspectedFault, suspected_faults
from draftbench.acceptance.rounds import Pairs, Rounds
from draftbench.drafts.stopping import STOP_RULES
from draftbench.engines.every import ENGINES, OF_TARGET, listed
from draftbench.errors import IncomparableError, RunFolderError, UsageError
from draftbench.gate.baseline import (
    SCHEMA_VERSION,
    Baseline,
    BaselineQuestion,
    DecodingTimes,
    ProcessTimes,
    RequestCounts,
)
from draftbench.planner.caveat_kinds import ACCEPTANCE, SPEED
from draftbench.planner.caveats import caveats
from draftbench.planner.cells import measurements
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.output_check import (
    matches_with_draft,
    matches_without_draft,
    one_by_one,
    worst_by_request,
)
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration
from draftbench.records import (
    SAMPLES_PER_VISIT,
    Candidate,
    Decode,
    DraftLength,
    Sampling,
    Trajectory,
)
from draftbench.run_folder.folder import PrivateText, RunFolder
from draftbench.run_folder.run import Run

# Increased when the meaning of the counts changes (acceptance.definitions, acceptance.rounds).
METRIC_VERSION = 1

# The label of sampling at temperature 0.
GREEDY = "greedy"
# So many different prompts do not begin alike by chance.
_MIN_PROMPTS = 5


def choose(
    run: Run, candidate: Candidate | None, k: int | None, options: DecisionOptions | None = None
) -> tuple[Configuration, list[str]]:
    """The configuration that a baseline keeps, and what to know of the choice; what is not named is
    as the run recommends it.

    Raises:
        UsageError: the run recommends nothing, or its engine was not asked at the one concurrency
            that the options name.
    """
    # Acceptance is judged at a k, whatever rule may stop a round before.
    asked, remarks = options or DecisionOptions(), list[str]()
    options = replace(asked, stops=())
    if len(options.concurrency) > 1:
        raise UsageError(
            "a baseline is of one concurrency, and --concurrency names several",
            hint=f"for example --concurrency {options.concurrency[0]}",
        )
    concurrency = next(iter(options.concurrency), None)
    if candidate is None or k is None:
        answer = recommend(run, options)
        if answer.decision == "inconclusive":
            at_a_k = " at a fixed k" * ("confidence" in run.manifest.question.stop)
            remarks.append(f"`{run.path}` is inconclusive{at_a_k}: another draft may be better")
        elif answer.provisional:
            remarks.append(f"the answer of `{run.path}` is provisional: {answer.provisional}")
        picked = answer.best_of(candidate) if candidate else answer.choice or answer.leader
        served = [each for each in answer.evaluations if each.requests_served]
        # If no speed is known, the only configuration that the server drafts with.
        if picked is None and len(served) == 1 and candidate in (None, served[0].candidate):
            picked = served[0]
        if picked is None:
            unknown = f"the best k of `{candidate}` is unknown"
            raise UsageError(
                unknown if candidate else "this run has no best draft",
                hint="name one with --candidate and --k",
            )
        # On an engine the best k need not have been served: then the best of those that were.
        own = {each.k: each for each in served if each.candidate == picked.candidate}
        if own and picked.k not in own and answer.costs_from is None:
            speeds = {k: answer.ranked_by(each) for k, each in own.items()}
            picked = own[max(speeds, key=lambda k: speed.value if (speed := speeds[k]) else 0.0)]
        if candidate is None and len(run.candidates) > 1:
            tie = ""
            if answer.toss_up and answer.runner_up:
                tie = f"; {answer.runner_up.candidate} may be as fast"
            remarks.append(
                f"{picked.candidate} is the run's best draft{tie}: if you serve another, name it "
                "with --candidate"
            )
        candidate, k, concurrency = picked.candidate, k or picked.k, picked.concurrency
        if "confidence" in run.manifest.question.stop:
            best = recommend(run, asked).best_of(candidate)
            if best is not None and best.stop is not None:
                rule = STOP_RULES[best.stop.kind].at(best.stop.threshold)
                remarks.append(
                    f"the best rule for it, {rule}, is not in the baseline, which keeps k = {k}"
                )
    loads = _loads(run, candidate, k)
    if options.concurrency and run.manifest.question.engine and loads and concurrency not in loads:
        raise UsageError(
            f"{candidate} at k = {k} was not measured at concurrency {concurrency}",
            hint=f"it was at {', '.join(map(str, sorted(loads)))}: give one of these with "
            "--concurrency",
        )
    load = concurrency if concurrency in loads else min(loads, default=1)
    return Configuration.of(candidate, k, load), remarks


def successor(run: Run, candidate: Candidate | None, old: Baseline) -> Baseline:
    """What a later run measured of a candidate (default: the old baseline's), at the old k and
    load; if no server drafted at that k, at the largest that one did.

    Raises:
        IncomparableError: the run did not measure the old baseline's candidate.
        RunFolderError, UsageError: as `make_baseline`.
    """
    if candidate is None:
        candidate = next((each for each in run.candidates if str(each) == old.candidate), None)
    if candidate is None:
        raise IncomparableError(
            f"the baseline cannot be compared: the draft was {old.candidate}, which this run did "
            "not measure",
            hint="measure it too (--drafts, --quant), or name the draft that replaces it with "
            f"--candidate: this run has {', '.join(map(str, run.candidates)) or 'none'}",
        )
    k = old.question.k
    served = {row.k for row in run.decodes if row.candidate == candidate}
    served |= {row.k for row in run.unanswered if row.candidate == candidate}
    if k not in served and not any(replay.candidate == candidate for replay in run.replays):
        k = max(served, default=k)
    return make_baseline(run, candidate, k, concurrency=old.concurrency)


def make_baseline(
    run: Run,
    candidate: Candidate,
    k: int,
    texts: Iterable[PrivateText] | None = None,
    concurrency: int | None = None,
) -> Baseline:
    """What `candidate` did at draft length k on every request: as counted by a serving engine if it
    was measured at this k, otherwise from replay.

    Args:
        texts: prompts to be searched for faults (default: the run folder's); nothing else of them
            is kept.
        concurrency: the load whose times, and whose rounds of an engine, are taken; if it was not
            measured, the smallest that was.

    Raises:
        RunFolderError: no replay of the candidate that decoding does not contradict.
        UsageError: k < 1, or more than prompt lookup was measured with, or a server that does not
            count its rounds.
    """
    if k < 1:
        raise UsageError(f"k = {k} drafts no token", hint="take k = 1 or more")
    manifest, question = run.manifest, run.manifest.question
    timed = _loads(run, candidate, k)
    concurrency = concurrency if concurrency in timed else min(timed, default=1)
    judged = BaselineQuestion(
        key_id=manifest.key_id,
        metric_version=METRIC_VERSION,
        mode=question.mode,
        k=k,
        responses="log" if question.responses == "log" else "target",
        samples=question.samples,
        max_new_tokens=question.max_new_tokens,
    )
    pairs: Pairs = ()
    silent: list[Trajectory] = []
    if question.engine is not None and timed:
        trajectories, rounds, rate = _counted_by_engine(run, candidate, k, concurrency)
        judged = msgspec.structs.replace(
            judged,
            concurrency=concurrency,
            arrivals=question.arrivals,
            time_scale=question.time_scale if question.arrivals == "log" else None,
            arrivals_digest=question.arrivals_digest,
            max_concurrency=question.max_concurrency,
        )
    else:
        own = _replayed(run, candidate, k)
        pairs, trajectories, rounds = own.replays, own.trajectories, own.at(k)
        rate = alpha(pairs)
        # Of requests whose every response is one token, which nothing drafts.
        drafted = {trajectory.request for trajectory in trajectories}
        drafted |= {t.request for t in run.trajectories if t.output_tokens > 1}
        silent = [t for t in run.trajectories if t.request not in drafted]
    # An infinite near tie leaves out the check of the target as its own draft, which sweeps make.
    faults = suspected_faults(candidate, pairs, [rounds], math.inf)
    if texts is None:
        texts = RunFolder(run.path).records(PrivateText) if run.path else ()
    prompts = {text.prompt for text in texts}
    begins = {prompt[:2] for prompt in prompts}
    begin = begins.pop() if len(begins) == 1 else ()
    if len(prompts) >= _MIN_PROMPTS and len(begin) == 2 and begin[0] == begin[1]:
        message = (
            f"all {len(prompts)} prompts begin with the same token twice, as when both the chat "
            "template and the tokenizer write the first one"
        )
        faults = (*faults, SuspectedFault(kind=DOUBLED, message=message))

    counted = request_counts(trajectories, rounds, rate, silent)
    # None from the first position on that was never drafted.
    survived = (survival(trajectories, rounds, i).value for i in range(1, k + 1))
    cost_ratios, processes = _timed(run, candidate, k, concurrency)
    evaluator = Evaluator(run, DecisionOptions())
    wanted = Configuration.of(candidate, k, concurrency)
    decoding, whole = (evaluator.table(concurrency, by) for by in ("expected", "end_to_end"))
    known = wanted in decoding.column
    return Baseline(
        schema_version=SCHEMA_VERSION,
        created=manifest.created,
        candidate=str(candidate),
        question=judged,
        tested=_tested(run, candidate),
        alpha_definition=rate.figure.name if rate else None,
        survival=tuple(round(share, 4) for share in survived if share is not None),
        faults=faults,
        cost_ratios=cost_ratios,
        requests=_with_texts_and_times(run, candidate, k, concurrency, counted),
        threads=manifest.environment.threads,
        processes=processes,
        concurrency=concurrency,
        run=manifest.run,
        speedup=decoding.estimate(wanted) if known else None,
        speedup_end_to_end=whole.estimate(wanted) if known else None,
        doubts=tuple(
            doubt
            for doubt in caveats(evaluator, evaluator.at(concurrency), None)
            if doubt.decisive and doubt.kind in ACCEPTANCE | SPEED and doubt.concerns(candidate)
        ),
        unanswered={
            row.request: str(row.error)
            for row in run.unanswered
            if (row.candidate, row.k, row.asked_concurrency) == (candidate, k, concurrency)
            or row.key not in run.responses
        },
    )


def _loads(run: Run, candidate: Candidate, k: int) -> set[int]:
    """The loads at which a candidate was decoded or asked for at one k."""
    wanted = candidate, DraftLength(k)
    decoded = {row.concurrency for row in run.decodes if (row.candidate, row.length) == wanted}
    return decoded | {
        row.asked_concurrency for row in run.unanswered if (row.candidate, row.k) == (candidate, k)
    }


def _counted_by_engine(
    run: Run, candidate: Candidate, k: int, concurrency: int
) -> tuple[Sequence[Trajectory], Rounds, Sample | None]:
    """Responses, the rounds that the server counted for each, and α of the tokens that it tried,
    None if it does not report positions.
    """
    answered = runs_at(run, candidate, DraftLength(k), concurrency)
    if not answered:
        reasons = dict.fromkeys(str(row.error) for row in run.unanswered if row.k == k)
        raise UsageError(
            f"the server with {candidate} at k = {k} answered no request: {', '.join(reasons)}",
            hint="look at its log; the same command asks again",
        )
    trajectories, rounds = counted_in(answered)
    if rounds.tokens.any() and not rounds.target_passes.any():
        counting = listed([each.name for each in ENGINES.values() if each.server], "or")
        raise UsageError(
            "the server reports nothing about its drafting, so its acceptance cannot be judged",
            hint=f"a gate takes a server that counts: {counting}",
        )
    by_position = bool(np.isfinite(rounds.reached).all())
    return trajectories, rounds, alpha_of_rounds(trajectories, rounds) if by_position else None


def _replayed(run: Run, candidate: Candidate, k: int) -> CandidateRounds:
    """The candidate's replays, if decoding does not contradict them and they reach k."""
    rounds = candidate_rounds(run, candidate)
    if rounds.contradiction:
        raise RunFolderError(
            f"{candidate} cannot be judged: {rounds.contradiction.message}",
            hint=rounds.contradiction.advice,
        )
    if rounds.served:
        served = sorted({row.k for row in run.decodes if row.candidate == candidate and row.k})
        raise UsageError(
            f"k = {k} cannot be judged: {candidate} was served with "
            f"k = {', '.join(map(str, served))} alone, and cannot be replayed",
            hint=f"name a k that was served, e.g. --k {served[-1]}, or start the engine with "
            f"k = {k} (a sweep with --measure all)",
        )
    if not rounds.replays:
        measured = ", ".join(map(str, run.candidates)) or "nothing"
        raise RunFolderError(
            f"the run holds no replay of `{candidate}`; it measured {measured}",
            hint="choose one of these with --candidate, or sweep with that draft",
        )
    if not rounds.reaches(k):
        raise UsageError(
            f"k = {k} cannot be judged: {candidate} was replayed for k = 1 to {rounds.longest}",
            hint="sweep again with that k among --k",
        )
    return rounds


def request_counts(
    trajectories: Sequence[Trajectory],
    rounds: Rounds,
    rate: Sample | None,
    silent: Iterable[Trajectory] = (),
) -> tuple[RequestCounts, ...]:
    """Counts per request. `rate` is α over the same requests, None if there is none; of `silent`
    responses nothing was drafted.
    """
    length = mean_accepted_length(trajectories, rounds)
    per_round = tokens_per_round(trajectories, rounds)
    by_request: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in (*trajectories, *silent):
        by_request[trajectory.request].append(trajectory)
    row_of = {request: row for row, request in enumerate(length.requests)}
    found = []
    for request, unsorted in by_request.items():
        responses = sorted(unsorted, key=lambda response: response.sample)
        emitted = drafted = tokens = passes = positions = 0.0
        alpha_sum = 0.0 if rate else None
        if (row := row_of.get(request)) is not None:
            emitted, drafted = length.addends[row].tolist()
            tokens, passes = per_round.addends[row].tolist()
            if rate:
                alpha_sum, positions = rate.addends[row].tolist()
        counts = RequestCounts(
            id=request,
            weight=responses[0].weight,
            sampling=sampling_label(responses[0].sampling),
            tokens=round(tokens, 3),
            passes=round(passes, 3),
            rounds=round(drafted, 3),
            # Rounding and subtraction may leave a zero below zero.
            accepted=max(0.0, round(emitted - drafted, 3)),
            positions=positions,
            alpha_sum=None if alpha_sum is None else round(alpha_sum, 3),
            segment=responses[0].segment,
            prompt_tokens=responses[0].prompt_tokens,
            output=_hash(r.digest for r in responses),
            looping=fmean(r.looping for r in responses),
        )
        found.append(counts)
    return tuple(found)


def sampling_label(sampling: Sampling) -> str:
    """The distribution sampled from, without the seed: `greedy` or `temperature=0.7 top_k=40`."""
    if sampling.temperature == 0:
        return GREEDY
    named = ((name, getattr(sampling, name)) for name in ("temperature", "top_k", "top_p", "min_p"))
    return " ".join(f"{name}={value:g}" for name, value in named if value is not None)


def _hash(digests: Iterable[str]) -> str:
    """One hash of several, each of them keyed."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:8]


def _with_texts_and_times(
    run: Run, candidate: Candidate, k: int, concurrency: int, counted: Iterable[RequestCounts]
) -> tuple[RequestCounts, ...]:
    """The counts in the order of their hashes, with the times of decoding, hashes of the texts that
    a serving engine wrote at temperature 0, and how the text with speculation differs from the one
    without. Above temperature 0 a server's texts are random and say nothing about the target.
    """
    # Tokens and seconds at k, then those without speculation, summed over repeats.
    sums: defaultdict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    if measured := measurements(run, concurrency).get(Configuration.of(candidate, k, concurrency)):
        for at, runs in ((0, measured.runs), (2, measured.baseline)):
            for decode in (each.row for each in runs):
                sums[decode.request][at] += decode.output_tokens - 1
                sums[decode.request][at + 1] += decode.decode_seconds
    drafted: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for row in one_by_one(run) if run.served else ():
        if (row.candidate, row.k) == (candidate, k):
            drafted[row.request].setdefault(row.sample, row.digest)
    matches = worst_by_request(matches_with_draft(run, candidate, k))
    again = worst_by_request(matches_without_draft(run))
    found = []
    for counts in sorted(counted, key=lambda counts: counts.id):
        greedy = counts.sampling == GREEDY
        written = drafted[counts.id] if greedy else {}
        took = [round(value, 6) for value in sums[counts.id]]
        whole = msgspec.structs.replace(
            counts,
            speed=DecodingTimes(*took) if took[1] > 0 and took[3] > 0 else None,
            output=counts.output if run.has_baseline and (greedy or not run.served) else None,
            drafted=_hash(written[sample] for sample in sorted(written)) if written else None,
            text=matches.get(counts.id),
            plain_text=again.get(counts.id),
        )
        found.append(whole)
    return tuple(found)


def _tested(run: Run, candidate: Candidate) -> dict[str, str]:
    """Models, machine and software of a run, by name; unknown ones are left out."""
    question, environment = run.manifest.question, run.manifest.environment
    # The target's name without its folder, which may be moved.
    tested = {"target": PurePath(question.target).name}
    for name, model in (("target", None), ("draft", candidate)):
        if model is not None:
            tested |= {"draft": model.draft, "draft quant": model.quant}
        facts = run.facts_of(model)
        if facts is not None:
            tested[f"{name} fingerprint"] = facts.fingerprint
            tested |= {f"{name} {part}": digest for part, digest in facts.parts.items()}
            tested |= {f"{name} dtype": facts.dtype, f"{name} runner": facts.runner}
            tested[f"{name} parameters"] = f"{facts.parameters:,}"
            tested[f"{name} bytes"] = f"{facts.weight_bytes:,}"
    # The serving engine that drafted with the candidate, as its last start described itself.
    engine: dict[str, str | None] = {"engine": question.engine, "target runner": question.engine}
    for served in [facts for facts in run.engines if facts.candidate == candidate][-1:]:
        engine |= {"engine version": served.version, "served model": served.model}
        for name, value in served.settings.items():
            if name in OF_TARGET:  # what a server states of its weights and number type
                engine[f"target {name}"] = value.removeprefix("torch.")
            else:
                engine[f"engine {name}"] = value
    tested |= {name: value for name, value in engine.items() if value is not None}
    tested |= {
        "target quant": question.target_quant,
        "dtype": question.dtype,
        "device": question.device,
        "machine": f"{environment.platform}, {environment.processor}, {environment.cores} cores, "
        f"{environment.threads} threads, {environment.accelerator or 'no accelerator'}",
        "draftbench": run.manifest.draftbench,
        "python": environment.python,
        **environment.packages,
    }
    if candidate.looks_up and any(r.candidate == candidate for r in run.replays):
        tested["lookup window"] = f"{question.lookup_longest} to {question.lookup_shortest}"
    return tested


def _timed(
    run: Run, candidate: Candidate, k: int, concurrency: int
) -> tuple[tuple[float, ...], tuple[ProcessTimes, ...]]:
    """c of each visit, pooled over contexts, and what each process timed, in the order of their
    names. A visit's samples count as one, since they share what disturbed it. On a serving engine,
    a turn of starts counts as a process, and a server that was already running counts as one.
    """
    # By process, for draft and target: the seconds of every visit by context.
    steps: dict[str, tuple[dict[int, list[float]], dict[int, list[float]]]] = {}
    for point in run.costs:
        sizes = (point.what, point.concurrency, point.new_tokens)
        if point.block == str(candidate) and sizes == ("step", concurrency, 1):
            sides = steps.setdefault(point.process, ({}, {}))
            visits = range(0, max(len(point.seconds) - SAMPLES_PER_VISIT, 0) + 1, SAMPLES_PER_VISIT)
            sides[point.candidate is None][point.context] = [
                sum(point.seconds[at : at + SAMPLES_PER_VISIT]) for at in visits
            ]
    ratios: list[float] = []
    costs = {}
    for process, sides in sorted(steps.items()):
        contexts = sorted(sides[0].keys() & sides[1].keys())
        # Visits that only some of the points have are left out.
        draft, target = (
            map(sum, zip(*(side[context] for context in contexts), strict=False)) for side in sides
        )
        if c := [round(a / b, 5) for a, b in zip(draft, target, strict=False)]:
            ratios += c
            costs[process] = round(median(c), 5)

    running = {facts.process for facts in run.engines if not facts.started}
    decoded: defaultdict[str, list[Decode]] = defaultdict(list)
    for row in run.decodes:
        if row.block == str(candidate):
            name = row.process
            if run.served and not run.manifest.question.in_turn:
                name = f"{row.repeat:03}"
            decoded["" if row.process in running else name].append(row)
    speeds = {}
    for name, rows in decoded.items():
        alone = replace(run, decodes=tuple(rows))
        configuration = Configuration.of(candidate, k, concurrency)
        measured = measurements(alone, concurrency).get(configuration)
        if measured is not None and measured.speedup.value:
            speeds[name] = round(measured.speedup.value, 5)
    processes = tuple(
        ProcessTimes(draft_cost_ratio=costs.get(name), speedup=speeds.get(name))
        for name in sorted({*costs, *speeds})
    )
    return tuple(ratios), processes
