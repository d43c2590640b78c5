"""How far the time of decoding is off where it was not measured: every decoded configuration of
some runs is predicted without its own cell, without its k, its draft, or its concurrency.

    python scripts/check_prediction.py results/reference/*

Errors are of time alone, without the luck of acceptance: the logarithm of how much longer than its
passes promise a configuration's rounds took than plain decoding, predicted less measured. Next to
the model's are those of passes alone, which predict that rounds take no longer than they promise: a
cell, k, draft or concurrency that was left out is worth a model only as far as these are larger. A
stated standard deviation includes the noise of the cell. Everything is computed from the run
folders.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

import numpy as np

from draftbench.planner.effects import Effects
from draftbench.planner.evaluator import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommendation import Configuration
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run

# What is left out to predict a configuration.
LEFT_OUT: dict[str, Callable[[Configuration, Configuration], bool]] = {
    "one cell": lambda own, other: other == own,
    "its k": lambda own, other: other.k == own.k,
    "its draft": lambda own, other: other.k > 0 and other.candidate == own.candidate,
    "its concurrency": lambda own, other: other.k > 0 and other.concurrency == own.concurrency,
}


class Miss(NamedTuple):
    """The error of a prediction with its stated standard deviation, and that of passes alone."""

    error: float
    sd: float
    of_passes: float


def misses(
    run: Run, without: Callable[[Configuration, Configuration], bool]
) -> Iterator[tuple[Configuration, Miss]]:
    """The error of every decoded configuration of a run of the built-in decoder."""
    effects = Evaluator(run, DecisionOptions()).effects
    logs = {
        (cell.configuration, cell.process): (float(cell.log_slowdown[0]), cell.step_per_round)
        for cell in effects.cells
        if cell.predicted_by == "passes"
    }
    for own in dict.fromkeys(configuration for configuration, _ in logs if configuration.k):
        measured, steps = [], []
        for (configuration, process), (log, step) in logs.items():
            if configuration == own:
                plain = own.at(0)
                measured.append(log - logs[plain, process][0])
                steps.append(step)
        rest = [cell for cell in effects.cells if not without(own, cell.configuration)]
        left = Effects(rest, effects.design, [own])
        estimate, _, drawn = left.longer([own], np.array([fmean(steps)]))
        slower, noise = np.diff(estimate[0]).item(), left.grid[left.chances.argmax()].noise
        stated = math.hypot(np.diff(drawn[:, 0]).std(), noise * math.sqrt(2))
        yield own, Miss(slower - fmean(measured), stated, -fmean(measured))


def table(found: list[Miss]) -> str:
    """Root mean square, median and worst error of passes alone → of the model, the stated standard
    deviation, and how many errors are within two of it.
    """
    passes = [abs(miss.of_passes) for miss in found]
    model = [abs(miss.error) for miss in found]
    rows = [f"{of(passes):.2%} → {of(model):.2%}" for of in (root_mean_square, median, max)]
    within = fmean(abs(miss.error) < 2 * miss.sd for miss in found)
    return " | ".join([*rows, f"{root_mean_square([m.sd for m in found]):.2%}", f"{within:.0%}"])


def root_mean_square(values: list[float]) -> float:
    return math.sqrt(fmean(value**2 for value in values))


def main() -> None:
    runs = [read_run(RunFolder(Path(name))) for name in sys.argv[1:]]
    print("| left out | cells | rms: passes → model | median | worst | stated sd | within two |")
    print("|---|---|---|---|---|---|---|")
    for name, without in LEFT_OUT.items():
        found = [miss for run in runs for _, miss in misses(run, without)]
        print(f"| {name} | {len(found)} | {table(found)} |")


if __name__ == "__main__":
    main()
