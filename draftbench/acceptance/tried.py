"""Acceptance probabilities along a response → how likely a round tries the draft's token at each
position.

At position j nothing is tried only where a round started at j-k and all its k tokens were accepted
(the token at j is then the target's own). A round starts where the token before was not an accepted
one of the draft, so with r the probability asked for,

    r_j = 1 - P_j (1 - a_{j-k-1} r_{j-k-1}),   P_j = a_{j-k} … a_{j-1},   r_j = 1 for j <= k

and a_j r_j is the probability that the response's token at j came from the draft. Counts of whole
rounds are `rounds`; this says at which tokens of a response they go wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from draftbench.acceptance.rounds import Floats
from draftbench.records import Replay, Trajectory

# Similar lengths are swept together: one long response must not pad ten thousand short ones.
_BLOCK = 128


def drafted_positions(trajectory: Trajectory, replay: Replay) -> int:
    """At positions 1 … this the draft proposes if a round gets there: the length limit leaves room
    for the target's token behind, and the draft's context reaches.
    """
    last = min(trajectory.limit - 2, trajectory.output_tokens - 1, replay.draftable)
    return max(last, 0)


def tried(accept: Sequence[Floats], k: int) -> list[Floats]:
    """P(the draft's token at position j is tried) for each response, at draft length k.

    Args:
        accept: a_j per response at the positions 1 … where the draft proposes.

    Returns:
        Arrays like those of `accept`.
    """
    order = sorted(range(len(accept)), key=lambda row: len(accept[row]))
    found: list[Floats] = [np.empty(0)] * len(accept)
    for at in range(0, len(order), _BLOCK):
        rows = order[at : at + _BLOCK]
        padded = np.zeros((len(rows), len(accept[rows[-1]]) + 1))
        for line, row in zip(padded, rows, strict=True):
            line[1 : len(accept[row]) + 1] = accept[row]
        for line, row in zip(_tried(padded, k), rows, strict=True):
            found[row] = line[1 : len(accept[row]) + 1]
    return found


def _tried(accept: Floats, k: int) -> Floats:
    """[responses, positions] with a_0 = 0; k+1 positions are one step of numpy."""
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
