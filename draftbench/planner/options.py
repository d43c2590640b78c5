"""The options of a decision: asked speed-up, objective, limits, loads and costs. `recommend`,
`report`, `export` and `gate --save` take the same ones.

At one concurrency every candidate decodes the same rows, so that speed-up, throughput and cost rank
candidates in the same order; latency also counts the prefills. Throughput and cost also choose
among the concurrencies; the other objectives answer for the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftbench.errors import UsageError
from draftbench.planner.cost_sources import CostSource
from draftbench.planner.recommendation import Objective, Slo

RANKS_BY: dict[Objective, str] = {
    "speedup": "tokens per second after the first token, with speculation over without",
    "latency": "time per output token of a request, both prefills included",
    "throughput": "tokens per second of the machine while it decodes",
    "cost": "tokens per dollar while it decodes",
}


@dataclass(frozen=True, kw_only=True)
class DecisionOptions:
    """What a user asks of `recommend`.

    Args:
        min_speedup: the speed-up from which speculation is worth having.
        objective: what candidates (and for throughput and cost: concurrencies) are ranked by.
        max_memory: bytes that target, draft, both caches and the logits of a verification pass may
            take at a concurrency and the traffic's longest context; None: no limit.
        max_p99_ratio: how much the 99th percentile of a request's time per output token may grow
            by speculation (under 100 requests: the largest value); None: no limit.
        concurrency: concurrencies to answer for; empty: those of the
            run, or those that `costs` were timed at.
        price_per_hour: of the machine, for tokens per dollar.
        costs: where costs come from instead of this run.
        slo: how long a request may take on the engine that served it.

    Raises:
        UsageError: `cost` without a price, or a price that cannot be used.
    """

    min_speedup: float = 1.0
    objective: Objective = "speedup"
    max_memory: float | None = None
    max_p99_ratio: float | None = None
    concurrency: tuple[int, ...] = ()
    price_per_hour: float | None = None
    costs: CostSource | None = None
    slo: Slo | None = None

    def __post_init__(self) -> None:
        if self.objective == "cost" and self.price_per_hour is None:
            raise UsageError(
                "tokens per dollar need a price", hint="give the machine's with --price-per-hour"
            )
        if self.price_per_hour is not None and not 0 < self.price_per_hour < float("inf"):
            raise UsageError(
                f"a price of {self.price_per_hour:g} an hour cannot be used", hint="above 0"
            )
