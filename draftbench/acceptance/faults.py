"""Replays and rounds → suspected faults: more likely a broken set-up than a bad draft.

Serving stacks with a broken draft rarely fail: they go on at acceptance 0 and look like a slow
model. Each check asks for a result that a working pair hardly ever shows, on enough tokens that
chance is no explanation. Loops in the text are not seen here: that takes tokens, and observations
hold none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftbench.acceptance.laws import AnyReplay
from draftbench.acceptance.rounds import Floats, Rounds
from draftbench.records import Candidate, Replay, Trajectory

# Even at half the hazard before it, none accepted where ten are expected is less likely than e^-10.
_EXPECTED = 10
_MIN_TRIED = 50


@dataclass(frozen=True)
class Fault:
    """A suspicion in plain words, with what to look at first."""

    candidate: str
    what: str
    message: str
    advice: str


def suspected_faults(
    candidate: Candidate,
    pairs: Sequence[tuple[Trajectory, AnyReplay]],
    rounds: Sequence[Rounds],
    near_tie: float,
) -> tuple[Fault, ...]:
    """All suspicions about one candidate (design §6.8-6.9).

    `pairs` come from `replays_of`; `rounds` are expected or counted ones, at any k. `near_tie` is
    the logit margin that the dtype's noise can turn.
    """
    name = str(candidate)
    found = (
        _control(pairs, near_tie) if name == "self" else None,
        _nothing_accepted(name, pairs) or _no_round_accepts(name, rounds),
        next((fault for at_k in rounds if (fault := _cliff(name, at_k))), None),
    )
    return tuple(fault for fault in found if fault is not None)


def _nothing_accepted(name: str, pairs: Sequence[tuple[Trajectory, AnyReplay]]) -> Fault | None:
    accepted = [r.accept[: r.draftable] for _, r in pairs if isinstance(r, Replay)]
    tried = sum(map(len, accepted))
    if tried < _MIN_TRIED or any(map(any, accepted)):
        return None
    return Fault(
        name,
        "zero acceptance",
        f"not one token in {tried} positions was accepted",
        "compare tokenizers and, of chats, templates; look for weights that quantizing destroyed: "
        "a draft of random text does better than this",
    )


def _no_round_accepts(name: str, rounds: Sequence[Rounds]) -> Fault | None:
    for at_k in rounds:
        tried = float(at_k.reached[:, 0].sum())
        if tried >= _MIN_TRIED and not at_k.accepted.any():
            return Fault(
                name,
                "one token per round",
                f"the mean accepted length is exactly 1 at k = {at_k.k}: "
                f"none of {tried:.0f} rounds accepted a token",
                "check that the draft sees the prompt and its cache, "
                "and that its proposals reach the verifier",
            )
    return None


def _cliff(name: str, rounds: Rounds) -> Fault | None:
    reached: Floats = rounds.reached.sum(axis=0)
    survived: Floats = rounds.survived.sum(axis=0)
    for i in range(1, rounds.k):
        expected = reached[i] * survived[i - 1] / max(reached[i - 1], 1e-9) / 2
        if survived[i] == 0 and expected >= _EXPECTED:
            before = ", ".join(f"{h:.2f}" for h in survived[:i] / reached[:i])
            return Fault(
                name,
                "hazard falls to zero",
                f"draft position {i + 1} was never accepted in {reached[i]:.0f} tries at "
                f"k = {rounds.k}; the positions before it have hazards of {before}",
                "suspect the draft's own loop: cache positions, attention window "
                "or a step that repeats itself",
            )
    return None


def _control(pairs: Sequence[tuple[Trajectory, AnyReplay]], near_tie: float) -> Fault | None:
    """The target as its own draft at temperature 0: every rejection must be a near tie."""
    wrong = tried = 0
    for trajectory, replay in pairs:
        if trajectory.sampling.temperature > 0 or not isinstance(replay, Replay):
            continue
        end = 1 + min(replay.draftable, len(replay.accept))
        # Where a logged response is not the target's best token, its own draft is rightly rejected.
        own = np.array(trajectory.argmax[1:end]) == 1
        margins = np.minimum(trajectory.margins[1:end], replay.margin[: end - 1])
        wrong += int((own & (margins > near_tie) & (np.array(replay.accept[: end - 1]) < 1)).sum())
        tried += int(own.sum())
    if not wrong:
        return None
    return Fault(
        "self",
        "control failed",
        f"the target rejects its own greedy draft at {wrong} of {tried} positions, "
        "near ties not counted",
        "the replay does not compute what generating computed; trust no acceptance of this run",
    )
