"""A run → every definition of acceptance side by side, for each candidate and between candidates.

Puts together what `definitions`, `breakdown`, `stopping`, `trees` and `faults` compute; prints
nothing and needs no model. Loops of repeated text, which inflate acceptance, are not looked for:
observations hold no tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from draftbench.acceptance import definitions
from draftbench.acceptance.breakdown import Breakdown, Disagreement, breakdown
from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.faults import Fault, suspected_faults
from draftbench.acceptance.groups import GroupRounds, rounds_by_group
from draftbench.acceptance.intervals import (
    Estimate,
    estimate,
    paired_difference,
    requests_needed,
)
from draftbench.acceptance.laws import AnyReplay, law_of, replays_of
from draftbench.acceptance.rounds import Rounds, expected_rounds
from draftbench.acceptance.stopping import (
    Stopping,
    TemperatureRounds,
    by_temperature,
    stopping_rules,
)
from draftbench.acceptance.templating import template_may_differ
from draftbench.acceptance.ties import near_tie, near_tie_share
from draftbench.acceptance.trees import TreeFigures, best_trees
from draftbench.records import Candidate, DraftingMode, LookupReplay, Trajectory
from draftbench.run_folder.run import Run

Pairs = Sequence[tuple[Trajectory, AnyReplay]]

AT_EACH_K: tuple[Callable[[Sequence[Trajectory], Rounds], Sample], ...] = (
    definitions.accepted_per_drafted,
    definitions.tokens_per_round,
    definitions.mean_accepted_length,
    definitions.accepted_without_bonus,
    definitions.uncut_accepted_length,
)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of one candidate: pooled over tokens, and as the mean of the requests' own.

    `k` is the draft length that it holds at, None for α. `requests_needed` is how many requests
    like these give the pooled figure the asked width.
    """

    figure: str
    symbol: str
    k: int | None
    pooled: Estimate | None
    per_request: Estimate | None
    requests_needed: int | None


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that replay says of one candidate. `mode` is None for prompt lookup.

    `hazards` and `survivals` are those of the largest k. `rounds_by_group` has each segment's and
    each temperature's requests at each k, for prompt lookup too. `trees` is what an engine that
    drafts trees could reach at temperature 0, not to be compared with the chain's figures at the
    same k.
    """

    candidate: str
    mode: DraftingMode | None
    requests: int
    responses: int
    alpha: Reading | None
    at_each_k: tuple[Reading, ...]
    hazards: tuple[Reading, ...]
    survivals: tuple[Reading, ...]
    breakdown: Breakdown | None
    stopping: tuple[Stopping, ...]
    temperatures: tuple[TemperatureRounds, ...]
    trees: tuple[TreeFigures, ...]
    faults: tuple[Fault, ...]
    rounds_by_group: tuple[GroupRounds, ...] = ()


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of `candidate` less that of `against`, over the `requests` that both have."""

    candidate: str
    against: str
    figure: str
    k: int | None
    requests: int
    value: Estimate | None


class AcceptanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Cards of the candidates, and the first one against each other. `width` is the relative half
    width that `requests_needed` is about. `disagreements` holds tokens: only where asked for.
    `near_tie_share` is the share of output positions whose two best target tokens are within
    numeric noise.
    """

    width: float
    cards: tuple[Card, ...]
    differences: tuple[Difference, ...]
    disagreements: dict[str, tuple[Disagreement, ...]] | None = None
    near_tie_share: float | None = None


@dataclass(frozen=True, eq=False)
class _Replayed:
    """One candidate along the run's responses, with the expected rounds at every k it can do;
    `templated` as for `breakdown`.
    """

    candidate: Candidate
    pairs: Pairs
    rounds: Mapping[int, Rounds]
    templated: bool

    @property
    def trajectories(self) -> list[Trajectory]:
        return [trajectory for trajectory, _ in self.pairs]

    def compared(self) -> dict[int | None, Sample]:
        """What candidates are compared by: α (at no k) and tokens per round at each k."""
        own = self.trajectories
        alpha = definitions.alpha(self.pairs)
        found: dict[int | None, Sample] = {} if alpha is None else {None: alpha}
        for k, rounds in self.rounds.items():
            found[k] = definitions.tokens_per_round(own, rounds)
        return found


def acceptance_report(
    observed: Run, candidates: Sequence[Candidate], ks: Sequence[int], width: float
) -> AcceptanceReport:
    """Read everything that the run's replays say of `candidates`.

    Args:
        ks: draft lengths; prompt lookup leaves out those beyond the window it was measured with.
        width: the relative half width of an interval that `requests_needed` asks for.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    margin = near_tie(observed)
    replayed = [_replayed(observed, candidate, ks) for candidate in candidates]
    return AcceptanceReport(
        width=width,
        cards=tuple(_card(each, width, margin) for each in replayed),
        near_tie_share=near_tie_share(observed),
        differences=tuple(
            difference for other in replayed[1:] for difference in _differences(replayed[0], other)
        ),
    )


def _replayed(observed: Run, candidate: Candidate, ks: Sequence[int]) -> _Replayed:
    pairs = replays_of(candidate, observed.trajectories, observed.replays)
    laws = [law_of(trajectory, replay) for trajectory, replay in pairs]
    windows = [replay.window for _, replay in pairs if isinstance(replay, LookupReplay)]
    possible = [k for k in ks if laws and k <= min(windows, default=k)]
    rounds = {k: expected_rounds(laws, k) for k in possible}
    return _Replayed(candidate, pairs, rounds, template_may_differ(observed, candidate))


def _card(replayed: _Replayed, width: float, near_tie: float) -> Card:
    pairs, own = replayed.pairs, replayed.trajectories
    alpha = definitions.alpha(pairs)
    longest = max(replayed.rounds, default=None)
    positions = range(1, (longest or 0) + 1)
    at_longest = replayed.rounds[longest] if longest else None
    return Card(
        candidate=str(replayed.candidate),
        mode=next((r.mode for _, r in pairs if not isinstance(r, LookupReplay)), None),
        requests=len({trajectory.request for trajectory in own}),
        responses=len(own),
        alpha=None if alpha is None else _reading(alpha, None, width),
        at_each_k=tuple(
            _reading(figure(own, rounds), k, width)
            for k, rounds in replayed.rounds.items()
            for figure in AT_EACH_K
        ),
        hazards=tuple(
            _reading(definitions.hazard(own, at_longest, i), longest, width)
            for i in positions
            if at_longest
        ),
        survivals=tuple(
            _reading(definitions.survival(own, at_longest, i), longest, width)
            for i in positions
            if at_longest
        ),
        breakdown=breakdown(pairs, templated=replayed.templated),
        stopping=stopping_rules(pairs, longest) if longest else (),
        temperatures=by_temperature(pairs, tuple(replayed.rounds)),
        trees=best_trees(pairs, longest) if longest else (),
        faults=suspected_faults(
            replayed.candidate, pairs, tuple(replayed.rounds.values()), near_tie
        ),
        rounds_by_group=rounds_by_group(own, replayed.rounds),
    )


def _reading(sample: Sample, k: int | None, width: float) -> Reading:
    return Reading(
        figure=sample.figure.name,
        symbol=sample.figure.symbol,
        k=k,
        pooled=estimate(sample),
        per_request=estimate(definitions.per_request_mean(sample)),
        requests_needed=requests_needed(sample, width),
    )


def _differences(one: _Replayed, other: _Replayed) -> list[Difference]:
    """Only the same figure at the same k; α of two drafting modes or bases is not compared."""
    found, theirs = [], other.compared()
    for k, sample in one.compared().items():
        if k not in theirs or theirs[k].figure != sample.figure:
            continue
        difference = paired_difference(sample, theirs[k])
        found.append(
            Difference(
                candidate=str(one.candidate),
                against=str(other.candidate),
                figure=sample.figure.name,
                k=k,
                requests=len(difference.requests),
                value=estimate(difference),
            )
        )
    return found
