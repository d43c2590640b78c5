"""A recommendation and its run → what the rules of practice look at.

Judges nothing: the rules do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from draftbench.acceptance.definitions import alpha
from draftbench.acceptance.laws import AnyReplay, replays_of
from draftbench.planner.formula import speedup
from draftbench.planner.recommendation import CellFigures, Recommendation
from draftbench.records import LOOKUP, SELF, Candidate, ModelFacts, Trajectory
from draftbench.run_folder.run import Run

Key = TypeVar("Key")


@dataclass(frozen=True)
class Evidence:
    """The answer, the run, and the best cell of every draft that is a model, the fastest first."""

    answer: Recommendation
    observed: Run
    cells: tuple[CellFigures, ...]

    @classmethod
    def of(cls, answer: Recommendation, observed: Run) -> Evidence:
        """Gather the evidence."""
        return cls(answer, observed, _best_cells(answer))

    @property
    def first(self) -> CellFigures | None:
        """The fastest draft's best cell."""
        return self.cells[0] if self.cells else None

    @property
    def target(self) -> ModelFacts | None:
        """The target, as far as it was counted."""
        return self.observed.facts_of(None)

    def facts(self, cell: CellFigures) -> ModelFacts | None:
        """The draft of a cell, as far as it was counted."""
        return self.observed.facts_of(candidate_of(cell))

    def pays(self, cell: CellFigures) -> bool:
        """Whether its speed-up lies above the asked one with its whole interval."""
        whole = self.answer.objective == "latency"
        speed = cell.speedup_end_to_end_expected if whole else cell.speedup_expected
        return speed is not None and speed.low > self.answer.min_speedup

    def changed(self, cell: CellFigures, points: float, cost: float = 1.0) -> float | None:
        """The speed-up of a cell with so much more α and so many times its c, at the best k tried.

        The closed form's ratio, applied to the cell's own speed-up; None if unknown.
        """
        known = (cell.alpha, cell.draft_cost_ratio, cell.verify_ratio, cell.speedup_expected)
        if any(figure is None for figure in known):
            return None
        rate, ratio, verify, speed = (figure.value for figure in known if figure is not None)
        now = _best_form(rate, ratio, verify, self.lengths)
        then = _best_form(min(max(rate + points, 0.0), 1.0), ratio * cost, verify, self.lengths)
        return speed * then / now

    @property
    def lengths(self) -> tuple[int, ...]:
        """The draft lengths that the run tried."""
        return tuple(sorted({cell.k for cell in self.answer.candidates}))

    def alpha_by(self, cell: CellFigures, key: Callable[[Trajectory], Key]) -> dict[Key, float]:
        """α of a draft over the groups of responses that `key` makes."""
        mode = self.observed.manifest.question.mode
        pairs = replays_of(
            candidate_of(cell), self.observed.trajectories, self.observed.replays, mode
        )
        groups: dict[Key, list[tuple[Trajectory, AnyReplay]]] = {}
        for pair in pairs:
            groups.setdefault(key(pair[0]), []).append(pair)
        samples = {name: alpha(group) for name, group in groups.items()}
        return {
            name: sample.value
            for name, sample in samples.items()
            if sample is not None and sample.value is not None
        }


def candidate_of(cell: CellFigures) -> Candidate:
    """Its draft at its level."""
    return cell.candidate


def _best_cells(answer: Recommendation) -> tuple[CellFigures, ...]:
    """One cell per model draft: its best k, or its smallest where the speed is unknown."""
    cells: dict[tuple[str, str], CellFigures] = {}
    for cell in answer.candidates:
        if cell.draft in (LOOKUP, SELF):
            continue
        held = cells.get((cell.draft, cell.quant))
        if held is None or (cell.best and not held.best):
            cells[cell.draft, cell.quant] = cell
    speeds = {key: cell.speedup_expected for key, cell in cells.items()}
    order = sorted(cells, key=lambda key: -(found.value if (found := speeds[key]) else 0.0))
    return tuple(cells[key] for key in order)


def _best_form(rate: float, cost: float, verify: float, lengths: tuple[int, ...]) -> float:
    return max(speedup(rate, k, cost, verify=verify) for k in lengths)
