"""The law of a draft along one response: what a replay says of the tokens of any round, and of any
round that a rule may stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
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
_AT_ONCE = 512  # responses


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
    how many of them equal the response [starts]; `of_all` and `of_ten` are its confidences, 0 after
    the end of a run that was recorded [starts, tokens], or None. `found` are the tokens that prompt
    lookup proposes in a stack, and `copied` how many of these equal the response [starts].
    """

    most: Ints
    matched: Ints
    reads_again: bool = False
    at_once: bool = False
    of_all: Floats | None = None
    of_ten: Floats | None = None
    found: Ints | None = None
    copied: Ints | None = None

    @remembered
    def stops_at(self, stop: StopRule) -> Ints:
        """The place of the token at which a rule stops each round [starts], from 0."""
        confidences = self.of_all if STOP_RULES[stop.kind].among == "all" else self.of_ten
        assert confidences is not None
        return stops_at(stop, confidences)

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

    def at(self, starts: npt.NDArray[np.bool_]) -> Drafted:
        """Those of some starts."""
        some: dict[str, Any] = {name: column[starts] for name, column in self._columns.items()}
        return replace(self, **some)

    @classmethod
    def joined(cls, parts: Sequence[Drafted]) -> Drafted:
        """The starts of several responses, one response after the other; what is unknown of one is
        unknown.
        """
        columns: dict[str, Any] = dict.fromkeys(parts[0]._columns)
        for name in columns:
            known = [part._columns[name] for part in parts if name in part._columns]
            columns[name] = np.concatenate(known) if len(known) == len(parts) else None
        return replace(parts[0], **columns)

    @property
    def _columns(self) -> dict[str, npt.NDArray[Any]]:
        """What has an entry for each start."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


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
    wrong = sum(1 for accept in replay.accept[: replay.draftable] if accept == 0)
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
    parts = []
    for at in range(0, len(pairs), _AT_ONCE):  # some at a time, to save memory
        some = pairs[at : at + _AT_ONCE]
        replays = [replay for _, replay in some]
        drafts = [replay.draft if isinstance(replay, StackReplay) else replay for replay in replays]
        part = (_along if isinstance(drafts[0], Replay) else _from_starts)(drafts, window)
        lookups = [replay.lookup for replay in replays if isinstance(replay, StackReplay)]
        if lookups:
            both = (_side(lookups, name) for name in ("proposed", "matched"))
            found, copied = (each.astype(np.int64) for each in both)
            part = replace(part, found=found, copied=copied)
        parts.append(part)
    return Drafted.joined(parts)


def _side(records: Sequence[Any], name: str) -> Any:
    """A field of several records, one after the other."""
    return np.concatenate([np.asarray(getattr(record, name)) for record in records])


def _from_starts(replays: Sequence[Any], window: int) -> Drafted:
    """What drafts of which every start was looked up draft."""
    of_length = [replay.of_length(window) for replay in replays]
    most, matched = (_side(of_length, name).astype(np.int64) for name in ("proposed", "matched"))
    found = Drafted(most, matched, reads_again=True, at_once=replays[0].at_once)
    runs = [replay.confidences for replay in of_length if replay.confidences is not None]
    if len(runs) < len(replays):
        return found
    places = _of_runs(runs, np.arange(len(most)), np.arange(window)[None])
    of_all, of_ten = (np.append(_side(runs, name), 0.0)[places] for name in ("of_all", "of_ten"))
    return replace(found, of_all=of_all, of_ten=of_ten)


def _along(replays: Sequence[Any], window: int) -> Drafted:
    """What draft models draft, by what they draft along the responses."""
    lengths = np.array([len(replay.accept) for replay in replays])
    start, accept = np.arange(lengths.sum()), _side(replays, "accept")
    ends = np.cumsum(lengths)
    end, begin = np.repeat(ends, lengths), np.repeat(ends - lengths, lengths)
    draftable = np.repeat([replay.draftable for replay in replays], lengths)
    # The first wrong token from each start on; the end, where the rest of the response is right.
    wrong: Ints = np.append(np.flatnonzero(accept < 1), len(accept))
    next_wrong = np.minimum(wrong[np.searchsorted(wrong, start)], end)
    most = np.clip(draftable - (start - begin), 0, window)
    matched = np.minimum(next_wrong - start, most)
    runs = [replay.off_path for replay in replays if replay.off_path is not None]
    if len(runs) < len(replays):
        return Drafted(most, matched)
    # Along the response up to the first wrong token, whose confidence is still known there; then
    # what was drafted after it, or after the end: the run after the n-th wrong token is the n-th.
    along = np.arange(window) - (next_wrong - start + (next_wrong < end))[:, None]
    has_run = (accept < 1) & (start - begin < draftable)
    before: Ints = np.append(0, np.cumsum(has_run))
    earlier_runs = np.cumsum([len(run.lengths) for run in runs]) - [len(r.lengths) for r in runs]
    run = np.repeat(earlier_runs, lengths) + before[next_wrong] - before[begin]
    places = np.where(
        along < 0,
        start[:, None] + np.arange(window),
        len(accept) + _of_runs(runs, run, np.maximum(along, 0)),
    )
    of_all, of_ten = (
        np.concatenate([_side(replays, ours), _side(runs, theirs), [0.0]])[places]
        for ours, theirs in (("confidence", "of_all"), ("confidence_of_ten", "of_ten"))
    )
    return Drafted(most, matched, of_all=of_all, of_ten=of_ten)


def _of_runs(records: Sequence[Confidences], chosen: Ints, token: Ints) -> Ints:
    """Where tokens [chosen, n] of some runs stand, counted through several records; one place
    behind all of them where a run has ended.
    """
    lengths = _side(records, "lengths").astype(np.int64)
    begins = (np.cumsum(lengths) - lengths)[chosen, None]
    places: Ints = np.where(token < lengths[chosen, None], begins + token, lengths.sum())
    return places
