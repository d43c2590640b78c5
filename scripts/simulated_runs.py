"""Simulates sweeps with the built-in decoder whose true speed-ups are known, as run folders in
memory.

Requests, their acceptance and the times of passes are drawn at random; the program's own functions
read the result like a real run. `check_intervals.py` says what is true and what is noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

import numpy as np

from draftbench.acceptance.rounds import Floats, Ints, expected_rounds
from draftbench.drafts.laws import PositionLaw
from draftbench.measure.step_costs import LEAST_TURNS
from draftbench.measure.timed_passes import MOST_TURNS
from draftbench.planner.recommendation import Configuration
from draftbench.planner.what_to_measure import timed_enough
from draftbench.records import (
    SAMPLES_PER_VISIT,
    AnyObservation,
    Candidate,
    CostPoint,
    Decode,
    DraftingMode,
    Environment,
    Replay,
    Sampling,
    Trajectory,
)
from draftbench.run_folder.manifest import SCHEMA_VERSION, Effort, Manifest, Question, TrafficFacts
from draftbench.run_folder.run import Run, run_of, to_decode

DRAFTS = tuple(Candidate(draft=name) for name in ("small", "big", "d3", "d4", "d5", "d6"))
# How often each pass is visited, with one row and with several, unless timing stops by itself.
VISITS, BATCH_VISITS = 6, 3
# Requests to draw from, the longest response, and tokens that a draft may propose beyond its end.
POPULATION, LONGEST, ROOM = 4000, 1000, 64
# Of four kinds of requests, the mean length and the log odds that a draft's token is accepted.
MEANS, ODDS = np.array([8.0, 20.0, 40.0, 80.0]), np.array([0.0, 0.4, 0.8, 1.7])
# In target steps: the prefills of target and draft, and the shortest stall.
PREFILL, DRAFT_PREFILL, STALL = 1.0, 0.1, 5.0
# Standard deviation over mean of the lengths of a kind, by shape.
SPREADS = {"mild": 0.3, "mixed": 0.4, "heavy": 1.6}


@dataclass(frozen=True)
class Scenario:
    """What is measured, and the machine that it is measured on. Noise is a standard deviation,
    relative to the time.
    """

    requests: int = 48
    decoded: tuple[int, ...] = (24, 24)  # requests that are decoded, for each draft
    shape: str = "mixed"  # of the lengths, see `population`
    # The true speed-up of a draft's best k is `speedup` times its `promise`, before `in_decoder` is
    # drawn; `speedup` is drawn within ± `spread` of it.
    speedup: float = 1.3
    spread: float = 0.0
    promise: tuple[float, ...] = (1.0, 0.97)
    noise: float = 0.0  # of a decoded configuration's speed-up
    visits: float = 0.01  # of a visit to the timed passes
    in_decoder: float = 0.04  # true: how much longer passes take in the decoder, by draft
    constant: float = 0.0  # true: seconds of a round beyond its passes
    by_k: float = 0.0  # true: how much longer rounds at a k take, whatever the draft
    processes: int = 1
    parted: bool = False  # whether decoding accepts other tokens than replay
    stalls: float = 0.0  # share of decoded runs with a stall (Pareto-distributed, shape 1.5)
    alike: int = 1  # so many requests in a row are of one kind
    prefills: bool = False  # whether prefills are timed, and part of the true speed-up
    # Whether timing stops by itself: after as many visits as in a sweep that decodes `cells`
    # configurations, since timing may take a third of a sweep's time.
    stops: bool = False
    cells: int = 10**6
    ks: tuple[int, ...] = (2, 4, 6)
    concurrency: tuple[int, ...] = (1,)
    knees: tuple[float, float] = (20.0, 20.0)  # the target's knee is drawn between them


@dataclass(frozen=True, eq=False)
class Population:
    """All requests that can be drawn: `lengths` [requests] of their responses, and `rates` [drafts,
    requests], the probability that a draft's token is accepted.
    """

    lengths: Ints
    rates: Floats
    _rounds: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    def rounds(self, draft: int, k: int) -> tuple[float, float]:
        """Rounds and accepted tokens expected for all responses together."""
        if (draft, k) not in self._rounds:
            laws = [
                PositionLaw(length, length + ROOM, np.full(length - 1, rate), length + ROOM)
                for length, rate in zip(self.lengths.tolist(), self.rates[draft], strict=True)
            ]
            expected = expected_rounds(laws, k)
            self._rounds[draft, k] = (
                float(expected.with_draft.sum()),
                float(expected.accepted.sum()),
            )
        return self._rounds[draft, k]

    @property
    def tokens(self) -> int:
        """All tokens after the first of each response."""
        return int((self.lengths - 1).sum())


@lru_cache
def population(shape: str) -> Population:
    """4000 requests. Mild: of one kind, lengths with a coefficient of variation of .3. Mixed: of
    four kinds, the longer ones accepted more often (.9). Heavy: the same with a long tail (2).
    """
    generator = np.random.default_rng(0)
    kinds = generator.integers(4, size=POPULATION)
    means, odds, spread = MEANS[kinds], ODDS[kinds], SPREADS[shape]
    if shape == "mild":
        means, odds = np.full(POPULATION, 48.0), np.full(POPULATION, 0.7)
    width = np.log(1 + spread**2) ** 0.5
    lengths = means * np.exp(width * generator.standard_normal(POPULATION) - width**2 / 2)
    odds = odds + generator.normal(0, 0.4, POPULATION)  # the same for all drafts
    first_two = generator.normal(0, 0.3, (2, POPULATION)) + np.array([[0.0], [0.4]])
    others = generator.normal(0, 0.3, (len(DRAFTS) - 2, POPULATION))
    rates = 1 / (1 + np.exp(-(odds + np.concatenate([first_two, others]))))
    return Population(np.clip(lengths, 2, LONGEST).astype(np.int64), rates)


class World:
    """One trial: its true times, and the runs that are measured under them."""

    def __init__(self, scenario: Scenario, generator: np.random.Generator) -> None:
        self.scenario, self.generator = scenario, generator
        self.population = population(scenario.shape)
        self.drafts = DRAFTS[: len(scenario.decoded)]
        self.knee = generator.uniform(*scenario.knees)
        self.in_decoder = self.factors(scenario.in_decoder, len(self.drafts))
        worth = scenario.speedup
        if scenario.spread:
            worth *= generator.uniform(1 - scenario.spread, 1 + scenario.spread)
        self.steps = [
            max(
                (self._emitted(draft, k) / speedup - scenario.constant - self.target(k + 1)) / k
                for k in scenario.ks
            )
            for draft in range(len(self.drafts))
            if (speedup := worth * scenario.promise[draft])
        ]
        factors = self.factors(scenario.by_k, len(scenario.ks)) if scenario.by_k else ()
        self.by_k = dict(zip(scenario.ks, factors, strict=False))

    def target(self, tokens: float) -> float:
        """Seconds of a target pass over so many tokens, those of all rows together."""
        return max(1.0, tokens / self.knee)

    def round_seconds(self, draft: int, k: int, rows: int) -> float:
        """True seconds of a round in the decoder; it takes as long for all rows."""
        passes = k * self.steps[draft] + self.target(rows * (k + 1))
        spent = passes * self.in_decoder[draft] + self.scenario.constant
        return spent * self.by_k.get(k, 1.0)

    def speedup(self, draft: int, k: int, rows: int) -> float:
        """The true speed-up of a configuration."""
        each, count = self.population, POPULATION if self.scenario.prefills else 0
        plain = count * PREFILL + each.tokens * self.target(rows)
        rounds = each.rounds(draft, k)[0] * self.round_seconds(draft, k, rows)
        return plain / (count * (PREFILL + DRAFT_PREFILL) + rounds)

    def speedup_of(self, configuration: Configuration) -> float:
        """The true speed-up of a configuration that the program names."""
        draft = self.drafts.index(configuration.candidate)
        return self.speedup(draft, configuration.k, configuration.concurrency)

    def best(self, rows: int) -> float:
        """The highest true speed-up of all configurations."""
        drafts = range(len(self.drafts))
        return max(self.speedup(draft, k, rows) for draft in drafts for k in self.scenario.ks)

    def run(self, requests: int, decoded: Sequence[int], processes: int | None = None) -> Run:
        """A run over so many newly drawn requests; `decoded` has how many are decoded, by draft."""
        responses, rates = self.drawn(requests)
        records: list[AnyObservation] = [*responses]
        for at, (draft, count) in enumerate(zip(self.drafts, decoded, strict=True)):
            accepted = self.accepted(responses, rates, at)
            replays = [replay(draft, each, accepted[each.request]) for each in responses]
            records += replays
            enough = None
            if self.scenario.stops:
                replayed = run_of(manifest(self.scenario), [*responses, *replays])
                cells = self.scenario.cells
                enough = partial(timed_enough, replayed, draft, 1, responses, cells)
            records += self.costs(draft, self.steps[at], enough)
            if self.scenario.parted:
                accepted = self.accepted(responses, rates, at)
            chosen = to_decode(responses, count)
            records += self.decodes(at, chosen, accepted, processes or self.scenario.processes)
        return run_of(manifest(self.scenario), records)

    def drawn(self, requests: int) -> tuple[list[Trajectory], dict[str, Floats]]:
        """Responses to so many newly drawn requests, and by request the rate of each draft."""
        chosen = self.generator.integers(POPULATION, size=-(-requests // self.scenario.alike))
        if self.scenario.alike > 1:
            # Neighbours are those whose tokens are accepted about as often.
            ranks = np.repeat(chosen, self.scenario.alike)[:requests]
            ranks = np.clip(ranks + self.generator.integers(-20, 21, requests), 0, POPULATION - 1)
            chosen = np.argsort(self.population.rates[0])[ranks]
        rates = {f"{at:05}": self.population.rates[:, one] for at, one in enumerate(chosen)}
        responses = [
            response(name, int(self.population.lengths[one]))
            for name, one in zip(rates, chosen, strict=True)
        ]
        return responses, rates

    def _emitted(self, draft: int, k: int) -> float:
        """True tokens per round."""
        return self.population.tokens / self.population.rounds(draft, k)[0]

    def factors(self, sd: float, count: int) -> list[float]:
        """Random factors around 1 (log-normal)."""
        return np.exp(sd * self.generator.standard_normal(count)).tolist()

    def accepted(
        self, responses: Sequence[Trajectory], rates: dict[str, Floats], draft: int
    ) -> dict[str, list[bool]]:
        """By request, whether the draft's token is accepted at each position of the response."""
        return {
            each.request: (
                self.generator.random(each.output_tokens - 1) < rates[each.request][draft]
            ).tolist()
            for each in responses
        }

    def costs(
        self,
        draft: Candidate,
        step: float,
        enough: Callable[[Sequence[CostPoint]], bool] | None,
    ) -> Iterator[CostPoint]:
        """Timed passes at the shortest and the longest context; noise is shared within a visit."""
        for rows in self.scenario.concurrency:
            visits = VISITS if rows == 1 else BATCH_VISITS
            factors = self.factors(self.scenario.visits, visits if enough is None else LEAST_TURNS)
            points = list(self._points(draft, step, rows, factors))
            while enough is not None and len(factors) < MOST_TURNS and not enough(points):
                factors += self.factors(self.scenario.visits, 1)
                points = list(self._points(draft, step, rows, factors))
            yield from points

    def _points(
        self, draft: Candidate, step: float, rows: int, factors: Sequence[float]
    ) -> Iterator[CostPoint]:
        noise = np.repeat(factors, SAMPLES_PER_VISIT)
        sizes = sorted({1, 2, *(k + 1 for k in self.scenario.ks)})
        passes: list[tuple[Candidate | None, int, Floats]] = [
            *((None, size, np.full(len(noise), self.target(rows * size))) for size in sizes),
            *((draft, size, step * noise) for size in (1, 2)),
        ]
        every = [("step", *each, context) for each in passes for context in (0, 2 * LONGEST)]
        if self.scenario.prefills:
            of_prompt = ((None, PREFILL + 0 * noise), (draft, DRAFT_PREFILL * noise))
            every += [
                ("prefill", model, size, each, 0) for model, each in of_prompt for size in (50, 200)
            ]
        for what, candidate, size, seconds, context in every:
            yield CostPoint(
                candidate=candidate,
                what=what,
                concurrency=rows,
                new_tokens=size,
                context=context,
                seconds=tuple(seconds.tolist()),
                block=str(draft),
                runner="simulated",
                process="timing",
            )

    def decodes(
        self,
        draft: int,
        responses: Sequence[Trajectory],
        accepted: dict[str, list[bool]],
        processes: int,
    ) -> Iterator[Decode]:
        """Decoding with and without the draft, all rows of a batch active in every round."""
        for process in range(processes if responses else 0):
            for rows in self.scenario.concurrency:
                ks = (0, *self.scenario.ks)
                noise = self.factors(self.scenario.noise / 2**0.5, len(ks))
                for k, factor in zip(ks, noise, strict=True):
                    one = self.round_seconds(draft, k, rows) if k else self.target(rows)
                    for response in responses:
                        rounds = rounds_of(accepted[response.request], k)
                        seconds = [one * factor] * len(rounds)
                        if self.scenario.stalls and self.generator.random() < self.scenario.stalls:
                            seconds[-1] += STALL * (1 + self.generator.pareto(1.5))
                        yield decode(
                            response, self.drafts[draft], k, rounds, seconds, rows, process
                        )


def rounds_of(accepted: Sequence[bool], k: int) -> list[int]:
    """Accepted draft tokens of each round at k."""
    rounds, at = [], 0
    while at < len(accepted):
        count = 0
        while count < k and at + count < len(accepted) and accepted[at + count]:
            count += 1
        rounds.append(count)
        at += count + 1
    return rounds


def response(name: str, length: int) -> Trajectory:
    """A response that ends before its limit, so that drafts may propose beyond its end."""
    return Trajectory(
        request=name,
        sample=0,
        segment=None,
        weight=1.0,
        sampling=Sampling(),
        prompt_tokens=100,
        output_tokens=length,
        limit=length + ROOM,
        finish="stop",
        origin="target",
        margins=(5.0,) * length,
        argmax=(1,) * length,
        digest="",
    )


def replay(draft: Candidate, response: Trajectory, accepted: Sequence[bool]) -> Replay:
    """The replay of a greedy draft that is `accepted` or not at each position."""
    positions = len(accepted)
    return Replay(
        request=response.request,
        sample=0,
        candidate=draft,
        mode=DraftingMode.GREEDY,
        draftable=response.limit,
        accept=tuple(map(float, accepted)),
        confidence=(0.9,) * positions,
        margin=(5.0,) * positions,
        rank=(0,) * positions,
    )


def decode(
    response: Trajectory,
    draft: Candidate,
    k: int,
    accepted: Sequence[int],
    seconds: Sequence[float],
    rows: int,
    process: int,
) -> Decode:
    """Decoding of a response; `accepted` and `seconds` are of each round, k = 0 is no draft."""
    rounds = len(accepted)
    left = response.output_tokens - 1 - sum(accepted[:-1]) - (rounds - 1)
    cut = (0,) * (rounds - 1) + ((k - accepted[-1]) if accepted[-1] == left else 0,)
    return Decode(
        request=response.request,
        sample=0,
        candidate=draft if k else None,
        k=k,
        mode=DraftingMode.GREEDY,
        repeat=0,
        proposed=(k,) * rounds,
        accepted=tuple(accepted),
        cut=cut,
        draft_seconds=(0.0,) * rounds,
        verify_seconds=tuple(seconds),
        prefill_seconds=PREFILL,
        draft_prefill_seconds=DRAFT_PREFILL if k else None,
        decode_seconds=sum(seconds),
        output_tokens=response.output_tokens,
        digest="",
        first_difference=None,
        tie=None,
        block=str(draft),
        concurrency=rows,
        process=f"decoding {process}",
        active=(rows,) * rounds if rows > 1 else (),
    )


def manifest(scenario: Scenario) -> Manifest:
    """The manifest of a simulated run."""
    question = Question(
        target="target",
        target_quant="none",
        dtype="float32",
        device="cpu",
        drafts=tuple(draft.draft for draft in DRAFTS[: len(scenario.decoded)]),
        quants=("none",),
        simulate_quant=False,
        ks=scenario.ks,
        mode=DraftingMode.GREEDY,
        lookup_longest=4,
        lookup_shortest=2,
        traffic="simulated",
        traffic_digest="",
        responses="target",
        samples=1,
        max_new_tokens=None,
        temperature=None,
        concurrency=scenario.concurrency,
    )
    count = scenario.requests
    return Manifest(
        schema_version=SCHEMA_VERSION,
        draftbench="",
        created="",
        command="",
        key_id="",
        question=question,
        traffic=TrafficFacts(
            form="simulated", rows=POPULATION, requests=count, merged=0, dropped={}
        ),
        environment=Environment(
            platform="",
            processor="",
            cores=1,
            threads=1,
            accelerator=None,
            python="",
            packages={},
        ),
        effort=Effort(measure="best", measure_requests=count, controls=False),
        specs={},
        run="",
    )
