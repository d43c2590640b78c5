"""How far predictions are off where no cost was timed: a run's measured cells against predictions
without the passes of their size, without each context, and with the costs of another process.

    python scripts/check_prediction.py results/reference/qwen2.5-coder [RUN_WITH_OTHER_COSTS]

Everything is computed from the run folder. A size or context at the edge is kept: without it the
answer would be an extrapolation, which `recommend` names as such.
"""

import statistics
import sys
from dataclasses import replace
from pathlib import Path

from draftbench.planner.cost_sources import costs_in
from draftbench.planner.options import DecisionOptions
from draftbench.planner.recommend import recommend
from draftbench.run_folder.folder import RunFolder
from draftbench.run_folder.run import Run, read_run


def errors(observed: Run, k: int | None = None) -> list[float]:
    """Relative errors of the predictions of all measured cells, or of those at one k."""
    found = recommend(observed).prediction_error
    return [] if found is None else [c.error for c in found.by_configuration if k in (None, c.k)]


def elsewhere(observed: Run, other: Run) -> list[float]:
    """Relative errors, one request at a time, of what another run's costs predict."""
    priced = recommend(
        observed, DecisionOptions(costs=costs_in(other), concurrency=(1,))
    ).evaluations
    ran = recommend(observed, DecisionOptions(concurrency=(1,))).evaluations
    measured = {(c.draft, c.quant, c.k): c.speedup_measured for c in ran}
    return [
        c.speedup_predicted.value / found.value - 1
        for c in priced
        if c.speedup_predicted and (found := measured.get((c.draft, c.quant, c.k)))
    ]


def without(observed: Run, **unwanted: int) -> Run:
    """The run as if steps of one size or context had not been timed."""
    kept = [
        point
        for point in observed.costs
        if point.what != "step"
        or any(getattr(point, name) != value for name, value in unwanted.items())
    ]
    return replace(observed, costs=tuple(kept))


def inner(values: set[int]) -> list[int]:
    return sorted(values)[1:-1]


def show(what: str, found: list[float]) -> None:
    if not found:
        print(f"| {what} | 0 | – | – |")
        return
    sizes = [abs(error) for error in found]
    print(f"| {what} | {len(sizes)} | {statistics.median(sizes):.1%} | {max(sizes):.1%} |")


def main() -> None:
    observed = read_run(RunFolder(Path(sys.argv[1])))
    steps = [p for p in observed.costs if p.what == "step" and p.candidate is None]
    print("| prediction | cells | median error | worst |\n|---|---|---|---|")
    show("from all that was timed", errors(observed))
    for size in inner({p.new_tokens for p in steps}):
        found = errors(without(observed, new_tokens=size), k=size - 1)
        show(f"k = {size - 1}, no pass over {size} tokens timed", found)
    for context in inner({p.context for p in steps}):
        show(f"no pass at context {context} timed", errors(without(observed, context=context)))
    if len(sys.argv) > 2:
        other = read_run(RunFolder(Path(sys.argv[2])))
        show("with the costs of another process", elsewhere(observed, other))


if __name__ == "__main__":
    main()
