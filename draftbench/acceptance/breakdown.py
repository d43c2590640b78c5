"""Replays → where along the traffic a draft is accepted and where it is not.

α of the replayed drafting mode in groups of requests (segment, temperature, both) and of positions
(third of the response, after an accepted or a rejected token, the draft's confidence), where in the
response rejected tokens stand, and which tokens the lost rounds were lost to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from draftbench.acceptance.definitions import Figure, Sample, alpha, ratio
from draftbench.acceptance.groups import GROUPINGS, Crossing, Pair, crossings
from draftbench.acceptance.intervals import Estimate, estimate, paired_difference
from draftbench.acceptance.laws import AnyReplay
from draftbench.acceptance.rounds import Floats
from draftbench.acceptance.tried import drafted_positions, tried
from draftbench.records import Replay, Trajectory

CONFIDENCE_EDGES = (0.2, 0.4, 0.6, 0.8, 0.95)
THIRDS = ("early", "middle", "late")
TENTHS = 10
REJECTIONS = Figure(
    name="rejections in a tenth of the response",
    symbol="",
    formula="rejected tokens there / rejected tokens",
)
READINGS = {
    "early": "fewer tokens are accepted early in a response than late",
    "late": "fewer tokens are accepted late in a response than early: "
    "the draft loses coherence over length, or its context is too short",
}
TEMPLATE = "suspect the chat template: the draft may have learned another one than the target's"

Shares = dict[str, Floats]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One group of positions. `by` names the split; above temperature 0 a position may belong to a
    group with a probability, so `positions` is expected. `confidence` is the mean of max q: a
    greedy draft that knows what it knows has α near it at temperature 0.
    """

    by: str
    name: str
    requests: int
    positions: float
    confidence: float
    alpha: Estimate | None


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """α by group. `late_less_early` is the difference of the outer thirds, paired by request;
    `reading` what it means, said only where the interval excludes 0.

    `crossings` has every segment at every temperature that it was asked at, empty where one of the
    two splits nothing. `rejections` is, for each tenth of the response, its share of the tokens
    that are rejected if drafted: a tenth of them if position does not matter; empty where nothing
    is rejected.
    """

    groups: tuple[Group, ...]
    late_less_early: Estimate | None
    reading: str | None
    crossings: tuple[Crossing, ...] = ()
    rejections: tuple[Estimate | None, ...] = ()


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """The draft's best token where the target wrote something else, as token ids. A greedy draft
    proposed it; a sampled one most likely.

    `rounds_lost` is the expected number of rounds that ended on it, `share` that over all rounds
    that ended on a rejected token, `times` how many positions showed it.
    """

    drafted: int
    target: int
    times: int
    rounds_lost: float
    share: float


def breakdown(
    pairs: Sequence[tuple[Trajectory, AnyReplay]], *, templated: bool = False
) -> Breakdown | None:
    """α of every group that has positions; None for prompt lookup, which has no α.

    Args:
        templated: whether the template of the prompts may be another than the draft learned.
    """
    model = [(trajectory, r) for trajectory, r in pairs if isinstance(r, Replay)]
    if not model:
        return None
    groups: list[Group] = []
    samples: dict[tuple[str, str], Sample] = {}
    for by, split in _SPLITS.items():
        for name, own, shares in _members(model, by, split):
            sample = alpha(own, shares)
            assert sample is not None  # only prompt lookup has none
            samples[by, name] = sample
            groups += _group(by, name, own, shares, sample)
    change = estimate(paired_difference(samples["third", "late"], samples["third", "early"]))
    return Breakdown(
        groups=tuple(groups),
        late_less_early=change,
        reading=_reading(change, templated),
        crossings=crossings(model),
        rejections=_rejections(model),
    )


def costliest_disagreements(
    pairs: Sequence[tuple[Trajectory, AnyReplay]],
    k: int,
    drafted: Mapping[tuple[str, int], Sequence[int]],
    written: Mapping[tuple[str, int], Sequence[int]],
    most: int = 20,
) -> tuple[Disagreement, ...]:
    """The pairs of tokens that end the most rounds at draft length k.

    Args:
        drafted: the draft's best token at the positions 1 … length-1, by request and sample.
        written: the response's tokens y_0 …, by request and sample.
    """
    known = [(t, r) for t, r in pairs if isinstance(r, Replay) and (t.request, t.sample) in drafted]
    accept = [np.array(r.accept[: drafted_positions(t, r)]) for t, r in known]
    lost: defaultdict[tuple[int, int], float] = defaultdict(float)
    times: defaultdict[tuple[int, int], int] = defaultdict(int)
    every = 0.0
    for (t, _), a, r in zip(known, accept, tried(accept, k), strict=True):
        weights = t.weight * r * (1 - a)
        every += float(weights.sum())
        key = t.request, t.sample
        for guess, token, weight in zip(drafted[key], written[key][1:], weights, strict=False):
            if guess != token and weight > 0:
                lost[guess, token] += float(weight)
                times[guess, token] += 1
    first = sorted(lost, key=lambda pair: (-lost[pair], pair))[:most]
    return tuple(
        Disagreement(
            drafted=pair[0],
            target=pair[1],
            times=times[pair],
            rounds_lost=lost[pair],
            share=lost[pair] / every,
        )
        for pair in first
    )


def _members(
    pairs: Sequence[Pair], by: str, split: Callable[[Pair], Shares]
) -> list[tuple[str, list[Pair], list[Floats]]]:
    """Per group its responses and how much of each position belongs to it."""
    parts = [split(pair) for pair in pairs]
    names = list(dict.fromkeys(name for part in parts for name in part))
    if by in GROUPINGS:
        names.sort()
    found = []
    for name in names:
        own = [(pair, part[name]) for pair, part in zip(pairs, parts, strict=True) if name in part]
        found.append((name, [pair for pair, _ in own], [share for _, share in own]))
    return found


def _group(
    by: str, name: str, pairs: Sequence[Pair], shares: Sequence[Floats], sample: Sample
) -> list[Group]:
    """The group, unless it has no position."""
    own = [share[: replay.draftable] for (_, replay), share in zip(pairs, shares, strict=True)]
    positions = float(sum(share.sum() for share in own))
    if not positions:
        return []
    confidence = sum(
        float(share @ np.array(replay.confidence[: len(share)]))
        for (_, replay), share in zip(pairs, own, strict=True)
    )
    return [
        Group(
            by=by,
            name=name,
            requests=int((sample.addends[:, 1] > 0).sum()),
            positions=positions,
            confidence=confidence / positions,
            alpha=estimate(sample),
        )
    ]


def _rejections(pairs: Sequence[Pair]) -> tuple[Estimate | None, ...]:
    """A position counts in each tenth for the part of it that lies there, so that responses of
    fewer than ten tokens leave no tenth empty.
    """
    lost = np.zeros((len(pairs), TENTHS))
    for row, (_, replay) in zip(lost, pairs, strict=True):
        wrong = 1 - np.array(replay.accept[: replay.draftable])
        below = np.concatenate([[0.0], wrong.cumsum()])
        ends = np.linspace(0, len(replay.accept), TENTHS + 1)
        row[:] = np.diff(np.interp(ends, np.arange(len(below)), below))
    if not lost.any():
        return ()
    own = [trajectory for trajectory, _ in pairs]
    every = lost.sum(axis=1)
    return tuple(estimate(ratio(REJECTIONS, own, tenth, every)) for tenth in lost.T)


def _reading(change: Estimate | None, templated: bool) -> str | None:
    if change is None or change.low <= 0 <= change.high:
        return None
    if change.high < 0:
        return READINGS["late"]
    return f"{READINGS['early']}: {TEMPLATE}" if templated else READINGS["early"]


def _by_segment(pair: Pair) -> Shares:
    return {GROUPINGS["segment"](pair[0]): np.ones(len(pair[1].accept))}


def _by_temperature(pair: Pair) -> Shares:
    return {GROUPINGS["temperature"](pair[0]): np.ones(len(pair[1].accept))}


def _by_third(pair: Pair) -> Shares:
    positions = len(pair[1].accept)
    third = np.arange(positions) * 3 // max(positions, 1)
    return {name: (third == index).astype(np.float64) for index, name in enumerate(THIRDS)}


def _by_outcome_before(pair: Pair) -> Shares:
    """The first drafted token has none before it: the prefill gave that one."""
    before = np.array(pair[1].accept[:-1])
    first = np.zeros(min(len(pair[1].accept), 1))
    return {
        "an accepted token": np.concatenate([first, before]),
        "a rejected token": np.concatenate([first, 1 - before]),
    }


def _by_confidence(pair: Pair) -> Shares:
    bounds = (0.0, *CONFIDENCE_EDGES, 1.0)
    found = np.digitize(pair[1].confidence, CONFIDENCE_EDGES)
    return {
        f"{low:g} to {high:g}": (found == index).astype(np.float64)
        for index, (low, high) in enumerate(pairwise(bounds))
    }


_SPLITS: dict[str, Callable[[Pair], Shares]] = {
    "segment": _by_segment,
    "temperature": _by_temperature,
    "third": _by_third,
    "after": _by_outcome_before,
    "confidence": _by_confidence,
}
