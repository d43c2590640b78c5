"""One figure of two runs → what changed, with the gate's intervals and the gate's rule of which
times may be compared.

Acceptance and speed-up are paired by request, c is of independent timings. Differences are B less
A. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from draftbench.acceptance.definitions import Sample
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.errors import IncomparableError
from draftbench.gate.judge import samples_of
from draftbench.gate.limits import Limit
from draftbench.gate.noninferiority import gain_of, independent_change
from draftbench.gate.pair_requests import pair_up
from draftbench.gate.pin import make_baseline
from draftbench.planner.measured import Measurement
from draftbench.run_folder.run import Run

_SPEED = Limit(metric="speedup", value=0.02, relative=True)
_ONE = "only one run has it"


@dataclass(frozen=True)
class FigureChange:
    """One figure in both runs. `difference` and `ratio` are B less A and B over A, over the
    `requests` that both have (0 for c, which is not paired); `obstacle` says why there are none.
    No difference is shown where an interval holds 0 (the ratio's 1).
    """

    figure: str
    k_a: int | None
    k_b: int | None
    a: Estimate | None
    b: Estimate | None
    difference: Estimate | None
    ratio: Estimate | None
    requests: int
    obstacle: str | None


def counted(
    name: str,
    ks: tuple[int, int] | None,
    samples: tuple[Sample | None, Sample | None],
    obstacle: str | None,
) -> FigureChange:
    """The change of a figure that is counted over requests; `obstacle` forbids to subtract."""
    a, b = samples
    k_a, k_b = ks or (None, None)
    values = [None if sample is None else estimate(sample) for sample in samples]
    change = FigureChange(name, k_a, k_b, values[0], values[1], None, None, 0, obstacle)
    if a is None or b is None:
        return replace(change, obstacle=_ONE)
    if a.figure != b.figure:
        return replace(change, obstacle=f"{a.figure.name} against {b.figure.name}")
    return change if obstacle else _paired(change, a, b)


def timed(
    name: str, before: Estimate | None, after: Estimate | None, obstacle: str | None
) -> FigureChange:
    """The change of a figure that is timed. The same timings stand in both where a run meets
    itself.
    """
    change = FigureChange(name, None, None, before, after, None, None, 0, obstacle)
    if before is None or after is None:
        return replace(change, obstacle=_ONE)
    if obstacle:
        return change
    if before == after:
        none, unity = Estimate(0.0, 0.0, 0.0), Estimate(1.0, 1.0, 1.0)
        return replace(change, difference=none, ratio=unity)
    difference = independent_change(before, after, relative=False)
    gain = independent_change(before, after, relative=True)
    return replace(change, difference=difference, ratio=_ratio(gain))


def speed(
    runs: tuple[Run, Run],
    cells: tuple[Measurement | None, Measurement | None],
    obstacle: str | None,
) -> FigureChange:
    """The change of a measured speed-up, where the gate would compare it, and as it would.

    Raises:
        RunFolderError: replays that do not fit their responses.
    """
    known = [cell for cell in cells if cell is not None]
    k, candidate = known[0].k, known[0].candidate
    a, b = (estimate(cell.speedup) if cell else None for cell in cells)
    change = FigureChange("S measured", k, k, a, b, None, None, 0, obstacle)
    if len(known) < len(cells):
        return replace(change, obstacle=_ONE)
    if obstacle:
        return change
    try:
        old, new = (make_baseline(run, candidate, k) for run in runs)
        samples = samples_of("speedup", pair_up(old, new, [_SPEED]).pairs)
    except IncomparableError as error:
        return replace(change, obstacle=f"not comparable: {error.message}")
    if samples is None:
        return replace(change, obstacle="0 common requests")
    return _paired(change, *samples)


def elsewhere(a: Run, b: Run) -> str | None:
    """Why times of two runs must not be subtracted: another machine or another runner."""
    if a.manifest.environment.machine != b.manifest.environment.machine:
        return "not comparable: timed on different machines"
    runners = [facts.runner if (facts := run.facts_of(None)) else "unknown" for run in (a, b)]
    if runners[0] != runners[1]:
        return f"not comparable: timed with {runners[0]} and {runners[1]}"
    return None


def _paired(change: FigureChange, a: Sample, b: Sample) -> FigureChange:
    """Over the requests that both have."""
    shared = sorted({*a.requests} & {*b.requests})
    change = replace(change, requests=len(shared))
    if len(shared) < 2:
        return replace(change, obstacle=f"{len(shared)} common requests")
    before, after = _at(a, shared), _at(b, shared)
    difference = gain_of(before, after, relative=False).interval
    gain = gain_of(before, after, relative=True).interval
    if difference is None or gain is None:
        return replace(change, obstacle=f"{len(shared)} common requests: too few to tell")
    return replace(change, difference=difference, ratio=_ratio(gain))


def _at(sample: Sample, requests: Sequence[str]) -> Sample:
    """A sample of some of its requests, in their order."""
    row_of = {request: row for row, request in enumerate(sample.requests)}
    rows = [row_of[request] for request in requests]
    weights, addends = sample.weights[rows], sample.addends[rows]
    return replace(sample, requests=tuple(requests), weights=weights, addends=addends)


def _ratio(gain: Estimate) -> Estimate:
    return Estimate(1 + gain.value, 1 + gain.low, 1 + gain.high)
