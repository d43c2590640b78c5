"""The interface between models and everything that decodes: runner, cache, task, response, clock.

A runner takes token ids and returns next-token logits, with a cache of several rows that can be
rewound one by one. It knows one model on one device, and nothing of text, drafts or rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from draftbench.decoder.sampling import Uniforms
from draftbench.records import Sampling

# Whether the response ends with its last token; asked once for every token of the output, in order.
EndTest = Callable[[list[int]], bool]


class KVCache(Protocol):
    """The keys and values of one or more sequences, a row each, in memory allocated once."""

    @property
    def lengths(self) -> list[int]:
        """Valid tokens of each row."""
        ...

    def rewind(self, row: int, length: int) -> None:
        """Go back to the first `length` tokens of a row, or forward again to what was read behind
        them and not written over. Nothing is copied.
        """


class Runner(Protocol):
    """One model that continues sequences."""

    @property
    def name(self) -> str:
        """The implementation that runs the model, in words for reports."""
        ...

    vocab_size: int
    context_length: int
    device: str

    def new_cache(self, capacity: int, rows: int = 1, widths: Collection[int] = ()) -> KVCache:
        """An empty cache for up to `capacity` tokens in each of `rows` rows.

        Args:
            widths: tokens a row of passes that will be timed: graphs for them are made now.
        """
        ...

    def forget_caches(self) -> None:
        """Give up the memory of caches that nobody holds any more."""

    def forward(
        self, tokens: Tensor, cache: Any, *, every: bool, counts: Sequence[int] | None = None
    ) -> Tensor:
        """Append tokens [n] to a cache that this runner made and continue them.

        Args:
            every: logits after every token [n, vocab_size], or else only after the last new token
                of each row that has any.
            counts: how many of the tokens go to each row, in the order of the rows, 0 allowed; all
                to the only row by default.
        """
        ...

    def modules(self) -> Iterator[nn.Module]:
        """The linear layers, for counting what a quantization level touched."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """The weights outside linear layers."""
        ...


@dataclass(frozen=True)
class Task:
    """One response to produce: prompt ids, at most `limit` tokens, the request's sampling and where
    it ends.
    """

    prompt: list[int]
    limit: int
    sampling: Sampling
    uniforms: Uniforms
    ends: EndTest

    @property
    def capacity(self) -> int:
        """Tokens of prompt and longest response together."""
        return len(self.prompt) + self.limit


@dataclass
class Response:
    """Output ids and, per round, the numbers of proposed, accepted and cut tokens, the seconds of
    drafting and of the rest of the round, and how many rows took part.

    Rounds follow each other without a gap, so their seconds add up to `decode_seconds`; the time of
    other rows' prompts between two rounds is not in it.
    """

    tokens: list[int] = field(default_factory=list)
    finish: str = "length"
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    draft_seconds: list[float] = field(default_factory=list)
    verify_seconds: list[float] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_prefill_seconds: float | None = None

    @property
    def decode_seconds(self) -> float:
        """From the first token to the last."""
        return sum(self.draft_seconds) + sum(self.verify_seconds)


class Clock(Protocol):
    """Marks in a stream of work, and seconds between them.

    A mark is cheap and never waits; `seconds` may wait for the device and is called after a round's
    synchronization.
    """

    def mark(self) -> Any: ...

    def seconds(self, start: Any, end: Any) -> float: ...


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
    """The clock that is right for this device."""
    return DeviceClock() if device.startswith("cuda") else HostClock()


def on_device(values: list[Any], device: str) -> Tensor:
    """Integers on a device; the host does not wait for what runs there."""
    if device == "cpu":
        return torch.tensor(values, dtype=torch.long)
    pinned = torch.tensor(values, dtype=torch.long, pin_memory=True)
    return pinned.to(device, non_blocking=True)


def last_of_each(counts: Sequence[int]) -> list[int]:
    """Where, among tokens that lie row after row, the last one of each row is."""
    ends, end = [], 0
    for count in counts:
        end += count
        if count:
            ends.append(end - 1)
    return ends


def only_row(counts: Sequence[int]) -> int | None:
    """The row that gets all the tokens, None where several get some."""
    busy = [row for row, count in enumerate(counts) if count]
    return busy[0] if len(busy) == 1 else None
