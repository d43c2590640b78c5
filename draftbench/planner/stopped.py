"""Decoding runs whose draft stopped when it was unsure → what that rule is worth, measured.

Replay gives the rounds of such a rule but only a lower bound of its draft steps, so a gain is only
claimed from runs. They are compared with the plain runs that they were interleaved with, and shown
beside the same draft at fixed k; the recommendation does not choose among them.
"""

from __future__ import annotations

from dataclasses import replace

from draftbench.acceptance.definitions import tokens_per_round
from draftbench.acceptance.intervals import estimate
from draftbench.acceptance.rounds import counted_rounds
from draftbench.planner.measured import measured_cells
from draftbench.planner.recommendation import StoppedCell
from draftbench.run_folder.run import Run


def stopped_cells(observed: Run, batch: int = 1) -> tuple[StoppedCell, ...]:
    """Every candidate decoded at a threshold, by the speed-up that was measured."""
    plain = tuple(row for row in observed.decodes if row.k == 0)
    found = []
    for threshold in sorted(
        {row.stop_below for row in observed.stopped if row.stop_below is not None}
    ):
        own = tuple(row for row in observed.stopped if row.stop_below == threshold)
        cells = measured_cells(replace(observed, decodes=(*plain, *own)), batch)
        for (candidate, k), cell in cells.items():
            rounds = counted_rounds([run for _, run in cell.runs])
            tokens = tokens_per_round([trajectory for trajectory, _ in cell.runs], rounds)
            found.append(
                StoppedCell(
                    draft=candidate.draft,
                    quant=candidate.quant,
                    k=k,
                    stop_below=threshold,
                    requests=len(cell.keys),
                    tokens_per_round=estimate(tokens),
                    speedup_measured=estimate(cell.speedup),
                )
            )
    return tuple(found)
