"""A run's observations → the baseline of one candidate at one k."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import PurePath
from statistics import fmean, median

import msgspec
import numpy as np

from draftbench.acceptance.candidate_rounds import (
    CandidateRounds,
    candidate_rounds,
    counted_along,
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
from draftbench.acceptance.rounds import (
    AnyReplay,
    Pairs,
    Rounds,
)
from draftbench.errors import RunFolderError, UsageError
from draftbench.gate.baseline import (
    SCHEMA_VERSION,
    Baseline,
    BaselineQuestion,
    DecodingTimes,
    ProcessTimes,
    RequestCounts,
)
from draftbench.planner.cells import measurements
from draftbench.planner.output_check import (
    matches_with_draft,
    matches_without_draft,
    one_by_one,
    worst_by_request,
)
from draftbench.records import (
    OF_TARGET,
    SAMPLES_PER_VISIT,
    Candidate,
    CostPoint,
    Decode,
    Numbers,
    Sampling,
    Trajectory,
)
from draftbench.run_folder.folder import PrivateText
from draftbench.run_folder.run import Run

# Increased when the meaning of the counts changes (acceptance.definitions, acceptance.rounds).
METRIC_VERSION = 1

# The label of sampling at temperature 0.
GREEDY = "greedy"
# So many different prompts do not begin alike by chance.
_MIN_PROMPTS = 5


def make_baseline(
    run: Run,
    candidate: Candidate,
    k: int,
    texts: Iterable[PrivateText] = (),
    concurrency: int | None = None,
) -> Baseline:
    """What `candidate` did at draft length k on every request: as counted by a serving engine if it
    was measured at this k, otherwise from replay.

    Args:
        texts: prompts to be searched for faults; nothing else of them is kept.
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
    pairs: Pairs = ()
    timed = {row.concurrency for row in run.decodes if (row.candidate, row.k) == (candidate, k)}
    timed |= {r.asked_concurrency for r in run.unanswered if (r.candidate, r.k) == (candidate, k)}
    concurrency = concurrency if concurrency in timed else min(timed, default=1)
    served = question.engine is not None and bool(timed)
    if served:
        trajectories, rounds, rate = _counted_by_engine(run, candidate, k, concurrency)
    else:
        pairs = _replays(run, candidate, k)
        along = CandidateRounds.of(pairs)
        trajectories, rounds = along.trajectories, along.at(k)
        rate = alpha(pairs)
    # An infinite near tie leaves out the check of the target as its own draft, which sweeps make.
    faults = suspected_faults(candidate, pairs, [rounds], math.inf)
    counted = request_counts(trajectories, rounds, rate, _speeds(run, candidate, k, concurrency))
    # None from the first position on that was never drafted.
    survived = (survival(trajectories, rounds, i).value for i in range(1, k + 1))
    judged = BaselineQuestion(
        key_id=manifest.key_id,
        metric_version=METRIC_VERSION,
        mode=question.mode,
        k=k,
        responses="log" if question.responses == "log" else "target",
        samples=question.samples,
        max_new_tokens=question.max_new_tokens,
    )
    if served:
        judged = msgspec.structs.replace(
            judged,
            concurrency=concurrency,
            arrivals=question.arrivals,
            time_scale=question.time_scale if question.arrivals == "log" else None,
            arrivals_digest=question.arrivals_digest,
            max_concurrency=question.max_concurrency,
        )
    return Baseline(
        schema_version=SCHEMA_VERSION,
        created=manifest.created,
        candidate=str(candidate),
        question=judged,
        tested=_tested(run, candidate),
        alpha_definition=rate.figure.name if rate else None,
        survival=tuple(round(share, 4) for share in survived if share is not None),
        faults=(*faults, *_doubled_token(texts)),
        cost_ratios=tuple(
            chain.from_iterable(_cost_ratios(run.costs, candidate, concurrency).values())
        ),
        requests=tuple(
            sorted(_with_texts(run, candidate, k, counted), key=lambda counts: counts.id)
        ),
        threads=manifest.environment.threads,
        processes=_by_process(run, candidate, k, concurrency),
        concurrency=concurrency,
        run=manifest.run,
        unanswered={
            row.request: str(row.error)
            for row in run.unanswered
            if (row.candidate, row.k, row.asked_concurrency) == (candidate, k, concurrency)
            or row.key not in run.responses
        },
    )


def _counted_by_engine(
    run: Run, candidate: Candidate, k: int, concurrency: int
) -> tuple[Sequence[Trajectory], Rounds, Sample | None]:
    """Responses, the rounds that the server counted for each, and α of the tokens that it tried,
    None if it does not report positions.

    Raises:
        UsageError: the server answered nothing, or does not count its rounds.
    """
    answered = runs_at(run, candidate, k, concurrency)
    if not answered:
        reasons = dict.fromkeys(str(row.error) for row in run.unanswered if row.k == k)
        raise UsageError(
            f"the server with {candidate} at k = {k} answered no request: {', '.join(reasons)}",
            hint="look at its log; the same command asks again",
        )
    trajectories, rounds = counted_along(answered)
    if rounds.tokens.any() and not rounds.target_passes.any():
        raise UsageError(
            "the server reports nothing about its drafting, so its acceptance cannot be judged",
            hint="a gate takes a server that counts: vLLM, llama.cpp or SGLang",
        )
    by_position = bool(np.isfinite(rounds.reached).all())
    return trajectories, rounds, alpha_of_rounds(trajectories, rounds) if by_position else None


def _replays(run: Run, candidate: Candidate, k: int) -> Pairs:
    """Responses with the candidate's replays, including responses of one token, which are not
    drafted.

    Raises:
        RunFolderError: there is no replay, or decoding contradicts it.
        UsageError: the candidate was not replayed for this k.
    """
    along = candidate_rounds(run, candidate)
    served = sorted({row.k for row in run.decodes if row.candidate == candidate and row.k})
    if along.contradiction:
        raise RunFolderError(
            f"{candidate} cannot be judged: {along.contradiction.message}",
            hint=along.contradiction.advice,
        )
    if along.served:
        raise UsageError(
            f"k = {k} cannot be judged: {candidate} was served with "
            f"k = {', '.join(map(str, served))} alone, and cannot be replayed",
            hint=f"name a k that was served, e.g. --k {served[-1]}, or start the engine with "
            f"k = {k} (a sweep with --measure all)",
        )
    if not along.replays:
        measured = ", ".join(map(str, run.candidates)) or "nothing"
        raise RunFolderError(
            f"the run holds no replay of `{candidate}`; it measured {measured}",
            hint="choose one of these with --candidate, or sweep with that draft",
        )
    if not along.reaches(k):
        raise UsageError(
            f"k = {k} cannot be judged: {candidate} was replayed for k = 1 to {along.longest}",
            hint="sweep again with that k among --k",
        )
    return (*along.replays, *_nothing_drafted(run.trajectories, along.replays))


def _with_texts(
    run: Run, candidate: Candidate, k: int, counted: Iterable[RequestCounts]
) -> Iterator[RequestCounts]:
    """The counts with hashes of the texts that a serving engine wrote at temperature 0, and how the
    text with speculation differs from the one without. Above temperature 0 a server's texts are
    random and say nothing about the target.
    """
    drafted: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for row in one_by_one(run) if run.served else ():
        if (row.candidate, row.k) == (candidate, k):
            drafted[row.request].setdefault(row.sample, row.digest)
    matches = worst_by_request(matches_with_draft(run, candidate, k))
    again = worst_by_request(matches_without_draft(run))
    for counts in counted:
        greedy = counts.sampling == GREEDY
        written = drafted[counts.id] if greedy else {}
        yield msgspec.structs.replace(
            counts,
            output=counts.output if run.has_baseline and (greedy or not run.served) else None,
            drafted=_hash(written[sample] for sample in sorted(written)) if written else None,
            text=matches.get(counts.id),
            plain_text=again.get(counts.id),
        )


def request_counts(
    trajectories: Sequence[Trajectory],
    rounds: Rounds,
    rate: Sample | None,
    speeds: Mapping[str, DecodingTimes],
) -> tuple[RequestCounts, ...]:
    """Counts per request; `rate` is α over the same requests, None if there is none."""
    length = mean_accepted_length(trajectories, rounds)
    per_round = tokens_per_round(trajectories, rounds)
    by_request = _by_request(trajectories)
    rows = []
    for row, request in enumerate(length.requests):
        responses = sorted(by_request[request], key=lambda response: response.sample)
        emitted, drafted = length.addends[row].tolist()
        tokens, passes = per_round.addends[row].tolist()
        alpha_sum, positions = rate.addends[row].tolist() if rate else (None, 0.0)
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
            speed=speeds.get(request),
            prompt_tokens=responses[0].prompt_tokens,
            output=_hash(r.digest for r in responses),
            looping=fmean(r.looping for r in responses),
        )
        rows.append(counts)
    return tuple(rows)


def _hash(digests: Iterable[str]) -> str:
    """One hash of several, each of them keyed."""
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:8]


def sampling_label(sampling: Sampling) -> str:
    """The distribution sampled from, without the seed: `greedy` or `temperature=0.7 top_k=40`."""
    if sampling.temperature == 0:
        return GREEDY
    named = ((name, getattr(sampling, name)) for name in ("temperature", "top_k", "top_p", "min_p"))
    return " ".join(f"{name}={value:g}" for name, value in named if value is not None)


def _by_request(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    responses: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        responses[trajectory.request].append(trajectory)
    return responses


def _nothing_drafted(
    trajectories: Iterable[Trajectory], pairs: Pairs
) -> list[tuple[Trajectory, AnyReplay]]:
    """Responses of requests that got one token at most, each with a replay without positions."""
    empty = _without_positions(pairs[0][1])
    replayed = {trajectory.request for trajectory, _ in pairs}
    return [
        (response, empty)
        for request, responses in _by_request(trajectories).items()
        if request not in replayed and all(t.output_tokens < 2 for t in responses)
        for response in responses
    ]


def _without_positions(replay: AnyReplay) -> AnyReplay:
    fields = msgspec.structs.asdict(replay)
    parts = {n: _without_positions(v) for n, v in fields.items() if isinstance(v, AnyReplay)}
    lists = {n: () for n, v in fields.items() if isinstance(v, tuple | Numbers)}
    return msgspec.structs.replace(replay, **parts, **lists)


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


def _doubled_token(texts: Iterable[PrivateText]) -> list[SuspectedFault]:
    """A fault if every prompt begins with the same token twice."""
    prompts = {text.prompt for text in texts}
    begins = {prompt[:2] for prompt in prompts}
    if len(prompts) < _MIN_PROMPTS or len(begins) > 1:
        return []
    begin = begins.pop()
    if len(begin) < 2 or begin[0] != begin[1]:
        return []
    message = (
        f"all {len(prompts)} prompts begin with the same token twice, as when both the chat "
        "template and the tokenizer write the first one"
    )
    return [SuspectedFault(kind=DOUBLED, message=message)]


def _speeds(run: Run, candidate: Candidate, k: int, concurrency: int) -> dict[str, DecodingTimes]:
    """Per request, tokens and seconds at k and without speculation, summed over its repeats."""
    measured = measurements(run, concurrency).get((candidate, k))
    if measured is None:
        return {}
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for at, runs in ((0, measured.runs), (2, measured.baseline)):
        for decode in (each.row for each in runs):
            if decode.output_tokens > 1:
                sums[decode.request][at] += decode.output_tokens - 1
                sums[decode.request][at + 1] += decode.decode_seconds
    speeds = {}
    for request, row in sums.items():
        tokens, seconds, plain, without = (round(value, 6) for value in row)
        if seconds > 0 and without > 0:
            took = {"tokens": tokens, "seconds": seconds}
            speeds[request] = DecodingTimes(**took, plain_tokens=plain, plain_seconds=without)
    return speeds


def _cost_ratios(
    costs: Sequence[CostPoint], candidate: Candidate, rows: int
) -> dict[str, tuple[float, ...]]:
    """By process, c of each visit, pooled over contexts. A visit's samples count as one, since they
    share what disturbed it.
    """
    # By process, for draft and target: the seconds of every visit by context.
    steps: dict[str, tuple[dict[int, list[float]], dict[int, list[float]]]] = {}
    for point in costs:
        sizes = (point.what, point.concurrency, point.new_tokens)
        if point.block == str(candidate) and sizes == ("step", rows, 1):
            sides = steps.setdefault(point.process, ({}, {}))
            visits = range(0, max(len(point.seconds) - SAMPLES_PER_VISIT, 0) + 1, SAMPLES_PER_VISIT)
            sides[point.candidate is None][point.context] = [
                sum(point.seconds[at : at + SAMPLES_PER_VISIT]) for at in visits
            ]
    ratios = {}
    for process, sides in sorted(steps.items()):
        contexts = sorted(sides[0].keys() & sides[1].keys())
        # Visits that only some of the points have are left out.
        draft, target = (
            map(sum, zip(*(side[context] for context in contexts), strict=False)) for side in sides
        )
        ratios[process] = tuple(
            round(a / b, 5) for a, b in zip(draft, target, strict=False) if a > 0 and b > 0
        )
    return ratios


def _by_process(
    run: Run, candidate: Candidate, k: int, concurrency: int
) -> tuple[ProcessTimes, ...]:
    """What each process timed, in the order of their names. On a serving engine, a turn of starts
    counts as a process, and a server that was already running counts as one.
    """
    ratios = _cost_ratios(run.costs, candidate, concurrency)
    costs = {name: round(median(c), 5) for name, c in ratios.items() if c}
    running = {facts.process for facts in run.engines if not facts.started}
    decoded: defaultdict[str, list[Decode]] = defaultdict(list)
    for row in run.decodes:
        if row.block == str(candidate):
            turn = "" if row.process in running else f"{row.repeat:03}"
            decoded[turn if run.served else row.process].append(row)
    speeds = {}
    for name, rows in decoded.items():
        alone = replace(run, decodes=tuple(rows))
        measured = measurements(alone, concurrency).get((candidate, k))
        if measured is not None and measured.speedup.value:
            speeds[name] = round(measured.speedup.value, 5)
    return tuple(
        ProcessTimes(draft_cost_ratio=costs.get(name), speedup=speeds.get(name))
        for name in sorted({*costs, *speeds})
    )
