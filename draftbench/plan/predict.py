"""Expected rounds × costs → the speed-up of one candidate at one k on the requests it was replayed
on.

    plain       = (L-1) · (t(1) + o₀)
    speculative = Σ rounds [first draft step of 1 token, 2 after a full round + (k'-1) · d(1)
                            + t(k'+1) + o]

with o from the block's other cells: what their rounds took beyond their passes. All in seconds,
each request at its own context, prompt + L/2. Intervals cover the sampling of requests alone, not
the timing of the passes (`BlockCosts` gives c and v with theirs). One request at a time; what a
prefill takes from running requests is not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from draftbench.acceptance.definitions import Figure, Sample, quotient
from draftbench.acceptance.laws import AnyReplay, law_of, replays_of
from draftbench.acceptance.rounds import (
    Floats,
    ResponseLaw,
    Rounds,
    counted_rounds,
    expected_rounds,
)
from draftbench.plan.costs import BlockCosts, block_costs, overhead
from draftbench.plan.memory import draft_memory
from draftbench.records import Candidate, Decode, Trajectory
from draftbench.store.observed import Observed

Key = tuple[str, int]

SPEEDUP_PREDICTED = Figure(
    name="decode speed-up, predicted",
    symbol="S",
    formula="seconds of plain steps / seconds of the expected rounds, after the first token",
)
END_TO_END_PREDICTED = Figure(
    name="end-to-end speed-up, predicted",
    symbol="S",
    formula="as the decode speed-up, with the prefills of both sides",
)


@dataclass(frozen=True, eq=False)
class Entrant:
    """One candidate along the traffic: responses, replays and laws side by side, and its costs.

    `costs` None is unknown; `overheads` maps each k, 0 included, to seconds per round, None where
    no run tells;
    `memory_bytes` is the draft's.
    """

    candidate: Candidate
    replays: tuple[tuple[Trajectory, AnyReplay], ...]
    laws: tuple[ResponseLaw, ...]
    costs: BlockCosts | None
    overheads: dict[int, float | None]
    memory_bytes: int | None

    @property
    def size(self) -> float:
        """By memory; an unknown one counts as the largest."""
        return math.inf if self.memory_bytes is None else self.memory_bytes

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The responses that the candidate was replayed on."""
        return tuple(trajectory for trajectory, _ in self.replays)

    @property
    def context(self) -> float:
        """The mean context of a decoding step in tokens, each step counting once."""
        steps = np.array([t.weight * max(t.output_tokens - 1, 0) for t in self.trajectories])
        contexts = np.array([_context(t) for t in self.trajectories])
        return float(steps @ contexts / steps.sum()) if steps.any() else float(contexts.mean())


@dataclass(frozen=True, eq=False)
class Forecast:
    """What one candidate at one k should do.

    `decoding` and `prefills` [responses, 2] are seconds without and with speculation; None at
    unknown cost.
    """

    trajectories: tuple[Trajectory, ...]
    rounds: Rounds
    decoding: Floats | None
    prefills: Floats | None

    def speedup(self, only: Collection[Key] | None = None) -> Sample | None:
        """Decode speed-up, on all responses or on those of some (request, sample)."""
        if self.decoding is None:
            return None
        rows = [
            row
            for row, t in enumerate(self.trajectories)
            if only is None or (t.request, t.sample) in only
        ]
        chosen = [self.trajectories[row] for row in rows]
        return pooled(SPEEDUP_PREDICTED, chosen, self.decoding[rows])

    def end_to_end(self) -> Sample | None:
        """Speed-up from the prompt to the last token."""
        if self.decoding is None or self.prefills is None:
            return None
        return pooled(END_TO_END_PREDICTED, self.trajectories, self.decoding + self.prefills)


def entrant_of(observed: Observed, candidate: Candidate, *, measured: bool = True) -> Entrant:
    """Gather what predicts a candidate; with `measured` False no decoding run is looked at.

    Raises:
        RunFolderError: a replay does not fit its response.
    """
    mode = observed.manifest.question.mode
    replays = replays_of(candidate, observed.trajectories, observed.replays, mode)
    rows = [d for d in observed.decodes if measured and d.block == str(candidate) and d.batch == 1]
    costs = block_costs(observed, candidate)
    passes = _pass_seconds(costs, observed.trajectories)
    return Entrant(
        candidate=candidate,
        replays=replays,
        laws=tuple(law_of(trajectory, replay) for trajectory, replay in replays),
        costs=costs,
        overheads={k: overhead(rows, k, passes) for k in (0, *grid(observed))},
        memory_bytes=draft_memory(observed, candidate),
    )


def grid(observed: Observed) -> tuple[int, ...]:
    """The draft lengths that the run asked about."""
    return tuple(sorted({k for k in observed.manifest.question.ks if k > 0}))


def forecast(entrant: Entrant, k: int) -> Forecast:
    """Predict one k, by its passes alone where its overhead is unknown.

    Raises:
        ValueError: k is not in the run's grid, or nothing was replayed.
    """
    rounds = expected_rounds(entrant.laws, k)
    if entrant.costs is None:
        return Forecast(entrant.trajectories, rounds, None, None)
    context = np.array([_context(t) for t in entrant.trajectories])
    plain = rounds.tokens * (entrant.costs.target.at(1, context) + (entrant.overheads[0] or 0.0))
    overheads = (rounds.rounds + rounds.plain) * (entrant.overheads[k] or 0.0)
    speculative = _passes(entrant.costs, rounds, context) + overheads
    decoding = np.stack([plain, speculative], axis=1)
    return Forecast(entrant.trajectories, rounds, decoding, _prefills(entrant))


def _passes(costs: BlockCosts, rounds: Rounds, context: Floats) -> Floats:
    """Seconds of draft steps and target passes per response."""
    verify = costs.target.at(np.arange(1, rounds.k + 2), context[:, None])
    seconds: Floats = (rounds.by_draft_length * verify).sum(axis=1)
    return seconds + _drafting(costs, rounds, context)


def _pass_seconds(
    costs: BlockCosts | None, trajectories: Sequence[Trajectory]
) -> Callable[[Decode], float]:
    """What the passes of a decoding run should have taken by the timed points."""
    contexts = {(t.request, t.sample): np.array([_context(t)]) for t in trajectories}

    def seconds(row: Decode) -> float:
        context = contexts.get((row.request, row.sample))
        if costs is None or context is None:
            return row.decode_seconds
        if row.k == 0:
            return len(row.verify_seconds) * float(costs.target.at(1, context)[0])
        return float(_passes(costs, counted_rounds([row]), context)[0])

    return seconds


def _drafting(costs: BlockCosts, rounds: Rounds, context: Floats) -> Floats:
    """Seconds of drafting per response. Prompt lookup looks in every round, found or not."""
    if costs.proposal is not None:
        looked = rounds.by_draft_length.sum(axis=1)
        seconds: Floats = looked * costs.proposal.at(1, context)
        return seconds
    assert costs.draft is not None
    one, two = costs.draft.at(1, context), costs.draft.at(2, context)
    seconds = rounds.proposed * one + rounds.after_full[:, 1:].sum(axis=1) * (two - one)
    return seconds


def _prefills(entrant: Entrant) -> Floats | None:
    """Seconds of prefill [responses, 2]; both models read the prompt.

    Prompt lookup indexes it, at no more than a proposal per token.
    """
    costs = entrant.costs
    prompts = np.array([t.prompt_tokens for t in entrant.trajectories])
    if costs is None or costs.prefill is None:
        return None
    plain = costs.prefill.at(prompts, 0)
    if costs.proposal is not None:
        own = prompts * costs.proposal.at(1, prompts)
    elif costs.draft_prefill is not None:
        own = costs.draft_prefill.at(prompts, 0)
    else:
        return None
    return np.stack([plain, plain + own], axis=1)


def outside_hull(entrant: Entrant, largest_k: int) -> tuple[str, ...]:
    """In words, every cost that was asked beyond what was timed."""
    costs = entrant.costs
    if costs is None:
        return ()
    contexts = np.array([_context(t) for t in entrant.trajectories])
    prompts = np.array([t.prompt_tokens for t in entrant.trajectories])
    asked = (
        ("target passes", costs.target, largest_k + 1, contexts),
        ("draft steps", costs.draft, 2, contexts),
        ("prefills", costs.prefill, prompts, 0),
        ("draft prefills", costs.draft_prefill, prompts, 0),
    )
    return tuple(
        f"{what} were not timed at the size or context of {missed} of {len(prompts)} responses; "
        "the nearest timed ones stand in"
        for what, surface, size, context in asked
        if surface is not None and (missed := int((~surface.covers(size, context)).sum()))
    )


def _context(trajectory: Trajectory) -> float:
    """Tokens in the cache half-way through the response."""
    return trajectory.prompt_tokens + trajectory.output_tokens / 2


def pooled(
    figure: Figure,
    trajectories: Sequence[Trajectory],
    columns: Floats,
    combine: Callable[[Floats], Floats] = quotient,
) -> Sample:
    """Addends per response [responses, m] → a sample; a request is the mean of its responses."""
    index: dict[str, int] = {}
    row = np.array([index.setdefault(t.request, len(index)) for t in trajectories], np.int64)
    addends = np.zeros((len(index), columns.shape[1]))
    np.add.at(addends, row, columns)
    weights = np.zeros(len(index))
    weights[row] = [trajectory.weight for trajectory in trajectories]
    responses = np.bincount(row, minlength=len(index))[:, None]
    return Sample(figure, tuple(index), weights, addends / responses, combine)
