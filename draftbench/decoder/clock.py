"""Marks in a stream of work → seconds between them: the host's clock on a CPU, device events on
CUDA.

A mark is cheap and never waits; `seconds` may wait for the device and is asked for after a round's
own synchronization.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Where a decoder takes its times from; tests put a scripted one in its place."""

    def mark(self) -> Any:
        """A point in the stream of work."""
        ...

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks."""
        ...


class HostClock:
    """`perf_counter`: on a CPU a forward pass returns when its work is done."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start


class DeviceClock:
    """CUDA events: the host runs ahead of the device, so its clock would time the launches."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()  # type: ignore[no-untyped-call]
        return event

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


def clock_for(device: str) -> Clock:
    """The clock that tells the truth on this device."""
    return DeviceClock() if device.startswith("cuda") else HostClock()
