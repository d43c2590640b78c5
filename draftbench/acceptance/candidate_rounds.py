"""A candidate's rounds: those expected at any k from its replays, and those counted while it was
decoded or served. A draft that only an engine runs has no replays, and replays that decoding
contradicts do not count; then rounds are expected from those counted at the largest k.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import is_not

import numpy as np

from draftbench.acceptance.definitions import ByRequest
from draftbench.acceptance.faults import SuspectedFault, contradiction, near_tie
from draftbench.acceptance.rounds import (
    Floats,
    Pairs,
    Rounds,
    alpha_of,
    counted_rounds,
    expected_rounds,
    rounds_at_each,
)
from draftbench.drafts.kinds import kind_of
from draftbench.drafts.laws import (
    Drafted,
    HazardLaw,
    ResponseLaw,
    StartLaw,
    drafted_along,
    has_confidences,
    law_of,
)
from draftbench.records import (
    Candidate,
    Decode,
    DraftLength,
    Key,
    LookupReplay,
    StopRule,
    Trajectory,
)
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

# Responses, and the rounds along them.
ResponseRounds = tuple[ByRequest, Rounds]
# Responses whose tokens are laid out at once: larger arrays take longer to allocate than to fill.
_AT_ONCE = 512
# Half the difference in hazards over which a derivative is taken.
_STEP = 1e-4


@dataclass(frozen=True, eq=False)
class ServedRounds:
    """What an engine showed of a draft while it served some responses."""

    responses: tuple[Trajectory, ...]
    hazards: Floats  # by draft position; NaN if the engine does not report its rounds
    influence: Floats  # of each response on the hazards [responses, positions]

    def laws(self) -> tuple[HazardLaw, ...]:
        """The shared hazards, for each response."""
        return self._laws_with(self.hazards)

    def _laws_with(self, hazards: Floats) -> tuple[HazardLaw, ...]:
        return tuple(HazardLaw(t.output_tokens, t.limit, hazards) for t in self.responses)

    def rounds(self, k: int) -> Rounds:
        """The expected rounds of every response, with its influence on the hazards; NaN if the
        engine does not report its rounds.

        Raises:
            ValueError: k is beyond the hazards.
        """
        if np.isnan(self.hazards).any():
            shapes = expected_rounds(self._laws_with(np.zeros(len(self.hazards))), k)
            counts = {name: np.full_like(value, np.nan) for name, value in shapes.counts.items()}
            return Rounds(**counts | {"tokens": shapes.tokens}, k=k)
        counts = expected_rounds(self.laws(), k).counts
        often = Counter(t.request for t in self.responses)
        # A request is the mean of its responses, and counts as often as it occurs in the traffic.
        weights = np.array([t.weight / often[t.request] for t in self.responses])
        for position in range(k):
            step = np.zeros(len(self.hazards))
            step[position] = _STEP
            more, less = (
                expected_rounds(self._laws_with(self.hazards + sign * step), k) for sign in (1, -1)
            )
            share = self.influence[:, position] / weights
            for name in counts:
                slope = weights @ (getattr(more, name) - getattr(less, name)) / (2 * _STEP)
                counts[name] = counts[name] + np.multiply.outer(share, slope)
        return Rounds(**counts, k=k)


def served_rounds(run: Run, candidate: Candidate) -> ServedRounds | None:
    """What decoding or an engine showed of a candidate at the largest k; None if it was neither
    decoded nor served.
    """
    rows = [row for row in run.decodes if row.candidate == candidate and row.stop is None]
    largest = max((row.k for row in rows), default=0)
    if not largest:
        return None
    served = {row.key for row in rows}
    responses = tuple(t for t in run.trajectories if t.key in served)
    counted = [row for row in rows if row.k == largest]
    by_round = [row for row in counted if not row.summed]
    rounds = counted_rounds(by_round or counted)
    influence = np.zeros((len(responses), largest))
    if not rounds.target_passes.any():
        return ServedRounds(responses, np.full(largest, np.nan), influence)
    if not by_round:  # of sums alone: every position has the hazard that accepts as many tokens
        accepted, drafted = rounds.accepted.sum(), max(rounds.with_draft.sum(), 1.0)
        shares = alpha_of(1 + accepted / drafted, largest) ** np.arange(1, largest + 1)
        survived = np.multiply.outer(rounds.accepted, shares / (shares.sum() or 1.0))
        reached = np.column_stack([rounds.with_draft, survived[:, :-1]])
        rounds = replace(rounds, reached=reached, survived=survived)
    # What finds fewer than k tokens in the text fails at the next one.
    if candidate.looks_up or kind_of(candidate.draft).from_text:
        reached = np.column_stack([rounds.target_passes, rounds.survived[:, :-1]])
        rounds = replace(rounds, reached=reached)
    reached, survived = rounds.reached.sum(axis=0), rounds.survived.sum(axis=0)
    hazards = np.divide(survived, reached, out=np.zeros(largest), where=reached > 0)
    at = {t.key: row for row, t in enumerate(responses)}
    shifts = rounds.survived - hazards * rounds.reached
    np.add.at(influence, [at[row.key] for row in by_round or counted], shifts)
    influence = np.divide(influence, reached, out=np.zeros_like(influence), where=reached > 0)
    return ServedRounds(responses, hazards, influence)


@dataclass(frozen=True, eq=False)
class CandidateRounds:
    """The expected rounds of a candidate along its responses: from its `replays` or, if it has none
    or decoding shows a `contradiction`, from what was `served`. `laws` are in the order of the
    responses. The rounds at `ks` are computed together.
    """

    replays: Pairs = ()
    laws: tuple[ResponseLaw, ...] = ()
    served: ServedRounds | None = None
    contradiction: SuspectedFault | None = None
    ks: tuple[int, ...] = ()

    @classmethod
    def of(cls, replays: Pairs, ks: tuple[int, ...] = ()) -> CandidateRounds:
        """The rounds along replayed responses."""
        return cls(replays, tuple(law_of(*pair) for pair in replays), ks=ks)

    @cached_property
    def trajectories(self) -> ByRequest:
        """The responses that were replayed or served."""
        return ByRequest(self.served.responses if self.served else (t for t, _ in self.replays))

    @cached_property
    def row_of(self) -> dict[Key, int]:
        """The row of each response."""
        return {trajectory.key: row for row, trajectory in enumerate(self.trajectories)}

    @remembered
    def at(self, k: int, stop: StopRule | None = None) -> Rounds:
        """The expected rounds of every response, which a rule may stop; a ValueError if k is beyond
        what is known.
        """
        if stop is not None:
            laws = list[ResponseLaw]()
            for begin in range(0, len(self.replays), _AT_ONCE):
                rows = range(len(self.replays))[begin : begin + _AT_ONCE]
                some = self.trajectories[begin : begin + _AT_ONCE]
                laws += self.drafted_of(k, rows).laws(some, k, stop)
            return expected_rounds(laws, k)
        if self.served:
            return self.served.rounds(k)
        if k not in self.ks or not self.reaches(k):
            return expected_rounds(self.laws, k)
        return self._together[k]

    @cached_property
    def _together(self) -> dict[int, Rounds]:
        return rounds_at_each(self.laws, list(filter(self.reaches, self.ks)))

    def reaches(self, k: int) -> bool:
        """Whether k lies within what was looked up or served."""
        return bool(self.laws) and k <= self.longest

    @remembered
    def knows(self, k: int, stop: StopRule | None = None) -> bool:
        """Whether the rounds at k are known; an engine may not report them."""
        if stop is not None:
            return self.knows_confidences and k <= self.most_stopped
        return self.reaches(k) and bool(np.isfinite(self.at(k).target_passes).all())

    @cached_property
    def knows_confidences(self) -> bool:
        """Whether the draft's confidences were replayed too, so that any rule can be followed."""
        return bool(self.replays) and all(has_confidences(replay) for _, replay in self.replays)

    @property
    def most_stopped(self) -> int:
        """The largest k for which confidences were replayed."""
        return int(min(self.longest, max(self.ks)))

    def drafted_of(self, k: int, rows: range | None = None) -> Drafted:
        """What rounds of k draft from each start of all responses, or of some: as far as it was
        replayed, of which they take k, or blocks of k.
        """
        every = range(len(self.replays)) if rows is None else rows
        return self._drafted(k if self.in_blocks else self.most_stopped, every)

    @remembered
    def _drafted(self, k: int, rows: range) -> Drafted:
        return drafted_along([self.replays[row] for row in rows], k)

    @cached_property
    def in_blocks(self) -> bool:
        """Whether the tokens of a round depend on how many are drafted together."""
        return any(isinstance(replay, LookupReplay) and replay.blocks for _, replay in self.replays)

    @cached_property
    def longest(self) -> float:
        """The largest k that was looked up or served; infinite for replays of a model."""
        windows = [law.window for law in self.laws if isinstance(law, StartLaw)]
        served = [len(law.hazards) for law in self.laws if isinstance(law, HazardLaw)]
        return min((*windows, *served), default=math.inf)

    @cached_property
    def _sizes(self) -> Floats:
        """Tokens of every response's prompt, its output tokens, and how often it occurs in the
        traffic: the responses to one request share its weight [3, responses].
        """
        often = Counter(t.request for t in self.trajectories)
        rows = [
            (t.prompt_tokens, t.output_tokens, t.weight / often[t.request])
            for t in self.trajectories
        ]
        return np.array(rows, dtype=float).reshape(len(rows), 3).T

    @property
    def prompts(self) -> Floats:
        """The length of every response's prompt in tokens [responses]."""
        return self._sizes[0]

    @cached_property
    def contexts(self) -> Floats:
        """Tokens in the cache half-way through every response [responses]."""
        return np.array([each.context for each in self.trajectories])

    @cached_property
    def tokens(self) -> Floats:
        """Tokens of every response after its first [responses]."""
        return np.maximum(self._sizes[1] - 1, 0.0)

    @property
    def weights(self) -> Floats:
        """How often every response occurs in the traffic [responses]."""
        return self._sizes[2]

    @cached_property
    def context(self) -> float:
        """The mean context in tokens over all decoding steps."""
        steps = self.weights * self.tokens
        contexts = self.contexts
        return float(steps @ contexts / steps.sum()) if steps.any() else float(contexts.mean())


@remembered
def candidate_rounds(run: Run, candidate: Candidate, ks: tuple[int, ...] = ()) -> CandidateRounds:
    """The rounds of a candidate along the run's responses on which it did not fail, computed
    together at `ks` (default: the run's).
    """
    by_key = {replay.key: replay for replay in run.replays if replay.candidate == candidate}
    replays = [(t, by_key[key]) for key, t in run.responses.items() if key in by_key]
    decodes = [row for row in run.decodes if row.candidate == candidate]
    told = [row.counts for row in run.served if row.candidate == candidate and row.error is None]
    contradicted = contradiction(
        replays,
        decodes,
        near_tie(run),
        # The built-in decoder records every round, and some engines do.
        by_position=all(counts is not None and counts.by_round is not None for counts in told),
        rounded=candidate.quant != "none",
    )
    served = served_rounds(run, candidate) if contradicted or not replays else None
    if served is not None:
        return CandidateRounds((), served.laws(), served, contradicted)
    ks = ks or run.manifest.question.ks
    known: CandidateRounds | None = run.rounds.get((candidate, ks))
    if (
        known is None
        or len(known.replays) != len(replays)
        or any(map(is_not, chain(*known.replays), chain(*replays)))
    ):
        known = run.rounds[candidate, ks] = CandidateRounds.of(replays, ks)
    return known


def runs_at(
    run: Run, candidate: Candidate, length: DraftLength, concurrency: int
) -> list[tuple[Trajectory, Decode]]:
    """A candidate's decoding runs at one draft length and load, each with its response."""
    wanted = candidate, length, concurrency
    rows = (row for row in run.decodes if (row.candidate, row.length, row.concurrency) == wanted)
    return [(run.responses[row.key], row) for row in rows]


def counted_in(runs: Sequence[tuple[Trajectory, Decode]]) -> ResponseRounds:
    """The responses of decoding runs at one k, and the rounds counted in them."""
    return ByRequest(response for response, _ in runs), counted_rounds([row for _, row in runs])
