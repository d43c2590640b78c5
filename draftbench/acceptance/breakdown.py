"""Where in the traffic a draft is accepted and where it is not.

Computes α by groups of requests (segment, temperature, both) and by groups of positions (third of
the response, after an accepted or a rejected token, the draft's confidence), tokens per round by
group of requests, and which wrong tokens cost the most rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from draftbench.acceptance.definitions import TOKENS_PER_ROUND, Sample, alpha, ratio
from draftbench.acceptance.intervals import Estimate, estimates, paired_difference
from draftbench.acceptance.rounds import (
    Floats,
    ModelPairs,
    Pairs,
    PositionLaw,
    Rounds,
    law_of,
    model_pairs,
    tried_probabilities,
)
from draftbench.records import Key, Replay, Trajectory

CONFIDENCE_EDGES = (0.2, 0.4, 0.6, 0.8, 0.95)
THIRDS = ("early", "middle", "late")
RISING = "acceptance rises over the course of a response"
FALLING = (
    "acceptance falls over the course of a response: the draft loses track of a long text, or its "
    "context is too short"
)
TEMPLATE = "suspect the chat template: the draft may have been trained with another one"
GROUPINGS: dict[str, Callable[[Trajectory], str]] = {
    "segment": lambda trajectory: trajectory.segment or "no segment",
    "temperature": lambda trajectory: f"{trajectory.sampling.temperature:g}",
}


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """α of one group of positions; `by` names what they are grouped by.

    Above temperature 0 a position belongs to "after an accepted token" with a probability, so
    `positions` is an expected number. `confidence` is the mean of max q, which for a
    well-calibrated greedy draft is near α at temperature 0. Requests of unequal length carry as
    much information as `equal_requests` of one length.
    """

    by: str
    name: str
    requests: int
    equal_requests: float
    positions: float
    confidence: float | None
    alpha: Estimate | None


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """α of the requests of one segment at one temperature, which takes five of them. `positions`
    are those where the draft could draft; `equal_requests` is as in `Group`.
    """

    segment: str
    temperature: float
    requests: int
    equal_requests: float
    positions: float
    alpha: Estimate | None


class GroupRounds(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per round of one group of requests at one k; `by` is segment or temperature,
    `equal_requests` as in `Group`.
    """

    by: str
    name: str
    k: int
    requests: int
    equal_requests: float
    tokens_per_round: Estimate | None


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """α by group. `late_less_early` is α of the last third of responses minus that of the first,
    paired by request; `reading` explains it, and is None where the interval includes 0.

    `crossings` has every segment at every temperature; it is empty where the traffic has only one
    segment or only one temperature.
    """

    groups: tuple[Group, ...]  # one entry per group
    late_less_early: Estimate | None
    reading: str | None
    crossings: tuple[Crossing, ...] = ()


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """A pair of token ids: the draft's best token where the target wrote another one. A greedy
    draft proposed it; a sampled draft most likely did.

    `rounds_lost` is the expected number of rounds that ended on it, `share` the same as a share of
    all rounds that ended on a rejected token, `times` the number of positions where it occurred.
    """

    drafted: int  # what the draft proposed, a token id
    target: int  # what the target wrote, a token id
    times: int
    rounds_lost: float
    share: float


def breakdown(pairs: Pairs, *, templated: bool = False) -> Breakdown | None:
    """α of every group that has positions; None for prompt lookup, which has no α.

    Args:
        templated: whether the draft may have been trained with another chat template.
    """
    model = model_pairs(pairs)
    if not model:
        return None
    groups: list[Group] = []
    samples: dict[tuple[str, str], Sample] = {}
    has_confidence = all(replay.confidence for _, replay in model if replay.accept)
    for by in (*GROUPINGS, "third", "after", *(["confidence"] if has_confidence else [])):
        memberships = [_membership(by, *pair) for pair in model]
        names = dict.fromkeys(name for groups_of in memberships for name in groups_of)
        for name in sorted(names) if by in GROUPINGS else names:
            members = [
                pair
                for pair, groups_of in zip(model, memberships, strict=True)
                if name in groups_of
            ]
            shares = [groups_of[name] for groups_of in memberships if name in groups_of]
            samples[by, name] = sample = _alpha(members, shares)
            positions = confidence = 0.0
            for (_, replay), share in zip(members, shares, strict=True):
                drafted = share[: replay.draftable]
                positions += float(drafted.sum())
                if has_confidence:
                    confidence += float(drafted @ np.array(replay.confidence[: len(drafted)]))
            if positions:
                groups.append(
                    Group(
                        by=by,
                        name=name,
                        requests=int((sample.addends[:, 1] > 0).sum()),
                        equal_requests=round(sample.equal_requests, 1),
                        positions=positions,
                        confidence=confidence / positions if has_confidence else None,
                        alpha=None,
                    )
                )
    late_less_early = paired_difference(samples["third", "late"], samples["third", "early"])
    change, *alphas = estimates([late_less_early, *(samples[g.by, g.name] for g in groups)])
    reading = None
    if change and change.high < 0:
        reading = FALLING
    elif change and change.low > 0:
        reading = f"{RISING}: {TEMPLATE}" if templated else RISING
    return Breakdown(
        groups=tuple(
            msgspec.structs.replace(group, alpha=interval)
            for group, interval in zip(groups, alphas, strict=True)
        ),
        late_less_early=change,
        reading=reading,
        crossings=_crossings(model),
    )


def rounds_by_group(
    trajectories: Sequence[Trajectory], rounds: Mapping[int, Rounds]
) -> tuple[GroupRounds, ...]:
    """Tokens per round of every group of requests at every k; a grouping with a single group is
    left out.

    Args:
        rounds: by k, with a row for each trajectory.
    """
    samples: dict[tuple[str, str, int], Sample] = {}
    for by, name_of in GROUPINGS.items():
        names = [name_of(trajectory) for trajectory in trajectories]
        for name in sorted(set(names)) if len(set(names)) > 1 else ():
            rows = [row for row, group in enumerate(names) if group == name]
            members = tuple(trajectories[row] for row in rows)
            for k, at_k in rounds.items():
                passes = at_k.target_passes[rows]
                samples[by, name, k] = ratio(TOKENS_PER_ROUND, members, at_k.tokens[rows], passes)
    return tuple(
        GroupRounds(
            by=by,
            name=name,
            k=k,
            requests=len(sample.requests),
            equal_requests=round(sample.equal_requests, 1),
            tokens_per_round=interval,
        )
        for ((by, name, k), sample), interval in zip(
            samples.items(), estimates([*samples.values()]), strict=True
        )
    )


def costliest_disagreements(
    pairs: Pairs,
    k: int,
    drafted: Mapping[Key, Sequence[int]],
    written: Mapping[Key, Sequence[int]],
    most: int = 20,
) -> tuple[Disagreement, ...]:
    """The pairs of tokens that end the most rounds at draft length k.

    Args:
        drafted: the draft's best token at the positions 1 … length-1, by response.
        written: the response's tokens y_0 …, by response.
    """
    with_tokens = [(t, r) for t, r in model_pairs(pairs) if t.key in drafted]
    laws = [law for pair in with_tokens if isinstance(law := law_of(*pair), PositionLaw)]
    lost: defaultdict[tuple[int, int], float] = defaultdict(float)
    times: defaultdict[tuple[int, int], int] = defaultdict(int)
    total = 0.0
    for (t, _), law, tried in zip(with_tokens, laws, tried_probabilities(laws, k), strict=True):
        ended = t.weight * tried * (1 - law.accept[: len(tried)])
        total += float(ended.sum())
        both = drafted[t.key], written[t.key][1:]
        for guess, token, rounds in zip(*both, ended, strict=False):
            if guess != token and rounds > 0:
                lost[guess, token] += float(rounds)
                times[guess, token] += 1
    costliest = sorted(lost, key=lambda pair: (-lost[pair], pair))[:most]
    return tuple(
        Disagreement(
            drafted=pair[0],
            target=pair[1],
            times=times[pair],
            rounds_lost=lost[pair],
            share=lost[pair] / total,
        )
        for pair in costliest
    )


def _alpha(pairs: ModelPairs, shares: Sequence[Floats] | None = None) -> Sample:
    sample = alpha(pairs, shares)
    assert sample is not None  # only prompt lookup has none
    return sample


def _membership(by: str, trajectory: Trajectory, replay: Replay) -> dict[str, Floats]:
    """The probability that each position of a response belongs to each group [positions]."""
    positions = len(replay.accept)
    if by in GROUPINGS:
        return {GROUPINGS[by](trajectory): np.ones(positions)}
    if by == "third":
        third = np.arange(positions) * 3 // max(positions, 1)
        return {name: (third == at).astype(np.float64) for at, name in enumerate(THIRDS)}
    if by == "after":
        before = np.array(replay.accept[:-1])
        # The first position belongs to neither: the token before it comes from the prefill.
        first = np.zeros(min(positions, 1))
        return {
            "an accepted token": np.concatenate([first, before]),
            "a rejected token": np.concatenate([first, 1 - before]),
        }
    bins = np.digitize(replay.confidence, CONFIDENCE_EDGES)
    return {
        f"{low:g} to {high:g}": (bins == at).astype(np.float64)
        for at, (low, high) in enumerate(pairwise((0.0, *CONFIDENCE_EDGES, 1.0)))
    }


def _crossings(pairs: ModelPairs) -> tuple[Crossing, ...]:
    cells: defaultdict[tuple[str, float], list[tuple[Trajectory, Replay]]] = defaultdict(list)
    for pair in pairs:
        key = GROUPINGS["segment"](pair[0]), pair[0].sampling.temperature
        cells[key].append(pair)
    if 1 in (len(set(names)) for names in zip(*cells, strict=True)):
        return ()
    samples = {cell: _alpha(members) for cell, members in sorted(cells.items())}
    return tuple(
        Crossing(
            segment=segment,
            temperature=temperature,
            requests=len(sample.requests),
            equal_requests=round(sample.equal_requests, 1),
            positions=float(
                sum(min(r.draftable, len(r.accept)) for _, r in cells[segment, temperature])
            ),
            alpha=interval,
        )
        for ((segment, temperature), sample), interval in zip(
            samples.items(), estimates([*samples.values()]), strict=True
        )
    )
