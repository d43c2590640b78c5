"""Expected rounds × costs → the speed-up of one candidate at one k and one batch size, on the
requests it was replayed on.

    plain       = (L-1) · (t(1) + o₀)
    speculative = seconds of the rounds' passes (`pass_seconds`) + rounds · o

with t(1) a target step, o₀ what it took beyond its pass in the decoder, and o what the rounds of
the candidate's other decoded k's took beyond their passes at the same batch size, so that no k is
predicted from its own decoding. (What is *expected* counts all decoded k's: `alternatives.py`.)
All in seconds that a response waits for, each request at its own context, prompt + L/2.
Intervals cover the sampling of requests alone; `timing_factors` draws the noise of the passes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from draftbench.acceptance.candidate_rounds import CandidateRounds, candidate_rounds
from draftbench.acceptance.definitions import Requests, Sample, pooled
from draftbench.acceptance.intervals import Estimate, generator_of
from draftbench.acceptance.rounds import Floats, Rounds
from draftbench.memory import Footprint
from draftbench.planner.cost_sources import CostSource, PricedBatch, costs_in
from draftbench.planner.costs import context_of, pass_seconds
from draftbench.planner.measured import SPEEDUP
from draftbench.records import LOOKUP, SELF, Candidate, Key, Trajectory
from draftbench.run_folder.run import Run


@dataclass(frozen=True, eq=False, kw_only=True)
class Predictor(PricedBatch):
    """What predicts one candidate: its rounds along all responses, and its costs at `batch` active
    rows. `memory_bytes` are the draft's.
    """

    candidate: Candidate
    along: CandidateRounds
    memory_bytes: int | None
    batch: int = 1

    def at(self, batch: int, source: CostSource) -> Predictor:
        """The same candidate at another batch size, by the costs of `source`."""
        return replace(self, batch=batch, **vars(source.at(self.candidate, batch)))

    @cached_property
    def prompts(self) -> Floats:
        """Tokens of every response's prompt [responses]."""
        return np.array([t.prompt_tokens for t in self.along.trajectories])

    @cached_property
    def lengths(self) -> Floats:
        """Tokens of every response [responses]."""
        return np.array([t.output_tokens for t in self.along.trajectories])

    @cached_property
    def contexts(self) -> Floats:
        """Cached tokens half-way through every response [responses]."""
        return np.array([context_of(t) for t in self.along.trajectories])

    @cached_property
    def requests(self) -> Requests:
        """The request of every response."""
        return Requests.of(self.along.trajectories)

    @cached_property
    def weights(self) -> Floats:
        """How often every response occurs in the traffic [responses]."""
        return np.array([t.weight for t in self.along.trajectories])

    @cached_property
    def prefills(self) -> Floats | None:
        """Seconds of prefill [..., responses, 2], without and with speculation, where both models
        read the prompt; None where that was not timed.

        Prompt lookup indexes it, at no more than a proposal per token.
        """
        prompts, costs = self.prompts, self.interpolated or self.costs
        if costs is None or costs.prefill is None:
            return None
        plain = costs.prefill.at(prompts, 0)
        if costs.proposal is not None:
            drafting = prompts * costs.proposal.at(1, prompts)
        elif costs.draft_prefill is not None:
            drafting = costs.draft_prefill.at(prompts, 0)
        else:
            return None
        return np.stack(np.broadcast_arrays(plain, plain + drafting), axis=-1)

    @cached_property
    def context(self) -> float:
        """The mean context of a decoding step in tokens, each step counting once."""
        steps = self.weights * np.maximum(self.lengths - 1, 0)
        contexts = self.contexts
        return float(steps @ contexts / steps.sum()) if steps.any() else float(contexts.mean())

    @cached_property
    def draft_cost_ratio(self) -> Estimate | None:
        """c at the mean context; None at unknown cost."""
        return self.costs.draft_cost_ratio(self.context) if self.costs else None


@dataclass(frozen=True, eq=False)
class Prediction:
    """The rounds and seconds that are predicted of one candidate at one k.

    `decoding` and `prefills` [responses, 2] are the seconds that a response waits for, without and
    with speculation; None at unknown cost. `ends` is the same with the fastest and the slowest
    rounds that interpolated costs allow [2, responses, 2].
    """

    trajectories: tuple[Trajectory, ...]
    requests: Requests
    rounds: Rounds
    decoding: Floats | None
    prefills: Floats | None
    ends: Prediction | None = None

    def speedup(self, only: Collection[Key] | None = None) -> Sample | None:
        """Speed-up of decoding, on all responses or on some."""
        if self.decoding is None or only is None:
            return None if self.decoding is None else self.requests.sample(SPEEDUP, self.decoding)
        rows = [at for at, t in enumerate(self.trajectories) if t.key in only]
        return pooled(SPEEDUP, [self.trajectories[at] for at in rows], self.decoding[rows])

    def end_to_end(self) -> Sample | None:
        """Speed-up of a response from its prompt to its last token."""
        if self.decoding is None or self.prefills is None:
            return None
        return self.requests.sample(SPEEDUP, self.decoding + self.prefills)


def predictor_of(
    run: Run, candidate: Candidate, *, batch: int = 1, source: CostSource | None = None
) -> Predictor:
    """What predicts a candidate, by the costs of `source` or of this run."""
    source = source or costs_in(run, (candidate,))
    return replayed(run, candidate).at(batch, source)


def replayed(run: Run, candidate: Candidate) -> Predictor:
    """A candidate's rounds, at unknown costs."""
    along, memory = candidate_rounds(run, candidate), _memory(run, candidate)
    return Predictor(candidate=candidate, along=along, memory_bytes=memory)


def asked_ks(run: Run) -> tuple[int, ...]:
    """The draft lengths that the run asked about, ascending."""
    return tuple(sorted(set(run.manifest.question.ks)))


def draft_footprint(run: Run, candidate: Candidate) -> Footprint | None:
    """A draft's weights and cache; None without facts. The target as its own draft adds a second
    cache, prompt lookup nothing.
    """
    if candidate.draft == LOOKUP:
        return Footprint(0, 0)
    facts = run.facts_of(None if candidate.draft == SELF else candidate)
    if facts is None:
        return None
    return Footprint(0 if candidate.draft == SELF else facts.weight_bytes, facts.kv_bytes_per_token)


def longest_context(run: Run) -> int:
    """Tokens of the longest prompt with its response."""
    return max((t.prompt_tokens + t.output_tokens for t in run.trajectories), default=0)


def _memory(run: Run, candidate: Candidate) -> int | None:
    """Bytes of a draft's weights and its cache at the traffic's longest context."""
    draft, tokens = draft_footprint(run, candidate), longest_context(run)
    if draft is None:
        return None
    facts = run.facts_of(None if candidate.draft == SELF else candidate)
    if facts is not None:
        tokens = min(tokens, facts.context_length)
    return int(draft.weight_bytes + tokens * draft.cache_bytes_per_token)


def predict(predictor: Predictor, k: int, beyond: tuple[float, float] | None = None) -> Prediction:
    """Predict one k. One that an engine was started with is predicted by its other k's alone; one
    whose passes are longer than any in the costs has no times.

    Args:
        beyond: seconds that a target step and a round take beyond their passes; None for those of
            the other k's, or 0 where these are unknown.
    """
    rounds, costs = predictor.along.at(k), predictor.interpolated or predictor.costs
    untimed = Prediction(predictor.along.trajectories, predictor.requests, rounds, None, None)
    if predictor.round_costs is not None:
        return replace(untimed, decoding=predictor.round_costs.without(k).decoding(rounds))
    if costs is None or k + 1 > (costs.longest or k + 1):
        return untimed
    contexts, prefills = predictor.contexts, predictor.prefills
    steps = costs.target.along(contexts).over(1)
    passes = pass_seconds(costs, rounds, contexts, predictor.batch, predictor.weights)
    decoding = _decoding(rounds, steps, passes, beyond or _beyond(predictor, k))
    if predictor.interpolated is None:
        return replace(untimed, decoding=decoding, prefills=prefills)
    middle = ends = prefills
    if prefills is not None and prefills.ndim > 2:  # prompt lookup indexes the prompt
        middle, ends = prefills[0], prefills[1:]
    at_ends = replace(untimed, decoding=decoding[1:], prefills=ends)
    return replace(untimed, decoding=decoding[0], prefills=middle, ends=at_ends)


def _beyond(predictor: Predictor, k: int) -> tuple[float, float]:
    """Seconds of a target step and of a round beyond their passes, the round's by the other k's."""
    return predictor.overheads.of_others(0) or 0.0, predictor.overheads.of_others(k) or 0.0


def _decoding(rounds: Rounds, steps: Floats, passes: Floats, beyond: tuple[float, float]) -> Floats:
    """Seconds of decoding [..., responses, 2], without and with speculation, from seconds of a
    target step, of all rounds' passes, and of what a step and a round take `beyond` their passes.
    """
    beyond_step, beyond_round = beyond
    plain = rounds.tokens * steps + rounds.tokens * beyond_step
    return np.stack([plain, passes + rounds.target_passes * beyond_round], axis=-1)


def beyond_timed(predictor: Predictor, largest_k: int) -> tuple[str, ...]:
    """In words, the costs that predictions take from outside of what was timed."""
    costs = predictor.costs
    if costs is None:
        return ()
    contexts, prompts = predictor.contexts, predictor.prompts
    longest = min(largest_k + 1, costs.longest or largest_k + 1)
    used = (
        ("target passes", costs.target, longest, contexts),
        # Two tokens after a fully accepted round; a file gives one time for both.
        ("draft steps", costs.draft, 2 if costs.longest is None else 1, contexts),
        ("prefills", costs.prefill, prompts, 0),
        ("draft prefills", costs.draft_prefill, prompts, 0),
    )
    sentences = [
        f"{passes} were not timed at the size or context of {missed} of {len(prompts)} responses; "
        "the nearest timed ones are used"
        for passes, surface, size, context in used
        if surface is not None and (missed := int((~surface.covers(size, context)).sum()))
    ]
    if longest <= largest_k:
        sentences.append(
            f"passes over more than {longest} tokens were not timed, so the speed of k ≥ {longest} "
            "is unknown"
        )
    return tuple(sentences)


def timing_factors(
    predictor: Predictor,
    prediction: Prediction,
    draws: int,
    *,
    prefills: bool,
    started: bool = False,
) -> Floats:
    """Speed-ups under resampled costs over the one under their medians [draws]; 1 at unknown cost.

    Args:
        prefills: both prefills count too.
        started: the rounds of an engine are those of its starts at this k, not of other k's.
    """
    if predictor.costs is None and predictor.round_costs is None:
        return np.ones(draws)
    weights, rounds = predictor.weights, prediction.rounds
    sums = {name: (weights @ count)[None] for name, count in rounds.counts.items()}
    all_rounds = Rounds(k=rounds.k, **sums)

    def speedup(seconds: Floats) -> Floats:
        speeds: Floats = seconds[..., 0] / seconds[..., 1]
        return speeds.reshape(-1)

    if predictor.round_costs is not None:
        costs = predictor.round_costs if started else predictor.round_costs.without(rounds.k)
        redrawn, median = costs.decoding_redrawn(all_rounds), costs.decoding(all_rounds)
        if redrawn is None or median is None:
            return np.ones(draws)
        return speedup(redrawn) / speedup(median)
    assert predictor.costs is not None
    prefill_seconds = np.zeros(2)
    if prefills and prediction.prefills is not None:
        prefill_seconds = weights @ prediction.prefills
    context, beyond = np.array([predictor.context]), _beyond(predictor, rounds.k)
    redrawn, median = (
        _decoding(
            all_rounds,
            costs.target.at(1, context),
            pass_seconds(costs, all_rounds, context, predictor.batch),
            beyond,
        )
        + prefill_seconds
        for costs in (predictor.costs.redrawn, predictor.costs)
    )
    factors = speedup(redrawn) / speedup(median)
    generator = generator_of(str(predictor.candidate))
    drawn: Floats = factors[generator.integers(len(factors), size=draws)]
    return drawn
