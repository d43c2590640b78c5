"""Watches what else the machine does while a run measures: other processes and throttling.

It reads counters of Linux; on other systems, and of accelerators, nothing is known.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import NamedTuple

from draftbench.records import MachineState

SECONDS_BETWEEN = 10.0
_PROC, _CPUS = Path("/proc"), Path("/sys/devices/system/cpu")


class _Counters(NamedTuple):
    """Clock and counters at one moment."""

    clock: float
    ours: float  # processor seconds of this process and all that it started
    busy: float | None  # processor seconds of all cores together
    throttled: int | None  # how often a core was slowed down for its heat


class Watch:
    """Reports what other processes and throttling did since the last look.

    Args:
        process: the id under which the process that measures writes its records.
    """

    def __init__(self, process: str) -> None:
        self.process = process
        self._before = _counters()

    def look(self, *, at_least: float = SECONDS_BETWEEN) -> MachineState | None:
        """What happened since the last look; None if that was less than `at_least` seconds ago."""
        if time.monotonic() - self._before.clock < at_least:
            return None
        before, now = self._before, _counters()
        self._before = now
        seconds = now.clock - before.clock
        others = throttled = None
        if before.busy is not None and now.busy is not None and seconds > 0:
            busy = (now.busy - before.busy) - (now.ours - before.ours)
            share = busy / (seconds * (os.cpu_count() or 1))
            others = round(min(max(share, 0.0), 1.0), 3)
        if before.throttled is not None and now.throttled is not None:
            throttled = max(0, now.throttled - before.throttled)
        return MachineState(
            at=round(time.time(), 3),
            seconds=round(seconds, 3),
            others=others,
            throttled=throttled,
            process=self.process,
        )


def _counters() -> _Counters:
    import psutil  # takes longer to import than most commands would

    clock, times = time.monotonic(), os.times()
    ours = times.user + times.system + times.children_user + times.children_system
    # The system counts a child only once it has ended.
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            of = child.cpu_times()
            ours += of.user + of.system + of.children_user + of.children_system
    busy = throttled = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        # All cores' time that was neither idle nor waiting for a disk (`man 5 proc_stat`).
        ticks = [int(word) for word in (_PROC / "stat").read_text().splitlines()[0].split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
    with contextlib.suppress(OSError, ValueError):
        files = list(_CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
        throttled = sum(int(file.read_text()) for file in files) if files else None
    return _Counters(clock, ours, busy, throttled)
