"""Turns a serving engine's answers into decoding runs, as the built-in decoder records them.

An engine reports less: it does not say which part of a round was drafting, and some engines report
only sums over rounds. What it counted past the end of a response is subtracted.

The time after the first token is taken from the server's clock if every answer has it and the
client's does not contradict it: a client that waits for a processor sees chunks late, and then
several at once.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from draftbench.drafts.kinds import kind_of
from draftbench.records import Candidate, Decode, Round, RoundCounts, Served, Trajectory

# Up to this share of prompt tokens, a server's prefix cache is not worth a caveat: prompts often
# begin with the same few tokens.
MOST_CACHED = 0.05
# A server's clock and the client's differed by 1% at most in 104 answers of llama-server, of whose
# two cores the client had one. A client that had to wait sees single answers late, not many.
_CLOCKS, _OFTEN = 0.05, 0.25
# What arrives within this share of the time after the first piece came together with it.
_TOGETHER = 0.01
# One text seldom has two rows of tokens; of a larger share of all tokens, somebody miscounts.
_MISCOUNTED = 0.01
# The error of an answer whose server did not draft as it was asked to.
OTHER_DRAFTING = "other drafting"
# The error of an answer with token ids outside the target's vocabulary.
WRONG_IDS = "wrong ids"


def without_answer(rows: Iterable[Served]) -> tuple[Served, ...]:
    """The failed answer to each request that a server never answered properly."""
    rows = list(rows)

    def question_of(row: Served) -> tuple[object, ...]:
        how = row.k, row.stop, row.repeat, row.load, row.asked_concurrency
        return row.key, row.candidate, *how

    answered = {question_of(row) for row in rows if row.error is None}
    wrong = {question_of(row): row for row in rows if row.error is not None}
    return tuple(row for where, row in wrong.items() if where not in answered)


def not_answered(reasons: Iterable[str], requests: int) -> str:
    """How many requests were not answered, and why."""
    counts = Counter(reasons)
    many = len(counts) > 1
    named = ", ".join(f"{why} ({n})" if many else why for why, n in counts.most_common())
    plural, were = "s" * (requests > 1), "was" if counts.total() == 1 else "were"
    return f"{counts.total()} of {requests} request{plural} {were} not answered: {named}"


def open_loop_or_all(rows: Iterable[Served]) -> list[Served]:
    """With `--arrivals`, the answers to requests sent at their times of arrival; otherwise all."""
    every = list(rows)
    return [row for row in every if row.load == "open"] or every


def cached_share(rows: Iterable[Served]) -> float:
    """The share of the prompts' tokens that came from the server's prefix cache; 0 if unknown."""
    cached = read = 0
    for row in rows:
        cached += row.cached_tokens or 0
        read += row.prompt_tokens
    return cached / read if read else 0.0


def counts_contradict(rows: Iterable[Trajectory | Decode | Served]) -> tuple[int, int] | None:
    """How many answers have the text of another answer to the same request and another number of
    tokens, of how many that have its text; None if these make no difference.
    """
    counts = defaultdict[Any, list[int]](list)
    for row in rows:
        if not isinstance(row, Served) or row.error is None:
            counts[row.key, row.digest].append(row.output_tokens)
    compared = [of for of in counts.values() if len(of) > 1]
    apart = sum(max(of) - min(of) for of in compared)
    if apart <= _MISCOUNTED * sum(map(max, compared)):
        return None
    return sum(len(of) for of in compared if len(set(of)) > 1), sum(map(len, compared))


def shared_answers(rows: Iterable[Served]) -> tuple[int, int] | None:
    """During how many answers the server wrote others too, of how many of which its counters tell;
    None if it never did, or if that is unknown.
    """
    told = [row.shared for row in rows if row.shared is not None]
    return (sum(told), len(told)) if any(told) else None


def clock_contradicts(rows: Iterable[Served]) -> float | None:
    """The server's seconds over those that the client saw, in the answers in which late delivery
    does not explain the difference, where these are many: the median, of the start at which they
    are farthest apart. None if there are few, or if the server's seconds are not used.
    """
    factors = defaultdict[Any, list[float]](list)
    for row in rows:
        if row.error is not None or row.output_tokens < 2:
            continue
        if row.decode_seconds is None or not _by_server(row):
            return None
        seen = row.arrivals[-1] - row.arrivals[0]
        nearest = min(max(row.decode_seconds, seen), _longest_explained(row))
        of = row.candidate, row.k, row.stop, row.load, row.asked_concurrency
        factors[of].append(row.decode_seconds / nearest)
    found = []
    for each in factors.values():
        apart = [factor for factor in each if abs(factor - 1) > _CLOCKS]
        if len(apart) > _OFTEN * len(each):
            found.append(median(apart))
    return max(found, key=lambda factor: abs(math.log(factor)), default=None)


def _longest_explained(row: Served) -> float:
    """The longest decoding that late delivery explains: pieces keep their order, so whatever was
    written while the first one was on its way came together with it, and the others came at the
    server's pace. Where all came together, what the server says.
    """
    assert row.decode_seconds is not None
    together = row.arrivals[0] + _TOGETHER * row.decode_seconds
    after = row.output_tokens - 1
    later = sum(n for at, n in zip(row.arrivals, row.chunks, strict=True) if at > together)
    seen = row.arrivals[-1] - row.arrivals[0]
    return seen * after / later if later else row.decode_seconds


def decodes_of(rows: Iterable[Served]) -> list[Decode]:
    """The decoding runs of every candidate, in a block each with its baseline: the answers of the
    servers without a draft that took turns with its own, or a copy of all if none did.

    Answers that ended in an error are left out. If a server does not report its drafting, its runs
    have no rounds.
    """
    whole = [row for row in open_loop_or_all(rows) if row.error is None and row.output_tokens > 0]
    baseline = [row for row in whole if row.candidate is None]
    by_server = all(_by_server(row) for row in whole if row.output_tokens > 1)
    by_server = by_server and clock_contradicts(whole) is None
    by_candidate: defaultdict[Candidate, list[Served]] = defaultdict(list)
    reporting: set[Candidate | None] = {None}
    for row in whole:
        if row.candidate is not None:
            by_candidate[row.candidate].append(row)
            # Prompt lookup may find nothing in any answer, and some servers then report nothing.
            if kind_of(row.candidate.draft).from_text or row.counts is not None:
                reporting.add(row.candidate)
    decodes = []
    for candidate, answers in by_candidate.items():
        sessions = {row.process for row in answers}
        beside = [row for row in baseline if row.process in sessions]
        for row in (*(beside or baseline), *answers):
            rounds, cut = _rounds_within(row) if row.candidate in reporting else ([], ())
            seconds = row.arrivals[-1] - row.arrivals[0]
            if by_server:
                seconds = decode_seconds_of(row)
            # In proportion to the gaps between chunks, or evenly if these are unknown.
            gaps = _between_rounds(row, len(rounds))
            if len(gaps) != len(rounds) or not sum(gaps):
                gaps = (1.0,) * len(rounds)
            # Sums do not say how many tokens each round accepted.
            counts, summed = row.counts, False
            if row.k > 1 and counts and counts.by_round is None and counts.drafted:
                summed = _histogram(counts.by_position, _rounds(row, counts)) is None
            decode = Decode(
                request=row.request,
                sample=row.sample,
                candidate=row.candidate,
                k=row.k,
                mode=row.mode,
                repeat=row.repeat,
                proposed=tuple(proposed for proposed, _ in rounds),
                accepted=tuple(accepted for _, accepted in rounds),
                cut=cut,
                draft_seconds=(0.0,) * len(rounds),  # part of the round's seconds, unknown which
                verify_seconds=tuple(round(seconds * gap / sum(gaps), 7) for gap in gaps),
                prefill_seconds=max(row.arrivals[-1] - seconds, 0.0),
                draft_prefill_seconds=None,
                decode_seconds=seconds,
                output_tokens=row.output_tokens,
                digest=row.digest,
                first_difference=row.first_difference,
                tie=row.tie,
                block=str(candidate),
                concurrency=row.asked_concurrency,
                process=row.process,
                active=(row.asked_concurrency,) * len(rounds) if row.asked_concurrency > 1 else (),
                summed=summed,
                stop=row.stop,
            )
            decodes.append(decode)
    return decodes


def rounds_of(row: Served) -> list[Round]:
    """Proposed and accepted tokens of every round, including steps without a proposal, as the
    engine counts them. If it reports only sums, they are spread over the rounds, so neither the
    order nor the acceptance of a single round is the engine's.
    """
    counts = row.counts or RoundCounts()
    if counts.by_round is not None:
        drafted = list(counts.by_round)
    else:
        rounds = _rounds(row, counts)
        accepted_by_round = _histogram(counts.by_position, rounds)
        accepted_by_round = accepted_by_round or _spread(counts.accepted or 0, rounds)
        proposed_by_round = _spread(counts.drafted or 0, rounds)
        drafted = [
            (max(proposed, accepted), accepted)
            for proposed, accepted in zip(
                sorted(proposed_by_round), sorted(accepted_by_round), strict=True
            )
        ]
    plain = row.output_tokens - 1 - sum(accepted + 1 for _, accepted in drafted)
    return drafted + [(0, 0)] * max(plain, 0)


def _rounds(row: Served, counts: RoundCounts) -> int:
    """How many rounds drafted, if the engine reports sums: its count or, without one, the number of
    tokens that were not accepted; at least drafted / k, since some rounds may lie past the end of
    the response.
    """
    if counts.rounds is not None:
        return counts.rounds
    fewest = math.ceil((counts.drafted or 0) / row.k) if row.k else 0
    return max(row.output_tokens - 1 - (counts.accepted or 0), fewest, 1)


def _histogram(by_position: Sequence[int] | None, rounds: int) -> list[int] | None:
    """The accepted tokens of each round, from how many rounds accepted each position."""
    if not by_position or by_position[0] > rounds:
        return None
    reached = [rounds, *by_position, 0]
    return [
        accepted
        for accepted, (here, further) in enumerate(pairwise(reached))
        for _ in range(here - further)
    ]


def _spread(total: int, rounds: int) -> list[int]:
    """A sum spread over rounds as evenly as whole numbers allow."""
    least, more = divmod(total, rounds) if rounds else (0, 0)
    return [least + 1] * more + [least] * (rounds - more)


def _rounds_within(row: Served) -> tuple[list[Round], tuple[int, ...]]:
    """The rounds up to the end of the response, and how many tokens each proposed past it: engines
    draft past the limit and count what the target would have accepted there.
    """
    left = row.output_tokens - 1
    counted = rounds_of(row) if row.k else [(0, 0)] * left
    rounds, cut = list[Round](), list[int]()
    for proposed, accepted in counted:
        if left <= 0:
            break
        within = min(accepted, left)
        ends_in_proposal = accepted >= left  # then the round adds no token of the target
        rounds.append((proposed, within))
        cut.append(proposed - within if ends_in_proposal else 0)
        left -= within + 1
    return rounds, tuple(cut)


def chunk_gaps(row: Served) -> tuple[float, ...] | None:
    """Seconds between the deliveries of two rounds, as seen by the client; None if the server does
    not report its rounds.
    """
    if row.k and row.counts is None:
        return None
    return _between_rounds(row, len(_rounds_within(row)[0]))


def _between_rounds(row: Served, rounds: int) -> tuple[float, ...]:
    """Seconds from one round's last chunk to the next one's. A server with one chunk for each token
    sends those of a round at once, so the longest gaps are those between rounds. There are fewer
    gaps than rounds if a chunk brought several rounds.
    """
    at = row.arrivals
    gaps = [later - earlier for earlier, later in pairwise(at)]
    longest = sorted(sorted(range(len(gaps)), key=lambda i: -gaps[i])[:rounds])
    ends = [0, *longest[1:], len(gaps)] if longest else []
    return tuple(round(max(at[end] - at[begin], 0.0), 7) for begin, end in pairwise(ends))


def decode_seconds_of(row: Served) -> float:
    """Seconds after the first token, by the server's clock if its value is plausible."""
    if row.decode_seconds is not None and _by_server(row):
        return row.decode_seconds
    return row.arrivals[-1] - row.arrivals[0]


def _by_server(row: Served) -> bool:
    """Whether the server's seconds are plausible: no more than the client waited in all."""
    return row.decode_seconds is not None and 0 < row.decode_seconds <= row.arrivals[-1]
