"""Cells with their speed-ups → the best one, how sure that is, and what to expect of it.

A measurement sees few requests, a prediction all of them but through costs and a model of rounds.
A cell is judged by both: its prediction for all requests, times what measuring some of them showed
the prediction to be off by. A candidate that was measured competes with its measured cells only,
and a cell that breaks a limit does not compete. A candidate that was not decoded must win even if
its prediction is off by as much as such predictions were where others were decoded.
The bootstrap over requests is shared by all cells, so that what requests have in common does not
blur the comparison; a cell that is a prediction alone is drawn over its timing samples too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from draftbench.acceptance.definitions import Figure, Sample, quotient
from draftbench.acceptance.intervals import RESAMPLES
from draftbench.acceptance.rounds import Floats, Ints
from draftbench.planner.measured import Measurement
from draftbench.planner.predict import Entrant, Forecast, forecast
from draftbench.planner.timing import timing_factors

# Interleaved runs of one process differ by 1.6 points on their own: closer speeds are a tie.
TIMING_NOISE = 0.02
_FOLDS = 5
_AT_ONCE = 100

# Of the decode speed-up; `whole` is judged with both prefills included.
Kind = Literal["predicted", "measured", "judged", "whole"]

SPEEDUP_EXPECTED = Figure(
    name="speed-up, expected",
    symbol="S",
    formula="predicted for all requests · measured / predicted for the measured ones",
)


@dataclass(frozen=True, eq=False)
class Cell:
    """One candidate at one k and one batch size: its forecast, the speed-up predicted and measured,
    and the one that it is judged by; `whole` the same with both prefills. `breaks` are the limits
    that it does not keep, in words.
    """

    entrant: Entrant
    k: int
    forecast: Forecast
    predicted: Sample | None
    measured: Measurement | None
    judged: Sample | None
    whole: Sample | None = None
    breaks: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The cell in words."""
        return f"{self.entrant.candidate} at k = {self.k}"

    def speedup(self, kind: Kind) -> Sample | None:
        """One of the cell's speed-ups."""
        if kind == "measured":
            return None if self.measured is None else self.measured.speedup
        return {"predicted": self.predicted, "judged": self.judged, "whole": self.whole}[kind]


def cell_of(entrant: Entrant, k: int, measured: Measurement | None) -> Cell:
    """Predict a cell and put its measurement beside it."""
    found = forecast(entrant, k)
    predicted = judged = found.speedup()
    whole = found.end_to_end()
    if measured is not None:
        judged = corrected(predicted, found.speedup(only=measured.keys), measured.speedup)
    if measured is not None and measured.end_to_end is not None and whole is not None:
        whole = corrected(whole, found.end_to_end(only=measured.keys), measured.end_to_end)
    return Cell(entrant, k, found, predicted, measured, judged, whole)


def corrected(predicted: Sample | None, some: Sample | None, measured: Sample) -> Sample:
    """The prediction for all requests × measured / predicted for the measured ones (`some`).

    The ratio estimator of survey sampling (Cochran 1977, chapter 6): where all requests were
    measured it is the measurement, and so it is where nothing is predicted.
    """
    if predicted is None or some is None:
        return measured
    parts = (predicted, some, measured)
    tables = [_addends(part, predicted.requests) for part in parts]
    ends = np.cumsum([table.shape[1] for table in tables])[:-1]

    def combine(sums: Floats) -> Floats:
        whole, few, ran = (
            part.combine(own)
            for part, own in zip(parts, np.split(sums, ends, axis=-1), strict=True)
        )
        return quotient(np.stack([whole * ran, few], axis=-1))

    table = np.concatenate(tables, axis=1)
    return Sample(SPEEDUP_EXPECTED, predicted.requests, predicted.weights, table, combine)


@dataclass(frozen=True)
class Certainty:
    """Over resampled requests and, for predictions, timing samples: how often an option is the best
    or ties with it, and what it loses on average against the best, in speed-up.
    """

    probability: float
    regret: float


class Contest:
    """The cells that may be recommended, over the requests that any of them was judged on.

    Args:
        cells: who may win; those of unknown speed and those that break a limit do not compete.
        by: the speed-up that decides, `judged` or `whole`.
        errors: what predictions from passes alone were off by where that was checked (predicted
            over measured speed-up less 1): the doubt in cells of candidates that were not decoded.
    """

    def __init__(
        self, cells: Sequence[Cell], by: Kind = "judged", errors: Sequence[float] = ()
    ) -> None:
        self.by: Kind = by
        self.errors = tuple(errors)
        self.entered = tuple(cells)
        measured = {cell.entrant.candidate for cell in cells if cell.measured is not None}
        competing = [
            (cell, cell.speedup(by))
            for cell in cells
            if not cell.breaks
            and (cell.measured is not None or cell.entrant.candidate not in measured)
        ]
        known = [(cell, sample) for cell, sample in competing if sample is not None]
        self.cells = [cell for cell, _ in known]
        self._samples = [sample for _, sample in known]
        # Measured requests first: they then spread evenly over the folds.
        ran = [r for c in self.cells if c.measured for r in c.measured.speedup.requests]
        judged = [r for sample in self._samples for r in sample.requests]
        self.requests = tuple(dict.fromkeys(ran + judged))
        self._tables = [_weighted(sample, self.requests) for sample in self._samples]

    def leader(self) -> Cell | None:
        """The best cell on all requests; within timing noise the smaller model, then smaller k."""
        at = self._pick(self._pooled())
        return None if at is None else self.cells[at]

    def runner_up(self, leader: Cell) -> Cell | None:
        """The best cell of another candidate."""
        own = leader.entrant.candidate
        others = [c for c in self.cells if c.entrant.candidate != own]
        return Contest(others, self.by, self.errors).leader()

    def faster_ties(self, leader: Cell) -> list[Cell]:
        """Cells that are faster than the leader, though within timing noise."""
        values = self._pooled()
        own = values[self.cells.index(leader)]
        return [cell for cell, value in zip(self.cells, values, strict=True) if value > own]

    def certainty(self, choice: Cell | None) -> Certainty | None:
        """How sure a choice is, None meaning plain decoding, which always competes with speed 1."""
        if not self.cells:
            return None
        own = self._options[:, 0 if choice is None else 1 + self.cells.index(choice)]
        best, known = self._options.max(axis=1), np.isfinite(own)
        if not known.any():
            return None
        ties = own[known] >= (1 - TIMING_NOISE) * best[known]
        return Certainty(float(ties.mean()), float((best - own)[known].mean()))

    @cached_property
    def _options(self) -> Floats:
        """Speed-ups of plain decoding and every cell over resampled requests [draws, 1 + cells].

        Where a cell is a prediction alone, its timed passes are drawn anew too, and one of the
        errors that such predictions had; a measurement has the noise of its own runs.
        """
        generator = np.random.Generator(np.random.Philox(key=0))
        requests = len(self.requests)
        alike = np.full(requests, 1 / requests)
        # Some draws at a time: counts of all of them grow with the traffic.
        drawn = (
            generator.multinomial(requests, alike, size=_AT_ONCE)
            for _ in range(RESAMPLES // _AT_ONCE)
        )
        values = np.concatenate([self._values(counts.astype(np.float64)) for counts in drawn])
        # What rounds take beyond their passes is mostly the runner's: one draw for all cells.
        off = 1 + generator.choice(self.errors or (0.0,), size=RESAMPLES)
        for at, cell in enumerate(self.cells):
            if cell.measured is None:
                whole = self.by == "whole"
                factors = timing_factors(cell.entrant, cell.forecast, RESAMPLES, whole=whole)
                values[:, at] *= factors / off
        return np.concatenate([np.ones((RESAMPLES, 1)), values], axis=1)

    def cross_fit(self, kind: Kind) -> Sample | None:
        """The speed-up of choosing like this, from requests that did not choose.

        The requests are split in five; each part is looked at through the cell that the other
        parts choose. None where no part has a figure of the asked kind, or where parts that chose
        a measurement without a prediction would be mixed with others. Where predictions and
        measurements are mixed, what a measurement corrects is taken as it is on all requests.
        """
        fold_of = {request: at % _FOLDS for at, request in enumerate(self.requests)}
        chosen: dict[int, Cell] = {}
        for fold in range(min(_FOLDS, len(self.requests))):
            choosing = np.array([[fold_of[request] != fold for request in self.requests]])
            at = self._pick(self._ranked(choosing.astype(np.float64)))
            if at is not None and self.cells[at].speedup(kind) is not None:
                chosen[fold] = self.cells[at]
        samples = _alike(chosen, kind)
        held = {
            request: (weight, addends)
            for fold, sample in samples.items()
            for request, weight, addends in zip(
                sample.requests, sample.weights, sample.addends, strict=True
            )
            if fold_of[request] == fold
        }
        if not held:
            return None
        weights = np.array([weight for weight, _ in held.values()])
        table = np.array([addends for _, addends in held.values()])
        one = next(iter(samples.values()))
        return Sample(one.figure, tuple(held), weights, table, one.combine)

    def _pooled(self) -> Floats:
        every_request_once = np.ones((1, len(self.requests)))
        return self._ranked(every_request_once)

    def _ranked(self, counts: Floats) -> Floats:
        """What cells are chosen by [cells] under one row of counts: speed-ups, those of candidates
        that were not decoded as they would be on average with the errors that were seen, never
        higher: the least regret expected under the draws of `certainty`.
        """
        doubted = min(1.0, float(np.mean([1 / (1 + error) for error in self.errors or (0.0,)])))
        share = np.array([doubted if cell.measured is None else 1.0 for cell in self.cells])
        values: Floats = self._values(counts)[0] * share
        return values

    def _values(self, counts: Floats) -> Floats:
        """Every cell's speed-up [draws, cells] under request counts [draws, requests]."""
        values = np.full((len(counts), len(self.cells)), -np.inf)
        for at, (sample, table) in enumerate(zip(self._samples, self._tables, strict=True)):
            speed = sample.combine(counts @ table)
            values[:, at] = np.where(np.isfinite(speed), speed, -np.inf)
        return values

    def _pick(self, values: Floats) -> int | None:
        if not values.size or not np.isfinite(values.max()):
            return None
        tied: Ints = np.flatnonzero(values >= (1 - TIMING_NOISE) * values.max())
        return int(min(tied, key=lambda at: (self.cells[at].entrant.size, self.cells[at].k)))


def _alike(cells: Mapping[int, Cell], kind: Kind) -> dict[int, Sample]:
    """The cells' speed-ups with addends of one meaning, so that requests of several can be summed;
    none where that cannot be.
    """
    samples = {at: sample for at, cell in cells.items() if (sample := cell.speedup(kind))}
    if len({sample.addends.shape[1] for sample in samples.values()}) < 2:
        return samples
    whole = kind == "whole"
    predicted = {
        at: cell.forecast.end_to_end() if whole else cell.predicted for at, cell in cells.items()
    }
    alike = {}
    for at, sample in samples.items():
        base = predicted[at]
        if base is None or not base.value or sample.value is None:
            return {}
        share = np.array([1.0, base.value / sample.value])
        alike[at] = replace(base, figure=sample.figure, addends=base.addends * share)
    return alike


def _weighted(sample: Sample, requests: Sequence[str]) -> Floats:
    """A sample's weighted addends [requests, m] in the contest's order; 0 where it has none."""
    weights = dict(zip(sample.requests, sample.weights, strict=True))
    column = np.array([weights.get(request, 0.0) for request in requests])
    return column[:, None] * _addends(sample, requests)


def _addends(sample: Sample, requests: Sequence[str]) -> Floats:
    """A sample's addends [requests, m] in another order of requests; 0 where it has none."""
    row = {request: at for at, request in enumerate(requests)}
    table = np.zeros((len(requests), sample.addends.shape[1]))
    own = [(row[request], at) for at, request in enumerate(sample.requests) if request in row]
    table[[to for to, _ in own]] = sample.addends[[at for _, at in own]]
    return table
