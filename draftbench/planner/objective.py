"""What a user wants most, and what no answer may break.

At one fixed concurrency the machine decodes the same rows with every candidate, so that latency,
throughput and cost put candidates in one order, except for what the prefills take (latency counts
them, the draft reads the prompt too) and for the limits. They differ over concurrencies: throughput
and cost choose one of those asked for, latency and the plain speed-up answer for the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from draftbench.errors import UsageError
from draftbench.planner.choice import Kind

Name = Literal["speedup", "latency", "throughput", "cost"]

RANKS_BY: dict[str, str] = {
    "speedup": "tokens per second after the first token, with speculation over without",
    "latency": "time per output token of a request, both prefills included",
    "throughput": "tokens per second of the machine while it decodes",
    "cost": "tokens per dollar while it decodes",
}


@dataclass(frozen=True)
class Objective:
    """What candidates, and for `throughput` and `cost` concurrencies, are ranked by.

    Raises:
        UsageError: `cost` without a price, or a price that is none.
    """

    name: Name = "speedup"
    price_per_hour: float | None = None

    def __post_init__(self) -> None:
        if self.name == "cost" and self.price_per_hour is None:
            raise UsageError(
                "tokens per dollar need a price", hint="give the machine's with --price-per-hour"
            )
        if self.price_per_hour is not None and not 0 < self.price_per_hour < float("inf"):
            raise UsageError(
                f"a price of {self.price_per_hour:g} an hour cannot be used", hint="above 0"
            )

    @property
    def by(self) -> Kind:
        """The speed-up that decides between candidates."""
        return "whole" if self.name == "latency" else "judged"

    @property
    def chooses_load(self) -> bool:
        """Whether the concurrencies compete too."""
        return self.name in ("throughput", "cost")


@dataclass(frozen=True)
class Limits:
    """What a choice must keep; None is no limit.

    `max_memory` are bytes of target, draft, both caches and the logits of a verification pass, at
    the concurrency in question and the traffic's longest context. `max_p99_ratio` bounds how the
    99th percentile of a request's time per output token grows by speculation; under 100 requests it
    is the largest that bounds.
    """

    max_memory: float | None = None
    max_p99_ratio: float | None = None
