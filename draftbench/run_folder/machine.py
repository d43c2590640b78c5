"""The machine between two pieces of work → what else it did meanwhile, as an observation.

A run of hours shares its machine with whatever starts, heats up or is suspended beside it. This
looks at the counters that Linux keeps; elsewhere, and of an accelerator, nothing is known. What it
means for the times is judged by readers.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from draftbench.records import MachineState

SECONDS_BETWEEN = 10.0
_PROC, _CPUS = Path("/proc"), Path("/sys/devices/system/cpu")


class Watch:
    """Looks at the machine whenever it is asked and enough time went by.

    Args:
        process: the id under which the process that measures writes its records.
    """

    def __init__(self, process: str) -> None:
        self.process = process
        self._before = _Counters()

    def look(self, *, at_least: float = SECONDS_BETWEEN) -> MachineState | None:
        """What happened since the last look; None if that was less than `at_least` seconds ago."""
        if time.monotonic() - self._before.monotonic < at_least:
            return None
        before, now = self._before, _Counters()
        self._before = now
        seconds = now.monotonic - before.monotonic
        return MachineState(
            at=round(now.wall, 3),
            seconds=round(seconds, 3),
            others=_others(before, now, seconds),
            throttled=_difference(before.throttled, now.throttled),
            process=self.process,
        )


class _Counters:
    """Clocks and counters at one moment; seconds of all cores together."""

    def __init__(self) -> None:
        self.wall, self.monotonic = time.time(), time.monotonic()
        own = os.times()
        self.own = own.user + own.system + own.children_user + own.children_system
        self.busy = _busy_seconds()
        self.throttled = _throttled()


def _others(before: _Counters, now: _Counters, seconds: float) -> float | None:
    busy = None if None in (before.busy, now.busy) else (now.busy or 0) - (before.busy or 0)
    if busy is None or seconds <= 0:
        return None
    share = (busy - (now.own - before.own)) / (seconds * (os.cpu_count() or 1))
    return round(min(max(share, 0.0), 1.0), 3)


def _difference(before: int | None, now: int | None) -> int | None:
    return None if before is None or now is None else max(0, now - before)


def _busy_seconds() -> float | None:
    """All cores' time that was neither idle nor waiting for a disk (`man 5 proc_stat`)."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = [int(word) for word in (_PROC / "stat").read_text().splitlines()[0].split()[1:9]]
        return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    return None


def _throttled() -> int | None:
    with contextlib.suppress(OSError, ValueError):
        files = sorted(_CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
        found = [int(file.read_text()) for file in files]
        return sum(found) if found else None
    return None
