"""What the `acceptance` command shows: every figure of every candidate, and their differences."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec

from draftbench.acceptance import definitions
from draftbench.acceptance.breakdown import Breakdown, GroupRounds, breakdown, rounds_by_group
from draftbench.acceptance.candidate_rounds import (
    ResponseRounds,
    candidate_rounds,
    counted_in,
    runs_at,
)
from draftbench.acceptance.definitions import FIGURES, Figure, Sample
from draftbench.acceptance.faults import (
    SuspectedFault,
    near_tie,
    near_tie_share,
    suspected_faults,
    template_may_differ,
)
from draftbench.acceptance.intervals import Estimate, estimates, paired_difference, requests_needed
from draftbench.acceptance.rounds import Rounds, model_pairs
from draftbench.acceptance.trees import TreeFigures, best_trees
from draftbench.records import Candidate, DraftingMode, DraftLength, Trajectory
from draftbench.run_folder.run import Run

# The figures that are computed at every k.
AT_EACH_K: tuple[Callable[[Sequence[Trajectory], Rounds], Sample], ...] = (
    definitions.accepted_per_drafted,
    definitions.tokens_per_round,
    definitions.mean_accepted_length,
    definitions.accepted_without_bonus,
    definitions.uncut_accepted_length,
)


class FigureEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one candidate: pooled over all tokens, and as the mean over requests.

    `k` is None for α. With too few requests for an interval only `without_interval` is set.
    `per_request` is None where the figure was predicted from hazards that all requests share.
    `requests_needed` is how many requests like these give the pooled figure the wanted width.
    """

    figure: str
    symbol: str
    k: int | None
    pooled: Estimate | None  # over all tokens
    without_interval: float | None  # the value alone, where there is no interval
    per_request: Estimate | None  # mean over requests
    requests_needed: int | None


class CandidateAcceptance(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one candidate: from its replays, or where only an engine ran it or decoding
    contradicts them, from the rounds that were `counted`. Then `predicted` has the smaller k's that
    were not decoded, from the acceptance by position at the largest. `mode` is None for drafts that
    have no acceptance by position or were not replayed. Requests of unequal length carry as much
    information as `equal_requests` of one length.

    `hazards` and `survivals` are those of the largest k. `rounds_by_group` has each segment and
    each temperature at each k, for every draft. `trees` is what an engine that drafts trees
    could reach at temperature 0, not comparable with the other figures at the same k.
    """

    candidate: str
    mode: DraftingMode | None
    requests: int
    equal_requests: float
    responses: int  # how many responses
    alpha: FigureEstimate | None
    at_each_k: tuple[FigureEstimate, ...]  # every definition at every k
    hazards: tuple[FigureEstimate, ...]
    survivals: tuple[FigureEstimate, ...]
    breakdown: Breakdown | None  # α by group
    trees: tuple[TreeFigures, ...]
    faults: tuple[SuspectedFault, ...]  # suspected faults
    rounds_by_group: tuple[GroupRounds, ...] = ()
    counted: bool = False
    predicted: tuple[FigureEstimate, ...] = ()  # as `at_each_k`


class FigureDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of `candidate` less that of `against`, over the `requests` that both have."""

    candidate: str
    against: str
    figure: str
    k: int | None
    requests: int
    value: Estimate | None


class AcceptanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The candidates' figures, and how the first candidate differs from each of the others.

    `width` is the relative half width that `requests_needed` aims at. `near_tie_share` is the share
    of output positions whose two best target tokens are within numeric noise. Of the requests,
    `constrained` have structured output, and were replayed without its grammar. `doubts` say in
    sentences why figures cannot be relied on.
    """

    width: float
    candidates: tuple[CandidateAcceptance, ...]
    differences: tuple[FigureDifference, ...]
    near_tie_share: float | None = None
    constrained: int = 0
    doubts: tuple[str, ...] = ()
    definitions: tuple[Figure, ...] = FIGURES  # of each figure in use, with engines' names for it


def acceptance_report(
    run: Run,
    candidates: Sequence[Candidate],
    ks: Sequence[int],
    width: float,
    *,
    everything: bool = True,
    doubts: tuple[str, ...] = (),
) -> AcceptanceReport:
    """Compute every figure of acceptance of `candidates` from the run's replays, or for a candidate
    without replays that hold from the rounds that were counted.

    Args:
        ks: draft lengths; drafts without acceptance by position leave out those beyond the window
            that they were measured with. Counts are shown at the k's that were decoded.
        width: the relative half width of an interval that `requests_needed` aims at.
        everything: or only what one screen shows: α by group, τ and hazards, pooled.
        doubts: why figures cannot be relied on.
    """
    cards: list[CandidateAcceptance] = []
    differences: dict[tuple[str, int | None], Sample] = {}
    first: dict[int | None, Sample] = {}
    for candidate in candidates:
        card, samples = _figures(run, candidate, ks, width, everything)
        cards.append(card)
        for at, sample in first.items() if everything else ():
            # Only the same figure at the same k, so not α of two drafting modes or bases.
            if at in samples and samples[at].figure == sample.figure:
                differences[str(candidate), at] = paired_difference(sample, samples[at])
        first = first if len(cards) > 1 else samples
    return AcceptanceReport(
        width=width,
        candidates=tuple(cards),
        differences=tuple(
            FigureDifference(
                candidate=cards[0].candidate,
                against=against,
                figure=first[k].figure.name,
                k=k,
                requests=len(difference.requests),
                value=value,
            )
            for ((against, k), difference), value in zip(
                differences.items(), estimates([*differences.values()]), strict=True
            )
        ),
        near_tie_share=near_tie_share(run),
        constrained=run.manifest.traffic.constrained,
        doubts=doubts,
    )


def groups_at(
    run: Run, candidates: Sequence[Candidate], k: int
) -> dict[Candidate, tuple[GroupRounds, ...]]:
    """Tokens per round of each segment and temperature at one k, of the candidates whose replay
    holds: those of others are known at few k's.
    """
    replayed = {
        each: rounds for each in candidates if (rounds := candidate_rounds(run, each)).replays
    }
    return {
        candidate: rounds_by_group(rounds.trajectories, {k: rounds.at(k)})
        for candidate, rounds in replayed.items()
    }


def _figures(
    run: Run, candidate: Candidate, ks: Sequence[int], width: float, everything: bool
) -> tuple[CandidateAcceptance, dict[int | None, Sample]]:
    """All figures of one candidate; and those that are compared with another's, α (None) and tokens
    per round by k.
    """
    own = candidate_rounds(run, candidate, tuple(ks))
    pairs, known = own.replays, [k for k in ks if own.reaches(k)]
    rounds = {k: (own.trajectories, own.at(k)) for k in known}
    predicted: dict[int, ResponseRounds] = {}
    if own.served:  # counted at its smallest load with a k
        fixed = (row for row in run.decodes if row.candidate == candidate and row.stop is None)
        smallest = dict(sorted({(row.k, row.concurrency) for row in fixed}, reverse=True))
        counted = {
            k: counted_in(runs_at(run, candidate, DraftLength(k), load))
            for k, load in smallest.items()
        }
        predicted = {k: at_k for k, at_k in rounds.items() if k not in counted}
        rounds = dict(sorted(counted.items()))
        rate: Sample | None = definitions.alpha_of_rounds(*rounds[max(rounds)])
    else:
        rate = definitions.alpha(pairs)
    longest = max(rounds, default=0)
    trajectories = rounds[longest][0] if rounds else [trajectory for trajectory, _ in pairs]
    # Where an engine reported sums, nothing is known by position.
    positions = range(1, longest + 1) if pairs or (rate and rate.value is not None) else ()
    figures_of = AT_EACH_K if everything else (definitions.mean_accepted_length,)
    wanted: list[tuple[str, int | None, Sample]] = []  # the field that a figure is for, its k
    if rate is not None and rate.value is not None:
        wanted.append(("alpha", None, rate))
    wanted += [("at_each_k", k, of(*at_k)) for k, at_k in rounds.items() for of in figures_of]
    for i in positions:
        wanted.append(("hazards", longest, definitions.hazard(*rounds[longest], i)))
        if everything:
            wanted.append(("survivals", longest, definitions.survival(*rounds[longest], i)))
    wanted += [("predicted", k, of(*at_k)) for k, at_k in predicted.items() for of in figures_of]
    samples = [sample for *_, sample in wanted]
    means = [definitions.per_request_mean(each) if everything else None for each in samples]
    # All at once, since requests are drawn once for the figures that are computed together.
    intervals = estimates([*samples, *means])
    figures = defaultdict[str, list[FigureEstimate]](list)
    for (name, k, sample), pooled, mean in zip(
        wanted, intervals[: len(samples)], intervals[len(samples) :], strict=True
    ):
        figure = FigureEstimate(
            figure=sample.figure.name,
            symbol=sample.figure.symbol,
            k=k,
            pooled=pooled,
            without_interval=None if pooled else sample.value,
            # A predicted one's addends are a request's share in hazards of all requests.
            per_request=None if name == "predicted" else mean,
            requests_needed=requests_needed(sample, width),
        )
        figures[name].append(figure)
    faults = suspected_faults(candidate, pairs, [at for _, at in rounds.values()], near_tie(run))
    groups: tuple[GroupRounds, ...] = ()
    if everything:
        alike = {k: at_k for k, (of, at_k) in rounds.items() if of == trajectories}
        groups = rounds_by_group(trajectories, alike)
    card = CandidateAcceptance(
        candidate=str(candidate),
        mode=next((replay.mode for _, replay in model_pairs(pairs)), None),
        requests=len({trajectory.request for trajectory in trajectories}),
        equal_requests=round(definitions.by_tokens(trajectories).equal_requests, 1),
        responses=len(trajectories),
        alpha=next(iter(figures["alpha"]), None),
        at_each_k=tuple(figures["at_each_k"]),
        hazards=tuple(figures["hazards"]),
        survivals=tuple(figures["survivals"]),
        breakdown=breakdown(pairs, templated=template_may_differ(run, candidate)),
        trees=best_trees(pairs, longest) if everything and pairs and longest else (),
        faults=((own.contradiction, *faults) if own.contradiction else faults),
        rounds_by_group=groups,
        counted=bool(rounds) and not pairs,
        predicted=tuple(figures["predicted"]),
    )
    compared = {None: rate} if rate else {}
    return card, compared | {k: definitions.tokens_per_round(*at) for k, at in rounds.items()}
