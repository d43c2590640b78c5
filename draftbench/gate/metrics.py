"""What the gate judges: five metrics, and how much worse each may get before the gate fails
(`--max-drop NAME:VALUE[%]`).

A value with % is relative to the baseline, one without is in the unit of the metric (α: 0.02 is two
points).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from draftbench.acceptance.definitions import (
    ALPHA_EMITTED,
    MEAN_ACCEPTED_LENGTH,
    TOKENS_PER_ROUND,
    Figure,
    quotient,
)
from draftbench.acceptance.rounds import Floats
from draftbench.errors import UsageError, did_you_mean
from draftbench.gate.baseline import RequestCounts
from draftbench.planner.cells import SPEEDUP, ratio_of_rates
from draftbench.planner.formula import expected_tokens
from draftbench.records import Record


class OverRequests(NamedTuple):
    """A metric over requests: what a request adds to its sums, None where it is unknown, and how
    the figure follows from the sums.
    """

    figure: Figure
    addends: Callable[[RequestCounts], tuple[float, ...] | None]
    combine: Callable[[Floats], Floats] = quotient


# By name; None: over timing repeats.
METRICS: dict[str, OverRequests | None] = {
    "alpha": OverRequests(
        ALPHA_EMITTED, lambda c: None if c.alpha_sum is None else (c.alpha_sum, c.positions)
    ),
    "mean_accepted_length": OverRequests(
        MEAN_ACCEPTED_LENGTH, lambda c: (c.rounds + c.accepted, c.rounds)
    ),
    "tokens_per_round": OverRequests(TOKENS_PER_ROUND, lambda c: (c.tokens, c.passes)),
    "speedup": OverRequests(
        SPEEDUP, lambda c: msgspec.structs.astuple(c.speed) if c.speed else None, ratio_of_rates
    ),
    "draft_cost_ratio": None,
}
# Metrics that depend on the machine.
TIMED = ("speedup", "draft_cost_ratio")


class Limit(Record, frozen=True):
    """How much a metric may get worse: a fraction of the baseline if `relative`, else absolute."""

    metric: str
    value: float
    relative: bool

    def amount(self, value: float) -> str:
        """A change in the unit of the limit, in all its digits: a rounded limit would seem to be
        crossed, or kept, where it is not.
        """
        return f"{100 * value:.10g}%" if self.relative else f"{value:.10g}"


DEFAULT_DROP = 0.02


def default_limits(rate: float | None, k: int) -> tuple[Limit, ...]:
    """2% of mean accepted length and of tokens per round, and for α (`rate`, None for prompt
    lookup) the drop that lowers the mean accepted length by 2% according to its closed form.

    A fixed limit of 0.02 would be half of that at k = 1, and more than twice as much at k = 8.
    """
    # The mean accepted length counts only rounds that drafted: a draft that stops drafting, or a
    # lookup that finds less, shows in tokens per round alone.
    lengths = ("mean_accepted_length", "tokens_per_round")
    limits = tuple(Limit(metric=name, value=DEFAULT_DROP, relative=True) for name in lengths)
    if not rate:
        return limits
    low, high = 0.0, rate
    while high - low > 1e-6:
        middle = (low + high) / 2
        enough = expected_tokens(middle, k) < (1 - DEFAULT_DROP) * expected_tokens(rate, k)
        low, high = (middle, high) if enough else (low, middle)
    return (*limits, Limit(metric="alpha", value=round(rate - low, 4), relative=False))


def limits_of(texts: Iterable[str], defaults: Iterable[Limit]) -> tuple[Limit, ...]:
    """The default limits, with those of `--max-drop` in their place or added; the last of a metric
    holds.

    Raises:
        UsageError: as `parse_limit`.
    """
    by_name = {limit.metric: limit for limit in (*defaults, *map(parse_limit, texts))}
    return tuple(by_name.values())


def parse_limit(text: str) -> Limit:
    """One `--max-drop` value.

    Raises:
        UsageError: another form, an unknown metric, or a value that limits nothing.
    """
    form = "write NAME:VALUE or NAME:VALUE%, e.g. mean_accepted_length:2% or alpha:0.02"
    name, _, written = map(str.strip, text.partition(":"))
    if not written:
        raise UsageError(f"`{text}` is not a limit", hint=form)
    if name not in METRICS:
        hint = did_you_mean(name, METRICS, f"the metrics are {', '.join(METRICS)}")
        raise UsageError(f"`{name}` is not a metric of the gate", hint=hint)
    relative = written.endswith("%")
    try:
        value = float(written.removesuffix("%"))
    except ValueError as error:
        raise UsageError(f"`{written}` in `{text}` is not a number", hint=form) from error
    if not math.isfinite(value) or value <= 0:
        raise UsageError(
            f"the limit `{text}` must be above 0",
            hint="no sample can show that nothing at all changed; allow a small drop",
        )
    if not relative and value >= 1:
        raise UsageError(
            f"the limit `{text}` has no % and would be a drop of {value:g} in the unit of the "
            "metric",
            hint=f"{value:g} percent is written {name}:{value:g}%; two points of alpha are "
            "alpha:0.02",
        )
    if relative and value >= 100 and name != "draft_cost_ratio":
        raise UsageError(
            f"the limit `{text}` can never be exceeded", hint="two percent is written 2%"
        )
    return Limit(metric=name, value=value / 100 if relative else value, relative=relative)
