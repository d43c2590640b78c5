"""How far the time of decoding is off where it was not measured: every decoded configuration of
some runs is predicted without its own cell, without its k, its draft, or its concurrency.

    python scripts/check_prediction.py results/reference/*

Errors are of time alone, without the luck of acceptance: the logarithm of how much longer than its
passes promise a configuration's rounds took than plain decoding, predicted less measured. A stated
standard deviation includes the noise of the cell. Everything is computed from the run folders.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean, median

from draftbench.planner.decide import Evaluator
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommendation import Configuration
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run

# An error, and its stated standard deviation.
Miss = tuple[float, float]
# What is left out to predict a configuration.
LEFT_OUT: dict[str, Callable[[Configuration, Configuration], bool]] = {
    "one cell": lambda own, other: other == own,
    "its k": lambda own, other: other.k == own.k,
    "its draft": lambda own, other: other.k > 0 and other.candidate == own.candidate,
    "its concurrency": lambda own, other: other.k > 0 and other.concurrency == own.concurrency,
    "everything": lambda own, other: other.k > 0,
}


def misses(
    run: Run, without: Callable[[Configuration, Configuration], bool]
) -> Iterator[tuple[Configuration, Miss]]:
    """The error of every decoded configuration of a run of the built-in decoder."""
    effects = Evaluator(run, DecisionOptions()).effects
    logs = {
        (cell.configuration, cell.process): (float(cell.log[0]), cell.step)
        for cell in effects.cells
        if cell.promise == "passes"
    }
    for own in dict.fromkeys(configuration for configuration, _ in logs if configuration.k):
        measured, steps = [], []
        for (configuration, process), (log, step) in logs.items():
            if configuration == own:
                plain = Configuration(own.draft, own.quant, 0, own.concurrency)
                measured.append(log - logs[plain, process][0])
                steps.append(step)
        left = effects.without(lambda other, own=own: without(own, other))
        slower, sd = left.slower(own, fmean(steps))
        yield own, (slower - fmean(measured), math.hypot(sd, left.noise * math.sqrt(2)))


def table(found: list[Miss]) -> str:
    """Root mean square, median and worst error, and how many are within two stated sd."""
    sizes = [abs(error) for error, _ in found]
    within = fmean(size < 2 * sd for size, (_, sd) in zip(sizes, found, strict=True))
    rms = math.sqrt(fmean(size**2 for size in sizes))
    stated = math.sqrt(fmean(sd**2 for _, sd in found))
    return f"{rms:.2%} | {median(sizes):.2%} | {max(sizes):.2%} | {stated:.2%} | {within:.0%}"


def main() -> None:
    runs = [read_run(RunFolder(Path(name))) for name in sys.argv[1:]]
    print("| left out | configurations | rms | median | worst | stated sd | within two |")
    print("|---|---|---|---|---|---|---|")
    for name, without in LEFT_OUT.items():
        found = [miss for run in runs for _, miss in misses(run, without)]
        print(f"| {name} | {len(found)} | {table(found)} |")


if __name__ == "__main__":
    main()
