"""What `draftbench compare` shows: what changed between two runs, or the answers of several.

`compare_runs` computes differences (B - A) for each candidate, paired by request, with the gate's
intervals, and lists every setting, model and package that differs. Figures that cannot be compared
are shown without a difference, with the reason. `side_by_side` lists the answers of several runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.definitions import Sample, alpha, tokens_per_round
from draftbench.acceptance.intervals import MIN_REQUESTS, Estimate, estimates
from draftbench.acceptance.rounds import counted_rounds
from draftbench.gate.make_baseline import sampling_label
from draftbench.gate.noninferiority import gain_of, independent_change
from draftbench.planner.caveats import unanswered
from draftbench.planner.cells import Measurement, ks_of, measurements
from draftbench.planner.cost_sources import engine_name
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes import MIN_PROCESSES, blocks_of
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Decision
from draftbench.records import Candidate, CostPoint, Decode, Key, Record, Replay
from draftbench.run_folder.manifest import (
    difference_lines,
    differing_environment,
    differing_question,
    flag_of,
)
from draftbench.run_folder.run import Run

_OTHER_CONCURRENCIES = "not comparable: measured at different loads"
BUILT_IN = "built-in decoder"
OTHER_KEYS = "requests cannot be matched: the runs used different DRAFTBENCH_KEYs"
# Settings that are not listed, since the rows of the answers or a caveat show them.
_SHOWN = {"engine", "key_id"}
_MODEL_FACTS = ("fingerprint", "dtype", "runner", "parameters", "weight_bytes")


@dataclass(frozen=True)
class Difference:
    """One fact that differs; None is unknown."""

    fact: str  # what differs
    a: str | None  # in run A
    b: str | None  # in run B


@dataclass(frozen=True)
class FigureChange:
    """One figure in both runs. `difference` is B - A and `ratio` B / A; like `a` and `b` they cover
    the `requests` that both runs have (0 for c, which is not paired). If `obstacle` says why there
    are none, `a` and `b` cover each run's own requests. `processes` is how many timed the figure,
    in the run with fewer; None for a counted figure.
    """

    figure: str
    k_a: int | None  # draft length in run A
    k_b: int | None  # draft length in run B
    a: Estimate | None  # in run A
    b: Estimate | None  # in run B
    difference: Estimate | None = None
    ratio: Estimate | None = None
    requests: int = 0
    obstacle: str | None = None
    processes: int | None = None

    @property
    def timed_too_seldom(self) -> bool:
        """Whether too few processes timed it to say how much restarts differ."""
        return self.processes is not None and self.processes < MIN_PROCESSES


@dataclass(frozen=True)
class CandidateChange:
    """A candidate that both runs have."""

    candidate: str
    figures: tuple[FigureChange, ...]  # one entry per figure


@dataclass(frozen=True)
class Comparison:
    """Run B against run A. `caveats` say what cannot be compared, or not directly."""

    a: str  # path of run A
    b: str  # path of run B
    requests_a: int  # requests of run A
    requests_b: int  # requests of run B
    common_requests: int | None  # requests in both; None where other keys hashed them
    caveats: tuple[str, ...]
    question: tuple[Difference, ...]  # settings that differ
    environment: tuple[str, ...]  # what of the machine and software differs
    models: tuple[Difference, ...]  # what of the loaded models differs
    only_a: tuple[str, ...]  # candidates of run A alone
    only_b: tuple[str, ...]  # candidates of run B alone
    candidates: tuple[CandidateChange, ...]


class RunAnswer(Record, frozen=True):
    """The answer of one run at one load, with the figures of its best draft; None: unknown."""

    run: str  # path of the run
    runner: str  # the serving engine with its version, or the built-in decoder
    load: str  # concurrency N, or how requests came
    requests: int
    decision: Decision  # speculate, do_not_speculate or inconclusive
    draft: str | None  # the best one, at its quantization level
    k: int | None
    speedup_deciding: Estimate | None  # what the decision goes by
    alpha: Estimate | None
    mean_accepted_length: Estimate | None  # τ


class Differing(Record, frozen=True):
    """One setting that differs between runs."""

    fact: str  # what differs
    values: tuple[str | None, ...]  # in each run


class SideBySide(Record, frozen=True):
    """The answers of several runs, in the order in which they were named."""

    runs: tuple[str, ...]  # paths
    common_requests: int | None  # requests in all of them; None where other keys hashed them
    caveats: tuple[str, ...]
    answers: tuple[RunAnswer, ...]  # one entry per run and load
    question: tuple[Differing, ...]  # settings that differ


def compare_runs(names: tuple[str, str], a: Run, b: Run) -> Comparison:
    """Everything that differs.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    both = [candidate for candidate in a.candidates if candidate in b.candidates]
    in_a, in_b = ({t.request for t in run.trajectories} for run in (a, b))
    bests = [{c.candidate: c.k for c in recommend(run).evaluations if c.best} for run in (a, b)]
    measured = [measurements(run) for run in (a, b)]
    return Comparison(
        a=names[0],
        b=names[1],
        requests_a=len(in_a),
        requests_b=len(in_b),
        common_requests=len(in_a & in_b) if a.manifest.key_id == b.manifest.key_id else None,
        caveats=tuple(_caveats(a, b)),
        question=tuple(
            Difference(name, *values)
            for name, values in differing_question(a.manifest, b.manifest).items()
        ),
        environment=tuple(difference_lines(differing_environment(a.manifest, b.manifest))),
        models=tuple(_models(a, b, both)),
        only_a=tuple(str(c) for c in a.candidates if c not in both),
        only_b=tuple(str(c) for c in b.candidates if c not in both),
        candidates=tuple(
            CandidateChange(str(c), tuple(_figures((a, b), c, bests, measured))) for c in both
        ),
    )


def _figures(
    runs: tuple[Run, Run],
    candidate: Candidate,
    bests: Sequence[Mapping[Candidate, int]],
    measured: Sequence[Mapping[tuple[Candidate, int], Measurement]],
) -> Iterable[FigureChange]:
    """α, tokens per round, c and measured speed-ups, as far as the runs have them."""
    a, b = (candidate_rounds(run, candidate) for run in runs)
    replays = [replay for side in (a, b) for _, replay in side.replays]
    windows = [replay.window for replay in replays if not isinstance(replay, Replay)]
    # Without replays in both runs the rounds that engines counted are compared, as in the gate.
    counted = not (a.replays and b.replays)
    served = [{row.k for row in run.decodes if row.candidate == candidate} for run in runs]
    modes = [run.manifest.question.mode for run in runs]
    # Prompt lookup has no drafting mode.
    two_modes = modes[0] != modes[1] and not windows
    obstacle = f"two drafting modes: {modes[0]} and {modes[1]}" if two_modes else None
    rates = alpha(a.replays), alpha(b.replays)
    if any(rates):
        yield _change("α", (None, None), rates, obstacle)
    # First at a common k: A's best, else B's, else A's largest, but at most what prompt lookup was
    # replayed for; of counted rounds one that both runs served. Then at the best k of each run.
    best_a, best_b = (best.get(candidate) for best in bests)
    if counted:  # the best k of an engine need not have been served
        best_a, best_b = (
            k if k in of or not of else max(of)
            for k, of in zip((best_a, best_b), served, strict=True)
        )
    common = min([best_a or best_b or max(ks_of(runs[0])), *windows])
    if counted and (both := served[0] & served[1]):
        common = next((k for k in (best_a, best_b) if k in both), max(both))
    lengths = [(common, common)]
    if best_a and best_b and best_a != best_b:
        lengths.append((best_a, best_b))
    for k_a, k_b in lengths:
        if counted:
            yield _served(runs, candidate, (k_a, k_b), obstacle)
            continue
        samples = (
            tokens_per_round(a.trajectories, a.at(k_a)),
            tokens_per_round(b.trajectories, b.at(k_b)),
        )
        yield _change("tokens per round", (k_a, k_b), samples, obstacle)
    runners = [_timed_with(run) for run in runs]
    timed_apart = None
    if elsewhere := _elsewhere(*runs):
        timed_apart = f"not comparable: timed {elsewhere}"
    elif runners[0] != runners[1]:
        timed_apart = f"not comparable: timed with {runners[0]} and {runners[1]}"
    elif _at_other_concurrencies(runs):
        timed_apart = _OTHER_CONCURRENCIES
    blocks = [blocks_of(run, candidate).get(1) for run in runs]
    c_a, c_b = (
        block.draft_cost_ratio(side.context) if block else None
        for block, side in zip(blocks, (a, b), strict=True)
    )
    if c_a or c_b:
        points = [[p for p in run.costs if p.block == str(candidate)] for run in runs]
        yield replace(_change_of_cost(c_a, c_b, timed_apart), processes=_fewest_processes(points))
    for k in sorted({k for side in measured for c, k in side if c == candidate}):
        found = [side.get((candidate, k)) for side in measured]
        s_a, s_b = (each.speedup if each else None for each in found)
        apart = obstacle or timed_apart or _answered_otherwise(*runs)
        change = _change("S measured", (k, k), (s_a, s_b), apart)
        rows = [[timed.row for timed in each.runs] if each else [] for each in found]
        yield replace(change, processes=_fewest_processes(rows))


def _fewest_processes(sides: Iterable[Sequence[CostPoint | Decode]]) -> int:
    return min(len({row.process for row in rows}) for rows in sides)


def _served(
    runs: tuple[Run, Run], candidate: Candidate, ks: tuple[int, int], obstacle: str | None
) -> FigureChange:
    """The change of tokens per round as engines counted them, at a load that both runs measured."""
    rows = [
        [row for row in run.decodes if (row.candidate, row.k) == (candidate, k)]
        for run, k in zip(runs, ks, strict=True)
    ]
    loads = [{row.concurrency for row in side} for side in rows]
    common = loads[0] & loads[1]
    if all(loads) and (not common or _at_other_concurrencies(runs)):
        obstacle = obstacle or _OTHER_CONCURRENCIES
    samples = []
    for run, side, measured in zip(runs, rows, loads, strict=True):
        at_concurrency = [row for row in side if row.concurrency == min(common or measured)]
        samples.append(
            tokens_per_round(
                [run.responses[row.key] for row in at_concurrency], counted_rounds(at_concurrency)
            )
            if at_concurrency
            else None
        )
    return _change("tokens per round", ks, (samples[0], samples[1]), obstacle)


def _elsewhere(a: Run, b: Run) -> str | None:
    """How the hardware of two runs differs in what times depend on; None if it does not."""
    one, other = (run.manifest.environment for run in (a, b))
    if one.machine == other.machine:
        return None
    if msgspec.structs.replace(one, threads=other.threads).machine == other.machine:
        return f"with different numbers of CPU threads ({one.threads} and {other.threads})"
    return "on different machines"


def _at_other_concurrencies(runs: Sequence[Run]) -> bool:
    """Whether requests may have come at other times, or a server answered more or fewer at once."""
    max_concurrency = {run.manifest.question.max_concurrency for run in runs} - {None}
    arrivals = {arrivals_of(run) for run in runs}
    return len(arrivals) > 1 or len(max_concurrency) > 1


def _answered_otherwise(a: Run, b: Run) -> str | None:
    """Why two runs' responses are of different kinds, so that their times are not comparable."""
    differing = differing_question(a.manifest, b.manifest)
    for name in ("responses", "samples", "max_new_tokens", "temperature"):
        if name in differing:
            before, after = differing[name]
            return f"not comparable: {flag_of(name)} was {before}, is {after}"
    both = a.responses.keys() & b.responses.keys()
    other = _resampled(a, b, both)
    return f"not comparable: {other} of {len(both)} were sampled otherwise" if other else None


def _resampled(a: Run, b: Run, keys: Iterable[Key]) -> int:
    """How many responses the two runs sampled with different settings."""
    labels = ([sampling_label(run.responses[key].sampling) for key in keys] for run in (a, b))
    return sum(before != after for before, after in zip(*labels, strict=True))


def _timed_with(run: Run) -> str:
    if run.manifest.question.engine is not None:
        return engine_name(run)
    facts = run.facts_of(None)
    return facts.runner if facts else "unknown"


def _change(
    figure: str,
    ks: tuple[int | None, int | None],
    samples: tuple[Sample | None, Sample | None],
    obstacle: str | None,
) -> FigureChange:
    """The change of a figure over the requests that both runs have, unless an `obstacle` prevents
    it.
    """
    a, b = samples
    shared: list[str] = []
    difference = gain = None
    if a is None or b is None:
        obstacle = "only one run has it"
    elif a.figure != b.figure:
        obstacle = f"two definitions: {a.figure.name} and {b.figure.name}"
    elif not obstacle:
        shared = sorted({*a.requests} & {*b.requests})
        if len(shared) >= MIN_REQUESTS:
            before, after = _only(a, shared), _only(b, shared)
            # Each run's log may repeat a request: it counts as often in both.
            after = replace(after, weights=before.weights)
            samples = before, after
            difference = gain_of(before, after, relative=False).interval
            gain = gain_of(before, after, relative=True).interval
        if difference is None or gain is None:
            few = f"{len(shared)} common requests: too few to tell"
            difference, obstacle = None, few if shared else "no common requests"
    values = estimates(samples)
    return FigureChange(
        figure, *ks, values[0], values[1], difference, _ratio(gain), len(shared), obstacle
    )


def _change_of_cost(a: Estimate | None, b: Estimate | None, obstacle: str | None) -> FigureChange:
    """The change of c, whose timings are not paired. If they are equal, a run is compared with
    itself, and there is no change.
    """
    difference = gain = None
    if a is None or b is None:
        obstacle = "only one run has it"
    elif a == b and not obstacle:
        difference = gain = Estimate(0.0, 0.0, 0.0)
    elif not obstacle:
        difference = independent_change(a, b, relative=False)
        gain = independent_change(a, b, relative=True)
    return FigureChange("c", None, None, a, b, difference, _ratio(gain), obstacle=obstacle)


def _only(sample: Sample, requests: Sequence[str]) -> Sample:
    """The sample with only these requests, in their order."""
    row_of = {request: row for row, request in enumerate(sample.requests)}
    rows = [row_of[request] for request in requests]
    weights, addends = sample.weights[rows], sample.addends[rows]
    return replace(sample, requests=tuple(requests), weights=weights, addends=addends)


def _ratio(gain: Estimate | None) -> Estimate | None:
    return gain and Estimate(1 + gain.value, 1 + gain.low, 1 + gain.high)


def _not_answered(names: Sequence[str], runs: Sequence[Run]) -> Iterator[str]:
    """What the servers of each run left without an answer."""
    for name, run in zip(names, runs, strict=True):
        yield from (f"{name}: {caveat.text}" for caveat in unanswered(run))


def _caveats(a: Run, b: Run) -> Iterable[str]:
    yield from _not_answered("AB", (a, b))
    if unpaired := why_unpaired(a, b):
        yield unpaired
        return
    if elsewhere := _elsewhere(a, b):
        yield f"times (c, speed-up) were taken {elsewhere} and are not compared"
    in_a, in_b = (run.responses for run in (a, b))
    both = in_a.keys() & in_b.keys()
    if resampled := _resampled(a, b, both):
        yield f"{resampled} of {len(both)} responses were sampled with different settings"
    changed = sum(in_a[key].digest != in_b[key].digest for key in both)
    if changed:
        yield (
            f"the target's output differs on {changed} of {len(both)} responses, so acceptance is "
            "not directly comparable"
        )


def _models(a: Run, b: Run, both: Sequence[Candidate]) -> Iterable[Difference]:
    for candidate in (None, *both):
        facts = a.facts_of(candidate), b.facts_of(candidate)
        for field in _MODEL_FACTS:
            before, after = (None if side is None else str(getattr(side, field)) for side in facts)
            if before != after:
                name = f"{candidate or 'target'} {field.replace('_', ' ')}"
                yield Difference(name, before, after)


def side_by_side(names: Sequence[str], runs: Sequence[Run]) -> SideBySide:
    """The answers of several runs, for example of one pair on several engines. Costs and loads of
    different runners are not comparable, so nothing is subtracted, and every row names its runner
    and load.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    requests = [{t.request for t in run.trajectories} for run in runs]
    keys = {run.manifest.key_id for run in runs}
    settings = _differing(runs)
    return SideBySide(
        runs=tuple(names),
        common_requests=len(set.intersection(*requests)) if len(keys) == 1 else None,
        caveats=(*_not_answered(names, runs), *_caveats_of_all(runs, requests)),
        answers=tuple(
            answer for name, run in zip(names, runs, strict=True) for answer in _answers(name, run)
        ),
        question=tuple(Differing(fact, values) for fact, values in settings.items()),
    )


def why_unpaired(a: Run, b: Run) -> str | None:
    """Why two runs have no common requests to pair; None if they have."""
    only = "only their answers can be compared"
    targets = [(run.facts_of(None), run.manifest.question.target) for run in (a, b)]
    sizes = {facts.parameters for facts, _ in targets if facts is not None}
    if len(sizes) > 1:
        return f"the targets are different models ({targets[0][1]} and {targets[1][1]}): {only}"
    if a.manifest.key_id != b.manifest.key_id:
        return OTHER_KEYS
    in_a, in_b = ({t.request for t in run.trajectories} for run in (a, b))
    return None if in_a & in_b else f"no request is in both runs: {only}"


def _answers(name: str, run: Run) -> Iterator[RunAnswer]:
    first = recommend(run)
    for at in first.by_concurrency:
        options = DecisionOptions(concurrency=(at.concurrency,))
        answer = first if at.concurrency == first.concurrency else recommend(run, options)
        leader = answer.leading_evaluation
        yield RunAnswer(
            run=name,
            runner=answer.engine or BUILT_IN,
            load=_load(run, at.concurrency),
            requests=answer.requests,
            decision=answer.decision,
            draft=str(leader.candidate) if leader else None,
            k=leader.k if leader else None,
            speedup_deciding=answer.speedup_deciding,
            alpha=leader.alpha if leader else None,
            mean_accepted_length=leader.mean_accepted_length if leader else None,
        )


def _load(run: Run, concurrency: int) -> str:
    closed = run.manifest.question.arrivals == "closed"
    return f"concurrency {concurrency}" if closed else arrivals_of(run)


def arrivals_of(run: Run) -> str:
    """How requests came to a serving engine: closed, poisson:RATE, or log with its pace."""
    question = run.manifest.question
    if question.arrivals != "log":
        return question.arrivals
    return f"log ×{question.time_scale or 1.0:g}"


def _caveats_of_all(runs: Sequence[Run], requests: Sequence[set[str]]) -> Iterator[str]:
    unpaired = why_unpaired(*runs) if len(runs) == 2 else None
    if unpaired:
        yield unpaired
    elif len({run.manifest.key_id for run in runs}) > 1:
        yield OTHER_KEYS
    elif len(set.intersection(*requests)) < max(map(len, requests)):
        yield "the runs did not measure the same requests"
    for elsewhere in dict.fromkeys(filter(None, (_elsewhere(runs[0], run) for run in runs[1:]))):
        yield f"times were taken {elsewhere}"
    kinds = {run.manifest.question.engine is None for run in runs}
    if len(kinds) > 1:
        yield (
            "a decoder's active rows and an engine's requests in flight are different loads: an "
            "engine's times hold queueing and the prefills of other requests"
        )


def _differing(runs: Sequence[Run]) -> dict[str, tuple[str | None, ...]]:
    """By name, the values of each setting in which the runs differ."""
    changes = [differing_question(runs[0].manifest, run.manifest) for run in runs]
    facts = dict.fromkeys(fact for changed in changes for fact in changed if fact not in _SHOWN)
    first = {fact: changed[fact][0] for fact in facts for changed in changes if fact in changed}
    return {
        fact: tuple(changed[fact][1] if fact in changed else first[fact] for changed in changes)
        for fact in facts
    }
