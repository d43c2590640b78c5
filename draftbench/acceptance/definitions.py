"""The definition of every figure of acceptance, computed from rounds and replays.

Every figure is a function of sums over requests (`Sample`), the form that its value, the jackknife
and the bootstrap need. Several responses to one request count as their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress

import numpy as np

from draftbench.acceptance.rounds import Floats, Ints, ModelPairs, Pairs, Rounds, model_pairs
from draftbench.records import DraftingMode, Trajectory


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A figure's name and formula, and what serving engines call it: None if an engine does not
    show it, or shows another figure under that name.
    """

    name: str
    symbol: str
    formula: str  # how it is computed
    vllm: str | None = None  # vLLM's name
    sglang: str | None = None  # SGLang's name
    tensorrt_llm: str | None = None  # TensorRT-LLM's name
    llama_cpp: str | None = None  # llama.cpp's name
    aiperf: str | None = None  # AIPerf's name


ALPHA_OVERLAP = Figure(
    name="acceptance rate (overlap)", symbol="α", formula="mean over positions of Σ min(p, q)"
)
ALPHA_EMITTED = Figure(
    name="acceptance rate (emitted tokens)",
    symbol="α",
    formula="mean over positions of the probability that a token drafted there is accepted, given "
    "the token that came out",
)
ALPHA_TRIED = Figure(
    name="acceptance rate (tried tokens)",
    symbol="α",
    formula="accepted / tried draft tokens, of rounds that a serving engine counted; one is tried "
    "where all before it in its round were accepted",
)
ACCEPTED_PER_DRAFTED = Figure(
    name="accepted / drafted",
    symbol="accepted/drafted",
    formula="accepted / proposed tokens, at one k",
    vllm="draft_acceptance_rate (bench: spec_decode_acceptance_rate, in percent), which "
    "counts past the limit and the end",
    sglang="spec_accept_rate, whose drafted tokens no limit shortens",
    tensorrt_llm="num_accepted_tokens / num_draft_tokens",
    llama_cpp="draft_n_accepted / draft_n",
    aiperf="draft_acceptance_rate",
)
TOKENS_PER_ROUND = Figure(
    name="tokens per round",
    symbol="tok/round",
    formula="response tokens after the first / target passes after the prefill",
    sglang="spec_accept_length of a response, which counts the first token too",
)
MEAN_ACCEPTED_LENGTH = Figure(
    name="mean accepted length",
    symbol="τ",
    formula="1 + accepted / rounds that drafted",
    sglang="spec_accept_length of the server's metrics",
    tensorrt_llm="acceptance_length",
    llama_cpp="mean len",
)
ACCEPTED_WITHOUT_BONUS = Figure(
    name="accepted draft tokens per round",
    symbol="τ-1",
    formula="accepted / rounds that drafted",
    tensorrt_llm="TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS",
)
UNCUT_ACCEPTED_LENGTH = Figure(
    name="uncut accepted length",
    symbol="1+Σ Πh",
    formula="1 + Σ_i h_1 … h_i: no limit and no end of the response cuts a round",
    vllm="mean_acceptance_length (bench: spec_decode_acceptance_length), which counts past both",
    aiperf="mean_acceptance_length, of a vLLM server",
)
HAZARD = Figure(
    name="hazard",
    symbol="h",
    formula="accepted / tried at draft position i, the ones before accepted",
)
SURVIVAL = Figure(
    name="survival",
    symbol="s",
    formula="rounds that accepted their first i draft tokens / rounds that drafted",
    vllm="num_accepted_tokens_per_pos / num_drafts, which count past the limit and the end",
    llama_cpp="acceptance per position",
)

FIGURES = (
    ALPHA_OVERLAP,
    ALPHA_EMITTED,
    ACCEPTED_PER_DRAFTED,
    TOKENS_PER_ROUND,
    MEAN_ACCEPTED_LENGTH,
    ACCEPTED_WITHOUT_BONUS,
    UNCUT_ACCEPTED_LENGTH,
    HAZARD,
    SURVIVAL,
    ALPHA_TRIED,
)


@dataclass(frozen=True, eq=False)
class Sample:
    """What each request contributes to a figure, and how the figure follows from the sums.

    A ratio has m = 2 addends, numerator and denominator.
    """

    figure: Figure
    requests: tuple[str, ...]
    weights: Floats  # how often each request occurs in the traffic [requests]
    addends: Floats  # [requests, m]
    combine: Callable[[Floats], Floats]  # sums [..., m] → the figure [...], NaN where undefined
    denominator: int = -1  # the column of `addends` that is a request's weight in the figure

    @property
    def value(self) -> float | None:
        """The figure over all requests; None where undefined."""
        value = float(self.combine(self.weights @ self.addends))
        return value if np.isfinite(value) else None

    @property
    def equal_requests(self) -> float:
        """How many requests with equal denominators carry as much information."""
        return equal_requests(self.weights * self.addends[:, self.denominator])


def alpha(pairs: Pairs) -> Sample | None:
    """α in the replayed drafting mode, over the positions at which the draft could draft; None for
    all but models, since what others propose depends on where a round starts.
    """
    model = model_pairs(pairs)
    if len(model) < len(pairs):
        return None
    figure, accepted = accepted_by_position(model)
    lengths = np.array([len(values) for values in accepted], np.int64)
    response = np.repeat(np.arange(len(lengths)), lengths)
    sums = np.bincount(response, np.concatenate(accepted or [np.zeros(0)]), len(lengths))
    trajectories = [trajectory for trajectory, _ in pairs]
    return ratio(figure, trajectories, sums.astype(np.float64), lengths.astype(np.float64))


def accepted_by_position(pairs: ModelPairs) -> tuple[Figure, list[Floats]]:
    """How likely the token at each position is accepted, where the draft could draft, by response;
    and which α is the mean of that.

    It is taken from Σ min(p, q) if every replay has that, since it varies less than the acceptance
    of the tokens that came out. A greedy draft is accepted with p(argmax q) instead, so its α comes
    from the tokens that came out.
    """
    replays = [replay for _, replay in pairs]
    greedy = any(replay.mode is DraftingMode.GREEDY for replay in replays)
    overlaps = [r.overlap for r in replays if r.overlap is not None and not greedy]
    overlap = len(overlaps) == len(replays)
    values = overlaps if overlap else [replay.accept for replay in replays]
    drafted = [
        np.asarray(each)[: replay.draftable] for each, replay in zip(values, replays, strict=True)
    ]
    return ALPHA_OVERLAP if overlap else ALPHA_EMITTED, drafted


def alpha_of_rounds(trajectories: Sequence[Trajectory], rounds: Rounds) -> Sample:
    """α of the draft tokens tried in rounds that an engine counted, if nothing was replayed."""
    tried, accepted = rounds.reached.sum(axis=1), rounds.survived.sum(axis=1)
    return ratio(ALPHA_TRIED, trajectories, accepted, tried)


def accepted_per_drafted(trajectories: Sequence[Trajectory], rounds: Rounds) -> Sample:
    """The ratio of the engines' counters at `rounds.k`; falls with k, so it is never called α."""
    return ratio(ACCEPTED_PER_DRAFTED, trajectories, rounds.accepted, rounds.proposed)


def tokens_per_round(trajectories: Sequence[Trajectory], rounds: Rounds) -> Sample:
    """The figure that speed depends on; rounds with nothing to draft are target passes too."""
    return ratio(TOKENS_PER_ROUND, trajectories, rounds.tokens, rounds.target_passes)


def mean_accepted_length(trajectories: Sequence[Trajectory], rounds: Rounds) -> Sample:
    """The engines' τ, which counts one token of the target for every round, even for a round that
    the end of the response cut.
    """
    emitted = rounds.with_draft + rounds.accepted
    return ratio(MEAN_ACCEPTED_LENGTH, trajectories, emitted, rounds.with_draft)


def accepted_without_bonus(trajectories: Sequence[Trajectory], rounds: Rounds) -> Sample:
    """τ - 1, the draft tokens alone."""
    return ratio(ACCEPTED_WITHOUT_BONUS, trajectories, rounds.accepted, rounds.with_draft)


def uncut_accepted_length(trajectories: Sequence[Trajectory], rounds: Rounds) -> Sample:
    """The product-limit estimate: a round that was cut counts as far as it was observed."""
    columns = np.concatenate([rounds.survived, rounds.reached], axis=1)
    sample = pooled(UNCUT_ACCEPTED_LENGTH, trajectories, columns, _product_limit)
    return replace(sample, denominator=rounds.k)  # tries of the first position


def hazard(trajectories: Sequence[Trajectory], rounds: Rounds, position: int) -> Sample:
    """P(draft token `position` accepted | those before were), position 1 … k."""
    tried, accepted = rounds.reached[:, position - 1], rounds.survived[:, position - 1]
    return ratio(_at(HAZARD, position), trajectories, accepted, tried)


def survival(trajectories: Sequence[Trajectory], rounds: Rounds, position: int) -> Sample:
    """P(the first `position` draft tokens all accepted), position 1 … k, in rounds that drafted."""
    accepted = rounds.survived[:, position - 1]
    return ratio(_at(SURVIVAL, position), trajectories, accepted, rounds.with_draft)


def by_tokens(trajectories: Sequence[Trajectory]) -> Sample:
    """The requests weighed by their tokens after the first, for `equal_requests` alone."""
    tokens = np.array([trajectory.output_tokens - 1.0 for trajectory in trajectories])
    return ratio(TOKENS_PER_ROUND, trajectories, tokens, tokens)


def per_request_mean(sample: Sample) -> Sample:
    """The mean of the figure over requests; requests without a value are left out."""
    values = sample.combine(sample.addends)
    defined = np.isfinite(values)
    return Sample(
        figure=replace(sample.figure, name=f"{sample.figure.name}, per-request mean"),
        requests=sample.requests if defined.all() else tuple(compress(sample.requests, defined)),
        weights=sample.weights[defined],
        addends=np.stack([values[defined], np.ones(int(defined.sum()))], axis=1),
        combine=quotient,
    )


def ratio(
    figure: Figure, trajectories: Sequence[Trajectory], numerator: Floats, denominator: Floats
) -> Sample:
    """A figure that is the quotient of two sums over responses, each given by response."""
    return pooled(figure, trajectories, np.stack([numerator, denominator], axis=1))


def equal_requests(lengths: Floats) -> float:
    """The effective sample size of requests of unequal length, (Σd)² / Σd² (Kish 1965)."""
    squares = float((lengths**2).sum())
    return float(lengths.sum()) ** 2 / squares if squares else 0.0


def quotient(sums: Floats) -> Floats:
    """Sums [..., 2] → numerator / denominator [...], NaN where the denominator is 0."""
    numerator, denominator = sums[..., 0], sums[..., 1]
    value: Floats = np.full(np.shape(numerator), np.nan)
    return np.divide(numerator, denominator, out=value, where=denominator != 0)


class ByRequest(tuple[Trajectory, ...]):
    """Responses from which many figures are computed; their requests are looked up once."""

    @cached_property
    def requests(self) -> tuple[tuple[str, ...], Ints, Floats]:
        """The names of their requests in order, which of these each response answers [responses],
        and how often each occurs in the traffic [requests].
        """
        index: dict[str, int] = {}
        rows = np.array([index.setdefault(t.request, len(index)) for t in self], np.int64)
        weights = np.zeros(len(index))
        weights[rows] = [trajectory.weight for trajectory in self]
        return tuple(index), rows, weights


def pooled(
    figure: Figure,
    trajectories: Sequence[Trajectory],
    columns: Floats,
    combine: Callable[[Floats], Floats] = quotient,
) -> Sample:
    """A figure from the addends of every response [responses, m]; a request contributes the mean of
    its responses.
    """
    along = trajectories if isinstance(trajectories, ByRequest) else ByRequest(trajectories)
    names, rows, weights = along.requests
    if len(names) < len(rows):
        addends = np.zeros((len(names), columns.shape[1]))
        np.add.at(addends, rows, columns)
        columns = addends / np.bincount(rows)[:, None]
    return Sample(figure, names, weights, columns, combine)


def _product_limit(sums: Floats) -> Floats:
    survived, reached = np.split(sums, 2, axis=-1)
    hazards = quotient(np.stack([survived, reached], axis=-1))
    # Nothing survived the position before: this one is never reached, whatever its hazard.
    hazards[..., 1:] = np.where(survived[..., :-1] == 0, 0.0, hazards[..., 1:])
    length: Floats = 1.0 + np.cumprod(hazards, axis=-1).sum(axis=-1)
    return length


def _at(figure: Figure, position: int) -> Figure:
    name, symbol = f"{figure.name} at position {position}", f"{figure.symbol}_{position}"
    return replace(figure, name=name, symbol=symbol)
