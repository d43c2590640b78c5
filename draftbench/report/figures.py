"""Observations and the planner's answer → the numbers that a report draws beside the answer's own.

Where along a round and along a response drafts are rejected, for which requests, and how long
tokens took with and without speculation. `None` stands where nothing was measured. Draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from draftbench.acceptance.breakdown import Breakdown, breakdown
from draftbench.acceptance.definitions import Sample, hazard, survival
from draftbench.acceptance.groups import GROUPINGS, rounds_by_group
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.acceptance.laws import AnyReplay, law_of, replays_of
from draftbench.acceptance.rounds import Rounds, counted_rounds, expected_rounds
from draftbench.acceptance.templating import template_may_differ
from draftbench.planner.measured import Measurement, measurements
from draftbench.planner.predict import grid
from draftbench.planner.recommendation import Configuration, Evaluation, Recommendation
from draftbench.planner.steady import steady
from draftbench.records import SELF, Candidate, Decode, Trajectory
from draftbench.run_folder.run import Run

Pairs = Sequence[tuple[Trajectory, AnyReplay]]
Cells = Mapping[tuple[Candidate, int], Measurement]


@dataclass(frozen=True)
class DraftPositions:
    """Survival and hazard at the draft positions 1 … k, from replay; `rounds` expected in all."""

    candidate: str
    k: int
    rounds: float
    survival: tuple[Estimate | None, ...]
    hazard: tuple[Estimate | None, ...]


@dataclass(frozen=True)
class AcceptedLengths:
    """Share of rounds that accept 0 … k draft tokens, as replay expects and as runs counted."""

    candidate: str
    k: int
    rounds: float
    expected: tuple[float, ...]
    rounds_counted: float | None
    counted: tuple[float, ...] | None


@dataclass(frozen=True)
class ByGroup:
    """α and tokens per round at one k [candidates][groups of requests]; α is unknown for prompt
    lookup.
    """

    by: str
    candidates: tuple[str, ...]
    groups: tuple[str, ...]
    requests: tuple[int, ...]
    k: int
    alpha: tuple[tuple[Estimate | None, ...], ...]
    tokens_per_round: tuple[tuple[Estimate | None, ...], ...]


@dataclass(frozen=True)
class Crossed:
    """One candidate's requests and α [segments][temperatures]."""

    candidate: str
    segments: tuple[str, ...]
    temperatures: tuple[float, ...]
    requests: tuple[tuple[int, ...], ...]
    alpha: tuple[tuple[Estimate | None, ...], ...]


@dataclass(frozen=True)
class TokenTimes:
    """Mean seconds per output token after the first, one value per request, on the same requests
    of one block.
    """

    candidate: str
    k: int
    plain: tuple[float, ...]
    speculative: tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """What is drawn beside the answer; empty or None where it was not measured."""

    positions: tuple[DraftPositions, ...]
    lengths: tuple[AcceptedLengths, ...]
    segments: ByGroup | None
    temperatures: ByGroup | None
    crossed: Crossed | None
    breakdowns: dict[str, Breakdown]
    times: TokenTimes | None
    target_bytes: int | None


def figures_of(observed: Run, answer: Recommendation) -> Figures:
    """Everything that a report draws for one run, candidates in the order of its table.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    mode = observed.manifest.question.mode
    order = [cell.candidate for cell in answer.by_candidate]
    pairs = {c: replays_of(c, observed.trajectories, observed.replays, mode) for c in order}
    pick, target = answer.choice or answer.leader, observed.facts_of(None)
    cells = measurements(observed, answer.concurrency)
    largest = max(grid(observed))
    k = pick.k if pick else largest
    parts = {
        str(c): part
        for c, own in pairs.items()
        if (part := breakdown(own, templated=template_may_differ(observed, c)))
    }
    return Figures(
        positions=tuple(_positions(c, own, largest) for c, own in pairs.items()),
        lengths=tuple(
            found
            for c in answer.by_candidate
            if c.draft != SELF and (found := _lengths(c, pairs, cells, c.k if pick else largest))
        ),
        segments=_by_group("segment", pairs, parts, k),
        temperatures=_by_group("temperature", pairs, parts, k),
        crossed=_crossed(parts),
        breakdowns=parts,
        times=_token_times(pick, cells) if pick else None,
        target_bytes=target.weight_bytes if target else None,
    )


def _positions(candidate: Candidate, pairs: Pairs, k: int) -> DraftPositions:
    trajectories, rounds = _rounds(pairs, k)

    def along(figure: Callable[[Sequence[Trajectory], Rounds, int], Sample]) -> list[Sample]:
        return [figure(trajectories, rounds, position) for position in range(1, k + 1)]

    return DraftPositions(
        candidate=str(candidate),
        k=k,
        rounds=float(rounds.rounds.sum()),
        survival=tuple(map(estimate, along(survival))),
        hazard=tuple(map(estimate, along(hazard))),
    )


def _lengths(
    figures: Evaluation, pairs: Mapping[Candidate, Pairs], cells: Cells, k: int
) -> AcceptedLengths | None:
    candidate = figures.candidate
    trajectories, rounds = _rounds(pairs[candidate], k)
    expected = _shares(trajectories, rounds)
    if expected is None:
        return None
    counted = ran = None
    cell = cells.get((candidate, k))
    if cell is not None:
        ran = counted_rounds([decode for _, decode in cell.runs])
        counted = _shares([trajectory for trajectory, _ in cell.runs], ran)
    return AcceptedLengths(
        candidate=str(candidate),
        k=k,
        rounds=float(rounds.rounds.sum()),
        expected=expected,
        rounds_counted=None if ran is None else float(ran.rounds.sum()),
        counted=counted,
    )


def _shares(trajectories: Sequence[Trajectory], rounds: Rounds) -> tuple[float, ...] | None:
    """Of the rounds that drafted, the share that accepted exactly 0 … k tokens: falls of s_i."""
    values = [survival(trajectories, rounds, i).value for i in range(1, rounds.k + 1)]
    if any(value is None for value in values):
        return None
    alive = [1.0, *(value for value in values if value is not None), 0.0]
    return tuple(before - after for before, after in pairwise(alive))


def _by_group(
    by: str,
    pairs: Mapping[Candidate, Pairs],
    breakdowns: Mapping[str, Breakdown],
    k: int,
) -> ByGroup | None:
    """None where all requests are of one group. The self-draft would only wash out the rest."""
    pairs = {candidate: own for candidate, own in pairs.items() if candidate.draft != SELF}
    members: dict[str, set[str]] = {}
    for trajectory in (t for own in pairs.values() for t, _ in own):
        members.setdefault(GROUPINGS[by](trajectory), set()).add(trajectory.request)
    names = sorted(members)
    if len(names) < 2:
        return None
    rates, tokens = [], []
    for candidate, own in pairs.items():
        known = breakdowns.get(str(candidate))
        groups = known.groups if known else ()
        rate = {group.name: group.alpha for group in groups if group.by == by}
        rates.append(tuple(rate.get(name) for name in names))
        trajectories, rounds = _rounds(own, k)
        found = rounds_by_group(trajectories, {k: rounds})
        speeds = {group.name: group.tokens_per_round for group in found if group.by == by}
        tokens.append(tuple(speeds.get(name) for name in names))
    return ByGroup(
        by=by,
        candidates=tuple(map(str, pairs)),
        groups=tuple(names),
        requests=tuple(len(members[name]) for name in names),
        k=k,
        alpha=tuple(rates),
        tokens_per_round=tuple(tokens),
    )


def _crossed(breakdowns: Mapping[str, Breakdown]) -> Crossed | None:
    """Of the first model draft of the table; None where segment or temperature splits nothing."""
    for name, found in breakdowns.items():
        if name != SELF and found.crossings:
            cells = {(cell.segment, cell.temperature): cell for cell in found.crossings}
            segments = tuple(dict.fromkeys(segment for segment, _ in cells))
            temperatures = tuple(sorted({temperature for _, temperature in cells}))
            table = [[cells.get((s, t)) for t in temperatures] for s in segments]
            return Crossed(
                candidate=name,
                segments=segments,
                temperatures=temperatures,
                requests=tuple(tuple(c.requests if c else 0 for c in row) for row in table),
                alpha=tuple(tuple(c.alpha if c else None for c in row) for row in table),
            )
    return None


def _token_times(pick: Configuration, cells: Cells) -> TokenTimes | None:
    """A request's steady rounds, averaged over its repeats."""
    candidate = pick.candidate
    cell = cells.get((candidate, pick.k))
    sides = [] if cell is None else [_paces(cell.baseline), _paces(cell.runs)]
    both = [key for key in sides[0] if key in sides[1]] if sides else []
    if not both:
        return None
    plain, speculative = (tuple(float(np.mean(side[key])) for key in both) for side in sides)
    return TokenTimes(str(candidate), pick.k, plain, speculative)


def _paces(runs: Sequence[tuple[Trajectory, Decode]]) -> dict[tuple[str, int], list[float]]:
    """Seconds per output token after the first, by request and sample."""
    found: dict[tuple[str, int], list[float]] = {}
    for _, run in runs:
        part = steady(run)
        if part is not None and part.output_tokens > 1:
            pace = part.decode_seconds / (part.output_tokens - 1)
            found.setdefault((run.request, run.sample), []).append(pace)
    return found


def _rounds(pairs: Pairs, k: int) -> tuple[list[Trajectory], Rounds]:
    laws = [law_of(trajectory, replay) for trajectory, replay in pairs]
    return [trajectory for trajectory, _ in pairs], expected_rounds(laws, k)
