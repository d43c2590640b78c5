"""Checks, in a run measured on a serving engine, that replay gives the rounds that the engine
counted, request by request.

    python scripts/check_engine.py RUN [float32]

`float32` if engine and replay both computed in it: the run keeps no values of the engine's flags.
Without it two of a draft's logits tie as in bfloat16. llama-server keeps keys and values in float16
whatever the type of its weights, so there they tie as in float16.

If the server reports its rounds one by one (vLLM), each must equal replay's; if it reports sums
(llama.cpp), the rounds, proposed and accepted tokens must be ones that replay can give. Counted
apart are positions where the draft's two best tokens nearly tie, or where it is nearly as sure as a
rule to stop by demands (`near ties`), tokens that an engine accepted beyond the end of a response,
and answers that differ from the response, which are compared up to the difference. Above
temperature 0, answers that differ from those without the draft are compared in expectation, with an
interval. Exits with 1 on any other difference.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from draftbench.acceptance.definitions import TOKENS_PER_ROUND, ratio, tokens_per_round
from draftbench.acceptance.intervals import FEW_REQUESTS, estimate, paired_difference
from draftbench.acceptance.rounds import expected_rounds
from draftbench.drafts.laws import AnyReplay, drafted_from, law_of
from draftbench.drafts.stack.replay import StackReplay
from draftbench.errors import DraftbenchError
from draftbench.records import (
    NEAR_TIE_MARGIN,
    Candidate,
    DraftLength,
    LookupReplay,
    Replay,
    RoundCounts,
    Served,
    StopRule,
    Trajectory,
)
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run
from draftbench.run_folder.served import rounds_of

# By as much confidences may differ: replays cut them to thousandths, and engines round otherwise.
_NEARLY = 0.001


@dataclass
class Tally:
    """Counts over the answers of one configuration."""

    requests: int = 0
    rounds: int = 0
    equal: int = 0
    left: int = 0  # answers that differ from the response
    past: int = 0  # tokens accepted past the end
    ties: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    uncounted: int = 0  # answers without counts


@dataclass(frozen=True)
class ReplayedResponse:
    """A response with one candidate's replay of it, on an engine that drafts k tokens, or fewer
    where a rule stops it.
    """

    trajectory: Trajectory
    replay: AnyReplay
    k: int
    stop: StopRule | None
    keeps_to_limit: bool  # llama.cpp proposes nothing past the limit, vLLM does
    tie_margin: float

    @property
    def stopped(self) -> bool:
        return self.trajectory.finish == "stop"

    @property
    def last(self) -> int:
        """The last position at which a token can be accepted."""
        return self.trajectory.output_tokens - 1

    def drafting_at(self, start: int) -> Replay | LookupReplay:
        """The replay of what drafts in a round that starts here."""
        stack = isinstance(self.replay, StackReplay)
        found = self.replay.drafting_at(start) if stack else self.replay
        return found.of_length(self.k) if isinstance(found, LookupReplay) else found

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
        room = self.trajectory.limit - start - 1
        return max(0, min(found, room)) if self.keeps_to_limit else found

    def accepted(self, start: int, proposed: int) -> int:
        """Tokens of the response that a round from here accepts."""
        most, replay = min(proposed, self.last - start + 1), self.drafting_at(start)
        if isinstance(replay, LookupReplay):
            return min(replay.matched[start - 1], most)
        run = replay.accept[start - 1 : start - 1 + most]
        return next((n for n, a in enumerate(run) if a < 0.5), len(run))

    def near_tie(self, position: int) -> bool:
        """Whether the draft could as well have proposed the response's token here, or not."""
        replay = self.replay.draft if isinstance(self.replay, StackReplay) else self.replay
        if isinstance(replay, LookupReplay) or not replay.margin:
            return False
        at = position - 1
        return replay.margin[at] <= self.tie_margin and replay.rank[at] <= 1


def compare_rounds(answer: Served, response: ReplayedResponse, tally: Tally) -> None:
    """Compare an engine's rounds with replay's, one by one, up to where the texts differ."""
    assert answer.counts is not None
    assert answer.counts.by_round is not None
    name, start = answer.request[:8], 1
    until = response.last if answer.first_difference is None else answer.first_difference - 1
    for number, (proposed, accepted) in enumerate(answer.counts.by_round, 1):
        while start <= until and response.proposed(start) == 0:
            start += 1  # vLLM does not list steps without a proposal
        if start > until:
            break
        where = f"{name} k={response.k} round {number} at {start}"
        tally.rounds += 1
        if proposed != response.proposed(start):
            tally.wrong.append(f"{where}: {proposed} proposed, {response.proposed(start)} replayed")
        found = response.accepted(start, proposed)
        ends = start + found > until  # what it accepted after that is unknown
        if accepted == found or (ends and accepted > found):
            tally.equal += 1
            tally.past += accepted - found if answer.first_difference is None else 0
        elif response.near_tie(start + min(found, accepted)):
            tally.ties.append(f"{where}: {accepted} accepted, {found} replayed")
        else:
            tally.wrong.append(f"{where}: {accepted} accepted, {found} replayed")
        start += accepted + 1


def compare_sums(answer: Served, response: ReplayedResponse, tally: Tally) -> None:
    """Compare an engine's sums with replay's, and with all that near ties could make of these."""
    if answer.first_difference is not None:
        return
    # llama.cpp counts nothing in an answer without a proposal.
    counts = answer.counts or RoundCounts(rounds=0, drafted=0, accepted=0)
    rounds = counts.rounds
    counted = (rounds, counts.drafted, counts.accepted)
    exact = _sums(response, ties=False)
    (drawn,) = {(r, p, a.start) for r, p, a in exact}
    shown = " ".join(
        f"{what} {mine}" + (f" ({other} replayed)" if mine != other else "")
        for what, mine, other in zip(
            ("rounds", "proposed", "accepted"), counted, drawn, strict=True
        )
    )
    where = f"{answer.request[:8]}: {shown}"
    tally.rounds += rounds or 0
    if _among(counted, exact):
        tally.equal += rounds or 0
        tally.past += (counts.accepted or 0) - drawn[2]
    elif _among(counted, _sums(response, ties=True)):
        tally.ties.append(where)
    else:
        tally.wrong.append(where)


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
    outcomes, at = set(), 0
    most = min(proposed, response.last - start + 1)
    while at < most:
        position = start + at
        tie, accepts = response.near_tie(position), response.accepted(position, 1) == 1
        if tie or not accepts:
            outcomes.add(at)
        if not tie and not accepts:
            return outcomes
        at += 1
    return outcomes | {most}


def expectations(run: Run, candidate: Candidate, length: DraftLength, greedy: bool) -> str | None:
    """Tokens per round predicted from the answers without a draft, and counted by the server with
    one, at temperature 0 or above it, with a paired interval of the difference.
    """
    replays = {r.key: r for r in run.replays if r.candidate == candidate}
    rows = {s.key: s for s in _answers(run, candidate, length) if s.counts is not None}
    pairs = [
        (t, replays[key], rows[key])
        for t in run.trajectories
        if (key := t.key) in replays and key in rows
        if (t.sampling.temperature == 0) == greedy and t.output_tokens > 1
    ]
    if not pairs:
        return None
    trajectories = [t for t, _, _ in pairs]
    laws = [
        law_of(t, r) if length.stop is None else drafted_from(t, r, length.k).law(t, *length)
        for t, r, _ in pairs
    ]
    predicted = expected_rounds(laws, length.k)
    tokens = np.array([float(row.output_tokens - 1) for _, _, row in pairs])
    passes = np.array([float(len(rounds_of(row))) for _, _, row in pairs])
    mine = tokens_per_round(trajectories, predicted)
    theirs = ratio(TOKENS_PER_ROUND, trajectories, tokens, passes)
    gap = estimate(paired_difference(theirs, mine))
    shown = "too few for an interval"
    if gap is not None:
        few = len(pairs) < FEW_REQUESTS and not greedy
        outside = " of few draws" if few else "" if gap.low <= 0 <= gap.high else "  !"
        shown = f"difference {gap.value:+.3f} ({gap.low:+.3f} to {gap.high:+.3f}){outside}"
    return (
        f"{len(pairs)} requests {'at' if greedy else 'above'} temperature 0: tokens a round "
        f"{mine.value:.3f} predicted, {theirs.value:.3f} by the engine, {shown}"
    )


def _answers(run: Run, candidate: Candidate, length: DraftLength) -> Sequence[Served]:
    asked = (s for s in run.served if (s.candidate, s.k, s.stop) == (candidate, *length))
    return [s for s in asked if s.error is None and s.concurrency == 1]


def check(run: Run, dtype: str) -> int:
    """Print the comparison; gives the number of unexplained differences."""
    engine = run.manifest.question.engine
    rounded = engine == "llama.cpp" and dtype == "float32"  # as its keys are
    margin = NEAR_TIE_MARGIN["float16" if rounded else dtype]
    by_key = {t.key: t for t in run.trajectories}
    version = next((f.version for f in run.engines if f.version), "of unknown version")
    print(f"{engine} {version}; near ties: two best tokens of the draft within {margin} in logits")
    wrong = 0
    for candidate in run.candidates:
        replays = {r.key: r for r in run.replays if r.candidate == candidate}
        served = (s for s in run.served if s.candidate == candidate and s.k)
        for length in dict.fromkeys(DraftLength(s.k, s.stop) for s in served):
            tally = Tally()
            for answer in _answers(run, candidate, length):
                key = answer.key
                trajectory, replay = by_key[key], replays.get(key)
                drawn = trajectory.sampling.temperature > 0
                # With one seed the draws may be the same.
                if replay is None or (drawn and answer.digest != trajectory.digest):
                    continue
                limited = engine == "llama.cpp"
                response = ReplayedResponse(trajectory, replay, *length, limited, margin)
                tally.requests += 1
                tally.left += answer.first_difference is not None
                if answer.counts and answer.counts.by_round is not None:
                    compare_rounds(answer, response, tally)
                elif answer.counts or length.stop:
                    compare_sums(answer, response, tally)
                else:
                    tally.uncounted += 1
            wrong += len(tally.wrong)
            print(f"\n{candidate}, {length}: {tally.requests} answers")
            print(
                f"  {tally.equal} of {tally.rounds} rounds equal, {len(tally.ties)} near ties, "
                f"{len(tally.wrong)} unexplained; {tally.past} tokens accepted past the end; "
                f"{tally.left} answers differ from the response; {tally.uncounted} have no counts"
            )
            for kind, found in (("near tie", tally.ties), ("differs", tally.wrong)):
                for line in found:
                    print(f"  {kind}: {line}")
            for greedy in (True, False):
                if line := expectations(run, candidate, length, greedy):
                    print(f"  {line}")
    return wrong


def main() -> int:
    try:
        run = read_run(RunFolder(Path(sys.argv[1])))
    except DraftbenchError as error:
        print(f"error: {error.message} ({error.hint})", file=sys.stderr)
        return 2
    if not run.served or not run.replays:
        print("no answers of an engine, or no replay, in this run", file=sys.stderr)
        return 2
    wrong = check(run, *sys.argv[2:] or ["bfloat16"])
    print(f"\n{wrong} differences without an explanation")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["float32"]):
        sys.exit(__doc__)
    sys.exit(main())
