"""Plain decoding at any concurrency: one rate, whichever draft it is compared with.

The target is timed and decoded anew with every candidate, on the machine as it is by then: in one
run a step of 16 rows took 0.17 to 0.23 s. If the rate were the leader's, it would change whenever
the leader changes from one load to the next. So it is the geometric mean over candidates, of those
with decoding if there are any. A step of more rows never takes less time than one of fewer, and
between two timed loads steps rise as the passes do.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import geometric_mean

from draftbench.planner.alternatives import Alternative
from draftbench.planner.at_concurrency import Evaluator
from draftbench.planner.predict import Prediction
from draftbench.records import Candidate


@dataclass(frozen=True)
class PlainDecoding:
    """Seconds of a target `step` of all rows; `blocks` has them for each candidate, empty between
    timed loads. `token` is a request's seconds, with its prefill, over its tokens; None where the
    prefill was not timed.
    """

    step: float
    blocks: tuple[float, ...]
    token: float | None


def plain_decoding(evaluator: Evaluator, concurrency: int) -> PlainDecoding | None:
    """Seconds of decoding without speculation; None where no pass is known at this load."""
    timed = {rows for each in evaluator.run.candidates for rows in evaluator.source.batches(each)}
    blocks = {rows: steps for rows in sorted(timed) if (steps := _steps(evaluator, rows))}
    low = max((rows for rows in blocks if rows <= concurrency), default=None)
    high = min((rows for rows in blocks if rows >= concurrency), default=None)
    if low is None or high is None:
        return None
    step, more = (
        max(geometric_mean(steps) for rows, steps in blocks.items() if rows <= end)
        for end in (low, high)
    )
    if low < high:
        share = _share(evaluator, low, concurrency, high)
        if share is None:
            return None
        step += share * (more - step)
    return PlainDecoding(step, blocks.get(concurrency, ()), _token(evaluator, low, step))


def _each(evaluator: Evaluator, rows: int) -> dict[Candidate, Alternative]:
    """One alternative of every candidate whose speed is known, whatever its k."""
    found: dict[Candidate, Alternative] = {}
    for each in evaluator.at(rows).alternatives:
        if each.prediction.decoding is not None and each.prediction.rounds.tokens.any():
            found.setdefault(each.candidate, each)
    return found


def _steps(evaluator: Evaluator, rows: int) -> tuple[float, ...]:
    """Seconds of a step, with every candidate."""
    every = _each(evaluator, rows).values()
    decoded = [
        e for e in every if e.predictor.served or e.predictor.overheads.of_others(0) is not None
    ]
    return tuple(_step(each, each.prediction) for each in decoded or every)


def _step(alternative: Alternative, prediction: Prediction) -> float:
    assert prediction.decoding is not None
    weights = alternative.predictor.weights
    return float(weights @ prediction.decoding[:, 0] / (weights @ prediction.rounds.tokens))


def _share(evaluator: Evaluator, low: int, rows: int, high: int) -> float | None:
    """How much of the rise in pass times from one timed load to the next is reached at so many
    rows, as a share; None where passes are unknown.
    """
    passes = [
        {candidate: _step(each, each.passes_only) for candidate, each in found.items()}
        for found in (_each(evaluator, at) for at in (low, rows, high))
    ]
    known = set.intersection(*map(set, passes))
    fewer, here, more = (sum(seconds[each] for each in known) for seconds in passes)
    if not known:
        return None
    return (here - fewer) / (more - fewer) if more > fewer else (rows - low) / (high - low)


def _token(evaluator: Evaluator, rows: int, step: float) -> float | None:
    """Seconds of a request over its tokens where a step takes `step`."""
    found = []
    for each in _each(evaluator, rows).values():
        weights, prefills = each.predictor.weights, each.prediction.prefills
        if prefills is not None:
            seconds = weights @ (prefills[:, 0] + step * each.prediction.rounds.tokens)
            found.append(float(seconds / (weights @ each.predictor.lengths)))
    return geometric_mean(found) if found else None
