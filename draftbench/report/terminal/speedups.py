"""An answer's speed-ups → sentences that give each its own name and say what it is over.

Predicted, measured, expected and cross-fitted mean what `plan.recommendation` says of them. No
figure is printed without an interval but by `without_interval`, which says that there is none.
"""

from __future__ import annotations

from draftbench.planner.recommendation import Configuration, Evaluation, Recommendation
from draftbench.report.terminal.text import times

# Under half of the last digit shown a prediction was right.
_HELD = 0.0005


def cell_of(answer: Recommendation, configuration: Configuration) -> Evaluation:
    """The figures of a configuration."""
    return answer.evaluation_of(configuration)


def without_interval(answer: Recommendation) -> str:
    """The leader's speed-up where it has no interval, and what it is from."""
    assert answer.leader is not None
    measured = cell_of(answer, answer.leader).requests_measured
    whole = " with both prefills" if answer.objective == "latency" else ""
    over = requests_in_words(answer.requests)
    how = f"expected, {measured} of {over} decoded" if measured else f"predicted from {over}"
    return f"{answer.speedup_without_interval:.2f}×{whole} {how}"


def by_name(cell: Evaluation, requests: int) -> str:
    """The decode speed-up under its three names, each with what it is over."""
    found, over = cell.speedup_predicted, requests_in_words(requests)
    predicted = f"{times(found)} predicted over {over}" if found else "not predicted"
    if cell.speedup_expected is None and found is None:
        return "No interval of its speed-up: too few requests."
    if not cell.requests_measured:
        return f"Speed-up {predicted}, not measured."
    decoded = requests_in_words(cell.requests_measured)
    if cell.speedup_measured is None:
        return f"Speed-up {predicted}; measured on {decoded}, too few for an interval."
    if cell.speedup_expected is None:
        return (
            f"Speed-up {predicted}; {times(cell.speedup_measured)} measured on {decoded}, too few "
            "for an interval of what to expect."
        )
    return (
        f"Speed-up {times(cell.speedup_expected)} expected: {predicted}, "
        f"{times(cell.speedup_measured)} measured on {cell.requests_measured}{off(cell)}."
    )


def off(cell: Evaluation) -> str:
    """Why an expected speed-up need not lie between the predicted and the measured one; empty where
    the prediction held.
    """
    error = cell.prediction_error
    if error is None or abs(error) < _HELD:
        return ""
    return f", whose prediction was {abs(error):.1%} too {'high' if error > 0 else 'low'}"


def deciding(answer: Recommendation, cell: Evaluation) -> str | None:
    """What the decision goes by."""
    found = answer.speedup_deciding
    if found is None:
        return None
    name = "expected" if cell.requests_measured else "predicted"
    whole = " with both prefills" if answer.objective == "latency" else ""
    return (
        f"Decided by {times(found)} {name}{whole}, cross-fitted: from requests that did not "
        "choose it."
    )


def end_to_end(cell: Evaluation) -> str | None:
    """The speed-up with both prefills."""
    predicted, expected = cell.speedup_end_to_end, cell.speedup_end_to_end_expected
    if predicted is None:
        return None
    if expected is None or expected == predicted:
        return f"With both prefills included: {times(predicted)} predicted."
    return f"With both prefills included: {times(expected)} expected, {times(predicted)} predicted."


def requests_in_words(count: int) -> str:
    """A number of requests."""
    return "1 request" if count == 1 else f"{count} requests"
