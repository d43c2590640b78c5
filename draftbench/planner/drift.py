"""Baseline decoding runs in the order in which they were made → whether the machine's speed changed
while the run measured.

Every candidate is timed beside a baseline of its own, on the same requests, so one request's
baseline runs, minutes apart, differ by the machine alone: its clock and heat, other processes, a
restart. Ratios within a candidate's block cancel most of it; cost points and candidates compared
across blocks do not. Of a batch only its steady rounds count: how long a row ran with the others
gone differs from run to run on any machine.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from draftbench.planner.steady import steady
from draftbench.records import Decode


@dataclass(frozen=True)
class Drift:
    """How the baseline's seconds per token changed from the first baseline run to the last.

    `change` is relative (0.1: 10 % slower at the end). `scatter` is the typical relative distance
    of one run from that trend; a change below it says nothing. `runs` are those compared.
    """

    change: float
    scatter: float
    runs: int


def baseline_drift(decodes: Sequence[Decode]) -> Drift | None:
    """The trend within requests: the median of the slopes between any two runs of one request
    (Theil 1950, Sen 1968), in log seconds per token over the order of the runs.

    Args:
        decodes: in the order in which they were made.

    Returns:
        None where no request has two baseline runs.
    """
    parts = [part for row in decodes if row.k == 0 and (part := steady(row)) is not None]
    order = [part for part in parts if part.output_tokens > 1 and part.decode_seconds > 0]
    runs: defaultdict[tuple[str, int, int], list[tuple[int, float]]] = defaultdict(list)
    for at, row in enumerate(order):
        pace = math.log(row.decode_seconds / (row.output_tokens - 1))
        runs[row.request, row.sample, row.batch].append((at, pace))
    repeated = [points for points in runs.values() if len(points) > 1]
    slopes = [
        (later - earlier) / (j - i)
        for points in repeated
        for n, (i, earlier) in enumerate(points)
        for j, later in points[n + 1 :]
    ]
    if not slopes:
        return None
    slope = median(slopes)
    distances = []
    for points in repeated:
        levels = [pace - slope * at for at, pace in points]
        distances += [abs(level - median(levels)) for level in levels]
    return Drift(
        change=math.expm1(slope * (len(order) - 1)),
        scatter=math.expm1(median(distances)),
        runs=sum(map(len, repeated)),
    )
