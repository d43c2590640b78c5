"""A run's observations → the baseline of one candidate at one k.

Knows which facts of a run make up the question; judges nothing.
"""

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
from draftbench.acceptance.laws import AnyReplay, law_of, replays_of
from draftbench.acceptance.rounds import Rounds, expected_rounds
from draftbench.errors import RunFolderError, UsageError
from draftbench.gate.baseline import SCHEMA_VERSION, Baseline, Question, RequestCounts, Speed
from draftbench.gate.tested import tested_of
from draftbench.records import Candidate, CostPoint, Decode, LookupReplay, Sampling, Trajectory
from draftbench.run_folder.folder import PrivateText
from draftbench.run_folder.manifest import Manifest
from draftbench.run_folder.observed import Observed

# Raised when what the stored counts mean changes (acceptance.definitions, acceptance.rounds).
METRIC_VERSION = 1

# So many different prompts do not begin alike by chance.
_MIN_PROMPTS = 5

_Pairs = Sequence[tuple[Trajectory, AnyReplay]]


def make_baseline(
    observed: Observed, candidate: Candidate, k: int, texts: Iterable[PrivateText] = ()
) -> Baseline:
    """What `candidate` did at draft length k on every request that it was replayed on.

    Responses of one token, which no draft is replayed on, count with nothing drafted. `texts` are
    looked at for faults of the prompts and leave nothing else behind.

    Raises:
        RunFolderError: no replay of the candidate, or one that does not fit its response.
        UsageError: k < 1, or more than prompt lookup was measured with.
    """
    asked = observed.manifest.question
    pairs = replays_of(candidate, observed.trajectories, observed.replays, asked.mode)
    _check(observed, candidate, pairs, k)
    rounds = expected_rounds([law_of(*pair) for pair in pairs], k)
    rate = alpha(pairs)
    return Baseline(
        schema_version=SCHEMA_VERSION,
        created=observed.manifest.created,
        candidate=str(candidate),
        question=_question(observed.manifest, k),
        tested=tested_of(observed, candidate),
        alpha_definition=rate.figure.name if rate else None,
        survival=_survival(pairs, rounds, k),
        faults=_faults(candidate, pairs, rounds, texts),
        cost_ratios=_cost_ratios(observed.costs, candidate),
        requests=_requests(
            observed.trajectories, pairs, rounds, rate, _speeds(observed.decodes, candidate, k)
        ),
    )


def _question(manifest: Manifest, k: int) -> Question:
    asked = manifest.question
    return Question(
        key_id=manifest.key_id,
        metric_version=METRIC_VERSION,
        mode=asked.mode,
        k=k,
        responses="log" if asked.responses == "log" else "target",
        samples=asked.samples,
        max_new_tokens=asked.max_new_tokens,
    )


def _survival(pairs: _Pairs, rounds: Rounds, k: int) -> tuple[float, ...]:
    """Per draft position, as far as anything was drafted there."""
    trajectories = [trajectory for trajectory, _ in pairs]
    shares = (survival(trajectories, rounds, i).value for i in range(1, k + 1))
    return tuple(round(share, 4) for share in shares if share is not None)


def _faults(
    candidate: Candidate, pairs: _Pairs, rounds: Rounds, texts: Iterable[PrivateText]
) -> tuple[str, ...]:
    """What looks broken in the run and in its prompts."""
    # An infinite near tie leaves out the control of the target against itself: the sweep's matter.
    found = suspected_faults(candidate, pairs, [rounds], math.inf)
    return (*(fault.message for fault in found), *_doubled({t.prompt for t in texts}))


def _requests(
    written: Sequence[Trajectory],
    pairs: _Pairs,
    rounds: Rounds,
    rate: Sample | None,
    speeds: Mapping[str, Speed],
) -> tuple[RequestCounts, ...]:
    """Every request with its counts, those with nothing to draft too, by hash."""
    counted = request_counts([trajectory for trajectory, _ in pairs], rounds, rate, speeds)
    silent = _silent(written, {counts.id for counts in counted}, has_alpha=rate is not None)
    return tuple(sorted((*counted, *silent), key=lambda counts: counts.id))


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
    responses: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        responses[trajectory.request].append(trajectory)
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


def _silent(
    trajectories: Sequence[Trajectory], counted: Collection[str], *, has_alpha: bool
) -> list[RequestCounts]:
    """Requests whose every response ended at once."""
    responses: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        if trajectory.request not in counted:
            responses[trajectory.request].append(trajectory)
    return [
        RequestCounts(
            id=request,
            weight=own[0].weight,
            sampling=sampling_label(own[0].sampling),
            tokens=0.0,
            passes=0.0,
            rounds=0.0,
            accepted=0.0,
            alpha_sum=0.0 if has_alpha else None,
            segment=own[0].segment,
            prompt_tokens=own[0].prompt_tokens,
            output=_output(own),
        )
        for request, own in responses.items()
        if all(t.output_tokens < 2 for t in own)
    ]


def _doubled(prompts: Collection[tuple[int, ...]]) -> list[str]:
    """A special token that every prompt begins with twice: no text of a user does that."""
    if len(prompts) < _MIN_PROMPTS or len({prompt[:2] for prompt in prompts}) > 1:
        return []
    first = next(iter(prompts))[:2]
    if len(first) < 2 or first[0] != first[1]:
        return []
    return [
        f"all {len(prompts)} prompts begin with the same token twice, as when both the chat "
        "template and the tokenizer write the first one"
    ]


def _output(responses: Sequence[Trajectory]) -> str:
    """One hash of all responses to a request; each of theirs is keyed."""
    digests = [r.digest for r in sorted(responses, key=lambda r: r.sample)]
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()[:8]


def _check(observed: Observed, candidate: Candidate, pairs: _Pairs, k: int) -> None:
    if not pairs:
        measured = ", ".join(map(str, observed.candidates)) or "nothing"
        raise RunFolderError(
            f"the run holds no replay of `{candidate}`; it measured {measured}",
            hint="choose one of these with --candidate, or sweep with that draft",
        )
    windows = [replay.window for _, replay in pairs if isinstance(replay, LookupReplay)]
    largest = min(windows, default=k)
    if not 1 <= k <= largest:
        raise UsageError(
            f"k = {k} cannot be judged: {candidate} was replayed for k = 1 to {largest}"
            if k > largest
            else f"k = {k} drafts nothing",
            hint="sweep again with that k among --k" if k > largest else "take k = 1 or more",
        )


def _speeds(decodes: Sequence[Decode], candidate: Candidate, k: int) -> dict[str, Speed]:
    """Per request, its runs at k and its baseline runs of the same block and process."""
    drafted: dict[tuple[str, str], list[Decode]] = defaultdict(list)
    plain: dict[tuple[str, str], list[Decode]] = defaultdict(list)
    for run in decodes:
        if run.block != str(candidate) or run.batch != 1 or run.output_tokens < 2:
            continue
        if run.k == 0:
            plain[run.request, run.process].append(run)
        elif run.k == k and (run.draft, run.quant) == (candidate.draft, candidate.quant):
            drafted[run.request, run.process].append(run)
    both = sorted(drafted.keys() & plain.keys())
    speeds = {}
    for request in {request for request, _ in both}:
        keys = [key for key in both if key[0] == request]
        tokens, seconds = _totals([run for key in keys for run in drafted[key]])
        plain_tokens, plain_seconds = _totals([run for key in keys for run in plain[key]])
        if seconds > 0 and plain_seconds > 0:
            speeds[request] = Speed(
                tokens=tokens,
                seconds=seconds,
                plain_tokens=plain_tokens,
                plain_seconds=plain_seconds,
            )
    return speeds


def _totals(runs: Sequence[Decode]) -> tuple[float, float]:
    tokens = float(sum(run.output_tokens - 1 for run in runs))
    return tokens, round(sum(run.decode_seconds for run in runs), 6)


def _cost_ratios(costs: Sequence[CostPoint], candidate: Candidate) -> tuple[float, ...]:
    """c once per repeat, pooled over contexts: steps of one block were timed in turn."""
    draft: dict[tuple[str, int], tuple[float, ...]] = {}
    target: dict[tuple[str, int], tuple[float, ...]] = {}
    for point in costs:
        sizes = (point.what, point.batch, point.new_tokens)
        if point.block != str(candidate) or sizes != ("step", 1, 1):
            continue
        side = target if point.draft is None else draft
        side[point.process, point.context] = point.seconds
    ratios = []
    for process in sorted({process for process, _ in draft.keys() & target.keys()}):
        keys = [key for key in draft.keys() & target.keys() if key[0] == process]
        # Turns that only some of the points have are left out.
        draft_turns = map(sum, zip(*(draft[key] for key in keys), strict=False))
        target_turns = map(sum, zip(*(target[key] for key in keys), strict=False))
        ratios += [
            a / b for a, b in zip(draft_turns, target_turns, strict=False) if a > 0 and b > 0
        ]
    return tuple(round(ratio, 5) for ratio in ratios)
