"""A run's observations → the baseline of one candidate at one k."""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean

from draftbench.acceptance.definitions import (
    Sample,
    alpha,
    mean_accepted_length,
    survival,
    tokens_per_round,
)
from draftbench.acceptance.faults import suspected_faults
from draftbench.acceptance.rounds import AnyReplay, Rounds, expected_rounds, law_of, replays_of
from draftbench.errors import RunFolderError, UsageError
from draftbench.gate.baseline import (
    DOUBLED,
    SCHEMA_VERSION,
    Baseline,
    BaselineQuestion,
    RequestCounts,
    Speed,
    SuspectedFault,
    tested_by,
)
from draftbench.planner.measured import measurements
from draftbench.records import Candidate, CostPoint, LookupReplay, Sampling, Trajectory
from draftbench.run_folder.folder import PrivateText
from draftbench.run_folder.run import Run

# Raised when what the stored counts mean changes (acceptance.definitions, acceptance.rounds).
METRIC_VERSION = 1

# So many different prompts do not begin alike by chance.
_MIN_PROMPTS = 5

_Pairs = Sequence[tuple[Trajectory, AnyReplay]]


def make_baseline(
    run: Run, candidate: Candidate, k: int, texts: Iterable[PrivateText] = ()
) -> Baseline:
    """What `candidate` did at draft length k on every request that it was replayed on.

    Responses of one token, which no draft is replayed on, count with nothing drafted. `texts` are
    searched for faults of the prompts and leave nothing else behind.

    Raises:
        RunFolderError: no replay of the candidate, or one that does not fit its response.
        UsageError: k < 1, or more than prompt lookup was measured with.
    """
    manifest, question = run.manifest, run.manifest.question
    pairs = replays_of(candidate, run.trajectories, run.replays, question.mode)
    _check(run, candidate, pairs, k)
    trajectories = [trajectory for trajectory, _ in pairs]
    rounds = expected_rounds([law_of(*pair) for pair in pairs], k)
    rate = alpha(pairs)
    counted = request_counts(trajectories, rounds, rate, _speeds(run, candidate, k))
    silent = _silent(
        run.trajectories, {counts.id for counts in counted}, has_alpha=rate is not None
    )
    # As far as anything was drafted.
    survived = (survival(trajectories, rounds, i).value for i in range(1, k + 1))
    return Baseline(
        schema_version=SCHEMA_VERSION,
        created=manifest.created,
        candidate=str(candidate),
        question=BaselineQuestion(
            key_id=manifest.key_id,
            metric_version=METRIC_VERSION,
            mode=question.mode,
            k=k,
            responses="log" if question.responses == "log" else "target",
            samples=question.samples,
            max_new_tokens=question.max_new_tokens,
        ),
        tested=tested_by(run, candidate),
        alpha_definition=rate.figure.name if rate else None,
        survival=tuple(round(share, 4) for share in survived if share is not None),
        faults=_faults(candidate, pairs, rounds, texts),
        cost_ratios=_cost_ratios(run.costs, candidate),
        requests=tuple(sorted((*counted, *silent), key=lambda counts: counts.id)),
        threads=manifest.environment.threads,
    )


def _check(run: Run, candidate: Candidate, pairs: _Pairs, k: int) -> None:
    if not pairs:
        measured = ", ".join(map(str, run.candidates)) or "nothing"
        raise RunFolderError(
            f"the run holds no replay of `{candidate}`; it measured {measured}",
            hint="choose one of these with --candidate, or sweep with that draft",
        )
    if k < 1:
        raise UsageError(f"k = {k} drafts no token", hint="take k = 1 or more")
    windows = [replay.window for _, replay in pairs if isinstance(replay, LookupReplay)]
    largest = min(windows, default=k)
    if k > largest:
        raise UsageError(
            f"k = {k} cannot be judged: {candidate} was replayed for k = 1 to {largest}",
            hint="sweep again with that k among --k",
        )


def _faults(
    candidate: Candidate, pairs: _Pairs, rounds: Rounds, texts: Iterable[PrivateText]
) -> tuple[SuspectedFault, ...]:
    """What looks broken in the run and in its prompts."""
    # An infinite near tie leaves out the control of the target against itself: the sweep's matter.
    suspected = suspected_faults(candidate, pairs, [rounds], math.inf)
    faults = [SuspectedFault(kind=fault.what, message=fault.message) for fault in suspected]
    prompts = {text.prompt for text in texts}
    firsts = {prompt[:2] for prompt in prompts}
    # A special token that every prompt begins with twice: no text of a user does that.
    if len(prompts) >= _MIN_PROMPTS and len(firsts) == 1:
        first = firsts.pop()
        if len(first) == 2 and first[0] == first[1]:
            message = (
                f"all {len(prompts)} prompts begin with the same token twice, as when both the "
                "chat template and the tokenizer write the first one"
            )
            faults.append(SuspectedFault(kind=DOUBLED, message=message))
    return tuple(faults)


def request_counts(
    trajectories: Sequence[Trajectory],
    rounds: Rounds,
    rate: Sample | None,
    speeds: Mapping[str, Speed],
) -> tuple[RequestCounts, ...]:
    """Rows per response → counts per request, by request hash; `rate` is α over the same requests,
    None for prompt lookup.
    """
    length = mean_accepted_length(trajectories, rounds)
    passes = tokens_per_round(trajectories, rounds)
    responses = _by_request(trajectories)
    rows = []
    for row, request in enumerate(length.requests):
        emitted, drafting = length.addends[row].tolist()
        one = responses[request][0]
        counts = RequestCounts(
            id=request,
            weight=float(length.weights[row]),
            sampling=sampling_label(one.sampling),
            tokens=round(float(passes.addends[row, 0]), 3),
            passes=round(float(passes.addends[row, 1]), 3),
            rounds=round(drafting, 3),
            # Rounding and subtraction may leave a zero below zero.
            accepted=max(0.0, round(emitted - drafting, 3)),
            positions=float(rate.addends[row, 1]) if rate else 0.0,
            alpha_sum=round(float(rate.addends[row, 0]), 3) if rate else None,
            segment=one.segment,
            speed=speeds.get(request),
            prompt_tokens=one.prompt_tokens,
            output=_output(responses[request]),
            looping=fmean(t.looping for t in responses[request]),
        )
        rows.append(counts)
    return tuple(rows)


def sampling_label(sampling: Sampling) -> str:
    """The distribution sampled from, without the seed: `greedy` or `temperature=0.7 top_k=40`."""
    if sampling.temperature == 0:
        return "greedy"
    named = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
    }
    return " ".join(f"{name}={value:g}" for name, value in named.items() if value is not None)


def _by_request(trajectories: Iterable[Trajectory]) -> dict[str, list[Trajectory]]:
    responses: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        responses[trajectory.request].append(trajectory)
    return responses


def _silent(
    trajectories: Sequence[Trajectory], counted: Collection[str], *, has_alpha: bool
) -> list[RequestCounts]:
    """Requests whose every response has at most one token."""
    return [
        RequestCounts(
            id=request,
            weight=responses[0].weight,
            sampling=sampling_label(responses[0].sampling),
            tokens=0.0,
            passes=0.0,
            rounds=0.0,
            accepted=0.0,
            alpha_sum=0.0 if has_alpha else None,
            segment=responses[0].segment,
            prompt_tokens=responses[0].prompt_tokens,
            output=_output(responses),
        )
        for request, responses in _by_request(trajectories).items()
        if request not in counted and all(t.output_tokens < 2 for t in responses)
    ]


def _output(responses: Sequence[Trajectory]) -> str:
    """One hash of all responses to a request; the digest of each is keyed."""
    digests = [r.digest for r in sorted(responses, key=lambda r: r.sample)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:8]


def _speeds(run: Run, candidate: Candidate, k: int) -> dict[str, Speed]:
    """Per request, the sums of its runs at k and of the baseline runs measured beside them."""
    measured = measurements(run).get((candidate, k))
    if measured is None:
        return {}
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for at, runs in ((0, measured.runs), (2, measured.baseline)):
        for _, decode in runs:
            if decode.output_tokens > 1:
                sums[decode.request][at] += decode.output_tokens - 1
                sums[decode.request][at + 1] += decode.decode_seconds
    return {
        request: Speed(
            tokens=tokens,
            seconds=round(seconds, 6),
            plain_tokens=plain_tokens,
            plain_seconds=round(plain_seconds, 6),
        )
        for request, (tokens, seconds, plain_tokens, plain_seconds) in sums.items()
        if round(seconds, 6) > 0 and round(plain_seconds, 6) > 0
    }


def _cost_ratios(costs: Sequence[CostPoint], candidate: Candidate) -> tuple[float, ...]:
    """c once per repeat, pooled over contexts: steps of one block were timed in turn."""
    steps: dict[str, dict[bool, dict[int, tuple[float, ...]]]] = {}
    for point in costs:
        sizes = (point.what, point.batch, point.new_tokens)
        if point.block == str(candidate) and sizes == ("step", 1, 1):
            sides = steps.setdefault(point.process, {True: {}, False: {}})
            sides[point.candidate is not None][point.context] = point.seconds
    ratios = []
    for _, sides in sorted(steps.items()):
        contexts = sorted(sides[True].keys() & sides[False].keys())
        # Turns that only some of the points have are left out.
        draft, target = (
            map(sum, zip(*(sides[side][context] for context in contexts), strict=False))
            for side in (True, False)
        )
        ratios += [a / b for a, b in zip(draft, target, strict=False) if a > 0 and b > 0]
    return tuple(round(ratio, 5) for ratio in ratios)
