"""Recorded rounds beside the replay of a draft: equal, a near tie, or different.

Where rounds were recorded one by one (the built-in decoder, vLLM), each is compared from the place
at which it began, whatever became of the rounds before it. Where only sums are known (llama.cpp,
SGLang), the rounds of an answer are simulated, and their sums compared with what was counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product, zip_longest
from typing import Literal

from msgspec.structs import replace

from draftbench.drafts.laws import AnyReplay, drafted_from
from draftbench.drafts.stack.replay import StackReplay
from draftbench.records import (
    NEAR_TIE_MARGIN,
    Candidate,
    DraftingMode,
    DraftLength,
    Key,
    LookupReplay,
    OfResponse,
    Replay,
    Round,
    RoundCounts,
    StopRule,
    Trajectory,
)
from draftbench.run_folder.run import Run

Outcome = Literal["equal", "near tie", "differs"]
# By as much confidences may differ: replays cut them to thousandths, and engines round otherwise.
_NEARLY = 0.001


@dataclass(frozen=True)
class Recorded:
    """What was counted while an answer was drafted: its rounds, or their sums."""

    key: Key
    length: DraftLength
    first_difference: int | None  # the first token that is not the response's
    rounds: Sequence[Round] | None  # those that proposed something
    sums: RoundCounts | None = None
    starts: Sequence[int] | None = None  # where these rounds began; None: replay says

    @property
    def accepted_at(self) -> dict[int, int]:
        """How many tokens were accepted in the round that began at a place, as far as it is known;
        a round that proposed nothing is not listed.
        """
        accepted = [tokens for _, tokens in self.rounds or ()]
        starts = self.starts or accumulate((tokens + 1 for tokens in accepted), initial=1)
        return dict(zip(starts, accepted, strict=False))


@dataclass(frozen=True)
class Compared:
    """A round, or the sums of an answer's rounds, beside the replay."""

    outcome: Outcome
    words: str  # what was counted, and what replay says
    of: tuple[Key, int]  # its answer, and the token at which the two part: at any k the same
    rounds: int = 1
    past: int = 0  # tokens accepted past the end of the response
    idle: bool = False  # whether a draft that is never right would be counted the same


def recorded(run: Run, candidate: Candidate, length: DraftLength | None = None) -> list[Recorded]:
    """What was counted of a candidate's rounds whose text decides what they accept: all but those
    of drawn drafts or of answers that were drawn otherwise than the response; on an engine, one
    answer at a time.
    """
    found = list[Recorded]()
    for row in run.served if run.manifest.question.engine else ():
        asked = row.candidate == candidate and row.k and row.error is None and row.concurrency == 1
        if asked and row.key in run.responses and length in (None, row.length):
            response = run.responses[row.key]
            if response.sampling.temperature > 0 and row.digest != response.digest:
                continue
            rounds = row.counts.by_round if row.counts else None
            difference = row.first_difference
            found.append(Recorded(row.key, row.length, difference, rounds, row.counts))
    for decode in () if run.manifest.question.engine else run.decodes:
        response = run.responses[decode.key]
        drawn = response.sampling.temperature > 0
        if drawn and (decode.mode is not DraftingMode.GREEDY or decode.digest != response.digest):
            continue
        if decode.candidate == candidate and length in (None, decode.length):
            listed, starts, at = list[Round](), list[int](), 1
            for proposed, accepted in zip(decode.proposed, decode.accepted, strict=True):
                if proposed:
                    listed.append((proposed, accepted))
                    starts.append(at)
                at += accepted + 1
            difference = decode.first_difference
            found.append(Recorded(decode.key, decode.length, difference, listed, starts=starts))
    return found


def tie_margin(run: Run, dtype: str | None = None) -> float:
    """By how much two logits of a draft may differ where rounding decides.

    Args:
        dtype: in which an engine computes, if it does not say so; unknown is taken for bfloat16.
    """
    engine = run.manifest.question.engine
    if engine is None:
        return NEAR_TIE_MARGIN[run.manifest.question.dtype]
    stated = (facts.settings.get("dtype", "") for facts in run.engines)
    known = dtype or next((each.removeprefix("torch.") for each in stated if each), "")
    if known == "float32" and engine == "llama.cpp":
        known = "float16"  # in which it keeps keys and values, whatever the type of its weights
    return NEAR_TIE_MARGIN.get(known, NEAR_TIE_MARGIN["bfloat16"])


class ByLength(OfResponse, frozen=True):
    """The replay of a draft that drafts otherwise after other rounds, for each draft length."""

    of: Mapping[DraftLength, LookupReplay]


@dataclass(frozen=True)
class ReplayedResponse:
    """A response with one candidate's replay of it, for a decoder that drafts k tokens, or fewer
    where a rule stops it.
    """

    trajectory: Trajectory
    replay: AnyReplay
    k: int
    stop: StopRule | None
    keeps_to_limit: bool  # vLLM alone proposes tokens past the limit
    tie_margin: float

    @classmethod
    def of(
        cls,
        run: Run,
        replay: AnyReplay | ByLength,
        length: DraftLength,
        margin: float,
    ) -> ReplayedResponse:
        """As a run's decoder drafts it."""
        if isinstance(replay, ByLength):
            replay = replay.of[length]
        keeps = run.manifest.question.engine in (None, "llama.cpp")
        return cls(run.responses[replay.key], replay, *length, keeps, margin)

    def compared(self, answer: Recorded) -> Iterator[Compared]:
        """What was counted of an answer, beside this; nothing if nothing was."""
        if answer.rounds is not None:
            yield from _compared_rounds(answer, answer.rounds, self)
        elif answer.first_difference is None and (answer.sums or self.stop):
            # llama.cpp counts nothing in an answer without a proposal.
            yield _compared_sums(answer, answer.sums or _NOTHING, self)

    @property
    def stopped(self) -> bool:
        return self.trajectory.finish == "stop"

    @property
    def last(self) -> int:
        """The last position at which a token can be accepted."""
        return self.trajectory.output_tokens - 1

    def drafting_at(self, start: int) -> Replay | LookupReplay:
        """The replay of what drafts in a round that starts here."""
        drafting = self.replay
        if isinstance(drafting, StackReplay):
            drafting = drafting.drafting_at(start)
        return drafting.of_length(self.k) if isinstance(drafting, LookupReplay) else drafting

    def looks_up(self, start: int) -> bool:
        """Whether prompt lookup drafts for another draft in a round that starts here."""
        of = self.replay
        return isinstance(of, StackReplay) and of.drafting_at(start) is of.lookup

    @cached_property
    def stopped_at(self) -> list[Sequence[int]]:
        """What a round from each start proposes under the rule; then if the draft were hardly surer
        or less sure.
        """
        assert self.stop is not None
        drafted, own = drafted_from(self.trajectory, self.replay, self.k), self.stop
        near = (replace(own, threshold=own.threshold + by) for by in (0, -_NEARLY, _NEARLY))
        return [drafted.under(self.k, rule)[1].tolist() for rule in near]

    def proposed(self, start: int, nearly: int = 0) -> int:
        """Tokens that a round from here proposes."""
        found, replay = self.k, self.drafting_at(start)
        if self.stop is not None:
            found = self.stopped_at[nearly][start - 1]
        elif isinstance(replay, LookupReplay):
            found = min(self.k, replay.proposed[start - 1])
        else:
            found = min(self.k, replay.draftable + 1 - start)
        room = self.trajectory.limit - start - 1
        return max(0, min(found, room) if self.keeps_to_limit else found)

    def accepted(self, start: int, proposed: int) -> int:
        """Tokens of the response that a round from here accepts."""
        most, replay = min(proposed, self.last - start + 1), self.drafting_at(start)
        if isinstance(replay, LookupReplay):
            return min(replay.matched[start - 1], most)
        run = replay.accept[start - 1 : start - 1 + most]
        return next((n for n, a in enumerate(run) if a < 0.5), len(run))

    def near_tie(self, start: int, accepted: int) -> bool:
        """Whether the draft could as well have proposed the response's token at `accepted` tokens
        after a start, or not.
        """
        replay = self.replay.draft if isinstance(self.replay, StackReplay) else self.replay
        if isinstance(replay, LookupReplay):
            margin = replay.of_length(self.k).margin
            return bool(margin) and margin[start - 1] <= self.tie_margin
        at = start + accepted - 1
        if not replay.margin or at >= len(replay.margin):
            return False
        return replay.margin[at] <= self.tie_margin and replay.rank[at] <= 1


_NOTHING = RoundCounts(rounds=0, drafted=0, accepted=0)


def _compared_rounds(
    answer: Recorded, rounds: Sequence[Round], response: ReplayedResponse
) -> Iterator[Compared]:
    """Rounds one by one, up to where the texts differ."""
    name, start = answer.key[0][:8], 1
    until = response.last if answer.first_difference is None else answer.first_difference - 1
    for number, (proposed, accepted) in enumerate(rounds, 1):
        if answer.starts is not None:
            start = answer.starts[number - 1]
        while answer.starts is None and start <= until and response.proposed(start) == 0:
            start += 1  # a step without a proposal is not listed
        if start > until:
            break
        where = f"{name} k={response.k} round {number} at {start}"
        found = response.accepted(start, proposed)
        words = f"{where}: {accepted} accepted, {found} replayed"
        ends = start + found > until  # what it accepted after that is unknown
        idle = accepted == 0 or response.looks_up(start)
        if proposed != response.proposed(start):
            said = f"{where}: {proposed} proposed, {response.proposed(start)} replayed"
            near = response.stop is not None and any(
                proposed == response.proposed(start, nearly) for nearly in (1, 2)
            )
            yield Compared("near tie" if near else "differs", said, (answer.key, start), idle=idle)
        elif accepted == found or (ends and accepted > found):
            past = accepted - found if answer.first_difference is None else 0
            yield Compared("equal", words, (answer.key, start), past=past, idle=idle)
        else:
            near, at = response.near_tie(start, min(found, accepted)), start + min(found, accepted)
            yield Compared("near tie" if near else "differs", words, (answer.key, at), idle=idle)
        start += accepted + 1


def _compared_sums(answer: Recorded, counts: RoundCounts, response: ReplayedResponse) -> Compared:
    """Sums, and all that near ties could make of them."""
    counted = (counts.rounds, counts.drafted, counts.accepted)
    exact = _sums(response, ties=False)
    (drawn,) = {(r, p, a.start) for r, p, a in exact}
    shown = " ".join(
        f"{what} {mine}" + (f" ({other} replayed)" if mine != other else "")
        for what, mine, other in zip(
            ("rounds", "proposed", "accepted"), counted, drawn, strict=True
        )
    )
    words, rounds = f"{answer.key[0][:8]}: {shown}", counts.rounds or 0
    of = answer.key, 0  # where in it they part is unknown
    idle = not counts.accepted
    placed = counts.by_position is None or _at_positions(counts.by_position, response)
    if _among(counted, exact) and placed:
        return Compared("equal", words, of, rounds, (counts.accepted or 0) - drawn[2], idle)
    if not placed:
        by_position = ", ".join(map(str, counts.by_position or ()))
        replayed = ", ".join(map(str, _by_position(response)))
        words += f", at the first, second, … of a round {by_position} ({replayed} replayed)"
    every = _sums(response, ties=True)
    # Equal sums at other positions are another near tie, or none.
    near = _among(counted, every) and (placed or len(every) > 1)
    return Compared("near tie" if near else "differs", words, of, rounds, idle=idle)


def _by_position(response: ReplayedResponse) -> list[int]:
    """How often a token is accepted as the first, second, … of its round."""
    counts, start = [0] * response.k, 1
    while start <= response.last:
        accepted = response.accepted(start, response.proposed(start))
        for at in range(accepted):
            counts[at] += 1
        start += accepted + 1
    return counts


def _at_positions(counted: Sequence[int], response: ReplayedResponse) -> bool:
    """Whether tokens were accepted at the positions that replay says; the last round may have
    accepted more past the end of the response.
    """
    pairs = zip_longest(counted, _by_position(response), fillvalue=0)
    return all(0 <= more - replayed <= 1 for more, replayed in pairs)


def _among(
    counted: tuple[int | None, int | None, int | None],
    sums: set[tuple[int, int, range]],
) -> bool:
    rounds, proposed, accepted = counted
    return any(
        (rounds is None or rounds == r) and (proposed is None or proposed == p) and accepted in a
        for r, p, a in sums
    )


def _sums(response: ReplayedResponse, ties: bool) -> set[tuple[int, int, range]]:
    """The sums that replay gives: rounds that proposed, proposed tokens, and accepted ones, more
    where a round ran past the end; with `ties`, for either outcome of every near tie.
    """
    reached: defaultdict[int, set[tuple[int, int, int]]] = defaultdict(set)
    reached[1] = {(0, 0, 0)}
    ended = set()
    for start in range(1, response.last + 1):
        near = range(3) if ties and response.stop else (0,)
        proposals = {response.proposed(start, nearly) for nearly in near}
        for (rounds, drafted, kept), proposed in product(reached.pop(start, ()), proposals):
            counts = rounds + (proposed > 0), drafted + proposed
            for accepted in _outcomes(response, start, proposed, ties):
                following = start + accepted + 1
                if following <= response.last:
                    reached[following].add((*counts, kept + accepted))
                    continue
                over = start + accepted > response.last
                most = kept + (proposed if over else accepted)
                # llama.cpp counts a drafted end token only where it is the last one drafted.
                uncounted = over and accepted < proposed and response.stopped
                ended.add((*counts, range(kept + accepted - uncounted, most + 1)))
    return ended


def _outcomes(response: ReplayedResponse, start: int, proposed: int, ties: bool) -> set[int]:
    """How many tokens a round from here may accept."""
    found = response.accepted(start, proposed)
    if not ties:
        return {found}
    if isinstance(response.drafting_at(start), LookupReplay):
        # Known is only that one of the tokens up to the first wrong one was a near tie.
        most = min(proposed, response.last - start + 1)
        return set(range(most + 1)) if response.near_tie(start, found) else {found}
    outcomes, at = set(), 0
    most = min(proposed, response.last - start + 1)
    while at < most:
        tie, accepts = response.near_tie(start, at), response.accepted(start + at, 1) == 1
        if tie or not accepts:
            outcomes.add(at)
        if not tie and not accepts:
            return outcomes
        at += 1
    return outcomes | {most}
