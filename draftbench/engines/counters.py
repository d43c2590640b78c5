"""The counters of drafting on a server's Prometheus page, each series by its labels: replicas and
engines count for themselves, and any of them may restart.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from draftbench.engines.faults import garbage
from draftbench.records import MOST, RoundCounts

_SAMPLE = re.compile(r"^\w+:(\w+?)(?:\{([^\n]*)\})? (\S+)", re.MULTILINE)
_POSITION = re.compile(r'\bposition="(\d{1,4})",?')
_BY_POSITION = "by_position"


class Series(NamedTuple):
    """One counter: a field of `RoundCounts`, the draft position if it counts one, and its other
    labels.
    """

    field: str
    position: int | None
    labels: str


@dataclass(frozen=True)
class Counters:
    """What each series of a page says, of all requests since its server started."""

    series: Mapping[Series, int] = field(default_factory=dict)

    @property
    def total(self) -> RoundCounts:
        """Summed over replicas."""
        return _summed(self.series.items())

    def since(self, before: Counters) -> RoundCounts:
        """What was counted in between, summed over replicas; None for a field of which any series
        fell or vanished, as after a restart, or of which nothing was known before.
        """
        found = dict[Series, int]()
        lost = {one.field for one in before.series if one not in self.series}
        for one, now in self.series.items():
            then = before.series.get(one)
            if (then is None and not before.begun(one)) or now < (then or 0):
                lost.add(one.field)
            else:
                found[one] = now - (then or 0)
        return _summed((one, n) for one, n in found.items() if one.field not in lost)

    def begun(self, one: Series) -> bool:
        """Whether a series that is not there counts from 0: servers name positions, and some all
        fields, from the first draft on.
        """
        known = {other.field for other in self.series}
        if one.field != _BY_POSITION or _BY_POSITION in known:
            return one.field in known
        return sum(n for other, n in self.series.items() if other.field == "accepted") == 0 and (
            "accepted" in known
        )

    def without(self, name: str) -> Counters:
        """The counters except those of one field."""
        return Counters({one: n for one, n in self.series.items() if one.field != name})


def counters_on(page: str, names: Mapping[str, str]) -> Counters:
    """The counters on a page.

    Args:
        names: what the server calls the fields of `RoundCounts`.

    Raises:
        AnswerError: one is no count.
    """
    fields, series = {name: field for field, name in names.items()}, dict[Series, int]()
    for name, labels, value in _SAMPLE.findall(page):
        if (of := fields.get(name)) is None:
            continue
        position = _POSITION.search(labels) if of == _BY_POSITION else None
        if of == _BY_POSITION and position is None:
            continue
        rest = _POSITION.sub("", labels) if position else labels
        one = Series(of, int(position[1]) if position else None, rest)
        series[one] = series.get(one, 0) + _count(name, value)
    return Counters(series)


def _summed(series: Iterable[tuple[Series, int]]) -> RoundCounts:
    sums, positions = dict[str, int](), dict[int, int]()
    for one, count in series:
        if one.position is None:
            sums[one.field] = sums.get(one.field, 0) + count
        else:
            positions[one.position] = positions.get(one.position, 0) + count
    by_position = tuple(positions.get(i, 0) for i in range(max(positions, default=-1) + 1))
    return RoundCounts(
        rounds=sums.get("rounds"),
        drafted=sums.get("drafted"),
        accepted=sums.get("accepted"),
        written=sums.get("written"),
        by_position=by_position or None,
    )


def _count(name: str, value: str) -> int:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST:
        raise garbage(f"the server's counter {name} is no count")
    return int(number)
