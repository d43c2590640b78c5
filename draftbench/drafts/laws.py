"""The law of a draft along one response: what a replay says of the tokens of any round, and of any
round that a rule may stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from draftbench.drafts.stack.replay import StackReplay
from draftbench.drafts.stopping import STOP_RULES, stops_at
from draftbench.records import Confidences, DraftLength, LookupReplay, Replay, StopRule, Trajectory
from draftbench.remembered import remembered

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
    # Where the tokens depend on k, both at k = 1, 2, …; those above hold for all larger ones
    # [k, 2, starts].
    in_blocks: Ints | None = None
    # Tokens that the draft itself drafts from each start, in a stack none where lookup found some,
    # and with a rule one that is not proposed. None: those proposed.
    by_draft: Ints | None = None
    # Whether the draft reads accepted tokens again, as a head does.
    reads_again: bool = False

    def at(self, k: int) -> tuple[Ints, Ints]:
        """How many tokens rounds of k propose, and how many match the response [starts]."""
        if self.in_blocks is None or k > len(self.in_blocks):
            return self.proposed, self.matched
        proposed, matched = self.in_blocks[k - 1]
        return proposed, matched


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


def law_of(
    trajectory: Trajectory, replay: AnyReplay, drafted: DraftLength | None = None
) -> ResponseLaw:
    """What a replay says of the rounds along its response; of those that draft as long as given, if
    a rule may stop them.
    """
    length, limit = trajectory.output_tokens, trajectory.limit
    if drafted is not None and drafted.stop is not None:
        return drafted_from(trajectory, replay, drafted.k).laws([trajectory], *drafted)[0]
    if isinstance(replay, Replay):
        return PositionLaw(length, limit, np.asarray(replay.accept), replay.draftable)
    if isinstance(replay, LookupReplay):
        proposed, matched = np.array([replay.proposed, replay.matched], np.int64)
        shorter = [replay.of_length(k) for k in range(1, len(replay.blocks) + 1)]
        blocks = np.array([(each.proposed, each.matched) for each in shorter], np.int64)
        in_blocks = blocks if shorter else None
        return StartLaw(length, limit, proposed, matched, replay.window, in_blocks)
    # A stack: its draft drafts from the starts at which lookup finds nothing.
    return drafted_from(trajectory, replay, replay.window).laws([trajectory], replay.window)[0]


@dataclass(frozen=True, eq=False)
class Drafted:
    """What a draft drafts from each start of a response, or of several one after the other, if
    nothing stops it, with its confidences.

    `most` are the tokens that it can draft there, `at_once` in a block or one by one, and `matched`
    how many of them equal the response [starts]. Its confidences in these are the `window` that
    begin at `begins` [starts] in `of_all` and in `of_ten`, 0 after the end of a run that was
    recorded; or None. `found` are the tokens that prompt lookup proposes in a stack, and `copied`
    how many of these equal the response [starts].
    """

    most: Ints
    matched: Ints
    window: int
    reads_again: bool = False
    at_once: bool = False
    begins: Ints | None = None
    of_all: Floats | None = None
    of_ten: Floats | None = None
    found: Ints | None = None
    copied: Ints | None = None

    @remembered
    def stops_at(self, stop: StopRule) -> Ints:
        """The place of the token at which a rule stops each round [starts], from 0."""
        confidences = self.of_all if STOP_RULES[stop.kind].among == "all" else self.of_ten
        assert confidences is not None
        assert self.begins is not None
        return stops_at(stop, confidences, self.begins, self.window)

    def under(self, k: int, stop: StopRule | None) -> tuple[Ints, Ints, Ints]:
        """The tokens that a round of up to k drafts itself, proposes, and of those matches
        [starts].
        """
        drafted = proposed = np.minimum(self.most, k)
        if stop is not None:
            last = self.stops_at(stop)
            drafted = drafted if self.at_once else np.minimum(drafted, last + 1)
            proposed = np.minimum(proposed, last + STOP_RULES[stop.kind].proposes_last)
        matched = self.matched
        if self.found is not None and self.copied is not None:
            drafted = np.where(self.found > 0, 0, drafted)
            proposed = np.where(self.found > 0, self.found, proposed)
            matched = np.where(self.found > 0, self.copied, matched)
        return drafted, proposed, np.minimum(matched, proposed)

    def laws(
        self, responses: Sequence[Trajectory], window: int, stop: StopRule | None = None
    ) -> list[StartLaw]:
        """The law of each response's rounds of up to `window` tokens."""
        drafted, proposed, matched = self.under(window, stop)
        end, laws = 0, []
        for response in responses:
            begin, end = end, end + response.output_tokens - 1
            laws.append(
                StartLaw(
                    response.output_tokens,
                    response.limit,
                    proposed[begin:end],
                    matched[begin:end],
                    window,
                    by_draft=drafted[begin:end],
                    reads_again=self.reads_again,
                )
            )
        return laws


def has_confidences(replay: AnyReplay) -> bool:
    """Whether a replay recorded how sure the draft was of all that it may draft."""
    if isinstance(replay, StackReplay):
        return has_confidences(replay.draft)
    recorded = replay.off_path if isinstance(replay, Replay) else replay.confidences
    return recorded is not None


def off_path_at_most(replay: Replay, window: int, *, sure: bool) -> Replay:
    """A replay without confidences off the path with the least, or the most, that a draft can draft
    there in vain: it is unsure of the next token, or of none.
    """
    wrong = replay.accept[: replay.draftable].count(0.0)
    lengths = (window - 1 if sure else 1,) * (wrong + 1)
    flat = (float(sure),) * sum(lengths)
    runs = Confidences(lengths=lengths, of_all=flat, of_ten=flat)
    return msgspec.structs.replace(
        replay, off_path=runs, confidence_of_ten=tuple(replay.confidence)
    )


def drafted_from(trajectory: Trajectory, replay: AnyReplay, window: int) -> Drafted:
    """`drafted_along` one response."""
    return drafted_along([(trajectory, replay)], window)


def drafted_along(pairs: Sequence[tuple[Trajectory, AnyReplay]], window: int) -> Drafted:
    """What replays of one draft say of what is drafted from each start, one response after the
    other, for rounds of up to `window` tokens; drafts that are not certainly accepted count as
    wrong.
    """
    replays = [replay for _, replay in pairs]
    drafts = [replay.draft if isinstance(replay, StackReplay) else replay for replay in replays]
    drafted = (_along if isinstance(drafts[0], Replay) else _from_starts)(drafts, window)
    lookups = [replay.lookup for replay in replays if isinstance(replay, StackReplay)]
    if not lookups:
        return drafted
    found, copied = (_side(lookups, name).astype(np.int64) for name in ("proposed", "matched"))
    return replace(drafted, found=found, copied=copied)


def _side(records: Sequence[Any], name: str) -> Any:
    """A field of several records, one after the other."""
    return np.concatenate([np.asarray(getattr(record, name)) for record in records])


def _from_starts(replays: Sequence[Any], window: int) -> Drafted:
    """What drafts of which every start was looked up draft."""
    of_length = [replay.of_length(window) for replay in replays]
    most, matched = (_side(of_length, name).astype(np.int64) for name in ("proposed", "matched"))
    found = Drafted(most, matched, window, reads_again=True, at_once=replays[0].at_once)
    runs = [replay.confidences for replay in of_length if replay.confidences is not None]
    if len(runs) < len(replays):
        return found
    begins = window * np.arange(len(most))
    of_all, of_ten = (_filled(runs, name, begins, window) for name in ("of_all", "of_ten"))
    return replace(found, begins=begins, of_all=of_all, of_ten=of_ten)


def _along(replays: Sequence[Any], window: int) -> Drafted:
    """What draft models draft, by what they draft along the responses."""
    lengths = np.array([len(replay.accept) for replay in replays])
    start, accept = np.arange(lengths.sum()), _side(replays, "accept")
    ends, rejects = np.cumsum(lengths), accept < 1
    end, begin = np.repeat(ends, lengths), np.repeat(ends - lengths, lengths)
    draftable = np.repeat([replay.draftable for replay in replays], lengths) - (start - begin)
    # The first wrong token from each start on; the end, where the rest of the response is right.
    wrong: Ints = np.append(np.flatnonzero(rejects), len(accept))
    next_wrong = np.minimum(wrong[np.cumsum(rejects) - rejects], end)
    most = np.clip(draftable, 0, window)
    matched = np.minimum(next_wrong - start, most)
    runs = [replay.off_path for replay in replays if replay.off_path is not None]
    if len(runs) < len(replays):
        return Drafted(most, matched, window)
    # After each wrong token, and after the response's end, stands the run that was drafted there:
    # as what is drafted from any start before it goes on.
    after = np.sort(np.concatenate([np.flatnonzero(rejects & (draftable > 0)) + 1, ends]))
    begins = start + window * np.cumsum(np.bincount(after, minlength=len(start) + 1))[:-1]
    run_begins = after + window * np.arange(len(after))
    of_all, of_ten = (_filled(runs, theirs, run_begins, window) for theirs in ("of_all", "of_ten"))
    of_all[begins], of_ten[begins] = (
        _side(replays, ours) for ours in ("confidence", "confidence_of_ten")
    )
    return Drafted(most, matched, window, begins=begins, of_all=of_all, of_ten=of_ten)


def _filled(records: Sequence[Confidences], name: str, begins: Ints, window: int) -> Floats:
    """Up to `window` confidences of each run of several records, at the places where the runs
    begin; 0 everywhere else.
    """
    lengths = _side(records, "lengths").astype(np.int64)
    token = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    taken, found = token < window, np.zeros(int(begins.max(initial=0)) + window)
    found[(np.repeat(begins, lengths) + token)[taken]] = _side(records, name)[taken]
    return found
