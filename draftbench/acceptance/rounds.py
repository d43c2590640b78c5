"""Replays along responses → expected rounds of speculative decoding, for any k.

A round that starts at output position i proposes k' = min(k, limit - i - 1) tokens, fewer where the
draft cannot draft, and emits its accepted tokens plus one more. Given the response, tokens are
accepted independently of each other, so the starts of rounds form a Markov chain along the
response, and every count that is a sum over rounds is a sum over u(i), the probability that a round
starts at i. All responses are computed at once.

For a model draft u follows from one line. Position j+1 starts a round unless the token at j was an
accepted draft token, and at j a token is tried unless the k before it were all accepted from a
start at j-k:

    u(j+1) = 1 - a_j (1 - u(j-k) a_{j-k} … a_{j-1}),  u(1) = 1,  a_j = 0 where nothing is drafted

Position i+k+1 therefore needs only position i: blocks of k+1 positions are one step of numpy.
Acceptances of 0 and 1 stay exact. Times and costs of rounds are the planner's subject.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from draftbench.errors import RunFolderError
from draftbench.records import (
    Candidate,
    Decode,
    DraftingMode,
    LookupReplay,
    Replay,
    Trajectory,
)

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

AnyReplay = Replay | LookupReplay
Pairs = Sequence[tuple[Trajectory, AnyReplay]]
"""Responses, each with one candidate's replay along it."""

ModelPairs = Sequence[tuple[Trajectory, Replay]]

# Similar lengths are computed together: one long response must not pad ten thousand short ones.
_BLOCK = 128


@dataclass(frozen=True, eq=False)
class PositionLaw:
    """A model draft: a_j for positions j = 1 … length-1, drafting possible at 1 … `draftable`.

    `draftable` may exceed length-1: tokens proposed past an accepted end of the response are cut,
    not rejected.
    """

    length: int
    limit: int
    accept: Floats
    draftable: int


@dataclass(frozen=True, eq=False)
class StartLaw:
    """Prompt lookup: per start i = 1 … length-1, how many tokens are proposed and how many match.

    Lookup proposed at most `window` tokens, so larger k's are unknown; `None`: no such limit.
    """

    length: int
    limit: int
    proposed: Ints
    matched: Ints
    window: int | None = None


ResponseLaw = PositionLaw | StartLaw


@dataclass(frozen=True, eq=False)
class Rounds:
    """Counts of rounds per response at one k: `expected_rounds` or those of `counted_rounds`.

    All but `k` are arrays [responses, …]. `rounds` counts rounds that drafted, `plain` those with
    nothing to draft (k' = 0), `tokens` L-1. `by_draft_length` [responses, k+1] splits all rounds by
    k' and `after_full` [responses, k+1] those of them that follow a fully accepted round (the draft
    then has two tokens to read). `reached` [responses, k] counts rounds whose i-th draft token was
    tried after all before it were accepted, `survived` those where it was accepted too; tokens past
    an accepted end were never tried.
    """

    k: int
    tokens: Floats
    rounds: Floats
    plain: Floats
    proposed: Floats
    accepted: Floats
    cut: Floats
    full: Floats
    by_draft_length: Floats
    after_full: Floats
    reached: Floats
    survived: Floats


def replays_of(
    candidate: Candidate,
    trajectories: Sequence[Trajectory],
    replays: Sequence[AnyReplay],
    mode: DraftingMode | None = None,
) -> tuple[tuple[Trajectory, AnyReplay], ...]:
    """Pair each response with the candidate's replay along it, in the order of `trajectories`.

    Responses without a replay (the candidate failed there) are left out. `mode` picks one drafting
    mode; without it the replays must all be of one mode. Prompt lookup has no mode.

    Raises:
        RunFolderError: a replay does not fit its response, or there are several modes and `mode`
            does not pick one.
    """
    by_response: dict[tuple[str, int], AnyReplay] = {}
    modes: set[DraftingMode] = set()
    for replay in replays:
        if replay.candidate != candidate:
            continue
        if isinstance(replay, Replay):
            if mode is not None and replay.mode is not mode:
                continue
            modes.add(replay.mode)
        by_response[replay.request, replay.sample] = replay
    if len(modes) > 1:
        raise RunFolderError(
            f"{candidate} was replayed in several drafting modes: {', '.join(sorted(modes))}",
            hint="choose one drafting mode; acceptance of different modes is not comparable",
        )
    pairs = tuple(
        (trajectory, by_response[trajectory.request, trajectory.sample])
        for trajectory in trajectories
        if (trajectory.request, trajectory.sample) in by_response
    )
    for trajectory, replay in pairs:
        positions = len(replay.accept if isinstance(replay, Replay) else replay.proposed)
        if positions != max(trajectory.output_tokens - 1, 0):
            raise RunFolderError(
                f"the replay of {candidate} along request {trajectory.request} covers {positions} "
                f"positions of a response of {trajectory.output_tokens} tokens",
                hint="the run folder mixes two runs or was edited; sweep into a fresh folder",
            )
    return pairs


def model_pairs(pairs: Pairs) -> ModelPairs:
    """The pairs of a model draft; none for prompt lookup."""
    return [(trajectory, r) for trajectory, r in pairs if isinstance(r, Replay)]


def law_of(trajectory: Trajectory, replay: AnyReplay) -> ResponseLaw:
    """The law of one response under one replay of it."""
    length, limit = trajectory.output_tokens, trajectory.limit
    if isinstance(replay, Replay):
        return PositionLaw(length, limit, np.array(replay.accept, np.float64), replay.draftable)
    proposed, matched = np.array(replay.proposed, np.int64), np.array(replay.matched, np.int64)
    return StartLaw(length, limit, proposed, matched, replay.window)


def expected_rounds(laws: Sequence[ResponseLaw], k: int) -> Rounds:
    """Expected rounds of every response at draft length k; exact for acceptances of 0 and 1.

    Raises:
        ValueError: no responses, k < 1, k beyond a lookup window, or position and start laws mixed.
    """
    if k < 1 or not laws:
        raise ValueError("expected_rounds needs at least one response and k >= 1")
    order = np.argsort([law.length for law in laws], kind="stable")
    blocks = [
        _rounds_of_block([laws[row] for row in order[at : at + _BLOCK]], k)
        for at in range(0, len(laws), _BLOCK)
    ]
    return _stack(k, blocks, np.argsort(order))


def counted_rounds(decodes: Sequence[Decode]) -> Rounds:
    """Count the rounds of decoding runs, one row per run; all runs at one k ≥ 1.

    Raises:
        ValueError: no runs, runs of different k, or baseline runs.
    """
    k = max((decode.k for decode in decodes), default=0)
    if k < 1 or any(decode.k != k for decode in decodes):
        raise ValueError("counted_rounds needs runs of one k >= 1")
    return _stack(k, [_count_run(decode) for decode in decodes], np.arange(len(decodes)))


def _stack(k: int, parts: Sequence[Rounds], order: Ints) -> Rounds:
    names = [field.name for field in fields(Rounds) if field.name != "k"]
    rows = {name: np.concatenate([getattr(part, name) for part in parts])[order] for name in names}
    return Rounds(k=k, **rows)


def _count_run(decode: Decode) -> Rounds:
    proposed, accepted, cut = (
        np.array(counts, dtype=np.int64)
        for counts in (decode.proposed, decode.accepted, decode.cut)
    )
    step = np.arange(decode.k)
    tried = np.minimum(accepted + 1, proposed - cut)
    full = (proposed > 0) & (accepted == proposed)
    follows_full = np.concatenate([[False], full[:-1]])
    drafted = proposed > 0

    def one(count: npt.ArrayLike) -> Floats:
        return np.array([count], dtype=np.float64)

    return Rounds(
        k=decode.k,
        tokens=one(decode.output_tokens - 1),
        rounds=one(drafted.sum()),
        plain=one((~drafted).sum()),
        proposed=one(proposed.sum()),
        accepted=one(accepted.sum()),
        cut=one(cut.sum()),
        full=one(full.sum()),
        by_draft_length=one(np.bincount(proposed, minlength=decode.k + 1)),
        after_full=one(np.bincount(proposed[follows_full], minlength=decode.k + 1)),
        reached=one((tried[:, None] > step).sum(0)),
        survived=one((accepted[:, None] > step).sum(0)),
    )


@dataclass(frozen=True, eq=False)
class _Chain:
    """Per position i [responses, positions]: k', u(i); per t = 0 … k [k+1, …] P(t accepted)."""

    drafted: Ints
    starts: Floats
    reach: Floats


def _rounds_of_block(laws: Sequence[ResponseLaw], k: int) -> Rounds:
    length = np.array([law.length for law in laws], dtype=np.int64)[:, None]
    position_laws = [law for law in laws if isinstance(law, PositionLaw)]
    start_laws = [law for law in laws if isinstance(law, StartLaw)]
    if position_laws and start_laws:
        raise ValueError("position laws and start laws belong to different drafts")
    if any(law.window is not None and law.window < k for law in start_laws):
        raise ValueError("k exceeds the window that prompt lookup was measured with")
    if position_laws:
        return _count(k, length, _position_chain(position_laws, length, k))
    return _count(k, length, _start_chain(start_laws, length, k))


def _position_chain(laws: Sequence[PositionLaw], length: Ints, k: int) -> _Chain:
    positions = max(int(length.max()), 2)
    last = np.array([min(law.limit - 2, law.draftable) for law in laws], dtype=np.int64)
    accept = np.zeros((len(laws), positions + k + 1))
    for row, law in enumerate(laws):
        tried = max(0, min(law.length - 1, int(last[row])))
        accept[row, 1 : tried + 1] = law.accept[:tried]
    reach = np.ones((k + 2, len(laws), positions))
    for t in range(k + 1):
        np.multiply(reach[t], accept[:, t : t + positions], out=reach[t + 1])
    starts = np.zeros((len(laws), positions))
    starts[:, 1] = 1.0
    starts[:, 2:] = 1.0 - accept[:, 1 : positions - 1]
    for first in range(1, positions - k - 1, k + 1):
        end = min(first + k + 1, positions - k - 1)
        carried = reach[k + 1, :, first:end] * starts[:, first:end]
        starts[:, first + k + 1 : end + k + 1] += carried
    position = np.arange(positions)
    drafted = np.clip(last[:, None] - position + 1, 0, k)
    return _Chain(drafted, starts * (position < length), reach[: k + 1])


def _start_chain(laws: Sequence[StartLaw], length: Ints, k: int) -> _Chain:
    positions = max(int(length.max()), 2)
    position = np.arange(positions)
    proposed = np.zeros((len(laws), positions), dtype=np.int64)
    matched = np.zeros_like(proposed)
    for row, law in enumerate(laws):
        proposed[row, 1 : law.length] = law.proposed
        matched[row, 1 : law.length] = law.matched
    limit = np.array([law.limit for law in laws], dtype=np.int64)[:, None]
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
    return _Chain(drafted, starts, reach.astype(np.float64))


def _count(k: int, length: Ints, chain: _Chain) -> Rounds:
    """Sums over u of what a round at each start proposes, accepts and cuts."""
    drafted, starts, reach = chain.drafted, chain.starts, chain.reach
    position = np.arange(starts.shape[1])
    tried = np.minimum(drafted, np.maximum(length - position, 0))
    ended = starts * np.take_along_axis(reach, tried[None], axis=0)[0]
    whole = starts * np.take_along_axis(reach, drafted[None], axis=0)[0] * (drafted > 0)
    following = np.minimum(position + drafted + 1, starts.shape[1] - 1)
    followed = whole * (position + drafted + 1 < length)
    by_draft_length = _split(starts, drafted, k)
    survived = np.einsum("rp,trp->rt", starts, reach[1:])
    return Rounds(
        k=k,
        tokens=np.maximum(length[:, 0] - 1, 0).astype(np.float64),
        rounds=by_draft_length[:, 1:].sum(1),
        plain=by_draft_length[:, 0],
        proposed=by_draft_length @ np.arange(k + 1),
        accepted=survived.sum(1),
        cut=(ended * (drafted - tried)).sum(1),
        full=whole.sum(1),
        by_draft_length=by_draft_length,
        after_full=_split(followed, np.take_along_axis(drafted, following, axis=1), k),
        reached=np.stack([(starts * reach[t] * (tried > t)).sum(1) for t in range(k)], axis=1),
        survived=survived,
    )


def _split(mass: Floats, lengths: Ints, k: int) -> Floats:
    """Sums of `mass` per response and draft length 0 … k."""
    rows = np.arange(len(mass))[:, None] * (k + 1)
    cells = (rows + lengths).ravel()
    sums = np.bincount(cells, weights=mass.ravel(), minlength=len(mass) * (k + 1))
    return sums.astype(np.float64).reshape(len(mass), k + 1)


def drafted_positions(trajectory: Trajectory, replay: Replay) -> int:
    """The draft proposes at positions 1 … this, if a round gets there: the length limit leaves room
    for the target's token after it, and the draft's context reaches that far.
    """
    last = min(trajectory.limit - 2, trajectory.output_tokens - 1, replay.draftable)
    return max(last, 0)


def tried(accept: Sequence[Floats], k: int) -> list[Floats]:
    """P(the draft's token at position j is tried) for each response, at draft length k.

    Nothing is tried at j only where a round started at j-k and all its k tokens were accepted (the
    token at j is then the target's). A round starts where the token before was not an accepted
    draft token, so with r the wanted probability,

        r_j = 1 - P_j (1 - a_{j-k-1} r_{j-k-1}),   P_j = a_{j-k} … a_{j-1},   r_j = 1 for j <= k

    and a_j r_j is the probability that the response's token at j came from the draft.

    Args:
        accept: a_j per response at the positions 1 … where the draft proposes.

    Returns:
        Arrays like those of `accept`.
    """
    order = sorted(range(len(accept)), key=lambda row: len(accept[row]))
    reached: list[Floats] = [np.empty(0)] * len(accept)
    for at in range(0, len(order), _BLOCK):
        rows = order[at : at + _BLOCK]
        padded = np.zeros((len(rows), len(accept[rows[-1]]) + 1))  # a_0 = 0
        for line, row in zip(padded, rows, strict=True):
            line[1 : len(accept[row]) + 1] = accept[row]
        for line, row in zip(_tried(padded, k), rows, strict=True):
            reached[row] = line[1 : len(accept[row]) + 1]
    return reached


def _tried(accept: Floats, k: int) -> Floats:
    """[responses, positions]; k+1 positions are one step of numpy."""
    positions = accept.shape[1]
    reached = np.ones_like(accept)
    if positions > k + 1:
        whole = sliding_window_view(accept[:, 1:-1], k, axis=1).prod(axis=-1)
    for first in range(k + 1, positions, k + 1):
        end = min(first + k + 1, positions)
        before = slice(first - k - 1, end - k - 1)
        started = 1.0 - accept[:, before] * reached[:, before]
        reached[:, first:end] = 1.0 - whole[:, before] * started
    return reached
