"""Replays: one pass of a draft along the target's responses shows what is accepted at every k.

At position j the draft's distribution is what it would be in any round that reaches j, since a
round reaches j only if all earlier tokens equal the response. What it drafts after a wrong token is
never accepted; but how sure it is there says where a rule stops it, so it drafts on from there too.
What prompt lookup proposes also depends on where the round starts, and on the rule of the engine
that serves it; what a head proposes, on where it starts. The pass itself is in each kind's folder
of `drafts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, takewhile
from typing import NamedTuple

from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import Candidate, Confidences, InBlock, LookupReplay


class ServedTarget(NamedTuple):
    """What replay needs to know of a target that a serving engine runs."""

    context_length: int


def rounded(values: list[float], missing: int) -> tuple[float, ...]:
    """Values rounded to three digits, so that they do not identify a prompt; 0 where the draft
    could not draft.
    """
    return tuple([round(value, 3) for value in values] + [0.0] * missing)


def confidences_of(
    of_all: Sequence[Sequence[float]], of_ten: Sequence[Sequence[float]]
) -> Confidences:
    """The record of runs of drafted tokens, by the confidences in each."""
    return Confidences(
        lengths=tuple(map(len, of_all)),
        of_all=tuple(chain.from_iterable(of_all)),
        of_ten=tuple(chain.from_iterable(of_ten)),
    )


def matching(response: ScoredResponse, proposals: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """How long a prefix of the proposal from each start the response has."""
    matched = []
    for start, proposal in enumerate(proposals, start=1):
        pairs = zip(proposal, response.tokens[start:], strict=False)
        matched.append(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
    return tuple(matched)


def least_margins(margins: Sequence[Sequence[float]], matched: Sequence[int]) -> tuple[float, ...]:
    """The least margin from each start up to the first token that does not match."""
    return rounded([min(m[: n + 1]) for m, n in zip(margins, matched, strict=False)], 0)


def from_every_start(
    response: ScoredResponse,
    candidate: Candidate,
    window: int,
    proposals: Sequence[Sequence[int]],
    margins: Sequence[Sequence[float]] = (),
    confidences: Confidences | None = None,
    at_once: bool = False,
    blocks: Sequence[InBlock] = (),
) -> LookupReplay:
    """The record of how long a prefix of each proposal the response has."""
    matched = matching(response, proposals)
    return LookupReplay(
        request=response.trajectory.request,
        sample=response.trajectory.sample,
        candidate=candidate,
        window=window,
        proposed=tuple(map(len, proposals)),
        matched=matched,
        margin=least_margins(margins, matched),
        confidences=confidences,
        at_once=at_once,
        blocks=tuple(blocks),
    )
