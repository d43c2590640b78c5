"""The options of a decision, each declared once: `recommend`, `report`, `export` and `gate --save`
share them, so that one run cannot get two answers.

At one concurrency every candidate decodes the same rows, so speed-up, throughput and cost rank
candidates in the same order; latency also counts the prefills. Throughput and cost also choose
among the concurrencies, while the other objectives answer for the first one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from draftbench.errors import UsageError
from draftbench.flags import LARGEST_CONCURRENCY, in_decision, numbers, size_of

if TYPE_CHECKING:
    from draftbench.planner.cost_sources import CostSource
    from draftbench.planner.recommendation import Objective, Slo
    from draftbench.records import StopKind

RANKS_BY: dict[Objective, str] = {
    "speedup": "tokens per second after the first token, with speculation over without",
    "latency": "time per output token of a request, both prefills included",
    "throughput": "tokens per second of the machine, both prefills included",
    "cost": "tokens per dollar, both prefills included",
}


def _slo(text: str) -> Slo:
    """`ttft=300ms,tpot=40ms` → seconds."""
    from draftbench.planner.recommendation import Slo

    limits: dict[str, float] = {}
    for part in text.split(","):
        limit = re.fullmatch(r"\s*(ttft|tpot|e2e)\s*=\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*", part)
        if limit is None or limit[1] in limits or not float(limit[2]):
            raise UsageError(
                f"--slo {text}: expected limits such as ttft=300ms,tpot=40ms",
                hint="ttft is the time to the first token, tpot the time for each further one, e2e "
                "that to the last; each once, above 0, in ms or s",
            )
        limits[limit[1]] = float(limit[2]) / (1000 if limit[3] == "ms" else 1)
    return Slo(**limits)


@dataclass(frozen=True, kw_only=True)
class DecisionOptions:
    """What a user asks of `recommend`.

    Raises:
        UsageError: `cost` without a price, or a price that cannot be used.
    """

    min_speedup: float = in_decision(
        1.0, "The smallest speed-up worth speculating for.", "S", min=0.0, max=1000.0
    )
    # Active decoding rows; empty: the run's, or those that `costs` were timed at.
    concurrency: tuple[int, ...] = in_decision(
        None,
        "How many concurrent requests to decide for, e.g. 1,8,32 (default: as swept).",
        "N,…",
        parse=partial(numbers, "--concurrency", LARGEST_CONCURRENCY),
        unset=(),
    )
    objective: Objective = in_decision(
        "speedup",
        "Rank by speedup (prefill excluded), or with prefill by latency, throughput or cost; the "
        "last two also choose among --concurrency.",
        "NAME",
        among=tuple(RANKS_BY),
    )
    price_per_hour: float | None = in_decision(
        None, "The machine's price per hour, to compute tokens per dollar.", "PRICE"
    )
    # Bytes, at a concurrency and the traffic's longest context, logits of a pass included.
    max_memory: float | None = in_decision(
        None,
        "How much memory target, draft and caches may take together, e.g. 20GB.",
        "SIZE",
        parse=partial(size_of, "--max-memory"),
    )
    # Under 100 requests it limits the largest value.
    max_p99_ratio: float | None = in_decision(
        None,
        "The most that p99 time per output token may grow, as a ratio, e.g. 1.2.",
        "RATIO",
        min=0.01,
    )
    slo: Slo | None = in_decision(
        None,
        "Latency limits, e.g. ttft=300ms,tpot=40ms,e2e=10s: prints the share of requests within "
        "them (runs on a serving engine).",
        "LIMITS",
        parse=_slo,
    )
    costs: CostSource | None = None  # where costs come from instead of this run, by --costs
    # Kinds of rules to stop by that may be chosen; None: those that the run's runner follows.
    stops: tuple[StopKind, ...] | None = None

    def __post_init__(self) -> None:
        if self.objective == "cost" and self.price_per_hour is None:
            raise UsageError(
                "tokens per dollar need a price", hint="give the machine's with --price-per-hour"
            )
        if self.price_per_hour is not None and not 0 < self.price_per_hour < float("inf"):
            raise UsageError(
                f"a price of {self.price_per_hour:g} an hour cannot be used", hint="above 0"
            )
