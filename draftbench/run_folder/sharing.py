"""Equal numbers of an observation's long lists become one object in memory.

They were rounded to three digits when they were written, so a run of millions of them holds a few
thousand different ones: eight bytes each are left of thirty-two.
"""

from __future__ import annotations

import msgspec

from draftbench.records import Observation, Replay, Trajectory

_ROUNDED: dict[type[Observation], tuple[str, ...]] = {
    Trajectory: ("margins",),
    Replay: ("accept", "confidence", "margin", "overlap"),
}
_MOST = 100_000  # a file that was not rounded must not fill the memory from here
_seen: dict[float, float] = {}


def share(record: Observation) -> None:
    """Put the numbers seen before in the place of a new record's equal ones."""
    for name in _ROUNDED.get(type(record), ()):
        values: tuple[float, ...] | None = getattr(record, name)
        if values is not None:
            shared = tuple(map(_seen.setdefault, values, values))
            msgspec.structs.force_setattr(record, name, shared)
    if len(_seen) > _MOST:
        _seen.clear()
