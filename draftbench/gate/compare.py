"""Two runs → what changed between them: paired differences per candidate, with the gate's
intervals, and everything that was asked, used or installed differently.

Refuses nothing: what cannot be compared stands side by side, with the reason. Passes no verdict;
that is the gate's. Differences are B less A.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from draftbench.acceptance.definitions import Sample, alpha, tokens_per_round
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.errors import IncomparableError
from draftbench.gate.judge import samples_of
from draftbench.gate.limits import Limit
from draftbench.gate.noninferiority import gain_of, independent_change
from draftbench.gate.pair_requests import pair_up
from draftbench.gate.pin import make_baseline, sampling_label
from draftbench.planner.measured import Measurement, measurements
from draftbench.planner.predict import Predictor, draft_lengths, predictor_of
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate, LookupReplay
from draftbench.run_folder.manifest import differing_environment, differing_question
from draftbench.run_folder.run import Run

# The gate pairs speeds of one machine only; how large a drop it would allow plays no part.
_SPEED = Limit(metric="speedup", value=0.02, relative=True)
_ONE = "only one run has it"
_MODEL_FACTS = ("fingerprint", "dtype", "runner", "parameters", "weight_bytes")


@dataclass(frozen=True)
class Difference:
    """One fact that differs; None is unknown."""

    fact: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class FigureChange:
    """One figure in both runs. `difference` and `ratio` are B less A and B over A, over the
    `requests` that both have (0 for c, which is not paired); `obstacle` says why there are none.
    No difference is shown where an interval contains 0 (the ratio's 1).
    """

    figure: str
    k_a: int | None
    k_b: int | None
    a: Estimate | None
    b: Estimate | None
    difference: Estimate | None
    ratio: Estimate | None
    requests: int
    obstacle: str | None


@dataclass(frozen=True)
class CandidateChange:
    """A candidate that both runs have."""

    candidate: str
    figures: tuple[FigureChange, ...]


@dataclass(frozen=True)
class Comparison:
    """Run B against run A. `caveats` say what cannot be compared, or not directly."""

    a: str
    b: str
    requests_a: int
    requests_b: int
    common_requests: int
    caveats: tuple[str, ...]
    question: tuple[Difference, ...]
    environment: tuple[str, ...]
    models: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    candidates: tuple[CandidateChange, ...]


def compare_runs(names: tuple[str, str], a: Run, b: Run) -> Comparison:
    """Everything that differs.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    both = [candidate for candidate in a.candidates if candidate in b.candidates]
    requests = [{t.request for t in run.trajectories} for run in (a, b)]
    changes = _changes((a, b), both)
    return Comparison(
        a=names[0],
        b=names[1],
        requests_a=len(requests[0]),
        requests_b=len(requests[1]),
        common_requests=len(requests[0] & requests[1]),
        caveats=tuple(_caveats(a, b)),
        question=tuple(_question(a, b)),
        environment=tuple(differing_environment(a.manifest, b.manifest)),
        models=tuple(_models(a, b, both)),
        only_a=tuple(str(c) for c in a.candidates if c not in both),
        only_b=tuple(str(c) for c in b.candidates if c not in both),
        candidates=changes,
    )


def _changes(runs: tuple[Run, Run], both: Sequence[Candidate]) -> tuple[CandidateChange, ...]:
    """α, tokens per round, c and measured speed-ups of each candidate, as far as a run has them."""
    bests = [{c.candidate: c.k for c in recommend(run).evaluations if c.best} for run in runs]
    measured = [measurements(run) for run in runs]
    different_times = _different_times(*runs)
    changes = []
    for candidate in both:
        a, b = (predictor_of(run, candidate) for run in runs)
        different_modes = _different_modes(*runs, candidate)
        figures = []
        rates = alpha(a.replays), alpha(b.replays)
        if any(rates):
            figures.append(_counted("α", None, rates, different_modes))
        best = bests[0].get(candidate), bests[1].get(candidate)
        for ks in _lengths(best, max(draft_lengths(runs[0])), (a, b)):
            tokens = [
                tokens_per_round(entrant.trajectories, entrant.rounds(k))
                for entrant, k in zip((a, b), ks, strict=True)
            ]
            figures.append(
                _counted("tokens per round", ks, (tokens[0], tokens[1]), different_modes)
            )
        ratios = [e.costs.draft_cost_ratio(e.context) if e.costs else None for e in (a, b)]
        if any(ratios):
            figures.append(_timed("c", ratios[0], ratios[1], different_times))
        for k in sorted({k for side in measured for c, k in side if c == candidate}):
            pair = measured[0].get((candidate, k)), measured[1].get((candidate, k))
            figures.append(_speed(runs, pair, different_modes or different_times))
        changes.append(CandidateChange(str(candidate), tuple(figures)))
    return tuple(changes)


def _lengths(
    best: tuple[int | None, int | None], largest: int, entrants: tuple[Predictor, Predictor]
) -> list[tuple[int, int]]:
    """A common k (A's best, else B's, else A's largest), then the best of each run where they
    differ; no k beyond what prompt lookup was replayed for.
    """
    windows = [
        replay.window
        for entrant in entrants
        for _, replay in entrant.replays
        if isinstance(replay, LookupReplay)
    ]
    common = min([best[0] or best[1] or largest, *windows])
    lengths = [(common, common)]
    if best[0] and best[1] and best[0] != best[1]:
        lengths.append((best[0], best[1]))
    return lengths


def _counted(
    name: str,
    ks: tuple[int, int] | None,
    samples: tuple[Sample | None, Sample | None],
    obstacle: str | None,
) -> FigureChange:
    """The change of a figure that is counted over requests; `obstacle` forbids to subtract."""
    a, b = samples
    k_a, k_b = ks or (None, None)
    values = [None if sample is None else estimate(sample) for sample in samples]
    change = FigureChange(name, k_a, k_b, values[0], values[1], None, None, 0, obstacle)
    if a is None or b is None:
        return replace(change, obstacle=_ONE)
    if a.figure != b.figure:
        return replace(change, obstacle=f"two definitions: {a.figure.name} and {b.figure.name}")
    return change if obstacle else _paired(change, a, b)


def _timed(
    name: str, before: Estimate | None, after: Estimate | None, obstacle: str | None
) -> FigureChange:
    """The change of a timed figure; the same timings on both sides are a run against itself."""
    change = FigureChange(name, None, None, before, after, None, None, 0, obstacle)
    if before is None or after is None:
        return replace(change, obstacle=_ONE)
    if obstacle:
        return change
    if before == after:
        none, unity = Estimate(0.0, 0.0, 0.0), Estimate(1.0, 1.0, 1.0)
        return replace(change, difference=none, ratio=unity)
    difference = independent_change(before, after, relative=False)
    gain = independent_change(before, after, relative=True)
    return replace(change, difference=difference, ratio=_ratio(gain))


def _speed(
    runs: tuple[Run, Run],
    measured: tuple[Measurement | None, Measurement | None],
    obstacle: str | None,
) -> FigureChange:
    """The change of a measured speed-up, where the gate would compare it, and as it would."""
    known = [one for one in measured if one is not None]
    k, candidate = known[0].k, known[0].candidate
    a, b = (estimate(one.speedup) if one else None for one in measured)
    change = FigureChange("S measured", k, k, a, b, None, None, 0, obstacle)
    if len(known) < 2:
        return replace(change, obstacle=_ONE)
    if obstacle:
        return change
    try:
        old, new = (make_baseline(run, candidate, k) for run in runs)
        samples = samples_of("speedup", pair_up(old, new, [_SPEED]).pairs)
    except IncomparableError as error:
        return replace(change, obstacle=f"not comparable: {error.message}")
    if samples is None:
        return replace(change, obstacle="no common requests")
    return _paired(change, *samples)


def _paired(change: FigureChange, a: Sample, b: Sample) -> FigureChange:
    """The change over the requests that both have."""
    shared = sorted({*a.requests} & {*b.requests})
    change = replace(change, requests=len(shared))
    if len(shared) < 2:
        return replace(change, obstacle=f"{len(shared)} common requests")
    before, after = _only(a, shared), _only(b, shared)
    difference = gain_of(before, after, relative=False).interval
    gain = gain_of(before, after, relative=True).interval
    if difference is None or gain is None:
        return replace(change, obstacle=f"{len(shared)} common requests: too few to tell")
    return replace(change, difference=difference, ratio=_ratio(gain))


def _only(sample: Sample, requests: Sequence[str]) -> Sample:
    """A sample of some of its requests, in their order."""
    row_of = {request: row for row, request in enumerate(sample.requests)}
    rows = [row_of[request] for request in requests]
    weights, addends = sample.weights[rows], sample.addends[rows]
    return replace(sample, requests=tuple(requests), weights=weights, addends=addends)


def _ratio(gain: Estimate) -> Estimate:
    return Estimate(1 + gain.value, 1 + gain.low, 1 + gain.high)


def _different_times(a: Run, b: Run) -> str | None:
    """Why times of two runs must not be subtracted: another machine or another runner."""
    if a.manifest.environment.machine != b.manifest.environment.machine:
        return "not comparable: timed on different machines"
    runners = [facts.runner if (facts := run.facts_of(None)) else "unknown" for run in (a, b)]
    if runners[0] != runners[1]:
        return f"not comparable: timed with {runners[0]} and {runners[1]}"
    return None


def _different_modes(a: Run, b: Run, candidate: Candidate) -> str | None:
    """Why acceptance of two runs must not be subtracted: prompt lookup has no drafting mode."""
    modes = [run.manifest.question.mode for run in (a, b)]
    lookup = any(
        isinstance(r, LookupReplay) and r.candidate == candidate for r in (*a.replays, *b.replays)
    )
    if modes[0] != modes[1] and not lookup:
        return f"two drafting modes: {modes[0]} and {modes[1]}"
    return None


def _caveats(a: Run, b: Run) -> Iterable[str]:
    if a.manifest.environment.machine != b.manifest.environment.machine:
        yield "times (c, S) come from different machines and are not compared"
    if a.manifest.key_id != b.manifest.key_id:
        yield (
            "the requests were hashed with different keys and cannot be paired: set "
            "DRAFTBENCH_KEY to the same secret for both runs"
        )
        return
    in_a, in_b = ({(t.request, t.sample): t for t in run.trajectories} for run in (a, b))
    both = in_a.keys() & in_b.keys()
    if not both:
        yield "no request is in both runs: nothing can be paired"
        return
    if len(both) < max(len(in_a), len(in_b)):
        yield f"only {len(both)} responses are in both runs, of {len(in_a)} and {len(in_b)}"
    resampled = sum(
        sampling_label(in_a[key].sampling) != sampling_label(in_b[key].sampling) for key in both
    )
    if resampled:
        yield f"{resampled} of {len(both)} responses were sampled with different settings"
    changed = sum(in_a[key].digest != in_b[key].digest for key in both)
    if changed:
        yield (
            f"the target's output differs on {changed} of {len(both)} responses, so acceptance is "
            "not directly comparable"
        )


def _question(a: Run, b: Run) -> Iterable[Difference]:
    for field in differing_question(a.manifest, b.manifest):
        heads = [run.manifest if field == "key_id" else run.manifest.question for run in (a, b)]
        before, after = (_text(getattr(head, field)) for head in heads)
        yield Difference(field, before, after)


def _text(value: object) -> str | None:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return None if value is None else str(value)


def _models(a: Run, b: Run, both: Sequence[Candidate]) -> Iterable[Difference]:
    """Facts that identify the loaded models."""
    for candidate in (None, *both):
        facts = a.facts_of(candidate), b.facts_of(candidate)
        for field in _MODEL_FACTS:
            before, after = (None if side is None else str(getattr(side, field)) for side in facts)
            if before != after:
                yield Difference(
                    f"{candidate or 'target'} {field.replace('_', ' ')}", before, after
                )
