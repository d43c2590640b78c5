"""Finds signs that the set-up is broken, as opposed to a draft that is merely bad.

A serving engine with a broken draft rarely fails: it keeps running with acceptance 0 and looks like
a slow model. Each check looks for a result that a working pair hardly ever shows, over so many
tokens that it cannot be chance.

A replay that decoding contradicts predicts nothing: only what was decoded counts. Greedy drafts,
and all drafts at temperature 0, accept the same tokens of the same text however they are run, near
ties apart, so the built-in decoder is compared position by position. A quantized draft may round
differently in another pass. Where rounding decides (at near ties, and anywhere for a quantized
draft), replay and decoding err to both sides alike. So is a serving engine that tells every round.
The rounds of all requests are also compared in expectation: drafts may be sampled, a text may have
come out differently, and other engines tell sums.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from math import log, sqrt
from statistics import NormalDist

import numpy as np

from draftbench.acceptance.intervals import MIN_REQUESTS, student_quantile
from draftbench.acceptance.rounds import (
    Floats,
    Pairs,
    Rounds,
    counted_rounds,
    expected_rounds,
    model_pairs,
)
from draftbench.drafts.laws import AnyReplay, has_confidences, law_of
from draftbench.drafts.stack.replay import StackReplay
from draftbench.records import (
    NEAR_TIE_MARGIN,
    SELF,
    Candidate,
    Decode,
    DraftingMode,
    DraftLength,
    LookupReplay,
    Record,
    Replay,
    Trajectory,
)
from draftbench.run_folder.run import Run

# A draft position is suspect if it accepted nothing although ten tokens were expected even at half
# the hazard of the position before: that is less likely than e^-10.
_EXPECTED = 10
# Fewer tokens or rounds than this show nothing.
_MIN_TRIED = 50
# No working pair has a larger share of drafted tokens accepted, or a smaller share of rounds whose
# first token is.
_ALMOST_ALL, _ALMOST_NONE = 0.99, 0.02
# How often a draft that is not quantized may accept differently from replay without a near tie. In
# sound runs it did so at none of 7,818 positions: of eleven drafts of the kept runs, and of a head
# in two dtypes.
_SOUND = 1 / 2000
# A smaller share of positions moves no speed-up by more than timing noise; of differences that fall
# to both sides, a smaller share to one side.
_HARDLY, _TO_ONE_SIDE = 0.005, 0.02
# What may be chance must be off by more than this many standard errors, as one sound comparison in
# 2,000 is; tokens per round, in expectation, also by more than this share. (Near ties alone make up
# to 3% on an engine.)
_STANDARD_ERRORS, _TOKENS_PER_ROUND = 3.5, 0.05
_BEYOND_CHANCE = NormalDist().cdf(_STANDARD_ERRORS)  # with few requests, of Student's t
# Kinds of faults, with what to do.
CONTROL_FAILED, CONTRADICTED = "control failed", "decoding contradicts replay"
ZERO, ONE_TOKEN = "zero acceptance", "one token per round"
NEARLY_ALL, CLIFF = "nearly all accepted", "hazard falls to zero"
DOUBLED = "doubled first token"  # seen in prompts, by the gate
_ADVICE = {
    CONTROL_FAILED: "replay and decoding disagree; trust no acceptance figure of this run",
    CONTRADICTED: "only what was decoded counts; suspect its position embedding, its cache, or "
    "that other weights were replayed",
    ZERO: "compare the tokenizers and, for chats, the templates; look for weights destroyed by "
    "quantization",
    ONE_TOKEN: "either it does not suit this traffic, or it does not see the prompt or its cache, "
    "or its proposals do not reach the verifier",
    NEARLY_ALL: "check that the target is not its own draft, and read some responses: repetition "
    "is easy to draft",
    CLIFF: "suspect the drafting loop: cache positions, the attention window, a repeated step",
    DOUBLED: "let one of the two write it",
}


class SuspectedFault(Record, frozen=True):
    """A sign of a broken set-up. Two faults of one `kind` are the same; the message has the run's
    counts.
    """

    kind: str
    message: str

    @property
    def advice(self) -> str:
        """What to do; empty for an unknown kind, as in an edited baseline."""
        return _ADVICE.get(self.kind, "")


def suspected_faults(
    candidate: Candidate, pairs: Pairs, rounds: Sequence[Rounds], near_tie: float
) -> tuple[SuspectedFault, ...]:
    """The suspected faults of one candidate.

    Args:
        rounds: expected or counted, at any number of k's.
        near_tie: the logit margin within which numeric noise can swap two tokens.
    """
    faults: dict[str, str] = {}  # messages by kind
    replays = model_pairs(pairs)
    wrong = compared = 0
    for trajectory, replay in replays if str(candidate) == SELF else ():
        if trajectory.sampling.temperature == 0:
            end = 1 + min(replay.draftable, len(replay.accept))
            # A logged token that is not the target's best one is rightly rejected.
            best = np.array(trajectory.argmax[1:end]) == 1
            clear = np.minimum(trajectory.margins[1:end], replay.margin[: end - 1]) > near_tie
            wrong += int((best & clear & (np.array(replay.accept[: end - 1]) < 1)).sum())
            compared += int(best.sum())
    if wrong:
        faults[CONTROL_FAILED] = (
            f"the target rejects its greedy draft of itself at {wrong} of {compared} positions, "
            "near ties not counted"
        )
    drafted = [replay.accept[: replay.draftable] for _, replay in replays]
    positions = sum(map(len, drafted))
    if positions >= _MIN_TRIED and not any(map(any, drafted)):
        faults[ZERO] = f"not one token in {positions} positions was accepted"
    # NaN if an engine did not report its rounds.
    known = [at_k for at_k in rounds if np.isfinite(at_k.with_draft).all()]
    longest = max((at_k.k for at_k in known), default=0)
    for at_k in known:
        k, with_draft = at_k.k, float(at_k.with_draft.sum())
        accepted, tried = float(at_k.accepted.sum()), float((at_k.proposed - at_k.cut).sum())
        reached, survived = at_k.reached.sum(axis=0), at_k.survived.sum(axis=0)
        # If the engine reported sums, no more rounds than tokens were accepted.
        fruitful = accepted if np.isnan(survived[0]) else float(survived[0])
        if with_draft >= _MIN_TRIED and fruitful < _ALMOST_NONE * with_draft:
            share = f"{fruitful / with_draft:.1%} of {with_draft:.0f}"
            if ZERO not in faults:
                faults.setdefault(ONE_TOKEN, f"only {share} rounds accepted a token at k = {k}")
        elif k == longest and tried >= _MIN_TRIED and accepted >= _ALMOST_ALL * tried:
            share = f"{accepted / tried:.1%} of {tried:.0f}"
            if candidate.draft != SELF:  # the control should accept all
                faults[NEARLY_ALL] = f"{share} drafted tokens were accepted at k = {k}"
        for i in range(1, k):
            expected = reached[i] * survived[i - 1] / max(reached[i - 1], 1e-9) / 2
            if survived[i] == 0 and expected >= _EXPECTED:
                before = ", ".join(f"{h:.2f}" for h in survived[:i] / reached[:i])
                faults.setdefault(
                    CLIFF,
                    f"draft position {i + 1} was never accepted in {reached[i]:.0f} tries at "
                    f"k = {k}; the positions before it accept {before} of the time",
                )
    return tuple(SuspectedFault(kind=kind, message=faults[kind]) for kind in faults)


def contradiction(
    pairs: Pairs,
    decodes: Sequence[Decode],
    near_tie: float,
    *,
    by_position: bool,
    rounded: bool = False,
) -> SuspectedFault | None:
    """How decoding a candidate contradicts its replay; None if it does not.

    Args:
        pairs: responses with the candidate's replays.
        decodes: its decoding runs.
        near_tie: the logit margin within which numeric noise can swap two tokens.
        by_position: whether a run can be compared position by position.
        rounded: whether the draft is quantized.
    """
    decoded = {row.key for row in decodes}
    replays = {pair[0].key: pair for pair in pairs if pair[0].key in decoded}
    clear, every = dict[tuple[str, int, int], int](), dict[tuple[str, int, int], int]()
    in_expectation = list[Decode]()
    for row in decodes:
        if row.key not in replays:
            continue
        response, replay = replays[row.key]
        compares = by_position and _decided_by_text(row, response, replay)
        if not (compares and row.tie):  # after a near tie, another text has its own luck
            in_expectation.append(row)
        compared = _compared(response, replay, row, near_tie) if compares else ()
        for position, against, tied in compared:
            at = *row.key, position
            every[at] = against or every.get(at, 0)
            if not tied:
                clear[at] = against or clear.get(at, 0)
    wrong, sound = sum(map(abs, clear.values())), _SOUND * len(clear)
    # The root of a Poisson count's deviance is nearly a number of standard errors.
    deviance = 2 * (wrong * log(wrong / sound) - wrong + sound) if wrong > sound else 0.0
    if not rounded and deviance > _STANDARD_ERRORS**2 and wrong > _HARDLY * len(clear):
        what = f"accepted differently from replay at {wrong} of {len(clear)} positions"
        message = f"decoding {what}, near ties not counted"
        return SuspectedFault(kind=CONTRADICTED, message=message)
    more, fewer = ([*every.values()].count(side) for side in (1, -1))
    chance = _STANDARD_ERRORS * sqrt(more + fewer)  # McNemar 1947
    if abs(more - fewer) > max(chance, _TO_ONE_SIDE * len(every)):
        message = (
            f"of {len(every)} drafted tokens decoding accepted {more} that replay rejects, and "
            f"rejected {fewer} that it accepts: rounding would err to both sides alike"
        )
        return SuspectedFault(kind=CONTRADICTED, message=message)
    # Tokens per round are one over rounds per token.
    gain = 1 / (1 + _excess(replays, in_expectation, lambda r: (r.target_passes, r.tokens))) - 1
    if abs(gain) > _TOKENS_PER_ROUND:
        what = f"gave {abs(gain):.0%} {'fewer' if gain < 0 else 'more'} tokens per round"
    # Near the end some engines propose more than can be accepted.
    elif (lack := -_excess(replays, in_expectation, _proposals)) > _TOKENS_PER_ROUND:
        what = f"proposed {lack:.0%} fewer tokens per round"
    else:
        return None
    message = f"decoding {what} than replay, which is not chance"
    return SuspectedFault(kind=CONTRADICTED, message=message)


def _proposals(rounds: Rounds) -> tuple[Floats, Floats]:
    """The tokens that each run proposes, for its rounds; none where nothing was rejected, since an
    engine may not tell its proposals.
    """
    told = rounds.proposed > rounds.accepted
    return np.where(told, rounds.proposed, np.nan), rounds.target_passes


def _decided_by_text(row: Decode, response: Trajectory, replay: AnyReplay) -> bool:
    """Whether the text alone decides what is accepted, and it is known how far the text of this run
    equals the response.
    """
    drawn = isinstance(replay, Replay) and replay.mode is not DraftingMode.GREEDY
    known = row.first_difference is not None or row.digest == response.digest
    return known and not (drawn and response.sampling.temperature > 0)


def _compared(
    response: Trajectory, replay: AnyReplay, row: Decode, near_tie: float
) -> Iterator[tuple[int, int, bool]]:
    """The positions up to the text's first difference at which a drafted token was tried; whether
    decoding accepted it as the replay did (0), though the replay did not (1), or rejected it though
    the replay did not (-1); and whether it is a near tie. For prompt lookup and heads, the
    positions at which a round started.
    """
    end = response.output_tokens if row.first_difference is None else row.first_difference
    replay = replay.of_length(row.k) if isinstance(replay, LookupReplay) else replay
    at = 1
    for proposed, accepted, cut in zip(row.proposed, row.accepted, row.cut, strict=True):
        after = at + accepted + 1
        drafting = replay.drafting_at(at) if isinstance(replay, StackReplay) else replay
        if isinstance(drafting, LookupReplay):
            if after <= end:
                room = proposed if row.stop else min(row.k, response.limit - at - 1)
                more = accepted - min(drafting.matched[at - 1], room)
                tied = bool(drafting.margin) and drafting.margin[at - 1] <= near_tie
                yield at, (more > 0) - (more < 0), tied
        else:
            tried = after if accepted + cut < proposed else after - 1
            for position in range(at, min(tried, end)):
                replayed = drafting.accept[position - 1] == 1
                tied = drafting.margin[position - 1] <= near_tie
                yield position, (position < at + accepted) - replayed, tied
        at = after


def _excess(
    replays: dict[tuple[str, int], tuple[Trajectory, AnyReplay]],
    rows: Sequence[Decode],
    quotient: Callable[[Rounds], tuple[Floats, Floats]],
) -> float:
    """The share by which a quotient of two amounts, over decoding runs, exceeds what replay expects
    for their requests; 0 if chance may explain it. Runs with an unknown amount are left out.
    """
    by_length = defaultdict[DraftLength, list[Decode]](list)
    for row in rows:
        replay = replays[row.key][1]
        # A server may draft further than was looked up, and some do not report their rounds.
        reaches = isinstance(replay, Replay) or replay.window >= row.k
        if row.proposed and reaches and (row.stop is None or has_confidences(replay)):
            by_length[row.length].append(row)
    total = 0.0
    excess = defaultdict[str, float](float)  # of each request beyond the expected amount
    for length, alike in by_length.items():
        counted = counted_rounds(alike)
        laws = [law_of(*replays[row.key], length) for row in alike]
        expected = expected_rounds(laws, length.k)
        (own, units), (replayed, replayed_units) = quotient(counted), quotient(expected)
        # Sampled texts differ in length. The difference is antisymmetric in the two, so its mean is
        # 0 over sound runs.
        crossed = own * replayed_units - replayed * units
        more = crossed / np.maximum((units + replayed_units) / 2, 1)
        for row, amount, by in zip(alike, own, more, strict=True):
            if np.isfinite(by):
                total += float(amount)
                excess[row.request] += float(by)
    if len(excess) < MIN_REQUESTS:
        return 0.0
    each = np.array(list(excess.values()))
    error = each.std(ddof=1) / np.sqrt(len(each))
    if abs(each.mean()) <= student_quantile(_BEYOND_CHANCE, len(each) - 1) * error:
        return 0.0
    return float(each.sum() / (total - each.sum()))


def near_tie(run: Run) -> float:
    """The logit margin within which numeric noise can swap two tokens, for the target's dtype."""
    return NEAR_TIE_MARGIN[run.manifest.question.dtype]


def near_tie_share(run: Run) -> float | None:
    """The share of output positions at which the target's two best tokens are a near tie; None if
    unknown.
    """
    noise = near_tie(run)
    margins = [np.asarray(t.margins) for t in run.trajectories if t.margins]
    return float((np.concatenate(margins) <= noise).mean()) if margins else None


def template_may_differ(run: Run, candidate: Candidate) -> bool:
    """Whether the draft may have been trained with another chat template than the target's, which
    renders all chats. True if a template is unknown, or whether there are chats; False if there
    are none.
    """
    if candidate.draft == SELF or run.manifest.traffic.chats == 0:
        return False
    # Hashes of the templates; None for a model that was not loaded here.
    of_target, of_draft = (
        facts.parts.get("chat template") if (facts := run.facts_of(model)) else None
        for model in (None, candidate)
    )
    return of_target is None or of_target != of_draft
