"""A server's Prometheus page → the rounds that it counted, of all requests since it started.

vLLM and llama-server use the same names with different prefixes; SGLang counts passes of the
target.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from itertools import zip_longest

from draftbench.engines.client import garbage
from draftbench.records import MOST, RoundCounts

_SAMPLE = re.compile(r"^\w+:(\w+?)(?:\{([^\n]*)\})? (\S+)", re.MULTILINE)
_POSITION = re.compile(r'\bposition="(\d{1,4})"')
_ROUNDED = re.compile(r"^\w+:tokens_predicted_total(?:\{[^\n]*\})? [\d.]+e", re.MULTILINE)
_BY_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
# Of several names the first that the page has.
_NAMES = {
    "rounds": ("spec_decode_num_drafts_total", "spec_verify_calls_total"),
    "drafted": ("spec_decode_num_draft_tokens_total",),
    "accepted": ("spec_decode_num_accepted_tokens_total",),
    "written": ("generation_tokens_total", "tokens_predicted_total"),
}


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


def read_counters(page: str) -> RoundCounts:
    """The counters of a page, summed over replicas. Raises: AnswerError, one is no count."""
    sums: dict[str, int] = defaultdict(int)
    positions: dict[int, int] = defaultdict(int)
    wanted = {name for names in _NAMES.values() for name in names}
    for name, labels, value in _SAMPLE.findall(page):
        if name in wanted:
            sums[name] += _count(name, value)
        elif name == _BY_POSITION and (position := _POSITION.search(labels)):
            positions[int(position[1])] += _count(name, value)
    first = {
        field: next((sums[name] for name in names if name in sums), None)
        for field, names in _NAMES.items()
    }
    return RoundCounts(
        rounds=first["rounds"],
        drafted=first["drafted"],
        accepted=first["accepted"],
        by_position=tuple(positions.get(i, 0) for i in range(max(positions) + 1))
        if positions
        else None,
        # Six digits of a larger number are no exact count (llama-server).
        written=None if _ROUNDED.search(page) else first["written"],
    )


def _count(name: str, value: str) -> int:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST:
        raise garbage(f"the server's counter {name} is no count")
    return int(number)
