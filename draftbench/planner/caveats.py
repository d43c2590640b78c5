"""A run and its ranking → what a reader must know before trusting the figures: one list, one
threshold each.

A decisive caveat says that a longer or quieter run could change the decision. What every run has in
common (all times are from one process, so restarts can differ by more than an interval says) is
documented once and is not listed here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from draftbench.acceptance.faults import near_tie, suspected_faults
from draftbench.acceptance.intervals import FEW_REQUESTS, estimate
from draftbench.planner.at_concurrency import Evaluator, LoadDecision, decide
from draftbench.planner.measured import audit, steady
from draftbench.planner.predict import Predictor, untimed
from draftbench.planner.rank import Alternative
from draftbench.planner.recommendation import FEW_DECODED, Caveat
from draftbench.planner.unfinished import unfinished
from draftbench.records import SELF, Candidate, Decode, MachineState
from draftbench.run_folder.run import Run

LOAD = 0.75
"""Load of each core when a run begins, from which its times are noisy."""

# Other processes keep more than this share of the cores busy, in more than this share of the time.
_BUSY_CORES, _BUSY_TIME = 0.25, 0.1
# An interval of a speed-up is about a tenth wide to either side at thirty requests: a machine that
# drifts by more moves it, and so do rounds that far from what their passes take.
_DRIFT = _OVERHEAD = 0.1
_DISAGREEMENT, _LOOPING = 0.02, 0.05
# A decoding run stalled where one of its rounds took so many times the median round.
_STALL, _ROUNDS_TO_JUDGE = 20.0, 5


def caveats(evaluator: Evaluator, decided: LoadDecision) -> tuple[Caveat, ...]:
    """Every caveat once, the decisive ones first; a text that holds for several candidates
    names them all.
    """
    run, timing = evaluator.run, evaluator.timing
    found = [*_of_leader(decided), *_of_sample(run, decided)]
    found += [Caveat(kind="borrowed-costs", text=text) for text in evaluator.source.caveats]
    found += _of_decoding(decided)
    if timing is not None:
        found += _of_machine(timing)
    found += [*_of_outputs(run), *_of_candidates(evaluator, decided)]
    target = run.facts_of(None)
    found += [
        Caveat(kind="model", text=f"target: {text}") for text in (target.caveats if target else ())
    ]
    found += [
        Caveat(
            kind="failed",
            text=f"{failure.candidate} was not measured to the end: {failure.reason}",
        )
        for failure in run.failures
        if failure.candidate is not None
    ]
    return tuple(sorted(dict.fromkeys(found), key=lambda caveat: not caveat.decisive))


def _of_leader(decided: LoadDecision) -> Iterator[Caveat]:
    leader, ranking = decided.leader, decided.ranking
    if leader is None:
        limited = any(each.breaks for each in decided.alternatives)
        yield Caveat(
            kind="no-speed",
            text="no candidate of known speed keeps the limits"
            if limited
            else "no candidate's speed is known: nothing was timed, or no quantization level has a "
            "fast kernel here",
        )
        return
    for each in ranking.faster_within_noise(leader):
        yield Caveat(
            kind="tie",
            text=f"{each.name} is faster than {leader.name} by less than timing noise; the smaller "
            "draft, then the smaller k, is preferred",
        )
    if not leader.corrected:
        errors = ranking.errors
        doubt = (
            f"; such predictions were off by {min(errors):+.0%} to {max(errors):+.0%} where others "
            "were decoded, which the deciding interval and the probability allow for"
            if errors
            else ""
        )
        yield Caveat(
            kind="not-measured",
            text=f"{leader.name} was {'not' if leader.measured is None else 'hardly'} measured: "
            f"its speed-up is a prediction{doubt}",
        )
    predicted = estimate(leader.predicted) if leader.predicted else None
    expected = estimate(leader.expected) if leader.expected else None
    least = decided.min_speedup
    if expected is None:
        yield Caveat(
            kind="no-interval",
            text=f"{leader.name}: too few requests for an interval of its speed-up",
        )
    elif predicted and decide(predicted, least) != decide(expected, least):
        yield Caveat(
            kind="revised",
            text=f"{leader.name}: {predicted.value:.2f}× predicted, {expected.value:.2f}× expected "
            "after measuring; the decision goes by the latter",
        )


def _of_sample(run: Run, decided: LoadDecision) -> Iterator[Caveat]:
    missing = unfinished(run)
    if missing:
        yield Caveat(
            kind="unfinished", text=missing, decisive=True, short="the run is not finished"
        )
    leader, requests = decided.leader, len({t.request for t in run.trajectories})
    decoded = (
        len({t.request for t, _ in leader.measured.runs}) if leader and leader.measured else None
    )
    for kind, count, word in (
        ("few-requests", requests, "replayed"),
        ("few-decoded", decoded, "decoded"),
    ):
        if count is not None and count < FEW_REQUESTS:
            were = "request was" if count == 1 else "requests were"
            short = f"only {count} {were} {word}"
            effect = f"under {FEW_REQUESTS}, intervals are too narrow"
            if kind == "few-decoded" and count < FEW_DECODED:
                effect = f"under {FEW_DECODED}, they do not correct the prediction"
            yield Caveat(kind=kind, text=f"{short}; {effect}", decisive=True, short=short)
    if any(t.origin == "log" for t in run.trajectories):
        yield Caveat(
            kind="logged-responses", text="the responses come from the log, not from this target"
        )


def _of_decoding(decided: LoadDecision) -> Iterator[Caveat]:
    """Rounds that took more or less than their timed passes, which is all that predictions count
    where nothing was decoded; what the baseline's steps did alike cancels in a speed-up.
    """
    if decided.concurrency > 1:
        shared = any(each.measured is not None for each in decided.alternatives)
        rest = ", and requests of a batch share rounds, so measured intervals are approximate"
        yield Caveat(
            kind="concurrency",
            text=f"at concurrency {decided.concurrency}, prefill of other requests is not modelled"
            f"{rest if shared else ''}",
        )
    known = [
        (rounds / plain, rounds, plain, each.name)
        for each in decided.alternatives
        if (rounds := each.round_overhead) and (plain := each.plain_overhead)
    ]
    far = [each for each in known if abs(each[0] - 1) > _OVERHEAD]
    if far:
        _, rounds, plain, name = max(far, key=lambda each: abs(each[0] - 1))
        yield Caveat(
            kind="pass-timings",
            text=f"isolated pass timings do not match decoding in {len(far)} of {len(known)} "
            f"measured configurations (for {name} rounds took {rounds:.2f} and target steps "
            f"{plain:.2f} times as long): treat predictions of what was not decoded with caution",
        )


def _of_machine(run: Run) -> Iterator[Caveat]:
    load = run.manifest.environment.load
    if load is not None and load > LOAD:
        yield Caveat(
            kind="busy-machine",
            text=f"the machine was busy when the run began (load {load:.1f} per core): its times "
            "are noisy, its acceptance is not",
            decisive=True,
            short="the machine was busy",
        )
    share = _busy_share(run.states)
    if share > _BUSY_TIME:
        most = max(state.others or 0.0 for state in run.states)
        yield Caveat(
            kind="busy-machine",
            text=f"other processes kept up to {most:.0%} of the cores busy in {share:.0%} of the "
            "time: the times are noisy, the acceptance is not",
            decisive=True,
            short="the machine was busy",
        )
    throttled = sum(state.throttled or 0 for state in run.states)
    if throttled:
        yield Caveat(
            kind="throttled",
            text=f"cores were throttled for heat {throttled} times: the times are not steady",
        )
    stalled = sum(_stalled(row) for row in run.decodes)
    if stalled:
        yield Caveat(
            kind="stalled",
            text=f"{stalled} decoding runs stalled in one round (a suspended process, another "
            "job): their seconds are too long",
        )
    drift = baseline_drift(run.decodes)
    if drift is not None and abs(drift.change) > max(_DRIFT, drift.scatter):
        word = "slower" if drift.change > 0 else "faster"
        yield Caveat(
            kind="drift",
            text=f"plain decoding became {abs(drift.change):.0%} {word} during the run: speeds of "
            "different candidates are not from the same machine state",
            decisive=True,
            short=f"the machine became {abs(drift.change):.0%} {word} during the run",
        )


def _busy_share(states: Sequence[MachineState]) -> float:
    """In how much of the time other processes kept many cores busy."""
    total = sum(state.seconds for state in states) or 1.0
    busy = (s.seconds for s in states if s.others is not None and s.others > _BUSY_CORES)
    return sum(busy) / total


def _stalled(row: Decode) -> bool:
    rounds = row.verify_seconds
    return len(rounds) >= _ROUNDS_TO_JUDGE and max(rounds) > _STALL * median(rounds)


@dataclass(frozen=True)
class Drift:
    """How the baseline's seconds per token changed from its first run to its last.

    `change` is relative (0.1: 10 % slower at the end). `scatter` is the typical relative distance
    of one run from that trend; a change below it says nothing. `runs` are those compared.
    """

    change: float
    scatter: float
    runs: int


def baseline_drift(decodes: Sequence[Decode]) -> Drift | None:
    """The trend of plain decoding within requests: the median of the slopes between any two runs of
    one request (Theil 1950, Sen 1968), in log seconds per token over the order of the runs.

    Every candidate is timed beside a baseline of its own on the same requests, so one request's
    baseline runs, minutes apart, differ by the machine alone. Ratios within a candidate's block
    cancel most of it; costs and comparisons across blocks do not. None where no request has two
    baseline runs.
    """
    parts = [part for row in decodes if row.k == 0 and (part := steady(row)) is not None]
    order = [part for part in parts if part.output_tokens > 1 and part.decode_seconds > 0]
    runs: defaultdict[tuple[str, int, int], list[tuple[int, float]]] = defaultdict(list)
    for at, row in enumerate(order):
        pace = math.log(row.decode_seconds / (row.output_tokens - 1))
        runs[row.request, row.sample, row.batch].append((at, pace))
    repeated = [points for points in runs.values() if len(points) > 1]
    slopes = [
        (later - earlier) / (j - i)
        for points in repeated
        for n, (i, earlier) in enumerate(points)
        for j, later in points[n + 1 :]
    ]
    if not slopes:
        return None
    slope = median(slopes)
    distances = []
    for points in repeated:
        levels = [pace - slope * at for at, pace in points]
        distances += [abs(level - median(levels)) for level in levels]
    return Drift(
        change=math.expm1(slope * (len(order) - 1)),
        scatter=math.expm1(median(distances)),
        runs=sum(map(len, repeated)),
    )


def _of_outputs(run: Run) -> Iterator[Caveat]:
    written = sum(t.output_tokens for t in run.trajectories)
    looping = sum(t.looping for t in run.trajectories)
    if looping > _LOOPING * written:
        yield Caveat(
            kind="looping",
            text=f"{looping / written:.0%} of the output is the target repeating itself: "
            "acceptance is inflated there, most of all that of prompt lookup",
        )
    checked = audit(run)
    if checked is not None and checked.faults:
        yield Caveat(
            kind="output-differs",
            text=f"{checked.faults} of {checked.requests} requests decoded at temperature 0 differ "
            "from the target's output, not at a near tie: suspect the decoder or a kernel",
        )


def _of_candidates(evaluator: Evaluator, decided: LoadDecision) -> Iterator[Caveat]:
    names: dict[tuple[str, str], list[str]] = {}
    predictors = {each.candidate: each.predictor for each in decided.alternatives}
    for candidate, predictor in predictors.items():
        own = [each for each in decided.alternatives if each.candidate == candidate]
        for kind_and_text in dict.fromkeys(_of_candidate(evaluator, predictor, own)):
            names.setdefault(kind_and_text, []).append(str(candidate))
    for (kind, text), candidates in names.items():
        yield Caveat(kind=kind, text=f"{', '.join(candidates)}: {text}")
    yield from _of_levels(list(predictors.values()))


def _of_candidate(
    evaluator: Evaluator, predictor: Predictor, alternatives: Sequence[Alternative]
) -> Iterator[tuple[str, str]]:
    """Kind and text."""
    run, candidate = evaluator.run, predictor.candidate
    facts = run.facts_of(candidate)
    if facts is not None:
        for text in facts.caveats:
            yield "model", text
        if facts.replay_disagreement is not None and facts.replay_disagreement > _DISAGREEMENT:
            yield (
                "replay-disagreement",
                f"decoding step by step chose another token than the replay at "
                f"{facts.replay_disagreement:.1%} of positions, so acceptance in a decoder differs",
            )
    replayable = sum(t.output_tokens > 1 for t in run.trajectories)
    if len(predictor.replays) < replayable:
        yield (
            "partly-replayed",
            f"replayed on only {len(predictor.replays)} of {replayable} responses",
        )
    if predictor.costs is not None and predictor.note is not None:
        yield "interpolated-costs", f"its costs are {predictor.note}"
    decoded = any(each.measured is not None for each in alternatives)
    own_costs = predictor.costs is not None and predictor.note is None and not evaluator.foreign
    if own_costs and not decoded and candidate.draft != SELF:
        yield "not-decoded", "never decoded; its speed-up is predicted from pass timings only"
    for text in untimed(predictor, max(each.k for each in alternatives)):
        yield "outside-timed-range", text
    rounds = [each.prediction.rounds for each in alternatives]
    for fault in suspected_faults(candidate, predictor.replays, rounds, near_tie(run)):
        yield "suspected-fault", f"suspected fault: {fault.message}; {fault.advice}"


def _of_levels(predictors: Sequence[Predictor]) -> Iterator[Caveat]:
    """A level whose step is no cheaper than the unquantized one's has no kernel worth the name."""
    ratios = {
        predictor.candidate: predictor.costs.draft_cost_ratio(predictor.context).value
        for predictor in predictors
        if predictor.costs is not None
    }
    for candidate, ratio in ratios.items():
        plain = ratios.get(Candidate(draft=candidate.draft))
        if candidate.quant != "none" and plain is not None and ratio >= plain:
            yield Caveat(
                kind="no-fast-kernel",
                text=f"{candidate} steps no faster than unquantized (c {ratio:.2f}, {plain:.2f}): "
                f"{candidate.quant} has no fast kernel for it here",
            )
