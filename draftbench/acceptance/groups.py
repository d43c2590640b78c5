"""Replays → figures of requests in groups: tokens per round of each segment and each temperature,
and α of every segment at every temperature, of which `breakdown` has the margins.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec

from draftbench.acceptance.definitions import TOKENS_PER_ROUND, alpha, ratio
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.acceptance.rounds import Rounds
from draftbench.records import Replay, Trajectory

Pair = tuple[Trajectory, Replay]

GROUPINGS: dict[str, Callable[[Trajectory], str]] = {
    "segment": lambda trajectory: trajectory.segment or "no segment",
    "temperature": lambda trajectory: f"{trajectory.sampling.temperature:g}",
}


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one segment at one temperature: α needs two of them. `positions` are those
    where the draft could draft.
    """

    segment: str
    temperature: float
    requests: int
    positions: float
    alpha: Estimate | None


class GroupRounds(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one group at one k. `by` is segment or temperature."""

    by: str
    name: str
    k: int
    requests: int
    tokens_per_round: Estimate | None


def crossings(pairs: Sequence[Pair]) -> tuple[Crossing, ...]:
    """Sorted by segment and temperature; empty where one of the two splits nothing."""
    cells: defaultdict[tuple[str, float], list[Pair]] = defaultdict(list)
    for pair in pairs:
        key = GROUPINGS["segment"](pair[0]), pair[0].sampling.temperature
        cells[key].append(pair)
    if 1 in (len(set(names)) for names in zip(*cells, strict=True)):
        return ()
    return tuple(_crossing(*key, own) for key, own in sorted(cells.items()))


def _crossing(segment: str, temperature: float, pairs: Sequence[Pair]) -> Crossing:
    sample = alpha(pairs)
    assert sample is not None  # only prompt lookup has none
    return Crossing(
        segment=segment,
        temperature=temperature,
        requests=len(sample.requests),
        positions=float(sum(min(r.draftable, len(r.accept)) for _, r in pairs)),
        alpha=estimate(sample),
    )


def rounds_by_group(
    trajectories: Sequence[Trajectory], rounds: Mapping[int, Rounds]
) -> tuple[GroupRounds, ...]:
    """Every group at every k; a grouping that splits nothing is left out.

    Args:
        rounds: those of each k, a row per trajectory.
    """
    found = []
    for by, name_of in GROUPINGS.items():
        names = [name_of(trajectory) for trajectory in trajectories]
        for name in sorted(set(names)) if len(set(names)) > 1 else ():
            rows = [row for row, own in enumerate(names) if own == name]
            own = [trajectories[row] for row in rows]
            for k, all_rounds in rounds.items():
                passes = (all_rounds.rounds + all_rounds.plain)[rows]
                tokens = ratio(TOKENS_PER_ROUND, own, all_rounds.tokens[rows], passes)
                found.append(
                    GroupRounds(
                        by=by,
                        name=name,
                        k=k,
                        requests=len(tokens.requests),
                        tokens_per_round=estimate(tokens),
                    )
                )
    return tuple(found)
