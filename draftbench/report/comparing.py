"""Two runs → what changed between them: paired differences per candidate, and everything that was
asked, used or installed differently.

Refuses nothing: what cannot be compared stands side by side, with the reason. Differences are B
less A. Those of acceptance and speed-up are paired by request, those of c are of independent
timings. Judges nothing (that is the gate's).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from draftbench.acceptance.definitions import Sample, alpha, tokens_per_round
from draftbench.acceptance.intervals import Estimate, estimate, paired_difference, paired_ratio
from draftbench.acceptance.rounds import expected_rounds
from draftbench.gate.pinning import sampling_label
from draftbench.gate.repeats import independent_change
from draftbench.plan.measured import MeasuredCell, measured_cells
from draftbench.plan.predict import Entrant, entrant_of, grid
from draftbench.plan.recommend import recommend
from draftbench.records import Candidate, LookupReplay, ModelFacts
from draftbench.store.manifest import differing_environment, differing_question
from draftbench.store.observed import Observed


@dataclass(frozen=True)
class Changed:
    """One fact that differs; None is unknown."""

    what: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class FigureChange:
    """One figure in both runs. `difference` and `ratio` are B less A and B over A, over the
    `requests` that both have (0 for c, which is not paired); `obstacle` says why there are none.
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
    """Run B against run A. `doubts` say what is not comparable, or not what it seems."""

    a: str
    b: str
    requests_a: int
    requests_b: int
    common_requests: int
    doubts: tuple[str, ...]
    question: tuple[Changed, ...]
    environment: tuple[str, ...]
    models: tuple[Changed, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    candidates: tuple[CandidateChange, ...]


@dataclass(frozen=True, eq=False)
class _Side:
    """One run, with the best k of each candidate and its measured cells."""

    observed: Observed
    best: dict[Candidate, int]
    cells: dict[tuple[Candidate, int], MeasuredCell]

    @classmethod
    def of(cls, observed: Observed) -> _Side:
        answer = recommend(observed)
        best = {Candidate(draft=c.draft, quant=c.quant): c.k for c in answer.candidates if c.best}
        return cls(observed, best, measured_cells(observed))


def compare_runs(names: tuple[str, str], a: Observed, b: Observed) -> Comparison:
    """Everything that differs.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    sides = _Side.of(a), _Side.of(b)
    both = [candidate for candidate in a.candidates if candidate in b.candidates]
    requests = [{t.request for t in run.trajectories} for run in (a, b)]
    return Comparison(
        a=names[0],
        b=names[1],
        requests_a=len(requests[0]),
        requests_b=len(requests[1]),
        common_requests=len(requests[0] & requests[1]),
        doubts=tuple(_doubts(a, b)),
        question=tuple(_question(a, b)),
        environment=tuple(differing_environment(a.manifest, b.manifest)),
        models=tuple(_models(a, b, both)),
        only_a=tuple(str(c) for c in a.candidates if c not in both),
        only_b=tuple(str(c) for c in b.candidates if c not in both),
        candidates=tuple(CandidateChange(str(c), tuple(_figures(*sides, c))) for c in both),
    )


def _figures(a: _Side, b: _Side, candidate: Candidate) -> Iterable[FigureChange]:
    """α, tokens per round, c and measured speed-up, as far as one of the runs has them."""
    ours, theirs = (entrant_of(side.observed, candidate) for side in (a, b))
    obstacle = _obstacle(a.observed, b.observed, candidate)
    rates = alpha(ours.replays), alpha(theirs.replays)
    if any(rates):
        yield _change("α", None, rates, obstacle)
    for ks in _lengths(a, b, candidate, (ours, theirs)):
        tokens = _tokens(ours, ks[0]), _tokens(theirs, ks[1])
        yield _change("tokens per round", ks, tokens, obstacle)
    cost = _cost(ours, theirs)
    if cost.a or cost.b:
        yield cost
    for k in sorted({k for c, k in (*a.cells, *b.cells) if c == candidate}):
        cells = a.cells.get((candidate, k)), b.cells.get((candidate, k))
        first, second = (cell.speedup if cell else None for cell in cells)
        yield _change("S measured", (k, k), (first, second), obstacle)


def _change(
    name: str,
    ks: tuple[int, int] | None,
    samples: tuple[Sample | None, Sample | None],
    obstacle: str | None,
) -> FigureChange:
    a, b = samples
    k_a, k_b = ks or (None, None)
    values = [None if sample is None else estimate(sample) for sample in samples]
    change = FigureChange(name, k_a, k_b, values[0], values[1], None, None, 0, obstacle)
    if a is None or b is None:
        return replace(change, obstacle="only one run has it")
    if a.figure != b.figure:
        return replace(change, obstacle=f"{a.figure.name} against {b.figure.name}")
    if obstacle:
        return change
    difference = paired_difference(b, a)
    shared = len(difference.requests)
    if shared < 2:
        return replace(change, requests=shared, obstacle=f"{shared} common requests")
    ratio = estimate(paired_ratio(b, a))
    return replace(change, difference=estimate(difference), ratio=ratio, requests=shared)


def _lengths(
    a: _Side, b: _Side, candidate: Candidate, entrants: tuple[Entrant, Entrant]
) -> list[tuple[int, int]]:
    """A common k (A's best, else B's, else A's largest), then each run's own best where those
    differ; no k beyond what prompt lookup was replayed for.
    """
    windows = [
        replay.window
        for entrant in entrants
        for _, replay in entrant.replays
        if isinstance(replay, LookupReplay)
    ]
    best = a.best.get(candidate), b.best.get(candidate)
    common = best[0] or best[1] or max(grid(a.observed))
    common = min([common, *windows])
    found = [(common, common)]
    if best[0] and best[1] and best[0] != best[1]:
        found.append((best[0], best[1]))
    return found


def _tokens(entrant: Entrant, k: int) -> Sample:
    return tokens_per_round(entrant.trajectories, expected_rounds(entrant.laws, k))


def _cost(a: Entrant, b: Entrant) -> FigureChange:
    """c at each run's mean context. The same timings stand in both where a run meets itself."""
    before, after = (
        side.costs.draft_cost_ratio(side.context) if side.costs else None for side in (a, b)
    )
    change = FigureChange("c", None, None, before, after, None, None, 0, "only one run has it")
    if before is None or after is None:
        return change
    if before == after:
        none, unity = Estimate(0.0, 0.0, 0.0), Estimate(1.0, 1.0, 1.0)
        return replace(change, difference=none, ratio=unity, obstacle=None)
    gain = independent_change(before, after, relative=True)
    return replace(
        change,
        difference=independent_change(before, after, relative=False),
        ratio=Estimate(1 + gain.value, 1 + gain.low, 1 + gain.high),
        obstacle=None,
    )


def _obstacle(a: Observed, b: Observed, candidate: Candidate) -> str | None:
    """Why acceptance of two runs must not be subtracted: prompt lookup has no drafting mode."""
    modes = [run.manifest.question.mode for run in (a, b)]
    lookup = any(
        isinstance(r, LookupReplay) and r.draft == candidate.draft for r in (*a.replays, *b.replays)
    )
    if modes[0] != modes[1] and not lookup:
        return f"{modes[0]} against {modes[1]} drafting"
    return None


def _doubts(a: Observed, b: Observed) -> Iterable[str]:
    if a.manifest.environment.machine != b.manifest.environment.machine:
        yield "times (c, S) are of different machines: their differences are the machines' too"
    if a.manifest.key_id != b.manifest.key_id:
        yield (
            "the requests were hashed with different keys and cannot be paired: set "
            "DRAFTBENCH_KEY to the same secret for both runs"
        )
        return
    ours, theirs = ({(t.request, t.sample): t for t in run.trajectories} for run in (a, b))
    both = ours.keys() & theirs.keys()
    if not both:
        yield "no request is in both runs: nothing can be paired"
        return
    if len(both) < max(len(ours), len(theirs)):
        yield f"only {len(both)} of {len(ours)} and {len(theirs)} responses belong to both runs"
    labels = [[sampling_label(run[key].sampling) for key in both] for run in (ours, theirs)]
    resampled = sum(one != other for one, other in zip(*labels, strict=True))
    if resampled:
        yield f"{resampled} of {len(both)} responses were sampled otherwise"
    changed = sum(ours[key].digest != theirs[key].digest for key in both)
    if changed:
        yield f"the target answered {changed} of {len(both)} otherwise: drafts followed other texts"


def _question(a: Observed, b: Observed) -> Iterable[Changed]:
    for field in differing_question(a.manifest, b.manifest):
        if field == "key_id":
            yield Changed("key_id", a.manifest.key_id, b.manifest.key_id)
        else:
            values = [getattr(run.manifest.question, field) for run in (a, b)]
            yield Changed(field, _said(values[0]), _said(values[1]))


def _said(value: object) -> str | None:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return None if value is None else str(value)


def _models(a: Observed, b: Observed, both: Sequence[Candidate]) -> Iterable[Changed]:
    """Facts of the loaded models that name what was run."""
    for candidate in (None, *both):
        facts = a.facts_of(candidate), b.facts_of(candidate)
        for field in ("fingerprint", "dtype", "runner", "parameters", "weight_bytes"):
            before, after = (_fact(side, field) for side in facts)
            if before != after:
                yield Changed(f"{candidate or 'target'} {field.replace('_', ' ')}", before, after)


def _fact(facts: ModelFacts | None, field: str) -> str | None:
    return None if facts is None else str(getattr(facts, field))
