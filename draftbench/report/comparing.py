"""Two runs → what changed between them: paired differences per candidate, and everything that was
asked, used or installed differently.

Refuses nothing: what cannot be compared stands side by side, with the reason. Judges nothing (that
is the gate's).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from draftbench.acceptance.definitions import Sample, alpha, tokens_per_round
from draftbench.acceptance.intervals import Estimate
from draftbench.acceptance.rounds import expected_rounds
from draftbench.gate.pin import sampling_label
from draftbench.planner.measured import Measurement, measurements
from draftbench.planner.predict import Entrant, entrant_of, grid
from draftbench.planner.recommend import recommend
from draftbench.records import Candidate, LookupReplay, ModelFacts
from draftbench.report.changes import FigureChange, counted, elsewhere, speed, timed
from draftbench.run_folder.manifest import differing_environment, differing_question
from draftbench.run_folder.run import Run


@dataclass(frozen=True)
class Changed:
    """One fact that differs; None is unknown."""

    what: str
    a: str | None
    b: str | None


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

    observed: Run
    best: dict[Candidate, int]
    cells: dict[tuple[Candidate, int], Measurement]

    @classmethod
    def of(cls, observed: Run) -> _Side:
        answer = recommend(observed)
        best = {c.candidate: c.k for c in answer.evaluations if c.best}
        return cls(observed, best, measurements(observed))


def compare_runs(names: tuple[str, str], a: Run, b: Run) -> Comparison:
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
    runs = a.observed, b.observed
    ours, theirs = (entrant_of(run, candidate) for run in runs)
    obstacle, timing = _obstacle(*runs, candidate), elsewhere(*runs)
    rates = alpha(ours.replays), alpha(theirs.replays)
    if any(rates):
        yield counted("α", None, rates, obstacle)
    for ks in _lengths(a, b, candidate, (ours, theirs)):
        tokens = _tokens(ours, ks[0]), _tokens(theirs, ks[1])
        yield counted("tokens per round", ks, tokens, obstacle)
    costs = _cost(ours), _cost(theirs)
    if any(costs):
        yield timed("c", *costs, timing)
    for k in sorted({k for c, k in (*a.cells, *b.cells) if c == candidate}):
        cells = a.cells.get((candidate, k)), b.cells.get((candidate, k))
        yield speed(runs, cells, obstacle or timing)


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


def _cost(entrant: Entrant) -> Estimate | None:
    """c at the run's mean context."""
    return entrant.costs.draft_cost_ratio(entrant.context) if entrant.costs else None


def _obstacle(a: Run, b: Run, candidate: Candidate) -> str | None:
    """Why acceptance of two runs must not be subtracted: prompt lookup has no drafting mode."""
    modes = [run.manifest.question.mode for run in (a, b)]
    lookup = any(
        isinstance(r, LookupReplay) and r.candidate == candidate for r in (*a.replays, *b.replays)
    )
    if modes[0] != modes[1] and not lookup:
        return f"{modes[0]} against {modes[1]} drafting"
    return None


def _doubts(a: Run, b: Run) -> Iterable[str]:
    if a.manifest.environment.machine != b.manifest.environment.machine:
        yield "times (c, S) are of different machines and are not compared"
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


def _question(a: Run, b: Run) -> Iterable[Changed]:
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


def _models(a: Run, b: Run, both: Sequence[Candidate]) -> Iterable[Changed]:
    """Facts of the loaded models that name what was run."""
    for candidate in (None, *both):
        facts = a.facts_of(candidate), b.facts_of(candidate)
        for field in ("fingerprint", "dtype", "runner", "parameters", "weight_bytes"):
            before, after = (_fact(side, field) for side in facts)
            if before != after:
                yield Changed(f"{candidate or 'target'} {field.replace('_', ' ')}", before, after)


def _fact(facts: ModelFacts | None, field: str) -> str | None:
    return None if facts is None else str(getattr(facts, field))
