"""The model's draws → the log speed-ups of every configuration of a run, at any concurrency.

The best of several drafts tends to be the luckiest one. So the true speed-ups of drafts are taken
to be normal around their mean with an unknown spread: estimates that differ by no more than their
errors are shrunk together, those far apart hardly move (Gelman, Hill & Yajima 2012).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.intervals import (
    MIN_REQUESTS,
    RESAMPLES,
    generator_of,
)
from draftbench.acceptance.rounds import Floats
from draftbench.planner.alternatives import Alternative, Kind, VarianceByCause, draft_memory
from draftbench.planner.cells import (
    Cell,
    DrawnRequests,
    Measurement,
    Promised,
    TimedRun,
    cells_of,
    ks_of,
    measurements,
    promised,
)
from draftbench.planner.cost_sources import costs_in
from draftbench.planner.decide import DecisionAt
from draftbench.planner.effects import BuiltInDesign, Design, Effects, EngineDesign, reshaped
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes import PASS_DRAWS, Block, between
from draftbench.planner.recommendation import (
    Configuration,
)
from draftbench.records import SELF, Candidate, Key
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

# How much drafts differ (sd of log speed-ups): half-Cauchy with this scale, on a grid.
DRAFTS_DIFFER, _AMONG = 0.2, np.geomspace(0.005, 0.64, 8)


class Evaluator:
    """Decides for one run at any concurrency, each once. The `effects` say how much longer than
    promised decoding takes, learned from all timed cells. With costs from elsewhere (`foreign`) the
    run's own decoding does not count.
    """

    def __init__(self, run: Run, options: DecisionOptions) -> None:
        self.run, self.options = run, options
        self.foreign = options.costs is not None
        self.source = options.costs or costs_in(run)
        self.on_engine = bool(self.source.served)  # whether costs are seconds of an engine's rounds
        # What users wait for and machines are paid for includes prefills. Without times of them, as
        # in a file of step times, tokens per dollar are those of decoding.
        of_blocks = (block for at in self.source.blocks.values() for block in at.values())
        timed_prefills = self.on_engine or any(block.prefill for block in of_blocks)
        with_prefills = options.objective == "latency" or (
            options.objective in ("throughput", "cost") and timed_prefills
        )
        self.by: Kind = "end_to_end" if with_prefills else "expected"
        self.ks = ks_of(run)
        timed, blocks, engine = self.source.run, self.source.blocks, self.on_engine
        # With the costs of another run, its requests are resampled too.
        runs = filter(None, (run, timed))
        self.drawn = DrawnRequests(row.request for each in runs for row in each.trajectories)
        cells = cells_of(timed, run.candidates, blocks, self.drawn) if timed else []
        loads = {*chain(*blocks.values()), *(cell.configuration.concurrency for cell in cells)}
        every = sorted(loads)
        in_turn = timed is not None and timed.manifest.question.in_turn
        design: Design = BuiltInDesign(cells, every)
        if engine:
            design = EngineDesign(cells, self.ks, in_turn=in_turn)
        known = [
            Configuration.of(candidate, k, concurrency)
            for candidate in run.candidates
            for concurrency in every
            for k in self.ks
            if not engine or concurrency in self.source.concurrencies(candidate)
        ]
        self.effects = Effects(cells, design, known)
        self.cells: dict[Configuration, tuple[Cell, ...]] = {}
        for cell in cells if not self.foreign else ():
            self.cells[cell.configuration] = (*self.cells.get(cell.configuration, ()), cell)

    @cached_property
    def can_be_timed(self) -> bool:
        """Whether the built-in decoder can time a draft that did not fail, and none is to be tried
        again first. The speed of a simulated level says nothing about the level, and the target as
        its own draft is a control.
        """
        run = self.run
        failed = {failure.candidate for failure in run.failures}

        def simulated(model: Candidate | None) -> bool:
            return (facts := run.facts_of(model)) is not None and not facts.has_kernel

        return (
            run.manifest.question.engine is None
            and not any(failure.tried_again for failure in run.failures)
            and not simulated(None)
            and any(
                each.draft != SELF and each not in failed and not simulated(each)
                for each in run.candidates
            )
        )

    def concurrencies(self) -> tuple[int, ...]:
        """The loads that the run was asked for; with costs from elsewhere, those timed there."""
        if self.foreign:
            timed = chain(*map(self.source.concurrencies, self.run.candidates))
            return tuple(sorted(set(timed)))
        if self.run.manifest.question.arrivals != "closed":
            return (1,)  # requests sent at their times of arrival make one load, which counts as 1
        return tuple(sorted(self.run.manifest.question.concurrency))

    @remembered
    def measured(self, concurrency: int) -> dict[tuple[Candidate, int], Measurement]:
        """The run's measured speed-ups; none with costs from elsewhere."""
        return {} if self.foreign else measurements(self.run, concurrency)

    @remembered
    def decoded(self, candidate: Candidate) -> frozenset[Key]:
        """The responses on which a candidate was decoded at any load."""
        decodes = () if self.foreign else self.run.decodes
        return frozenset(row.key for row in decodes if row.candidate == candidate)

    @remembered
    def promised(self, concurrency: int) -> Promised:
        """What the timed passes promise for every candidate at a load."""
        cells, alone = self.cells, dict[Configuration, Sequence[TimedRun]]()
        for (of, k), measurement in self.measured(concurrency).items():
            configuration = Configuration.of(of, k, concurrency)
            if configuration in cells and configuration in self.effects.design.alone:
                alone[configuration] = measurement.runs
        by_tokens_alone, every = {c.candidate for c in alone}, {}
        for candidate in self.run.candidates:
            block = self._block(candidate, concurrency)
            served = concurrency in self.source.served.get(candidate, ())
            if block or (served and candidate not in by_tokens_alone):
                every[candidate] = block
        return promised(
            self.run, every, concurrency, self.ks, alone, self.drawn, foreign=self.foreign
        )

    @remembered
    def alternatives(self, concurrency: int) -> tuple[Alternative, ...]:
        """Every candidate at every k that the run was asked for, if anything is known there."""
        here, variances = self.promised(concurrency), self._variances_by_cause(concurrency)
        column_of = {each: column for column, each in enumerate(here.configurations)}
        found = []
        for candidate in self.run.candidates:
            rounds, measured = candidate_rounds(self.run, candidate), self.measured(concurrency)
            block, memory = self._block(candidate, concurrency), draft_memory(self.run, candidate)
            note = self.source.note(candidate, concurrency)
            for k in self.ks:
                if not (rounds.reaches(k) or (candidate, k) in measured):
                    continue
                configuration = Configuration.of(candidate, k, concurrency)
                at = column_of.get(configuration)
                found.append(
                    Alternative(
                        evaluator=self,
                        configuration=configuration,
                        rounds=rounds,
                        block=block,
                        measured=measured.get((candidate, k)),
                        cells=self.cells.get(configuration, ()),
                        note=note,
                        memory_bytes=memory,
                        requests=0 if at is None else int(here.requests[at]),
                        equal=0.0 if at is None else float(here.equal[at]),
                        variance_by_cause=None if at is None else variances[at],
                        column=at,
                    )
                )
        return tuple(found)

    @remembered
    def log_speedups(self, concurrency: int, by: Kind) -> list[Floats | None]:
        """The draws of every log speed-up [1 + draws], by column; None where unknown."""
        every = self.logs_by_cause(concurrency, by).every + self.among_drafts(concurrency, by)
        return [log if np.isfinite(log).all() else None for log in np.ascontiguousarray(every.T)]

    @remembered
    def logs_by_cause(self, concurrency: int, by: Kind) -> _LogsByCause:
        """The log speed-ups, split by cause: what draws of requests add, what draws of time add,
        and the estimates with both. Draws of requests are scaled to Student's t, with n the number
        of equally long requests.
        """
        here, prefills = self.promised(concurrency), by == "end_to_end"
        seconds, equal = np.stack([here.plain, here.rounds], axis=-1), here.equal
        if self.on_engine:  # its rounds are known from the answered requests alone
            cells = [c for c in self.effects.cells if c.configuration.concurrency == concurrency]
            equal = np.minimum(equal, min((cell.equal for cell in cells), default=math.inf))

        def logs(rows: slice, longer: Floats) -> Floats:
            with np.errstate(divide="ignore", invalid="ignore"):
                sides = np.log(seconds[rows]) + longer
                if prefills:
                    sides = np.logaddexp(sides, np.log(here.prefills[rows]))
                return np.asarray(sides[..., 0] - sides[..., 1], np.float64)

        estimate, by_requests, by_time = self.effects.longer(here.configurations, here.step)
        middle = logs(slice(0, 1), estimate[None])[0]
        requests, time = logs(slice(1, None), by_requests), logs(slice(0, 1), by_time) - middle
        n = np.maximum(equal, MIN_REQUESTS)
        normal, square = generator_of("student").standard_normal((RESAMPLES, 1)), 2 / (9 * (n - 1))
        # χ² over its degrees of freedom (Wilson & Hilferty 1931).
        spread = np.maximum(1 - square + normal * np.sqrt(square), 0.05) ** 3
        requests = (requests - requests.mean(axis=0)) * np.sqrt((n + 1) / (n - 1) / spread)
        return _LogsByCause(
            requests, time, np.concatenate([middle[None], middle + requests + time])
        )

    def simulated_timings(self, timed: Sequence[Alternative]) -> Floats:
        """The log speed-ups that one more timing of each alternative would show, without the draws
        of requests [draws, alternatives].
        """
        found, noises = [], np.array([each.noise for each in self.effects.grid])
        normal, noise = generator_of("cells").standard_normal, noises[self.effects.given]
        # Unless servers take turns, an engine's without a draft is not started again for each.
        shared = self.on_engine and not self.run.manifest.question.in_turn
        beside = 0.0 if shared else noise * normal(len(noise))
        for each in timed:
            concurrency = each.configuration.concurrency
            passes = each.timing if each.block else np.zeros(PASS_DRAWS)
            passes = np.tile(passes, RESAMPLES // PASS_DRAWS)
            time = self.logs_by_cause(concurrency, "expected").time[:, each.column]
            found.append(time + passes + noise * normal(len(noise)) - beside)
        return np.stack(found, axis=1)

    @remembered
    def _block(self, candidate: Candidate, concurrency: int) -> Block | None:
        return between(self.source.blocks.get(candidate, {}), concurrency)

    def _variances_by_cause(self, concurrency: int) -> list[VarianceByCause | None]:
        """The variance of every log speed-up by cause, by column; decoding it removes the last."""
        here, logs = self.promised(concurrency), self.logs_by_cause(concurrency, self.by)
        chances, grid = self.effects.chances, self.effects.grid
        noise = 2 * float(chances @ [each.noise**2 for each in grid])
        found: list[VarianceByCause | None] = []
        timed = {cell.configuration for cell in self.effects.cells}
        for each, requests, time in zip(
            here.configurations, logs.requests.var(axis=0), logs.time.var(axis=0), strict=True
        ):
            undecoded = 0.0 if each in timed else float(time**2 / (time + noise))
            known = math.isfinite(time)
            found.append((float(requests), float(time) - undecoded, undecoded) if known else None)
        return found

    @remembered
    def among_drafts(self, concurrency: int, by: Kind) -> Floats:
        """What shrinking each draw toward the mean over drafts adds to it [1 + draws,
        configurations]: true speed-ups at the best k are taken to be normal, their spread unknown.
        """
        logs, best = self.logs_by_cause(concurrency, by).every, dict[Candidate, int]()
        configurations = self.promised(concurrency).configurations
        for at, each in enumerate(configurations):
            known = each.candidate.draft != SELF and math.isfinite(logs[0, at])
            if known and logs[0, at] > logs[0, best.get(each.candidate, at)] - 1e-12:
                best[each.candidate] = at
        columns = list(best.values())
        if len(columns) < 2:
            return np.zeros_like(logs)
        estimates, draws = logs[0, columns], logs[1:, columns]
        count = len(columns)
        error = np.cov(draws.T) + 1e-10 * np.eye(count)
        one, options, pulls, shapes = np.ones(count), [], [], []
        for sd in _AMONG.tolist():
            inverse = np.linalg.inv(error + sd**2 * np.eye(count))
            precision = one @ inverse @ one
            off = estimates - one @ inverse @ estimates / precision
            log = np.linalg.slogdet(inverse)[1] - math.log(precision) - off @ inverse @ off
            options.append(log / 2 + math.log(sd) - math.log1p((sd / DRAFTS_DIFFER) ** 2))
            # Given the spread, the true speed-ups have the mean estimate - error · inverse · off.
            pull = -error @ inverse @ (np.eye(count) - np.outer(one, one @ inverse) / precision)
            pulls.append(pull)
            shapes.append(reshaped(error, error + pull @ error) - np.eye(count))
        chances = np.exp(np.array(options) - max(options))
        chances /= chances.sum()
        chosen = generator_of("among drafts").choice(len(chances), p=chances, size=RESAMPLES)
        moved = np.zeros((RESAMPLES + 1, count + 1))  # the last column, of the control, stays 0
        moved[0, :-1] = sum(c * pull for c, pull in zip(chances, pulls, strict=True)) @ estimates
        for at, pull in enumerate(pulls):
            rows = np.flatnonzero(chosen == at)
            moved[1 + rows, :-1] = (draws[rows] - estimates) @ shapes[at].T + pull @ estimates
        drafts = list(best)
        own = [drafts.index(c.candidate) if c.candidate in best else -1 for c in configurations]
        return moved[:, own]

    @remembered
    def at(self, concurrency: int, only: Candidate | None = None) -> DecisionAt:
        """The decision at one load, among all candidates or for one candidate alone."""
        every = self.alternatives(concurrency)
        return DecisionAt(self, concurrency, [a for a in every if only in (None, a.candidate)])


class _LogsByCause(NamedTuple):
    """Draws of log speed-ups: what drawn requests and drawn times add to them [draws,
    configurations], and the estimates with both [1 + draws, configurations].
    """

    requests: Floats
    time: Floats
    every: Floats
