"""A run and what is asked of it → tables of draws, and the decision at any load."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

import numpy as np

from draftbench.acceptance.candidate_rounds import candidate_rounds
from draftbench.acceptance.intervals import MIN_REQUESTS, RESAMPLES, Estimate, generator_of
from draftbench.acceptance.rounds import Floats
from draftbench.drafts.stopping import LEAST, STOP_RULES
from draftbench.planner.cells import (
    ROUND,
    Cell,
    DrawnRequests,
    Measurement,
    TimedRun,
    cells_of,
    ks_of,
    measurements,
)
from draftbench.planner.cost_sources import costs_in
from draftbench.planner.decide import DecisionAt
from draftbench.planner.effects import BuiltInDesign, Design, Effects, EngineDesign
from draftbench.planner.evidence import Evidence
from draftbench.planner.limits import broken_limits, draft_memory, not_run
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes import PASS_DRAWS, Block, between
from draftbench.planner.recommendation import Configuration
from draftbench.planner.seconds import PredictedSeconds, predicted_seconds
from draftbench.planner.shrinkage import shrinkage
from draftbench.planner.stop_choice import by_passes, chosen_rules
from draftbench.planner.table import Table, estimate_of
from draftbench.records import SELF, Candidate, DraftLength, Key, StopRule
from draftbench.remembered import remembered
from draftbench.run_folder.run import Run

# As many loads are computed together, whose draws take some hundred megabytes.
_LOADS_AT_ONCE = 16

# A speed-up of decoding, or with both prefills included.
Kind = Literal["expected", "end_to_end"]


class Evaluator:
    """Decides for one run at any load. The `effects` say how much longer than predicted by passes
    decoding takes, learned from all timed cells. With costs from elsewhere (`foreign`) the run's
    own decoding does not count.
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
        # The kinds of rules that may be chosen: those that what ran the target follows.
        runner = run.manifest.question.engine
        followed = (kind for kind, rule in STOP_RULES.items() if runner in (None, rule.engine))
        self.stops = tuple(followed) if options.stops is None else options.stops
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
            Configuration.of(candidate, length.k, concurrency, length.stop)
            for candidate in run.candidates
            for concurrency in every
            for length in (*map(DraftLength, self.ks), *self._one_of_each_kind(candidate))
            if not engine or concurrency in self.source.concurrencies(candidate)
        ]
        self.effects = Effects(cells, design, known)
        self.cells: dict[Configuration, tuple[Cell, ...]] = {}
        for cell in cells if not self.foreign else ():
            self.cells[cell.configuration] = (*self.cells.get(cell.configuration, ()), cell)
        self._seconds: dict[int, PredictedSeconds] = {}
        self._tables: dict[tuple[int, Kind], Table] = {}

    def concurrencies(self) -> tuple[int, ...]:
        """The loads that the run was asked for; with costs from elsewhere, those timed there."""
        if self.foreign:
            timed = chain(*map(self.source.concurrencies, self.run.candidates))
            return tuple(sorted(set(timed)))
        if self.run.manifest.question.arrivals != "closed":
            return (1,)  # requests sent at their times of arrival make one load, which counts as 1
        return tuple(sorted(self.run.manifest.question.concurrency))

    @remembered
    def at(self, concurrency: int, only: Candidate | None = None) -> DecisionAt:
        """The decision at one load, among all candidates or for one candidate alone."""
        table, run, limits = self.table(concurrency), self.run, self.options
        breaks, elsewhere = dict[Configuration, list[str]](), dict[Configuration, str]()
        if run.manifest.question.engine or limits.max_memory or limits.max_p99_ratio:
            expected = self.table(concurrency, "expected")
            for each in table.configurations:
                found = broken_limits(run, limits, self.evidence(each), expected.value(each))
                if broken := list(found):
                    breaks[each] = broken
                if not self.foreign and (why := not_run(run, each)):
                    elsewhere[each] = why
        return DecisionAt(table, limits.min_speedup, breaks, elsewhere, only)

    def table(self, concurrency: int, by: Kind | None = None) -> Table:
        """The speed-ups of every candidate at every k that the run was asked for, if anything is
        known there; of the kind by which they are ranked, unless another is named.
        """
        kind = by or self.by
        if (concurrency, kind) not in self._tables:
            self._draw([concurrency], kind)
        return self._tables[concurrency, kind]

    @remembered
    def evidence(self, configuration: Configuration) -> Evidence:
        """What was observed of a configuration."""
        candidate, concurrency = configuration.candidate, configuration.concurrency
        seconds, cells = self.seconds(concurrency), self.cells.get(configuration, ())
        column, design, slowdown = seconds.column[configuration], self.effects.design, None
        predictable = math.isfinite(seconds.rounds[0, column]) and configuration not in design.alone
        if isinstance(design, EngineDesign):
            predictable = predictable and design.started_beside(configuration)
        if predictable:
            without, step = configuration if cells else None, float(seconds.step_per_round[column])
            slowdown = self.effects.slower(configuration, step, without)
        return Evidence(
            configuration=configuration,
            rounds=candidate_rounds(self.run, candidate),
            block=self._block(candidate, concurrency),
            measured=self.measured(concurrency).get(configuration),
            decoded=self._decoded(candidate),
            cells=cells,
            note=self.source.note(candidate, concurrency),
            timed=self.table(concurrency, "expected").value(configuration) is not None,
            requests=int(seconds.requests[column]),
            effective_requests=float(seconds.effective_requests[column]),
            log_slowdown=slowdown,
            variance_by_cause=self._variance_by_cause(configuration),
        )

    @remembered
    def _decoded(self, candidate: Candidate) -> frozenset[Key]:
        decodes = () if self.foreign else self.run.decodes
        return frozenset(row.key for row in decodes if row.candidate == candidate)

    def _variance_by_cause(self, configuration: Configuration) -> tuple[float, float, float] | None:
        """The variance of its log speed-up by cause; decoding it removes the last."""
        table = self.table(configuration.concurrency)
        column = table.column[configuration]
        requests, time = (
            float(each[:, column].var()) for each in (table.by_requests, table.by_time)
        )
        if not math.isfinite(time):
            return None
        chances, grid = self.effects.chances, self.effects.grid
        noise = 2 * float(chances @ [each.noise**2 for each in grid])
        timed = any(cell.configuration == configuration for cell in self.effects.cells)
        undecoded = 0.0 if timed else time**2 / (time + noise)
        return requests, time - undecoded, undecoded

    def predicted(self, configuration: Configuration, by: Kind = "expected") -> Estimate | None:
        """The speed-up as the other cells predict it, with an interval over requests alone."""
        evidence, concurrency = self.evidence(configuration), configuration.concurrency
        if evidence.log_slowdown is None:
            return None
        seconds = self.seconds(concurrency)
        column = seconds.column[configuration]
        plain, rounds = seconds.plain[0, column], seconds.rounds[0, column]
        sides = np.array([plain, rounds * np.exp(evidence.log_slowdown)])
        sides += seconds.prefills[0, column] if by == "end_to_end" else 0.0
        requests = self.table(concurrency, by).by_requests[:, column]
        log = np.log(sides[0] / sides[1]) + np.append(0.0, requests)
        return estimate_of(log, evidence.requests)

    def simulated_timings(self, timed: Sequence[Configuration]) -> Floats:
        """The log speed-ups that one more timing of each would show, without the draws of requests
        [draws, configurations].
        """
        found, noises = [], np.array([each.noise for each in self.effects.grid])
        normal, noise = generator_of("cells").standard_normal, noises[self.effects.given]
        # Unless servers take turns, an engine's without a draft is not started again for each.
        shared = self.on_engine and not self.run.manifest.question.in_turn
        beside = 0.0 if shared else noise * normal(len(noise))
        for each in timed:
            evidence = self.evidence(each)
            passes = evidence.by_drawn_passes if evidence.block else np.zeros(PASS_DRAWS)
            passes = np.tile(passes, RESAMPLES // PASS_DRAWS)
            table = self.table(each.concurrency, "expected")
            time = table.by_time[:, table.column[each]]
            found.append(time + passes + noise * normal(len(noise)) - beside)
        return np.stack(found, axis=1)

    @remembered
    def measured(self, concurrency: int) -> dict[Configuration, Measurement]:
        """The run's measured speed-ups; none with costs from elsewhere."""
        return {} if self.foreign else measurements(self.run, concurrency)

    def _one_of_each_kind(self, candidate: Candidate) -> Iterator[DraftLength]:
        """A rule of each kind that the candidate may stop by; none for the control."""
        rounds = candidate_rounds(self.run, candidate)
        if candidate.draft != SELF and rounds.knows_confidences and rounds.most_stopped > 1:
            for kind in self.stops:
                yield DraftLength(self.ks[-1], StopRule(kind=kind, threshold=LEAST))

    @remembered
    def _judged(self, candidate: Candidate, concurrency: int) -> dict[Configuration, Floats]:
        """A candidate's best rule of each kind, with the seconds of every response by the rule that
        other requests chose.
        """
        rounds, block = candidate_rounds(self.run, candidate), self._block(candidate, concurrency)
        kinds = [stop.kind for _, stop in self._one_of_each_kind(candidate) if stop]
        design, of_a_round, found = self.effects.design, None, dict[Configuration, Floats]()
        if isinstance(design, EngineDesign):
            of_a_round = design.seconds(candidate, concurrency)
        if not kinds or (block is None and of_a_round is None):
            return {}

        def cost(proposed: Floats, drafted: Floats) -> Floats:
            if block is not None:
                return by_passes(block, rounds.context, concurrency, proposed, drafted)
            assert of_a_round is not None
            seconds: Floats = drafted @ of_a_round[: drafted.shape[1]]
            return seconds

        measured = self.measured(concurrency)
        decoded = {each.length for each in measured if each.candidate == candidate}
        longest = math.inf if block is None or block.longest is None else block.longest - 1
        for rule in chosen_rules(rounds, cost, kinds, decoded, longest):
            own = Configuration.of(candidate, rule.length.k, concurrency, rule.length.stop)
            found[own] = rule.seconds(rounds, block or ROUND, concurrency, of_a_round)
            if isinstance(design, EngineDesign):
                design.drafted.setdefault(own, rounds.at(*own.length).drafted_per_round)
        return found

    @remembered
    def _block(self, candidate: Candidate, concurrency: int) -> Block | None:
        return between(self.source.blocks.get(candidate, {}), concurrency)

    def seconds(self, concurrency: int) -> PredictedSeconds:
        """The predicted seconds of every candidate at every k, if anything is known there."""
        if concurrency not in self._seconds:
            self._predict([concurrency])
        return self._seconds[concurrency]

    def prepare(self, loads: Iterable[int]) -> None:
        """Draw the speed-ups at these loads together, which is faster than one load at a time."""
        rest = [load for load in dict.fromkeys(loads) if (load, self.by) not in self._tables]
        for first in range(0, len(rest), _LOADS_AT_ONCE):
            together = rest[first : first + _LOADS_AT_ONCE]
            self._predict([load for load in together if load not in self._seconds])
            self._draw(together, self.by)

    def _predict(self, loads: Sequence[int]) -> None:
        """Predict the seconds at these loads."""
        alone, blocks = self.effects.design.alone, dict[tuple[Candidate, int], Block | None]()
        decoded, judged = dict[Configuration, Sequence[TimedRun]](), dict[Configuration, Floats]()
        at_load = list[list[Configuration]]()
        for concurrency in loads:
            measured, by_tokens = self.measured(concurrency), set[Candidate]()
            here = list[Configuration]()
            for candidate in self.run.candidates:
                rounds = candidate_rounds(self.run, candidate)
                fixed = (Configuration.of(candidate, k, concurrency) for k in self.ks)
                here += [each for each in fixed if rounds.reaches(each.k) or each in measured]
                of_rules = self._judged(candidate, concurrency)
                decoded_too = (each for each in measured if each.candidate == candidate)
                rules = (each for each in decoded_too if each.stop and each.stop.kind in self.stops)
                here += dict.fromkeys((*of_rules, *rules))
                judged |= of_rules
            at_load.append(here)
            for configuration, measurement in measured.items():
                if configuration in self.cells and configuration in alone:
                    decoded[configuration] = measurement.runs
                    by_tokens.add(configuration.candidate)
            for candidate in self.run.candidates:
                block = self._block(candidate, concurrency)
                served = concurrency in self.source.served.get(candidate, ())
                if block or (served and candidate not in by_tokens):
                    blocks[candidate, concurrency] = block
        every = list(chain(*at_load))
        found = predicted_seconds(
            self.run, every, blocks, decoded, judged, self.drawn, foreign=self.foreign
        )
        end = 0
        for concurrency, configurations in zip(loads, at_load, strict=True):
            begin, end = end, end + len(configurations)
            self._seconds[concurrency] = found.part(slice(begin, end))

    def _draw(self, loads: Sequence[int], by: Kind) -> None:
        """Draw the speed-ups at these loads. Draws of requests are scaled to Student's t, with n
        the number of equally long requests.
        """
        of_loads = [self.seconds(load) for load in loads]
        configurations = [each for seconds in of_loads for each in seconds.configurations]
        plain = np.concatenate([each.plain for each in of_loads], axis=1)
        rounds = np.concatenate([each.rounds for each in of_loads], axis=1)
        known = np.flatnonzero(np.isfinite(rounds[0]))
        seconds = np.stack([plain[:, known], rounds[:, known]], axis=-1)
        some = [configurations[column] for column in known]
        step = np.concatenate([each.step_per_round for each in of_loads])[known]
        equal = np.concatenate([each.effective_requests for each in of_loads])[known]
        if self.on_engine:  # its rounds are known from the answered requests alone
            least = dict[int, float]()
            for cell in self.effects.cells:
                load = cell.configuration.concurrency
                least[load] = min(cell.effective_requests, least.get(load, math.inf))
            equal = np.minimum(equal, [least.get(each.concurrency, math.inf) for each in some])
        prefills = np.concatenate([each.prefills for each in of_loads], axis=1)[:, known]

        def logs(rows: slice, longer: Floats) -> Floats:
            # Without a round, or without known prefills, a speed-up is unknown.
            with np.errstate(divide="ignore", invalid="ignore"):
                sides = np.log(seconds[rows]) + longer
                if by == "end_to_end":
                    sides = np.logaddexp(sides, np.log(prefills[rows]))
            return np.asarray(sides[..., 0] - sides[..., 1], np.float64)

        estimate, by_requests, by_time = self.effects.longer(some, step)
        middle = logs(slice(0, 1), estimate[None])[0]
        requests, time = logs(slice(1, None), by_requests), logs(slice(0, 1), by_time) - middle
        n = np.maximum(equal, MIN_REQUESTS)
        normal, square = generator_of("student").standard_normal((RESAMPLES, 1)), 2 / (9 * (n - 1))
        # χ² over its degrees of freedom (Wilson & Hilferty 1931).
        spread = np.maximum(1 - square + normal * np.sqrt(square), 0.05) ** 3
        requests = (requests - requests.mean(axis=0)) * np.sqrt((n + 1) / (n - 1) / spread)
        drawn = [requests, time, np.concatenate([middle[None], middle + requests + time])]
        for at, values in enumerate(drawn):
            drawn[at] = np.full((len(values), len(configurations)), np.nan)
            drawn[at][:, known] = values
        end = 0
        for load, seconds_at in zip(loads, of_loads, strict=True):
            begin, end = end, end + len(seconds_at.configurations)
            requests, time, every = (values[:, begin:end] for values in drawn)
            shrunk = shrinkage(seconds_at.configurations, every)
            self._tables[load, by] = Table(
                concurrency=load,
                configurations=seconds_at.configurations,
                logs=every + shrunk,
                by_requests=requests,
                by_time=time,
                shrunk=shrunk,
                requests=seconds_at.requests,
                effective_requests=seconds_at.effective_requests,
                tokens_per_round=seconds_at.tokens_per_round,
                memory=[draft_memory(self.run, c.candidate) for c in seconds_at.configurations],
            )
