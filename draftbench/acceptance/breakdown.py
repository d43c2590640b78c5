"""Where in the traffic a draft is accepted and where it is not.

Computes α by groups of requests (segment, temperature, both) and by groups of positions (third of
the response, after an accepted or a rejected token, the draft's confidence), tokens per round by
group of requests, and which wrong tokens cost the most rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from draftbench.acceptance.definitions import (
    TOKENS_PER_ROUND,
    Figure,
    Sample,
    accepted_by_position,
    ratio,
)
from draftbench.acceptance.intervals import Estimate, estimates, paired_difference
from draftbench.acceptance.rounds import (
    Floats,
    Ints,
    ModelPairs,
    Pairs,
    PositionLaw,
    Rounds,
    law_of,
    model_pairs,
    tried_probabilities,
)
from draftbench.records import Key, Trajectory

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
    positions = _Positions.of(model)
    groups: list[Group] = []
    samples: dict[tuple[str, str], Sample] = {}
    for by, name, rows, share in positions.groups():
        samples[by, name] = sample = positions.alpha(rows, share)
        drafted = float(share.sum())
        if drafted:
            known = positions.confidence
            groups.append(
                Group(
                    by=by,
                    name=name,
                    requests=int((sample.addends[:, 1] > 0).sum()),
                    equal_requests=round(sample.equal_requests, 1),
                    positions=drafted,
                    confidence=None if known is None else float(share @ known) / drafted,
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
        crossings=_crossings(positions),
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


@dataclass(frozen=True, eq=False)
class _Positions:
    """All positions at which a draft could draft, of all responses in a row [positions]."""

    pairs: ModelPairs
    figure: Figure  # which α
    accepted: Floats  # how likely the token there is accepted
    row: Ints  # of which response
    at: Ints  # where in it, from 0
    before: Floats  # how likely the token before was accepted; NaN at the first position
    confidence: Floats | None  # None where a replay has none

    @classmethod
    def of(cls, pairs: ModelPairs) -> _Positions:
        """The positions of these responses."""
        figure, accepted = accepted_by_position(pairs)
        lengths = np.array([len(values) for values in accepted])
        ends = lengths.cumsum()
        at = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        tokens = np.concatenate([np.asarray(r.accept)[: r.draftable] for _, r in pairs])
        before = np.where(at > 0, np.roll(tokens, 1), np.nan)
        known = all(replay.confidence for _, replay in pairs if replay.accept)
        confidence = [np.asarray(r.confidence)[: r.draftable] for _, r in pairs] if known else []
        return cls(
            pairs=pairs,
            figure=figure,
            accepted=np.concatenate(accepted),
            row=np.repeat(np.arange(len(pairs)), lengths),
            at=at,
            before=before,
            confidence=np.concatenate(confidence) if known else None,
        )

    def alpha(self, rows: Ints, share: Floats) -> Sample:
        """α over the positions of a group, weighed by the probability that they belong to it."""
        there = np.flatnonzero(share)
        row, weights = self.row[there], share[there]
        accepted, drafted = (
            np.bincount(row, values, len(self.pairs))[rows].astype(np.float64)
            for values in (weights * self.accepted[there], weights)
        )
        return ratio(self.figure, [self.pairs[at][0] for at in rows], accepted, drafted)

    def of_responses(self, rows: Ints) -> Floats:
        """1 at the positions of these responses."""
        return np.isin(np.arange(len(self.pairs)), rows).astype(np.float64)[self.row]

    def groups(self) -> Iterator[tuple[str, str, Ints, Floats]]:
        """What positions are grouped by, and of each group its name, the responses that it is
        looked for in, and the probability that each position belongs to it.
        """
        for by, name_of in GROUPINGS.items():
            names = np.array([name_of(trajectory) for trajectory, _ in self.pairs])
            for name in np.unique(names).tolist():
                rows = np.flatnonzero(names == name)
                yield by, name, rows, self.of_responses(rows)
        every = np.arange(len(self.pairs))
        lengths = np.array([len(replay.accept) for _, replay in self.pairs])
        thirds = self.at * 3 // lengths[self.row]
        for third, name in enumerate(THIRDS):
            yield "third", name, every, (thirds == third).astype(np.float64)
        # The first position belongs to neither: the token before it comes from the prefill.
        yield "after", "an accepted token", every, np.nan_to_num(self.before)
        yield "after", "a rejected token", every, np.nan_to_num(1 - self.before)
        if self.confidence is not None:
            bins = np.digitize(self.confidence, CONFIDENCE_EDGES)
            for at, (low, high) in enumerate(pairwise((0.0, *CONFIDENCE_EDGES, 1.0))):
                yield "confidence", f"{low:g} to {high:g}", every, (bins == at).astype(np.float64)


def _crossings(positions: _Positions) -> tuple[Crossing, ...]:
    cells: defaultdict[tuple[str, float], list[int]] = defaultdict(list)
    for row, (trajectory, _) in enumerate(positions.pairs):
        cells[GROUPINGS["segment"](trajectory), trajectory.sampling.temperature].append(row)
    if 1 in (len(set(names)) for names in zip(*cells, strict=True)):
        return ()
    found = []
    for cell, members in sorted(cells.items()):
        share = positions.of_responses(rows := np.array(members))
        found.append((cell, float(share.sum()), positions.alpha(rows, share)))
    intervals = estimates([sample for _, _, sample in found])
    return tuple(
        Crossing(
            segment=segment,
            temperature=temperature,
            requests=len(sample.requests),
            equal_requests=round(sample.equal_requests, 1),
            positions=drafted,
            alpha=interval,
        )
        for ((segment, temperature), drafted, sample), interval in zip(
            found, intervals, strict=True
        )
    )
