"""Trajectories and replays → for every response, what one candidate does along it.

Responses that the candidate was not replayed on (it failed there) are left out; the caller sees it
by the count. Draws nothing and averages nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftbench.acceptance.rounds import PositionLaw, ResponseLaw, StartLaw
from draftbench.errors import RunFolderError
from draftbench.records import Candidate, DraftingMode, LookupReplay, Replay, Trajectory

AnyReplay = Replay | LookupReplay


def replays_of(
    candidate: Candidate,
    trajectories: Sequence[Trajectory],
    replays: Sequence[AnyReplay],
    mode: DraftingMode | None = None,
) -> tuple[tuple[Trajectory, AnyReplay], ...]:
    """Pairs of a response and the candidate's replay along it, in the order of `trajectories`.

    `mode` picks one drafting mode; without it the replays must all be of one mode. Prompt lookup
    has no mode: its proposal is one fixed string in each.

    Raises:
        RunFolderError: a replay does not fit its response, or several modes are present and none
            is asked for.
    """
    found: dict[tuple[str, int], AnyReplay] = {}
    modes: set[DraftingMode] = set()
    for replay in replays:
        if replay.candidate != candidate:
            continue
        if isinstance(replay, Replay):
            if mode is not None and replay.mode is not mode:
                continue
            modes.add(replay.mode)
        found[replay.request, replay.sample] = replay
    if len(modes) > 1:
        raise RunFolderError(
            f"{candidate} was replayed in several drafting modes: {', '.join(sorted(modes))}",
            hint="choose one drafting mode; acceptance of different modes is not comparable",
        )
    pairs = tuple(
        (trajectory, found[trajectory.request, trajectory.sample])
        for trajectory in trajectories
        if (trajectory.request, trajectory.sample) in found
    )
    for trajectory, replay in pairs:
        _check_fit(candidate, trajectory, replay)
    return pairs


def laws_of(
    candidate: Candidate,
    trajectories: Sequence[Trajectory],
    replays: Sequence[AnyReplay],
    mode: DraftingMode | None = None,
) -> tuple[tuple[Trajectory, ResponseLaw], ...]:
    """Like `replays_of`, with each replay as the law that `expected_rounds` sweeps.

    Raises:
        RunFolderError: as `replays_of`.
    """
    pairs = replays_of(candidate, trajectories, replays, mode)
    return tuple((trajectory, law_of(trajectory, replay)) for trajectory, replay in pairs)


def law_of(trajectory: Trajectory, replay: AnyReplay) -> ResponseLaw:
    """The law of one response under one replay of it."""
    length, limit = trajectory.output_tokens, trajectory.limit
    if isinstance(replay, Replay):
        return PositionLaw(length, limit, np.array(replay.accept, np.float64), replay.draftable)
    proposed, matched = np.array(replay.proposed, np.int64), np.array(replay.matched, np.int64)
    return StartLaw(length, limit, proposed, matched, replay.window)


def _check_fit(candidate: Candidate, trajectory: Trajectory, replay: AnyReplay) -> None:
    positions = len(replay.accept if isinstance(replay, Replay) else replay.proposed)
    if positions != max(trajectory.output_tokens - 1, 0):
        raise RunFolderError(
            f"the replay of {candidate} along request {trajectory.request} covers {positions} "
            f"positions of a response of {trajectory.output_tokens} tokens",
            hint="the run folder mixes two runs or was edited; sweep into a fresh folder",
        )
