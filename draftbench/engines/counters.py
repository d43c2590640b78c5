"""A server's Prometheus page → the rounds that it counted, of all requests since it started."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from draftbench.engines.faults import garbage
from draftbench.records import MOST, RoundCounts

_SAMPLE = re.compile(r"^\w+:(\w+?)(?:\{([^\n]*)\})? (\S+)", re.MULTILINE)
_POSITION = re.compile(r'\bposition="(\d{1,4})"')


def since(before: RoundCounts, now: RoundCounts) -> RoundCounts:
    """What was counted in between; None where a counter fell, as after a restart."""

    def difference(name: str) -> int | None:
        then, by_now = getattr(before, name), getattr(now, name)
        return None if then is None or by_now is None or by_now < then else by_now - then

    positions = None
    # llama-server names the positions from the first draft on.
    then = () if before.by_position is None and before.accepted == 0 else before.by_position
    if now.by_position is not None and then is not None:
        pairs = tuple(zip_longest(now.by_position, then, fillvalue=0))
        if all(after >= until for after, until in pairs):
            positions = tuple(after - until for after, until in pairs)
    return RoundCounts(
        rounds=difference("rounds"),
        drafted=difference("drafted"),
        accepted=difference("accepted"),
        by_position=positions,
        written=difference("written"),
    )


def read_counters(page: str, names: Mapping[str, str]) -> RoundCounts:
    """The counters of a page, summed over replicas; `names` are the server's, by our fields.

    Raises:
        AnswerError: one is no count.
    """
    sums: dict[str, Any] = defaultdict(int)
    positions: dict[int, int] = defaultdict(int)
    fields = {name: field for field, name in names.items()}
    for name, labels, value in _SAMPLE.findall(page):
        field = fields.get(name)
        if field == "by_position":
            if position := _POSITION.search(labels):
                positions[int(position[1])] += _count(name, value)
        elif field is not None:
            sums[field] += _count(name, value)
    by_position = tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1))
    return RoundCounts(**sums, by_position=by_position or None)


def _count(name: str, value: str) -> int:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST:
        raise garbage(f"the server's counter {name} is no count")
    return int(number)
