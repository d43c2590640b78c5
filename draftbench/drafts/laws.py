"""The law of a draft along one response: what a replay says of the tokens of any round."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from draftbench.drafts.stack.replay import StackReplay
from draftbench.records import LookupReplay, Replay, Trajectory

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

AnyReplay = Replay | LookupReplay | StackReplay


@dataclass(frozen=True, eq=False)
class PositionLaw:
    """How likely each token that a model drafts along a response is accepted."""

    length: int  # tokens of the response
    limit: int  # most tokens that it might have had
    accept: Floats  # a_j for positions j = 1 … length-1
    # The last position that fits the draft's context; it may lie past the response, where tokens
    # are cut, not rejected.
    draftable: int

    @cached_property
    def drafted(self) -> int:
        """The last position at which a token may be drafted: the length limit leaves room for the
        target's token after it, and the draft's context reaches that far.
        """
        return max(0, min(self.limit - 2, self.length - 1, self.draftable))


@dataclass(frozen=True, eq=False)
class StartLaw:
    """What prompt lookup, a head or a stack proposes; it depends on where the round starts."""

    length: int  # tokens of the response
    limit: int  # most tokens that it might have had
    proposed: Ints  # tokens proposed from each start i = 1 … length-1
    matched: Ints  # how many of them, from the first on, equal the response
    window: int  # most tokens that were looked up, so the largest k
    # For a stack: the starts from which its draft drafts, and whether that draft reads accepted
    # tokens again, as a head does.
    by_draft: Bools | None = None
    reads_again: bool = False


@dataclass(frozen=True, eq=False)
class HazardLaw:
    """A draft without a replay, about which nothing is known by position of the response, only what
    an engine counted: a round's i-th token is accepted with the same probability wherever it
    starts.
    """

    length: int  # tokens of the response
    limit: int  # most tokens that it might have had
    hazards: Floats  # P(token i is accepted, given that those before it were), i = 1 …


ResponseLaw = PositionLaw | StartLaw | HazardLaw


def law_of(trajectory: Trajectory, replay: AnyReplay) -> ResponseLaw:
    """What a replay says of the rounds along its response."""
    length, limit = trajectory.output_tokens, trajectory.limit
    if isinstance(replay, Replay):
        return PositionLaw(length, limit, np.asarray(replay.accept), replay.draftable)
    if isinstance(replay, LookupReplay):
        proposed, matched = np.array([replay.proposed, replay.matched], np.int64)
        return StartLaw(length, limit, proposed, matched, replay.window)
    # A stack: its draft drafts from the starts at which lookup finds nothing.
    window, draft = replay.window, replay.draft
    if isinstance(draft, Replay):
        start, accept = np.arange(1, length), np.asarray(draft.accept)
        rejected = np.append(np.flatnonzero(accept < 1), length - 1)
        proposed = np.clip(draft.draftable + 1 - start, 0, window)
        run = rejected[np.searchsorted(rejected, start - 1)] - (start - 1)
        matched = np.minimum(run, proposed)
    else:
        proposed, matched = np.array([draft.proposed, draft.matched], np.int64)
    found, copied = np.array([replay.lookup.proposed, replay.lookup.matched], np.int64)
    return StartLaw(
        length,
        limit,
        np.where(found > 0, found, proposed),
        np.where(found > 0, copied, matched),
        window,
        by_draft=found == 0,
        reads_again=isinstance(draft, LookupReplay),
    )
