"""Finds replays that decoding contradicts: they predict nothing, and only what was decoded counts.

Greedy drafts, and all drafts at temperature 0, accept the same tokens of the same text however they
are run, near ties apart, so the built-in decoder is compared position by position. What is rounded
to few bits may round otherwise in another pass, but then it errs to either side alike. The rounds
of all requests are compared in expectation as well: drafts may be drawn, a text may have come out
differently, near ties may be many, and a serving engine tells no positions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import sqrt
from statistics import NormalDist

import numpy as np

from draftbench.acceptance.faults import CONTRADICTED, SuspectedFault
from draftbench.acceptance.intervals import MIN_REQUESTS, student_quantile
from draftbench.acceptance.rounds import AnyReplay, Pairs, counted_rounds, expected_rounds, law_of
from draftbench.records import (
    Decode,
    DraftingMode,
    LookupReplay,
    Replay,
    StackReplay,
    Trajectory,
)

# A larger share of positions moves a speed-up by more than the noise of its timing. In sound runs
# it is 0: of the 5,476 positions without a near tie in four reference runs and three on a GPU.
_POSITIONS = 0.02
# What may be chance must be off by more standard errors: one sound comparison in 2,000 is. Tokens
# per round, in expectation, by more than this share too. (Near ties alone are up to 3 % off on an
# engine.)
_STANDARD_ERRORS, _TOKENS_PER_ROUND = 3.5, 0.05
_BEYOND_CHANCE = NormalDist().cdf(_STANDARD_ERRORS)  # with few requests, of Student's t


def contradiction(
    pairs: Pairs,
    decodes: Sequence[Decode],
    near_tie: float,
    *,
    by_position: bool,
    rounded: bool = False,
) -> SuspectedFault | None:
    """How decoding a candidate contradicts its replay; None where it does not.

    Args:
        pairs: responses with the candidate's replays.
        decodes: with the candidate.
        near_tie: the logit margin within which numeric noise can swap two tokens.
        by_position: whether a run can be compared position by position.
        rounded: whether the draft is quantized.
    """
    decoded = {row.key for row in decodes}
    replays = {pair[0].key: pair for pair in pairs if pair[0].key in decoded}
    along, in_expectation = [row for row in decodes if row.key in replays], list[Decode]()
    # By request, sample and position, whether it was accepted (1) or rejected (-1) against replay.
    differs: dict[tuple[str, int, int], int] = {}
    for row in along:
        response, replay = replays[row.key]
        compares = by_position and _comparable(response, replay, row)
        if not (compares and row.tie):  # from a near tie on another text has its own luck
            in_expectation.append(row)
        for position, against in _compared(response, replay, row, near_tie) if compares else ():
            at = *row.key, position
            differs[at] = against or differs.get(at, 0)
    wrong, to_one_side = sum(map(abs, differs.values())), abs(sum(differs.values()))
    if rounded and to_one_side <= _STANDARD_ERRORS * sqrt(wrong):  # McNemar 1947
        to_one_side = 0
    if (to_one_side if rounded else wrong) > _POSITIONS * len(differs):
        what = f"accepted otherwise than replay at {wrong} of {len(differs)} positions, near ties "
        return SuspectedFault(kind=CONTRADICTED, message=f"decoding {what}not counted")
    more = _more_tokens_per_round(replays, in_expectation)
    if abs(more) <= _TOKENS_PER_ROUND:
        return None
    what = f"gave {abs(more):.0%} {'fewer' if more < 0 else 'more'} tokens per round than replay"
    return SuspectedFault(kind=CONTRADICTED, message=f"decoding {what}, which is not chance")


def _comparable(response: Trajectory, replay: AnyReplay, row: Decode) -> bool:
    """Whether the text alone says what is accepted, and it is known how far the text is the
    response.
    """
    drawn = isinstance(replay, Replay) and replay.mode is not DraftingMode.GREEDY
    if drawn and response.sampling.temperature > 0:
        return False
    return row.first_difference is not None or row.digest == response.digest


def _compared(
    response: Trajectory, replay: AnyReplay, row: Decode, near_tie: float
) -> Iterator[tuple[int, int]]:
    """Positions up to the first difference of the text at which a drafted token was tried, near
    ties left out, and whether it was accepted as in the replay (0), or only in one of the two (1:
    not in the replay). Of prompt lookup and heads, the positions at which a round started.
    """
    end = response.output_tokens if row.first_difference is None else row.first_difference
    at = 1
    for proposed, accepted, cut in zip(row.proposed, row.accepted, row.cut, strict=True):
        after = at + accepted + 1
        drafting = replay.drafting_at(at) if isinstance(replay, StackReplay) else replay
        if isinstance(drafting, LookupReplay):
            clear = not drafting.margin or drafting.margin[at - 1] > near_tie
            if after <= end and clear:
                room = min(row.k, response.limit - at - 1)
                more = accepted - min(drafting.matched[at - 1], room)
                yield at, (more > 0) - (more < 0)
        else:
            tried = after if accepted + cut < proposed else after - 1
            for position in range(at, min(tried, end)):
                if drafting.margin[position - 1] > near_tie:
                    replayed = drafting.accept[position - 1] == 1
                    yield position, (position < at + accepted) - replayed
        at = after


def _more_tokens_per_round(
    replays: dict[tuple[str, int], tuple[Trajectory, AnyReplay]], rows: Sequence[Decode]
) -> float:
    """By what share the tokens per round of decoding runs exceed those that replay expects of their
    requests; 0 where chance may explain it.
    """
    by_k = defaultdict[int, list[Decode]](list)
    for row in rows:
        replay = replays[row.key][1]
        # A server may draft further than was looked up, and some tell nothing of their rounds.
        if row.proposed and (isinstance(replay, Replay) or replay.window >= row.k):
            by_k[row.k].append(row)
    passes = 0.0
    excess = defaultdict[str, float](float)  # passes of each request beyond the expected ones
    for k, of_k in by_k.items():
        counted = counted_rounds(of_k)
        expected = expected_rounds([law_of(*replays[row.key]) for row in of_k], k)
        passes += counted.target_passes.sum()
        # Texts drawn anew differ in length. The sign changes where the two change places, so that
        # the mean of sound runs is 0.
        crossed = counted.target_passes * expected.tokens - expected.target_passes * counted.tokens
        length = np.maximum((counted.tokens + expected.tokens) / 2, 1)
        for row, passes_more in zip(of_k, crossed / length, strict=True):
            excess[row.request] += float(passes_more)
    if len(excess) < MIN_REQUESTS:
        return 0.0
    each = np.array(list(excess.values()))
    error = each.std(ddof=1) / np.sqrt(len(each))
    if abs(each.mean()) <= student_quantile(_BEYOND_CHANCE, len(each) - 1) * error:
        return 0.0
    return float((passes - each.sum()) / passes - 1)
