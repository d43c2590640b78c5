"""What `draftbench compare` shows: what changed between two runs, or the answers of several.

`compare_runs` computes differences (B - A) for each candidate, paired by request, with the gate's
intervals, and lists every setting, model and package that differs. Figures that cannot be compared
are shown without a difference, with the reason. `side_by_side` lists the answers of several runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.definitions import Sample, alpha, tokens_per_round
from draftbench.acceptance.intervals import MIN_REQUESTS, Estimate, estimates, paired
from draftbench.acceptance.rounds import counted_rounds
from draftbench.gate.make_baseline import sampling_label
from draftbench.gate.noninferiority import gain_of, independent_change
from draftbench.planner.caveat_kinds import ACCEPTANCE, SPEED
from draftbench.planner.cells import Measurement, ks_of, measurements
from draftbench.planner.cost_sources import engine_name
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes import MIN_PROCESSES, blocks_of
from draftbench.planner.recommend import recommend
from draftbench.planner.recommendation import Configuration, Decision, Recommendation
from draftbench.records import SELF, Candidate, CostPoint, Decode, Key, Record, Replay
from draftbench.run_folder.manifest import (
    Differences,
    difference_lines,
    differing_environment,
    differing_question,
    differing_settings,
    flag_of,
    in_words,
)
from draftbench.run_folder.run import Run

_OTHER_CONCURRENCIES = "not comparable: measured at different loads"
BUILT_IN = "built-in decoder"
OTHER_KEYS = "requests cannot be matched: the runs used different DRAFTBENCH_KEYs"
# Settings that are not listed, since the rows of the answers or a caveat show them.
_SHOWN = {"engine", "key_id"}
_MODEL_FACTS = ("fingerprint", "dtype", "runner", "parameters", "weight_bytes")
# How a figure of run B is to that of run A.
Change = Literal[
    "higher", "lower", "unclear", "the same", "another k", "too few requests", "not comparable",
    "unknown",
]  # fmt: skip


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

    @property
    def change(self) -> Change:
        """How B's is to A's. Higher or lower only if difference and ratio both say so."""
        difference, ratio = self.difference, self.ratio
        if difference is None or ratio is None:
            if self.requests:
                return "too few requests"
            return "unknown" if self.a is None or self.b is None else "not comparable"
        if difference.low == difference.high == 0:
            return "the same"
        if self.k_a != self.k_b:
            return "another k"
        if self.timed_too_seldom:
            return "unclear"
        if difference.low > 0 and ratio.low > 1:
            return "higher"
        return "lower" if difference.high < 0 and ratio.high < 1 else "unclear"

    @property
    def paired(self) -> bool:
        """Whether it was compared request by request, at one k."""
        return self.difference is not None and self.requests > 0 and self.k_a == self.k_b


@dataclass(frozen=True)
class CandidateChange:
    """A candidate that both runs have."""

    candidate: str
    figures: tuple[FigureChange, ...]  # one entry per figure

    @property
    def main(self) -> list[FigureChange]:
        """Of each paired figure the one at the k where A's is largest; none of the target as its
        own draft, which is a control.
        """
        found: dict[str, FigureChange] = {}
        for figure in self.figures if self.candidate != SELF else ():
            best = found.get(figure.figure)
            larger = best is None or (figure.a and best.a and figure.a.value > best.a.value)
            if figure.paired and larger:
                found[figure.figure] = figure
        return list(found.values())


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
    runs = (a, b)
    both = [candidate for candidate in a.candidates if candidate in b.candidates]
    in_a, in_b = ({t.request for t in run.trajectories} for run in runs)
    answers = [recommend(run) for run in runs]
    caveats = list(_doubts("AB", answers))
    keys = a.responses.keys() & b.responses.keys()
    if unpaired := why_unpaired(a, b):
        caveats.append(unpaired)
    else:
        if elsewhere := _elsewhere(a, b):
            caveats.append(f"times (c, speed-up) were taken {elsewhere} and are not compared")
        if resampled := _resampled(a, b, keys):
            caveats.append(
                f"{resampled} of {len(keys)} responses were sampled with different settings"
            )
        if changed := sum(a.responses[key].digest != b.responses[key].digest for key in keys):
            caveats.append(
                f"the target's output differs on {changed} of {len(keys)} responses, so acceptance "
                "is not directly comparable"
            )
    models = []
    for candidate in (None, *both):
        facts = [run.facts_of(candidate) for run in runs]
        for field in _MODEL_FACTS:
            before, after = (None if side is None else str(getattr(side, field)) for side in facts)
            if before != after:
                name = f"{candidate or 'target'} {field.replace('_', ' ')}"
                models.append(Difference(name, before, after))
    bests = [_best_ks(answer) for answer in answers]
    measured = [measurements(run) for run in runs]
    return Comparison(
        a=names[0],
        b=names[1],
        requests_a=len(in_a),
        requests_b=len(in_b),
        common_requests=len(in_a & in_b) if a.manifest.key_id == b.manifest.key_id else None,
        caveats=tuple(caveats),
        question=tuple(Difference(name, *values) for name, values in _settings(a, b).items()),
        environment=tuple(difference_lines(differing_environment(a.manifest, b.manifest))),
        models=tuple(models),
        only_a=tuple(str(c) for c in a.candidates if c not in both),
        only_b=tuple(str(c) for c in b.candidates if c not in both),
        candidates=tuple(
            CandidateChange(str(c), tuple(_figures(runs, c, bests, measured))) for c in both
        ),
    )


def _best_ks(answer: Recommendation) -> dict[Candidate, int]:
    """Each candidate's best fixed k; none where no speed is known."""
    found = dict[Candidate, tuple[float, int]]()
    known = {each.candidate for each in answer.evaluations if each.best}
    for each in answer.evaluations:
        if each.candidate in known and each.stop is None:
            speed = answer.ranked_by(each)
            rank = math.inf if each.best else speed.value if speed else 0.0
            found[each.candidate] = max(found.get(each.candidate, (-1.0, 0)), (rank, each.k))
    return {candidate: k for candidate, (_, k) in found.items()}


def _figures(
    runs: tuple[Run, Run],
    candidate: Candidate,
    bests: Sequence[Mapping[Candidate, int]],
    measured: Sequence[Mapping[Configuration, Measurement]],
) -> Iterator[FigureChange]:
    """α, tokens per round, c and measured speed-ups, as far as the runs have them."""
    a, b = (candidate_rounds(run, candidate) for run in runs)
    replays = [replay for side in (a, b) for _, replay in side.replays]
    windows = [replay.window for replay in replays if not isinstance(replay, Replay)]
    # Without replays in both runs the rounds that engines counted are compared, as in the gate.
    counted = not (a.replays and b.replays)
    of_candidate = [
        [row for row in run.decodes if row.candidate == candidate and row.stop is None]
        for run in runs
    ]
    served = [{row.k for row in rows} for rows in of_candidate]
    max_concurrency = {run.manifest.question.max_concurrency for run in runs} - {None}
    other_arrivals = len({arrivals_of(run) for run in runs}) > 1 or len(max_concurrency) > 1
    modes = [run.manifest.question.mode for run in runs]
    # Prompt lookup has no drafting mode.
    two_modes = modes[0] != modes[1] and not windows
    obstacle = f"two drafting modes: {modes[0]} and {modes[1]}" if two_modes else None
    rates = alpha(a.replays), alpha(b.replays)
    if any(rates):
        yield _paired("α", (None, None), rates, obstacle)

    # Tokens per round first at a common k: A's best, else B's, else A's largest, but at most what
    # prompt lookup was replayed for; of counted rounds one that both runs served. Then at the best
    # k of each run.
    best_a, best_b = (best.get(candidate) for best in bests)
    if counted:  # the best k of an engine need not have been served
        best_a, best_b = (
            k if k in of or not of else max(of)
            for k, of in zip((best_a, best_b), served, strict=True)
        )
    common = min([best_a or best_b or max(ks_of(runs[0])), *windows])
    if counted and (in_both := served[0] & served[1]):
        common = next((k for k in (best_a, best_b) if k in in_both), max(in_both))
    lengths = [(common, common)]
    if best_a and best_b and best_a != best_b:
        lengths.append((best_a, best_b))
    for ks in lengths:
        samples: list[Sample | None] = []
        apart = obstacle
        if counted:
            rows = [
                [row for row in of if row.k == k] for of, k in zip(of_candidate, ks, strict=True)
            ]
            loads = [{row.concurrency for row in at_k} for at_k in rows]
            shared = loads[0] & loads[1]
            if all(loads) and (not shared or other_arrivals):
                apart = obstacle or _OTHER_CONCURRENCIES
            for run, at_k, load in zip(runs, rows, loads, strict=True):
                at = [row for row in at_k if row.concurrency == min(shared or load)]
                responses = [run.responses[row.key] for row in at]
                samples.append(tokens_per_round(responses, counted_rounds(at)) if at else None)
        else:
            samples += [
                tokens_per_round(side.trajectories, side.at(k))
                for side, k in zip((a, b), ks, strict=True)
            ]
        yield _paired("tokens per round", ks, samples, apart)

    # Times, of one machine, decoder and load.
    facts = [run.facts_of(None) for run in runs]
    runners = [
        engine_name(run) if run.manifest.question.engine else of.runner if of else "unknown"
        for run, of in zip(runs, facts, strict=True)
    ]
    timed_apart = None
    if elsewhere := _elsewhere(*runs):
        timed_apart = f"not comparable: timed {elsewhere}"
    elif runners[0] != runners[1]:
        timed_apart = f"not comparable: timed with {runners[0]} and {runners[1]}"
    elif other_arrivals:
        timed_apart = _OTHER_CONCURRENCIES
    blocks = [blocks_of(run, candidate).get(1) for run in runs]
    c_a, c_b = (
        block.draft_cost_ratio(side.context) if block else None
        for block, side in zip(blocks, (a, b), strict=True)
    )
    if c_a or c_b:
        points = [[p for p in run.costs if p.block == str(candidate)] for run in runs]
        why, difference, gain = timed_apart, None, None
        if c_a is None or c_b is None:
            why = "only one run has it"
        elif c_a == c_b and not why:  # a run compared with itself
            difference = gain = Estimate(0.0, 0.0, 0.0)
        elif not why:
            difference = independent_change(c_a, c_b, relative=False)
            gain = independent_change(c_a, c_b, relative=True)
        yield FigureChange(
            "c", None, None, c_a, c_b, difference, _ratio(gain),
            obstacle=why, processes=_fewest_processes(points),
        )  # fmt: skip

    # Speed-ups, of responses of one kind.
    timed_apart = obstacle or timed_apart
    differing = differing_question(runs[0].manifest, runs[1].manifest)
    for name in ("responses", "samples", "max_new_tokens", "temperature"):
        if name in differing:
            before, after = map(in_words, differing[name])
            timed_apart = timed_apart or f"not comparable: {flag_of(name)} was {before}, is {after}"
    keys = runs[0].responses.keys() & runs[1].responses.keys()
    if other := _resampled(*runs, keys):
        timed_apart = (
            timed_apart
            or f"not comparable: {other} of {len(keys)} were sampled with other settings"
        )
    decoded = {own.length for side in measured for own in side if own.candidate == candidate}
    for k, stop in sorted(decoded, key=lambda length: (length.k, str(length))):
        found = [side.get(Configuration.of(candidate, k, 1, stop)) for side in measured]
        speeds = [each.speedup if each else None for each in found]
        timed = [[timing.row for timing in each.runs] if each else [] for each in found]
        name = f"S measured, {stop}" if stop else "S measured"
        change = _paired(name, (k, k), speeds, timed_apart)
        yield replace(change, processes=_fewest_processes(timed))


def _settings(a: Run, b: Run) -> Differences:
    """The settings in which two runs differ. One model may be called by two paths: what tells it is
    the fingerprint of its files, if both runs have that.
    """
    specs, its_specs = a.manifest.specs, b.manifest.specs
    found = differing_settings(a.manifest, b.manifest)
    one, other = (
        {facts.candidate and facts.candidate.draft: facts.fingerprint for facts in run.facts}
        for run in (a, b)
    )
    target, its = one.pop(None, ""), other.pop(None, "")
    if target and target == its:
        found.pop("target", None)
    if specs.keys() == its_specs.keys() and all(
        spec == its_specs[draft] or (one.get(draft) and one.get(draft) == other.get(draft))
        for draft, spec in specs.items()
    ):
        found.pop("drafts", None)
    return found


def _fewest_processes(sides: Iterable[Sequence[CostPoint | Decode]]) -> int:
    return min(len({row.process for row in rows}) for rows in sides)


def _elsewhere(a: Run, b: Run) -> str | None:
    """How the hardware of two runs differs in what times depend on; None if it does not."""
    one, other = (run.manifest.environment for run in (a, b))
    if one.machine == other.machine:
        return None
    if msgspec.structs.replace(one, threads=other.threads).machine == other.machine:
        return f"with different numbers of CPU threads ({one.threads} and {other.threads})"
    return "on different machines"


def _resampled(a: Run, b: Run, keys: Iterable[Key]) -> int:
    """How many responses the two runs sampled with different settings."""
    labels = ([sampling_label(run.responses[key].sampling) for key in keys] for run in (a, b))
    return sum(before != after for before, after in zip(*labels, strict=True))


def _paired(
    figure: str,
    ks: tuple[int | None, int | None],
    samples: Sequence[Sample | None],
    obstacle: str | None,
) -> FigureChange:
    """The change of a figure over the requests that both runs have, unless an `obstacle` prevents
    it.
    """
    a, b = samples
    shared = 0
    difference = gain = None
    if a is None or b is None:
        obstacle = "only one run has it"
    elif a.figure != b.figure:
        obstacle = f"two definitions: {a.figure.name} and {b.figure.name}"
    elif not obstacle:
        both = paired(a, b)
        shared = len(both[0].requests)
        if shared >= MIN_REQUESTS:
            samples = both
            difference = gain_of(*both, relative=False).interval
            gain = gain_of(*both, relative=True).interval
        if difference is None or gain is None:
            few = f"{shared} common requests: too few to tell"
            difference, obstacle = None, few if shared else "no common requests"
    values = estimates(samples)
    return FigureChange(
        figure, *ks, values[0], values[1], difference, _ratio(gain), shared, obstacle
    )


def _ratio(gain: Estimate | None) -> Estimate | None:
    return gain and Estimate(1 + gain.value, 1 + gain.low, 1 + gain.high)


def _doubts(names: Sequence[str], answers: Sequence[Recommendation]) -> Iterator[str]:
    """What makes each run's acceptance or times doubtful, and requests without an answer."""
    for name, answer in zip(names, answers, strict=True):
        for caveat in answer.caveats:
            if caveat.decisive and caveat.kind in {*ACCEPTANCE, *SPEED, "unanswered"}:
                yield f"{name}: {caveat.text}"


def side_by_side(names: Sequence[str], runs: Sequence[Run]) -> SideBySide:
    """The answers of several runs, for example of one pair on several engines. Costs and loads of
    different runners are not comparable, so nothing is subtracted, and every row names its runner
    and load.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    requests = [{t.request for t in run.trajectories} for run in runs]
    common = set.intersection(*requests)
    one_key = len({run.manifest.key_id for run in runs}) == 1
    firsts = [recommend(run) for run in runs]
    caveats = list(_doubts(names, firsts))
    if len(runs) == 2 and (unpaired := why_unpaired(*runs)):
        caveats.append(unpaired)
    elif not one_key:
        caveats.append(OTHER_KEYS)
    elif len(common) < max(map(len, requests)):
        caveats.append("the runs did not measure the same requests")
    elsewhere = dict.fromkeys(_elsewhere(runs[0], run) for run in runs[1:])
    caveats += [f"times were taken {how}" for how in elsewhere if how]
    if len({run.manifest.question.engine is None for run in runs}) > 1:
        caveats.append(
            "a decoder's active rows and an engine's requests in flight are different loads: an "
            "engine's times hold queueing and the prefills of other requests"
        )
    answers = []
    for name, run, first in zip(names, runs, firsts, strict=True):
        for at in first.by_concurrency:
            options = DecisionOptions(concurrency=(at.concurrency,))
            answer = first if at.concurrency == first.concurrency else recommend(run, options)
            leader, arrivals = answer.leading_evaluation, arrivals_of(run)
            found = RunAnswer(
                run=name,
                runner=answer.engine or BUILT_IN,
                load=f"concurrency {at.concurrency}" if arrivals == "closed" else arrivals,
                requests=answer.requests,
                decision=answer.decision,
                draft=str(leader.candidate) if leader else None,
                k=leader.k if leader else None,
                speedup_deciding=answer.speedup_deciding,
                alpha=leader.alpha if leader else None,
                mean_accepted_length=leader.mean_accepted_length if leader else None,
            )
            answers.append(found)
    # By name, the values of each setting in which the runs differ from the first.
    changes = [_settings(runs[0], run) for run in runs]
    before = {fact: value for changed in changes for fact, (value, _) in changed.items()}
    return SideBySide(
        runs=tuple(names),
        common_requests=len(common) if one_key else None,
        caveats=tuple(caveats),
        answers=tuple(answers),
        question=tuple(
            Differing(fact, tuple(changed.get(fact, (None, value))[1] for changed in changes))
            for fact, value in before.items()
            if fact not in _SHOWN
        ),
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


def arrivals_of(run: Run) -> str:
    """How requests came to a serving engine: closed, poisson:RATE, or log with its pace."""
    question = run.manifest.question
    if question.arrivals != "log":
        return question.arrivals
    return f"log ×{question.time_scale or 1.0:g}"
