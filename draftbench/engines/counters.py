"""A server's Prometheus page → `Counters`.

vLLM and llama-server use the same names with different prefixes; SGLang counts passes of the
target.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, fields
from itertools import zip_longest

from draftbench.engines.client import garbage
from draftbench.records import MOST

_SAMPLE = re.compile(r"^\w+:(\w+?)(?:\{([^\n]*)\})? (\S+)", re.MULTILINE)
_POSITION = re.compile(r'\bposition="(\d{1,4})"')
_BY_POSITION = "spec_decode_num_accepted_tokens_per_pos_total"
# Of several names the first that the page has.
_NAMES = {
    "rounds": ("spec_decode_num_drafts_total", "spec_verify_calls_total"),
    "drafted": ("spec_decode_num_draft_tokens_total",),
    "accepted": ("spec_decode_num_accepted_tokens_total",),
}


@dataclass(frozen=True)
class Counters:
    """A server's sums since it started, of all requests; `None` where it does not count."""

    rounds: int | None = None  # that had drafts
    drafted: int | None = None
    accepted: int | None = None
    by_position: tuple[int, ...] | None = None  # tokens accepted at each draft position

    def since(self, before: Counters) -> Counters:
        """What was counted since `before`; None where a counter fell, as after a restart."""

        def difference(name: str) -> int | None:
            now, then = getattr(self, name), getattr(before, name)
            return None if now is None or then is None or now < then else now - then

        positions = None
        # llama-server names the positions from the first draft on.
        then = () if before.by_position is None and before.accepted == 0 else before.by_position
        if self.by_position is not None and then is not None:
            pairs = tuple(zip_longest(self.by_position, then, fillvalue=0))
            if all(now >= then for now, then in pairs):
                positions = tuple(now - then for now, then in pairs)
        sums = {f.name: difference(f.name) for f in fields(self) if f.name != "by_position"}
        return Counters(**sums, by_position=positions)


def read_counters(page: str) -> Counters:
    """The counters of a page, summed over replicas. Raises: AnswerError, one is no count."""
    sums: dict[str, int] = defaultdict(int)
    positions: dict[int, int] = defaultdict(int)
    wanted = {name for names in _NAMES.values() for name in names}
    for name, labels, value in _SAMPLE.findall(page):
        if name in wanted:
            sums[name] += _count(name, value)
        elif name == _BY_POSITION and (position := _POSITION.search(labels)):
            positions[int(position[1])] += _count(name, value)
    return Counters(
        **{
            field: next((sums[name] for name in names if name in sums), None)
            for field, names in _NAMES.items()
        },
        by_position=tuple(positions.get(i, 0) for i in range(max(positions) + 1))
        if positions
        else None,
    )


def _count(name: str, value: str) -> int:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST:
        raise garbage(f"the server's counter {name} is no count")
    return int(number)
