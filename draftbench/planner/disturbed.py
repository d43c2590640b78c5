"""Looks at the machine during a run → what disturbed its times, one plain sentence each.

Looks beside each other are taken for one disturbance; which measurement it hit is not known, since
records carry no clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftbench.records import MachineState

BUSY = 0.25
"""Share of all cores that others may keep busy: beyond it times are noisy."""

LOAD = 0.75
"""Load of each core when a run begins, from which its times are noisy."""


def disturbances(states: Sequence[MachineState]) -> Iterator[str]:
    """What to know of the machine while the run measured; nothing for a quiet one."""
    share = busy_share(states)
    if share:
        most = max(state.others or 0.0 for state in states)
        yield (
            f"other processes kept up to {most:.0%} of the cores busy in {share:.0%} of the time "
            "measured: its times are noisy, its acceptance is not"
        )
    throttled = sum(state.throttled or 0 for state in states)
    if throttled:
        yield f"cores were slowed down {throttled} times for their heat: the times are not steady"


def busy_share(states: Sequence[MachineState]) -> float:
    """In how much of the time others kept more than `BUSY` of the cores busy."""
    total = sum(state.seconds for state in states) or 1.0
    return sum(s.seconds for s in states if s.others is not None and s.others > BUSY) / total
