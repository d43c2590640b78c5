"""Where in the traffic a draft is accepted and where it is not.

Computes α by groups of requests (segment, temperature, context) and by groups of positions (third
of the response, after an accepted or a rejected token, the draft's confidence), and tokens per
round by group of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec
import numpy as np

from draftbench.acceptance.definitions import (
    TOKENS_PER_ROUND,
    ByRequest,
    Sample,
    accepted_by_position,
    ratio,
)
from draftbench.acceptance.intervals import Estimate, estimates, paired_difference
from draftbench.acceptance.rounds import Floats, Ints, ModelPairs, Pairs, Rounds, model_pairs
from draftbench.records import Trajectory

CONFIDENCE_EDGES = (0.2, 0.4, 0.6, 0.8, 0.95)
THIRDS = ("early", "middle", "late")
_AT_ONCE = 512  # responses whose positions are summed at once
RISING = "acceptance rises over the course of a response"
FALLING = (
    "acceptance falls over the course of a response: the draft loses track of a long text, or its "
    "context is too short"
)
TEMPLATE = "suspect the chat template: the draft may have been trained with another one"
# Ranges of contexts, by the tokens that they begin after: drafts are trained on short ones, and
# attention over some thousands weighs in a pass.
CONTEXTS = {"up to 1k": 0, "1k to 8k": 1024, "8k to 32k": 8192, "over 32k": 32768}
GROUPINGS: dict[str, Callable[[Trajectory], str]] = {
    "segment": lambda trajectory: trajectory.segment or "no segment",
    "temperature": lambda trajectory: f"{trajectory.sampling.temperature:g}",
    "context": lambda trajectory: context_range(trajectory.context),
}


def context_range(tokens: float) -> str:
    """The range of contexts that this one is in."""
    return [name for name, above in CONTEXTS.items() if tokens > above or not above][-1]


def in_order(names: Iterable[str]) -> list[str]:
    """Different names of groups: contexts by length, others by the alphabet."""
    return sorted(set(names), key=lambda name: (CONTEXTS.get(name, 0), name))


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


class GroupRounds(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per round of one group of requests at one k; `by` is segment, temperature or context,
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
    """

    groups: tuple[Group, ...]  # one entry per group
    late_less_early: Estimate | None
    reading: str | None


def breakdown(pairs: Pairs, *, templated: bool = False) -> Breakdown | None:
    """α of every group that has positions; None for drafts without a replay by position, which have
    no α: all but models.

    Args:
        templated: whether the draft may have been trained with another chat template.
    """
    model = model_pairs(pairs)
    if not model:
        return None
    figure, accepted = accepted_by_position(model)
    confident = all(replay.confidence for _, replay in model if replay.accept)
    parts = [  # some responses at a time, to save memory
        _sums(model[at : at + _AT_ONCE], accepted[at : at + _AT_ONCE], confident=confident)
        for at in range(0, len(model), _AT_ONCE)
    ]
    along, whole = ByRequest(t for t, _ in model), np.concatenate([whole for whole, _ in parts])
    sums = {name: np.concatenate([found[name] for _, found in parts]) for name in parts[0][1]}
    # What positions are grouped by, and of each group its name, the responses that it is looked for
    # in, and its sums.
    tables: list[tuple[str, str, ByRequest, Floats]] = []
    for by, name_of in GROUPINGS.items():
        names = np.array([name_of(trajectory) for trajectory in along])
        different = in_order(names.tolist())
        # One range of contexts says nothing; one segment or temperature says which.
        for name in different if by != "context" or len(different) > 1 else ():
            rows = np.flatnonzero(names == name)
            tables.append((by, name, ByRequest(along[row] for row in rows), whole[rows]))
    tables += [(by, name, along, own) for (by, name), own in sums.items()]
    samples = {
        (by, name): ratio(figure, members, *own[:, :2].T) for by, name, members, own in tables
    }
    late_less_early = paired_difference(samples["third", "late"], samples["third", "early"])
    change, *alphas = estimates([late_less_early, *samples.values()])
    groups = []
    for (by, name, _, own), sample, alpha in zip(tables, samples.values(), alphas, strict=True):
        _, drafted, confidence = own.sum(axis=0).tolist()
        if drafted:
            groups.append(
                Group(
                    by=by,
                    name=name,
                    requests=int((sample.addends[:, 1] > 0).sum()),
                    equal_requests=round(sample.equal_requests, 1),
                    positions=drafted,
                    confidence=None if np.isnan(confidence) else confidence / drafted,
                    alpha=alpha,
                )
            )
    reading = None
    if change and change.high < 0:
        reading = FALLING
    elif change and change.low > 0:
        reading = f"{RISING}: {TEMPLATE}" if templated else RISING
    return Breakdown(groups=tuple(groups), late_less_early=change, reading=reading)


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
        for name in in_order(names) if len(set(names)) > 1 else ():
            rows = [row for row, group in enumerate(names) if group == name]
            members = ByRequest(trajectories[row] for row in rows)
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


def extremes(groups: Sequence[GroupRounds]) -> list[tuple[GroupRounds, GroupRounds]]:
    """The groups with the fewest and the most tokens per round, by what they are grouped by, where
    their intervals do not overlap.
    """
    found = []
    for by in dict.fromkeys(group.by for group in groups):
        known = [
            (each, group) for group in groups if group.by == by if (each := group.tokens_per_round)
        ]
        if known:
            low, worst = min(known, key=lambda pair: pair[0].value)
            high, best = max(known, key=lambda pair: pair[0].value)
            found += [(worst, best)] if low.high < high.low else []
    return found


def _sums(
    pairs: ModelPairs, accepted: Sequence[Floats], *, confident: bool
) -> tuple[Floats, dict[tuple[str, str], Floats]]:
    """Sums over the positions of each response at which a draft could draft, all of them and by
    group: how likely the token there is accepted, 1, and the draft's confidence, NaN if unknown
    [responses, 3].
    """
    responses, lengths = len(pairs), np.array([len(values) for values in accepted])
    row, ends = np.repeat(np.arange(responses), lengths), lengths.cumsum()
    at = np.arange(len(row)) - (ends - lengths)[row]
    values = np.full((3, len(row)), np.nan)
    values[:2] = np.concatenate(accepted), np.ones(len(row))
    if confident:
        values[2] = np.concatenate([np.asarray(r.confidence)[: r.draftable] for _, r in pairs])

    def sums(group: Ints | int, groups: int, share: Floats | float = 1.0) -> Floats:
        """The sums of each group, to which positions belong with a probability [groups, responses,
        3].
        """
        place, shape = group * responses + row, (groups, responses)
        every = [np.bincount(place, share * each, groups * responses) for each in values]
        return np.stack([each.reshape(shape) for each in every], axis=-1)

    end = np.array([len(replay.accept) for _, replay in pairs])
    thirds = sums(at * len(THIRDS) // end[row], len(THIRDS))
    found = {("third", name): own for name, own in zip(THIRDS, thirds, strict=True)}
    # The first position belongs to neither: the token before it comes from the prefill.
    before = np.roll(np.concatenate([np.asarray(r.accept)[: r.draftable] for _, r in pairs]), 1)
    found["after", "an accepted token"] = sums(0, 1, np.where(at > 0, before, 0.0))[0]
    found["after", "a rejected token"] = sums(0, 1, np.where(at > 0, 1 - before, 0.0))[0]
    if confident:
        edges = list(pairwise((0.0, *CONFIDENCE_EDGES, 1.0)))
        bins = sums(np.digitize(values[2], CONFIDENCE_EDGES), len(edges))
        for (low, high), own in zip(edges, bins, strict=True):
            found["confidence", f"{low:g} to {high:g}"] = own
    return sums(0, 1)[0], found
