"""Expected rounds × costs → the speed-up of one candidate at one k and one batch size, on the
requests it was replayed on.

    plain       = (L-1) · (t(1) + o₀)
    speculative = seconds of the rounds' passes (`pass_seconds`) + rounds · o

with o from the block's other k's at the same batch size: what their rounds took beyond their
passes. All in seconds that a response waits for, each request at its own context, prompt + L/2.
Intervals cover the sampling of requests alone; `timing_factors` draws the noise of the passes.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np

from draftbench.acceptance.definitions import Figure, Sample, pooled
from draftbench.acceptance.rounds import (
    AnyReplay,
    Floats,
    ResponseLaw,
    Rounds,
    expected_rounds,
    law_of,
    replays_of,
)
from draftbench.planner.cost_sources import CostSource, Overheads, RunCosts, priced
from draftbench.planner.costs import BlockCosts, context_of, pass_seconds, plain_seconds
from draftbench.planner.measured import Key
from draftbench.planner.memory import draft_memory
from draftbench.records import Candidate, Trajectory
from draftbench.run_folder.run import Run

SPEEDUP_PREDICTED = Figure(
    name="decode speed-up, predicted",
    symbol="S",
    formula="seconds of target steps / seconds of the expected rounds, after the first token",
)
END_TO_END_PREDICTED = Figure(
    name="end-to-end speed-up, predicted",
    symbol="S",
    formula="as the decode speed-up, with the prefills of both sides",
)


@dataclass(frozen=True, eq=False)
class Predictor:
    """One candidate along the traffic: responses, replays and laws side by side, and its costs at
    `batch` active rows.

    `costs` None is unknown; `overheads` maps each k, 0 included, to seconds per round, None where
    no run tells; `memory_bytes` is the draft's. `note` says where costs are not simply timed.
    """

    candidate: Candidate
    replays: tuple[tuple[Trajectory, AnyReplay], ...]
    laws: tuple[ResponseLaw, ...]
    costs: BlockCosts | None
    overheads: Overheads
    memory_bytes: int | None
    batch: int = 1
    note: str | None = None
    _rounds: dict[int, Rounds] = field(default_factory=dict)

    def rounds(self, k: int) -> Rounds:
        """Expected rounds of every response, the same at every batch size.

        Raises:
            ValueError: nothing was replayed, or k is beyond what was.
        """
        if k not in self._rounds:
            self._rounds[k] = expected_rounds(self.laws, k)
        return self._rounds[k]

    def at(self, batch: int, source: CostSource, ks: Sequence[int]) -> Predictor:
        """The same candidate at another batch size, by the costs of `source`."""
        found = priced(source, self.candidate, batch, ks)
        return replace(
            self, batch=batch, costs=found.costs, overheads=found.overheads, note=found.note
        )

    def accepting(self, laws: Sequence[ResponseLaw]) -> Predictor:
        """The same costs with other laws of acceptance, one per response."""
        return replace(self, laws=tuple(laws), _rounds={})

    @property
    def size(self) -> float:
        """By memory; an unknown one counts as the largest."""
        return math.inf if self.memory_bytes is None else self.memory_bytes

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """The responses that the candidate was replayed on."""
        return tuple(trajectory for trajectory, _ in self.replays)

    @cached_property
    def contexts(self) -> Floats:
        """Cached tokens half-way through every response [responses]."""
        return np.array([context_of(t) for t in self.trajectories])

    @cached_property
    def weights(self) -> Floats:
        """How often every response occurs in the traffic [responses]."""
        return np.array([t.weight for t in self.trajectories])

    @cached_property
    def context(self) -> float:
        """The mean context of a decoding step in tokens, each step counting once."""
        steps = self.weights * [max(t.output_tokens - 1, 0) for t in self.trajectories]
        everywhere = self.contexts
        return float(steps @ everywhere / steps.sum()) if steps.any() else float(everywhere.mean())


@dataclass(frozen=True, eq=False)
class Prediction:
    """What one candidate at one k should do.

    `decoding` and `prefills` [responses, 2] are the seconds that a response waits for, without and
    with speculation; None at unknown cost.
    """

    trajectories: tuple[Trajectory, ...]
    rounds: Rounds
    decoding: Floats | None
    prefills: Floats | None

    def speedup(self, only: Collection[Key] | None = None) -> Sample | None:
        """Decode speed-up, on all responses or on those of some (request, sample)."""
        return self._pooled(SPEEDUP_PREDICTED, self.decoding, only)

    def end_to_end(self, only: Collection[Key] | None = None) -> Sample | None:
        """Speed-up of a response from its prompt to its last token."""
        return self._pooled(END_TO_END_PREDICTED, self.total, only)

    @property
    def total(self) -> Floats | None:
        """Seconds from the prompt to the last token [responses, 2], without and with."""
        if self.decoding is None or self.prefills is None:
            return None
        return self.decoding + self.prefills

    def _pooled(
        self, figure: Figure, seconds: Floats | None, only: Collection[Key] | None
    ) -> Sample | None:
        if seconds is None:
            return None
        if only is None:
            return pooled(figure, self.trajectories, seconds)
        rows = [at for at, t in enumerate(self.trajectories) if (t.request, t.sample) in only]
        return pooled(figure, [self.trajectories[at] for at in rows], seconds[rows])


def predictor_of(
    run: Run,
    candidate: Candidate,
    *,
    batch: int = 1,
    measured: bool = True,
    source: CostSource | None = None,
) -> Predictor:
    """Gather what predicts a candidate; with `measured` False no decoding run is looked at.

    Args:
        source: where costs come from (default: this run).

    Raises:
        RunFolderError: a replay does not fit its response.
    """
    bare = replayed(run, candidate)
    return bare.at(batch, source or RunCosts(run, measured), draft_lengths(run))


def replayed(run: Run, candidate: Candidate) -> Predictor:
    """A candidate along the traffic, its costs still unknown.

    Raises:
        RunFolderError: a replay does not fit its response.
    """
    mode = run.manifest.question.mode
    replays = replays_of(candidate, run.trajectories, run.replays, mode)
    return Predictor(
        candidate=candidate,
        replays=replays,
        laws=tuple(law_of(trajectory, replay) for trajectory, replay in replays),
        costs=None,
        overheads={},
        memory_bytes=draft_memory(run, candidate),
    )


def draft_lengths(run: Run) -> tuple[int, ...]:
    """The draft lengths that the run asked about."""
    return tuple(sorted({k for k in run.manifest.question.ks if k > 0}))


def predict(predictor: Predictor, k: int) -> Prediction:
    """Predict one k, by its passes alone where its overhead is unknown.

    Raises:
        ValueError: nothing was replayed, or k is beyond what was.
    """
    rounds, trajectories = predictor.rounds(k), predictor.trajectories
    if predictor.costs is None:
        return Prediction(trajectories, rounds, None, None)
    context, weights = predictor.contexts, predictor.weights
    overheads = [predictor.overheads.get(each) or 0.0 for each in (0, k)]
    plain = plain_seconds(predictor.costs, rounds.tokens, context) + rounds.tokens * overheads[0]
    passes = pass_seconds(predictor.costs, rounds, context, predictor.batch, weights)
    speculative = passes + (rounds.rounds + rounds.plain) * overheads[1]
    decoding = np.stack([plain, speculative], axis=1)
    return Prediction(trajectories, rounds, decoding, _prefills(predictor))


def _prefills(predictor: Predictor) -> Floats | None:
    """Seconds of prefill [responses, 2]; both models read the prompt.

    Prompt lookup indexes it, at no more than a proposal per token.
    """
    costs = predictor.costs
    prompts = np.array([t.prompt_tokens for t in predictor.trajectories])
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


def untimed(predictor: Predictor, largest_k: int) -> tuple[str, ...]:
    """In words, every cost that was asked beyond what was timed."""
    costs = predictor.costs
    if costs is None:
        return ()
    contexts = predictor.contexts
    prompts = np.array([t.prompt_tokens for t in predictor.trajectories])
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


def timing_factors(
    predictor: Predictor, prediction: Prediction, draws: int, *, prefills: bool
) -> Floats:
    """Speed-up under redrawn costs over that under their medians [draws]; 1 at unknown cost.

    Args:
        prefills: of the end-to-end speed-up instead of that of decoding.
    """
    if predictor.costs is None:
        return np.ones(draws)
    weights = predictor.weights
    rounds = _pooled(prediction.rounds, weights)
    seconds = np.zeros(2)
    if prefills and prediction.prefills is not None:
        seconds = weights @ prediction.prefills
    redrawn = _speed(predictor, predictor.costs.redrawn, rounds, seconds)
    factors = redrawn / _speed(predictor, predictor.costs, rounds, seconds)
    generator = np.random.Generator(
        np.random.Philox(key=zlib.crc32(str(predictor.candidate).encode()))
    )
    drawn: Floats = factors[generator.integers(len(factors), size=draws)]
    return drawn


def _speed(predictor: Predictor, costs: BlockCosts, rounds: Rounds, prefills: Floats) -> Floats:
    """The speed-up of the pooled rounds, [draws] or [1]."""
    context = np.array([predictor.context])
    overheads = [predictor.overheads.get(k) or 0.0 for k in (0, rounds.k)]
    plain = plain_seconds(costs, rounds.tokens, context) + rounds.tokens * overheads[0]
    passes = pass_seconds(costs, rounds, context, predictor.batch)
    speculative = passes + (rounds.rounds + rounds.plain) * overheads[1]
    return ((plain + prefills[0]) / (speculative + prefills[1])).reshape(-1)


def _pooled(rounds: Rounds, weights: Floats) -> Rounds:
    """All responses as one, each by its weight."""
    counts = [field.name for field in fields(Rounds) if field.name != "k"]
    sums = {name: (weights @ getattr(rounds, name))[None] for name in counts}
    return replace(rounds, **sums)
