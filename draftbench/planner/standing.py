"""A run and a wish → who leads at a concurrency, and whether that is worth speculating for.

Speculate where the speed-up of the best cell lies above the asked one with its whole interval, do
not where it lies at or below, and say "inconclusive" between. Every concurrency is decided by its
own costs, overheads and measured cells; acceptance is the same at all of them.

The interval of a leader that was not decoded is stretched to what predictions like its own were off
by where others were decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import Estimate, estimate, requests_needed
from draftbench.planner.choice import TIMING_NOISE, Cell, Contest, Kind, cell_of
from draftbench.planner.limits import broken
from draftbench.planner.measured import Measurement, measurements
from draftbench.planner.options import DecisionOptions
from draftbench.planner.passes_alone import passes_only_error
from draftbench.planner.predict import Entrant, grid, replayed
from draftbench.planner.recommendation import Decision
from draftbench.planner.sources import CostSource, RunCosts
from draftbench.records import SELF, Candidate
from draftbench.run_folder.run import Run


@dataclass(frozen=True, eq=False)
class Standing:
    """The cells at one concurrency and what follows from them."""

    concurrency: int
    cells: tuple[Cell, ...]
    contest: Contest
    min_speedup: float

    @cached_property
    def leader(self) -> Cell | None:
        """The cell that came out first; None where no speed is known."""
        return self.contest.leader()

    @cached_property
    def sample(self) -> Sample | None:
        """What decides: the winner's own figures are flattered by winning, so its speed-up is taken
        from requests that did not choose it, where there are such.
        """
        if self.leader is None:
            return None
        return self.contest.cross_fit(self.contest.by) or self.leader.speedup(self.contest.by)

    @cached_property
    def judged(self) -> Estimate | None:
        """The deciding speed-up with its interval, stretched where it is a prediction alone."""
        if self._interval is None or self.leader is None or self.leader.measured is not None:
            return self._interval
        return _doubted(self._interval, self.contest.errors)

    @cached_property
    def _interval(self) -> Estimate | None:
        """Over requests."""
        return None if self.sample is None else estimate(self.sample)

    @cached_property
    def decision(self) -> Decision:
        """Whether to speculate at this concurrency; not where nobody keeps the limits."""
        running = self.contest.entered
        if running and all(cell.breaks for cell in running):
            return "do_not_speculate"
        return decide(self.judged, self.min_speedup)

    @property
    def choice(self) -> Cell | None:
        """The leader where the answer is to speculate."""
        return self.leader if self.decision == "speculate" else None

    @property
    def requests_needed(self) -> int | None:
        """How many requests would settle what is inconclusive; None where requests cannot."""
        judged, least = self._interval, self.min_speedup
        if self.sample is None or judged is None or judged.value == least:
            return None
        if {self.decision, decide(judged, least)} != {"inconclusive"}:
            return None
        return requests_needed(self.sample, abs(judged.value - least) / judged.value)


class Field:
    """One run's candidates, at any concurrency. Where costs come from elsewhere, this run's own
    decoding does not count.
    """

    def __init__(self, observed: Run, options: DecisionOptions) -> None:
        self.observed, self.options = observed, options
        self.source: CostSource = options.costs or RunCosts(observed)
        self.foreign = options.costs is not None
        self.by: Kind = "whole" if options.objective == "latency" else "judged"
        self._entrants: dict[Candidate, Entrant] = {}
        self._decoded: dict[int, dict[tuple[Candidate, int], Measurement]] = {}
        self._cells: dict[int, tuple[Cell, ...]] = {}
        self._errors: dict[int, tuple[float, ...]] = {}
        self._standings: dict[tuple[int, Candidate | None], Standing] = {}

    def at(self, concurrency: int, only: Candidate | None = None) -> Standing:
        """Who leads with so many active rows, among all candidates or the k's of one."""
        key = concurrency, only
        if key not in self._standings:
            cells, by = self._of(concurrency, only), self.by
            running = [cell for cell in cells if only or cell.entrant.candidate.draft != SELF]
            contest = Contest(running, by, self._errors_at(concurrency))
            self._standings[key] = Standing(concurrency, cells, contest, self.options.min_speedup)
        return self._standings[key]

    def concurrencies(self) -> tuple[int, ...]:
        """Those that the run asked about; with costs from elsewhere, those timed there."""
        if not self.foreign:
            return tuple(sorted(self.observed.manifest.question.batches))
        timed = {batch for c in self.observed.candidates for batch in self.timed(c)}
        return tuple(sorted(timed))

    def timed(self, candidate: Candidate) -> tuple[int, ...]:
        """The concurrencies that this candidate was timed at."""
        return self.source.batches(candidate)

    @property
    def timing(self) -> Run | None:
        """The run whose machine the costs are of; None for an engine's own step times."""
        return self.source.observed if isinstance(self.source, RunCosts) else None

    def measured(self, concurrency: int) -> dict[tuple[Candidate, int], Measurement]:
        """What was decoded by the runner that costs come from."""
        if concurrency not in self._decoded:
            found = {} if self.foreign else measurements(self.observed, concurrency)
            self._decoded[concurrency] = found
        return self._decoded[concurrency]

    def _errors_at(self, concurrency: int) -> tuple[float, ...]:
        """What predictions from passes alone were off by, of all that was decoded there."""
        if concurrency not in self._errors:
            decoded = self._of(concurrency) if self.measured(concurrency) else ()
            errors = (passes_only_error(cell, self.by) for cell in decoded)
            self._errors[concurrency] = tuple(error for error in errors if error is not None)
        return self._errors[concurrency]

    def _of(self, concurrency: int, only: Candidate | None = None) -> tuple[Cell, ...]:
        """Every candidate, or one, at every k of the grid."""
        if only and concurrency not in self._cells and not self.measured(concurrency):
            return self._made(concurrency, (only,))
        if concurrency not in self._cells:
            self._cells[concurrency] = self._made(concurrency, self.observed.candidates)
        cells = self._cells[concurrency]
        return tuple(cell for cell in cells if only in (None, cell.entrant.candidate))

    def _made(self, concurrency: int, candidates: Sequence[Candidate]) -> tuple[Cell, ...]:
        measured = self.measured(concurrency)
        found = []
        for candidate in candidates:
            entrant = self._entrant(candidate)
            if not entrant.laws:
                continue
            entrant = entrant.at(concurrency, self.source, grid(self.observed))
            for k in grid(self.observed):
                cell = cell_of(entrant, k, measured.get((candidate, k)))
                limits = broken(cell, self.options, self.observed)
                found.append(replace(cell, breaks=limits) if limits else cell)
        return tuple(found)

    def _entrant(self, candidate: Candidate) -> Entrant:
        if candidate not in self._entrants:
            self._entrants[candidate] = replayed(self.observed, candidate)
        return self._entrants[candidate]


def _doubted(interval: Estimate, errors: Sequence[float]) -> Estimate:
    """An interval stretched to what a speed-up would be if its prediction were off by `errors`."""
    if not errors:
        return interval
    low = min(interval.low, interval.low / (1 + max(errors)))
    high = max(interval.high, interval.high / (1 + min(errors)))
    return Estimate(interval.value, low, high)


def decide(judged: Estimate | None, min_speedup: float) -> Decision:
    """A speed-up with its interval against the asked one and timing noise."""
    least = min_speedup * (1 + TIMING_NOISE)
    if judged is None or judged.low <= least < judged.high:
        return "inconclusive"
    return "speculate" if judged.low > least else "do_not_speculate"
