"""A run → the distributions that charts draw and a recommendation does not hold: acceptance by
draft position, by segment and by temperature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from draftbench.acceptance.breakdown import GROUPINGS, rounds_by_group
from draftbench.acceptance.definitions import alpha, survival
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.acceptance.rounds import AnyReplay, expected_rounds, law_of, replays_of
from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF, Candidate, Trajectory
from draftbench.run_folder.run import Run

Pairs = Sequence[tuple[Trajectory, AnyReplay]]


@dataclass(frozen=True)
class Part:
    """One candidate on one part of the traffic: `by` is segment or temperature, `name` which.
    Prompt lookup has no α.
    """

    by: str
    name: str
    requests: int
    candidate: str
    alpha: Estimate | None
    tokens_per_round: Estimate | None


@dataclass(frozen=True)
class Figures:
    """Survival at the positions 1 … of the run's largest k, by candidate; parts of the traffic at
    the leader's `k`, none where all requests are alike.
    """

    survival: Mapping[str, tuple[Estimate | None, ...]]
    k: int
    parts: tuple[Part, ...]


def figures_of(run: Run, answer: Recommendation) -> Figures:
    """What a report draws beside the answer, candidates in the order of its table.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    mode, ks = run.manifest.question.mode, run.manifest.question.ks
    order = [each.candidate for each in answer.by_candidate]
    pairs = {c: replays_of(c, run.trajectories, run.replays, mode) for c in order}
    k = answer.leader.k if answer.leader else max(ks)
    parts = [part for c in order if c.draft != SELF for part in _parts(c, pairs[c], k)]
    return Figures({str(c): _survival(pairs[c], max(ks)) for c in order}, k, tuple(parts))


def _survival(pairs: Pairs, k: int) -> tuple[Estimate | None, ...]:
    trajectories = [trajectory for trajectory, _ in pairs]
    rounds = expected_rounds([law_of(*pair) for pair in pairs], k)
    return tuple(estimate(survival(trajectories, rounds, i)) for i in range(1, k + 1))


def _parts(candidate: Candidate, pairs: Pairs, k: int) -> list[Part]:
    trajectories = [trajectory for trajectory, _ in pairs]
    rounds = expected_rounds([law_of(*pair) for pair in pairs], k)
    found = []
    for group in rounds_by_group(trajectories, {k: rounds}):
        rate = alpha([pair for pair in pairs if GROUPINGS[group.by](pair[0]) == group.name])
        found.append(
            Part(
                by=group.by,
                name=group.name,
                requests=group.requests,
                candidate=str(candidate),
                alpha=None if rate is None else estimate(rate),
                tokens_per_round=group.tokens_per_round,
            )
        )
    return found
