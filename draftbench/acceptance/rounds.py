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
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from draftbench.drafts.laws import AnyReplay, HazardLaw, PositionLaw, ResponseLaw, StartLaw
from draftbench.records import Decode, Replay, Trajectory

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

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
            chain_of = _start_chain if isinstance(part[0], StartLaw) else _hazard_chain
            chains = {k: chain_of(part, k) for k in ks}
            found.append({k: _counts(c, k) | _of_draft(part, c, k) for k, c in chains.items()})
    back, rounds = np.argsort(order), {}
    for k in ks:
        columns = {n: np.concatenate([part[k][n] for part in found])[back] for n in found[0][k]}
        rounds[k] = Rounds(k=k, **columns)
    return rounds


def counted_rounds(decodes: Sequence[Decode]) -> Rounds:
    """Count the rounds of decoding runs, one row per run; all runs at one k ≥ 1."""
    k, runs = decodes[0].k, len(decodes)
    run = np.repeat(np.arange(runs), [len(decode.proposed) for decode in decodes])
    proposed = np.array([count for decode in decodes for count in decode.proposed], np.int64)
    accepted = np.array([count for decode in decodes for count in decode.accepted], np.int64)
    cut = np.array([count for decode in decodes for count in decode.cut], np.int64)
    drafted = proposed > 0
    full = drafted & (accepted == proposed)
    follows_full = np.zeros_like(full)
    follows_full[1:] = full[:-1] & (run[1:] == run[:-1])
    every = np.ones_like(full)
    by_round = np.array([[np.nan if decode.summed else 1.0] for decode in decodes])

    def total(values: npt.NDArray[np.generic]) -> Floats:
        return np.bincount(run, values, runs).astype(np.float64)

    def by_value(values: Ints, chosen: npt.NDArray[np.bool_]) -> Floats:
        """How many of the chosen rounds of each run have the value 0, 1, … k [runs, k+1]."""
        at = run[chosen] * (k + 1) + values[chosen]
        return np.bincount(at, minlength=runs * (k + 1)).reshape(runs, k + 1).astype(np.float64)

    def longer(values: Ints) -> Floats:
        """How many rounds of each run have a value above 0, 1, … k-1 [runs, k]."""
        return by_value(values, every)[:, :0:-1].cumsum(axis=1)[:, ::-1]

    return Rounds(
        k=k,
        tokens=np.array([decode.output_tokens - 1.0 for decode in decodes]),
        with_draft=total(drafted),
        without_draft=total(~drafted),
        proposed=total(proposed),
        accepted=total(accepted),
        cut=total(cut),
        full=total(full),
        by_draft_length=by_value(proposed, every),
        after_full=by_value(proposed, follows_full),
        reached=longer(np.minimum(accepted + 1, proposed - cut)) * by_round,
        survived=longer(accepted) * by_round,
    )


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


# Tokens of each response [responses, 1]; k' of a round from each position, and u(i), P(a round
# starts at position i) [responses, positions]; P(a round from there accepts its first t tokens),
# t = 0 … k [k+1, responses, positions].
_Chain = tuple[Ints, Ints, Floats, Floats]


def _start_chain(laws: Sequence[StartLaw], k: int) -> _Chain:
    if any(law.window < k for law in laws):
        raise ValueError("k exceeds the window that prompt lookup was measured with")
    length, limit = np.array([(law.length, law.limit) for law in laws], np.int64).T[..., None]
    positions = max(int(length.max()), 2)
    position = np.arange(positions)
    proposed = np.zeros((len(laws), positions), dtype=np.int64)
    matched = np.zeros_like(proposed)
    for row, law in enumerate(laws):
        proposed[row, 1 : law.length], matched[row, 1 : law.length] = law.at(k)
    drafted = np.clip(np.minimum(proposed, limit - position - 1), 0, k)
    accepted = np.minimum(np.minimum(matched, drafted), length - position)
    starts = np.zeros((len(laws), positions))
    at = np.ones(len(laws), dtype=np.int64)
    rows = np.flatnonzero(at < length[:, 0])
    while rows.size:
        starts[rows, at[rows]] = 1.0
        at[rows] += accepted[rows, at[rows]] + 1
        rows = rows[at[rows] < length[rows, 0]]
    reach = accepted >= np.arange(k + 1)[:, None, None]
    return length, drafted, starts, reach.astype(np.float64)


def _of_draft(laws: Sequence[StartLaw | HazardLaw], chain: _Chain, k: int) -> dict[str, Floats]:
    """What a draft does in its rounds that does not draft what is proposed: in a stack, or with a
    rule to stop by; nothing of other laws.

    Its first pass in a round reads all that the target wrote since it last read. A model has read
    what it drafted but the last token, and keeps what of that was accepted; a head keeps nothing.
    """
    _, _, starts, reach = chain
    own = [
        (law, law.by_draft)
        for law in laws
        if isinstance(law, StartLaw) and law.by_draft is not None
    ]
    if not own:
        return {}
    by_draft = np.zeros(starts.shape, np.int64)
    for row, (law, tokens) in zip(by_draft, own, strict=True):
        room = law.limit - np.arange(1, law.length) - 1
        row[1 : law.length] = np.clip(np.minimum(tokens, room), 0, k)
    rows, begun = np.nonzero((starts > 0) & (by_draft > 0))
    kept = np.minimum(by_draft, reach.sum(axis=0, dtype=np.int64))[rows, begun] - 1
    kept[np.array([law.reads_again for law, _ in own])[rows]] = 0
    read_before = np.where(np.diff(rows, prepend=-1) > 0, 0, np.roll(begun + kept, 1))
    read = np.minimum(begun - read_before, MOST_READ)
    reads = np.zeros((len(laws), MOST_READ))
    np.add.at(reads, (rows, read - 1), 1.0)
    return {"by_draft": _by_draft_length(starts, by_draft, k), "reads": reads}


def _hazard_chain(laws: Sequence[HazardLaw], k: int) -> _Chain:
    if any(len(law.hazards) < k for law in laws):
        raise ValueError("k exceeds the hazards that were measured")
    length, limit = np.array([(law.length, law.limit) for law in laws], np.int64).T[..., None]
    positions = max(int(length.max()), 2)
    position = np.arange(positions)
    drafted = np.clip(limit - position - 1, 0, k)
    reach = np.zeros((k + 2, len(laws), positions))
    reach[0] = 1.0
    for t in range(k):
        hazard = np.array([law.hazards[t] for law in laws])[:, None]
        reach[t + 1] = reach[t] * hazard * ((t < drafted) & (position + t < length))
    ends = reach[:-1] - reach[1:]  # exactly t accepted
    starts = np.zeros((len(laws), positions + k + 1))
    starts[:, 1] = 1.0
    for at in range(1, positions):
        starts[:, at + 1 : at + k + 2] += starts[:, at : at + 1] * ends[:, :, at].T
    return length, drafted, starts[:, :positions] * (position < length), reach[: k + 1]


def _counts(chain: _Chain, k: int) -> dict[str, Floats]:
    """The arrays of `Rounds`: sums over u of what a round from each start proposes and accepts."""
    length, drafted, starts, reach = chain
    position = np.arange(starts.shape[1])
    # Of a round's draft tokens those before the end of the response, which alone can be tried.
    inside = np.minimum(drafted, np.maximum(length - position, 0))
    accepts_inside = starts * np.take_along_axis(reach, inside[None], axis=0)[0]
    accepts_all = starts * np.take_along_axis(reach, drafted[None], axis=0)[0] * (drafted > 0)
    following = np.minimum(position + drafted + 1, starts.shape[1] - 1)
    has_following = position + drafted + 1 < length
    by_draft_length = _by_draft_length(starts, drafted, k)
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
        "after_full": _by_draft_length(
            accepts_all * has_following, np.take_along_axis(drafted, following, axis=1), k
        ),
        "reached": np.stack([(starts * reach[t] * (inside > t)).sum(1) for t in range(k)], axis=1),
        "survived": survived,
    }


def _by_draft_length(rounds: Floats, lengths: Ints, k: int) -> Floats:
    """Sums of `rounds` [responses, positions] for each draft length 0 … k [responses, k+1]."""
    cells = (np.arange(len(rounds))[:, None] * (k + 1) + lengths).ravel()
    sums = np.bincount(cells, weights=rounds.ravel(), minlength=len(rounds) * (k + 1))
    return sums.astype(np.float64).reshape(len(rounds), k + 1)
