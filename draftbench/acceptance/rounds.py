"""Computes the expected rounds of speculative decoding at any k from one replay of each response.

A round that starts at output position i proposes k' = min(k, limit - i - 1) tokens, fewer where the
draft cannot draft, and emits its accepted tokens plus one more. Once the response is known, each
draft token is accepted independently of the others. So the starts of rounds form a Markov chain
along the response, and every count of rounds is a sum over u(i), the probability that a round
starts at position i. What a replay says of acceptance along one response is called its law.

For a model draft,

    u(j+1) = 1 - a_j (1 - u(j-k) a_{j-k} … a_{j-1}),  u(1) = 1,  a_j = 0 where nothing is drafted

Position j+1 starts a round unless the token at j is an accepted draft token. Every token is drafted
and tried except one that follows a fully accepted round, which then started at j-k. Position i+k+1
therefore needs only position i, so k+1 positions are computed in one step of numpy, for many
responses at once. What a round from i accepts is the same at every k, so all k's that are asked for
together share it. Acceptances of 0 and 1 stay exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from draftbench.drafts.laws import AnyReplay, HazardLaw, PositionLaw, ResponseLaw, StartLaw
from draftbench.records import Decode, Replay, Trajectory

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
AnyInts = npt.NDArray[np.integer[Any]]

# Responses, each with one candidate's replay along it.
Pairs = Sequence[tuple[Trajectory, AnyReplay]]
ModelPairs = Sequence[tuple[Trajectory, Replay]]

# Responses that are computed at once. They have similar lengths, so that one long response does not
# pad ten thousand short ones.
_BLOCK = 256
# The most tokens by which a first pass of a stack's draft is counted; longer ones count as this.
MOST_READ = 64


@dataclass(frozen=True, eq=False)
class Rounds:
    """Counts of rounds at one k, a row for each response: expected ones from `expected_rounds`, or
    those of decoding runs from `counted_rounds`.

    `reached` and `survived` are NaN if an engine reported only sums.
    """

    k: int
    tokens: Floats  # tokens of the response after the first [responses]
    with_draft: Floats  # rounds that drafted [responses]
    without_draft: Floats  # rounds with nothing to draft, k' = 0 [responses]
    proposed: Floats  # draft tokens proposed [responses]
    accepted: Floats  # draft tokens accepted [responses]
    cut: Floats  # draft tokens proposed past an accepted end of the response [responses]
    full: Floats  # rounds that drafted and accepted all of it [responses]
    by_draft_length: Floats  # all rounds by k' [responses, k+1]
    # The rounds among them that follow a fully accepted one: the draft then reads two tokens.
    after_full: Floats  # [responses, k+1]
    # Rounds whose i-th draft token was tried, all before it having been accepted. Tokens past an
    # accepted end were never tried.
    reached: Floats  # [responses, k]
    survived: Floats  # rounds that accepted their i-th draft token too [responses, k]
    # For a stack, or with a rule to stop by: all rounds by the number of tokens that the draft
    # itself drafts [responses, k+1].
    by_draft: Floats | None = None
    # Those in which it drafts any, by the tokens that it reads first [responses, MOST_READ].
    reads: Floats | None = None

    @property
    def target_passes(self) -> Floats:
        """All rounds: each is one target pass [responses]."""
        return self.with_draft + self.without_draft

    @property
    def drafted_per_round(self) -> float:
        """The tokens that the draft itself drafts in a round, on average."""
        rounds = (self.by_draft_length if self.by_draft is None else self.by_draft).sum(axis=0)
        return float(rounds @ np.arange(len(rounds)) / (rounds.sum() or 1.0))

    @property
    def counts(self) -> dict[str, Floats]:
        """Every array by its name."""
        arrays = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {name: array for name, array in arrays.items() if array is not None}


def model_pairs(pairs: Pairs) -> ModelPairs:
    """The pairs with replays of a model; none for prompt lookup, heads and stacks."""
    return [(trajectory, r) for trajectory, r in pairs if isinstance(r, Replay)]


def alpha_of(tokens: float, k: int) -> float:
    """The acceptance α, alike at every position, at which a round of k drafted tokens yields this
    many, 1 to k + 1: tokens = 1 + α + … + α^k.
    """
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        enough = sum(middle**i for i in range(k + 1)) >= tokens
        low, high = (low, middle) if enough else (middle, high)
    return high if tokens > 1 else 0.0


def expected_rounds(laws: Sequence[ResponseLaw], k: int) -> Rounds:
    """`rounds_at_each` of one k."""
    return rounds_at_each(laws, (k,))[k]


def rounds_at_each(laws: Sequence[Any], ks: Sequence[int]) -> dict[int, Rounds]:
    """Expected rounds of every response at each draft length; exact for acceptances of 0 and 1.

    Args:
        laws: of one kind, for one draft.

    Raises:
        ValueError: a k is beyond a lookup window or the hazards.
    """
    order = np.argsort([law.length for law in laws], kind="stable")
    found = []
    for at in range(0, len(laws), _BLOCK):
        part = [laws[row] for row in order[at : at + _BLOCK]]
        if isinstance(part[0], PositionLaw):
            found.append(_position_counts(part, ks))
        else:
            counts_of = _start_counts if isinstance(part[0], StartLaw) else _hazard_counts
            found.append({k: counts_of(part, k) for k in ks})
    back, rounds = np.argsort(order), {}
    for k in ks:
        columns = {n: np.concatenate([part[k][n] for part in found])[back] for n in found[0][k]}
        rounds[k] = Rounds(k=k, **columns)
    return rounds


def counted_rounds(decodes: Sequence[Decode]) -> Rounds:
    """Count the rounds of decoding runs, one row per run; all runs at one k ≥ 1."""
    run = np.repeat(np.arange(len(decodes)), [len(decode.proposed) for decode in decodes])
    proposed, accepted, cut = (
        np.array([count for decode in decodes for count in getattr(decode, name)], np.int64)
        for name in ("proposed", "accepted", "cut")
    )
    tokens = np.array([decode.output_tokens - 1.0 for decode in decodes])
    rounds = _counted(decodes[0].k, tokens, run, proposed, accepted, cut)
    by_round = np.array([[np.nan if decode.summed else 1.0] for decode in decodes])
    reached, survived = rounds.reached * by_round, rounds.survived * by_round
    return replace(rounds, reached=reached, survived=survived)


def _counted(
    k: int, tokens: Floats, run: Ints, proposed: Ints, accepted: Ints, cut: Ints
) -> Rounds:
    """Count rounds, in the order in which they were made.

    Args:
        tokens: of each response, after its first.
        run: the response that each round belongs to.
        proposed: the draft tokens of each round that were proposed; so too `accepted` and `cut`.
    """
    drafted, by_k = proposed > 0, (len(tokens), k + 1)
    full = drafted & (accepted == proposed)
    follows_full = np.zeros_like(full)
    follows_full[1:] = full[:-1] & (run[1:] == run[:-1])

    def total(values: npt.NDArray[np.generic]) -> Floats:
        return np.bincount(run, values, len(tokens)).astype(np.float64)

    def longer(values: Ints) -> Floats:
        """How many rounds of each response have a value above 0, 1, … k-1 [responses, k]."""
        return by_value(run, values, by_k)[:, :0:-1].cumsum(axis=1)[:, ::-1]

    return Rounds(
        k=k,
        tokens=tokens,
        with_draft=total(drafted),
        without_draft=total(~drafted),
        proposed=total(proposed),
        accepted=total(accepted),
        cut=total(cut),
        full=total(full),
        by_draft_length=by_value(run, proposed, by_k),
        after_full=by_value(run[follows_full], proposed[follows_full], by_k),
        reached=longer(np.minimum(accepted + 1, proposed - cut)),
        survived=longer(accepted),
    )


def by_value(rows: Ints, values: AnyInts, shape: tuple[int, int], often: Any = None) -> Floats:
    """How often rows have the values 0, 1, … [rows, values], if what has a value counts once, or as
    `often` as given.
    """
    cells = (rows * shape[1] + values).ravel()
    weights = None if often is None else often.ravel()
    return np.bincount(cells, weights, shape[0] * shape[1]).reshape(shape).astype(np.float64)


def _start_counts(laws: Sequence[StartLaw], k: int) -> dict[str, Floats]:
    """The arrays of `Rounds`, which are walked: it is known what is drafted from each start.

    The first pass of a draft that does not draft what is proposed, in a stack or with a rule to
    stop by, reads all that the target wrote since it last read. A model has read what it drafted
    but the last token, and keeps what of that was accepted; a head keeps nothing.
    """
    if any(law.window < k for law in laws):
        raise ValueError("k exceeds the window that prompt lookup was measured with")
    # The starts of all responses one after the other.
    length, limit = np.array([(law.length, law.limit) for law in laws], np.int64).T
    proposed, matched = map(np.concatenate, zip(*(law.at(k) for law in laws), strict=True))
    run, ends = np.repeat(np.arange(len(laws)), length - 1), np.cumsum(length - 1)
    begins = ends - (length - 1)
    place = np.arange(len(run))
    position = 1 + place - begins[run]
    room, left = limit[run] - position - 1, length[run] - position
    proposed = np.clip(np.minimum(proposed, room), 0, k)
    inside = np.minimum(proposed, left)
    accepted = np.minimum(matched, inside)
    following = np.where(accepted + 1 < left, place + accepted + 1, len(place))
    begun = begun_at(begins[length > 1], following)
    run, position, accepted, proposed, inside = (
        each[begun] for each in (run, position, accepted, proposed, inside)
    )
    cut = np.where(accepted == inside, proposed - inside, 0)
    rounds = _counted(k, np.maximum(length - 1.0, 0.0), run, proposed, accepted, cut)
    if laws[0].by_draft is None:
        return rounds.counts
    own = np.concatenate([law.by_draft for law in laws])[begun]
    own = np.clip(np.minimum(own, room[begun]), 0, k)
    drafts = own > 0
    of_draft, begin = run[drafts], position[drafts]
    kept = 0 if laws[0].reads_again else np.minimum(own, accepted + 1)[drafts] - 1
    read_before = np.where(np.diff(of_draft, prepend=-1) > 0, 0, np.roll(begin + kept, 1))
    read = np.minimum(begin - read_before, MOST_READ)
    return rounds.counts | {
        "by_draft": by_value(run, own, (len(laws), k + 1)),
        "reads": by_value(of_draft, read - 1, (len(laws), MOST_READ)),
    }


def begun_at(first: AnyInts, following: AnyInts) -> Ints:
    """The starts at which rounds begin, in order, if they begin at the `first` ones and each is
    followed by another; one behind all of them where none is.
    """
    begun, at = np.zeros(len(following), bool), first.astype(following.dtype)
    while at.size:
        begun[at] = True
        at = following[at]
        at = at[at < len(following)]
    return np.flatnonzero(begun)


def _position_counts(
    laws: Sequence[PositionLaw], ks: Sequence[int]
) -> dict[int, dict[str, Floats]]:
    """The arrays of `Rounds`, by k.

    Far from the end every round drafts k tokens and another follows. Near it, rounds are sorted by
    how many tokens are left, from sums of their starts; and there a round stops untried once it has
    accepted all that can be drafted.
    """
    most, column = max(ks) + 1, np.arange(len(laws))
    length = np.array([law.length for law in laws])
    last = np.array([min(law.limit - 2, law.draftable) for law in laws])  # nothing drafted after it
    positions, shortest = max(int(length.max()), 2), length.min()
    rows = np.zeros((len(laws), positions + most))
    for row, law in zip(rows, laws, strict=True):
        row[1 : law.drafted + 1] = law.accept[: law.drafted]
    accept = np.ascontiguousarray(rows.T)
    # P(a round from there accepts its first t tokens), t = 0 … [t, positions, responses]
    reach = np.ones((most + 1, positions, len(laws)))
    for t in range(most):
        np.multiply(reach[t], accept[t : t + positions], out=reach[t + 1])
    starts = {}  # u(i), P(a round starts at position i) [positions, responses]
    for k in ks:
        starts[k] = start = np.empty_like(reach[0])
        start[:2] = [[0.0], [1.0]]
        start[2:] = 1.0 - reach[1, 1 : positions - 1]
        for first in range(1, positions - k - 1, k + 1):
            end = min(first + k + 1, positions - k - 1)
            start[first + k + 1 : end + k + 1] += reach[k + 1, first:end] * start[first:end]
        start[shortest:] *= np.arange(shortest, positions)[:, None] < length
    end, tokens = np.minimum(length, last + 1), np.arange(1, most)[:, None]
    near_end = np.maximum(end - tokens, 0)
    ends = reach[tokens, near_end, column]  # P(a round from there accepts all up to the end)
    reach[tokens, near_end, column] = 0.0
    found = {}
    for k, start in starts.items():
        far = max(0, int(end.min()) - 2 * k - 2)

        def up_to(values: Floats, positions: Ints, far: int = far) -> Floats:
            """Sums of values up to some positions, of which none is before `far`."""
            near = np.concatenate([values[:far].sum(axis=0)[None], values[far:]]).cumsum(axis=0)
            return near[np.clip(positions + 1 - far, 0, len(near) - 1), column]

        whole = start * reach[k]
        untried = start[near_end[:k], column] * ends[:k]
        within = np.einsum("pr,tpr->tr", start, reach[1 : k + 1])
        survived = within + untried
        # Positions up to which a round drafts at least k, k-1, … 0 tokens.
        bounds = np.stack(
            [*(last + 1 - d for d in range(k, 0, -1)), np.full_like(last, len(start))]
        )
        by_draft_length = np.diff(up_to(start, bounds), axis=0, prepend=0.0)[::-1]
        drafted = by_draft_length[1:].sum(axis=0)
        followed = np.minimum(bounds, length - 1) - k - 1
        after_full = np.diff(up_to(whole, followed), axis=0, prepend=0.0)[::-1].copy()
        after_full[0] += np.where(last + 2 < length, untried.sum(axis=0), 0.0)
        past_end = np.clip(last - length + 1, 0, k - tokens[:k])
        found[k] = {
            "tokens": np.maximum(length - 1, 0).astype(np.float64),
            "with_draft": drafted,
            "without_draft": by_draft_length[0],
            "proposed": np.arange(k + 1) @ by_draft_length,
            "accepted": survived.sum(axis=0),
            "cut": (untried * past_end).sum(axis=0),
            "full": survived[-1] + np.where(last < length, untried[:-1].sum(axis=0), 0.0),
            "by_draft_length": by_draft_length.T,
            "after_full": after_full.T,
            "reached": np.concatenate([drafted[None], within[:-1]]).T,
            "survived": survived.T,
        }
    return found


def _hazard_counts(laws: Sequence[HazardLaw], k: int) -> dict[str, Floats]:
    """The arrays of `Rounds`: sums over u of what a round from each start proposes and accepts."""
    if any(len(law.hazards) < k for law in laws):
        raise ValueError("k exceeds the hazards that were measured")
    length, limit = np.array([(law.length, law.limit) for law in laws], np.int64).T[..., None]
    positions = max(int(length.max()), 2)
    position = np.arange(positions)
    drafted = np.clip(limit - position - 1, 0, k)  # k' of a round from each position
    # P(a round from there accepts its first t tokens), t = 0 … k + 1 [t, responses, positions]
    reach = np.zeros((k + 2, len(laws), positions))
    reach[0] = 1.0
    for t in range(k):
        hazard = np.array([law.hazards[t] for law in laws])[:, None]
        reach[t + 1] = reach[t] * hazard * ((t < drafted) & (position + t < length))
    ends = reach[:-1] - reach[1:]  # exactly t accepted
    begun = np.zeros((len(laws), positions + k + 1))
    begun[:, 1] = 1.0
    for at in range(1, positions):
        begun[:, at + 1 : at + k + 2] += begun[:, at : at + 1] * ends[:, :, at].T
    # u(i), P(a round starts at position i) [responses, positions]
    starts, reach = begun[:, :positions] * (position < length), reach[: k + 1]
    # Of a round's draft tokens those before the end of the response, which alone can be tried.
    inside = np.minimum(drafted, np.maximum(length - position, 0))
    accepts_inside = starts * np.take_along_axis(reach, inside[None], axis=0)[0]
    accepts_all = starts * np.take_along_axis(reach, drafted[None], axis=0)[0] * (drafted > 0)
    following = np.minimum(position + drafted + 1, starts.shape[1] - 1)
    has_following = position + drafted + 1 < length
    row, by_k = np.arange(len(laws))[:, None], (len(laws), k + 1)
    by_draft_length = by_value(row, drafted, by_k, starts)
    survived = np.einsum("rp,trp->rt", starts, reach[1:])
    return {
        "tokens": np.maximum(length[:, 0] - 1, 0).astype(np.float64),
        "with_draft": by_draft_length[:, 1:].sum(1),
        "without_draft": by_draft_length[:, 0],
        "proposed": by_draft_length @ np.arange(k + 1),
        "accepted": survived.sum(1),
        "cut": (accepts_inside * (drafted - inside)).sum(1),
        "full": accepts_all.sum(1),
        "by_draft_length": by_draft_length,
        "after_full": by_value(row, drafted[row, following], by_k, accepts_all * has_following),
        "reached": np.stack([(starts * reach[t] * (inside > t)).sum(1) for t in range(k)], axis=1),
        "survived": survived,
    }
