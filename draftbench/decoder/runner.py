"""The interface between models and everything that decodes: runner, cache, task, response, clock.

A runner is one model on one device: token ids in, next-token logits out, with a cache whose rows
can be rewound one by one. It knows nothing of text, drafts or rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from draftbench.decoder.sampling import Uniforms
from draftbench.records import Key, Sampling

# Output tokens so far → whether the response ends with the last of them. Called once for every
# token, in order.
EndTest = Callable[[list[int]], bool]


class HiddenStates:
    """Records the inputs of some of a model's layers at every token that a pass reads.

    Args:
        layers: their ids; the input of layer 0 is the embedding.
    """

    def __init__(self, layers: Sequence[int]) -> None:
        self.layers = tuple(layers)
        self._parts: dict[int, list[Tensor]] = {layer: [] for layer in layers}
        self._joined: list[Tensor] = []

    def take(self, layer: int, states: Tensor) -> None:
        """Keep a copy of a layer's inputs [n, hidden] if it is one of these."""
        if layer in self._parts:
            self._parts[layer].append(states.clone())

    def add(self, joined: Tensor) -> None:
        """Keep a copy of what a whole pass recorded, layers side by side [n, layers · hidden]."""
        self._joined.append(joined.clone())

    def joined(self) -> Tensor:
        """Everything recorded since the last call, layers side by side [n, layers · hidden]."""
        taken = [self._parts[layer] for layer in self.layers]
        if taken[0]:
            self._joined.append(torch.cat([whole(parts) for parts in taken], dim=1))
        found = whole(self._joined)
        for parts in (*taken, self._joined):
            parts.clear()
        return found


def whole(parts: Sequence[Tensor]) -> Tensor:
    """Parts one after the other; a single one is not copied, which on a GPU would be a launch."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class KVCache(Protocol):
    """The keys and values of one or more sequences, a row each, in memory allocated once."""

    @property
    def lengths(self) -> list[int]:
        """Valid tokens of each row."""
        ...

    def rewind(self, row: int, length: int) -> None:
        """Make the first `length` tokens of a row the valid ones, without copying: fewer than now,
        or more again if what was read after them has not been overwritten.
        """


class Runner(Protocol):
    """One model that continues sequences."""

    @property
    def name(self) -> str:
        """The name of the implementation that runs the model, for reports."""
        ...

    vocab_size: int
    context_length: int
    device: str

    @property
    def embedding(self) -> Tensor:
        """The vectors of the vocabulary [vocab_size, hidden]."""
        ...

    def new_cache(
        self, capacity: int, rows: int = 1, widths: Collection[int] = (), reads: Sequence[int] = ()
    ) -> KVCache:
        """An empty cache for up to `capacity` tokens in each of `rows` rows.

        Args:
            widths: tokens per row in the passes that will be timed; graphs for them are made now.
            reads: layers whose inputs such passes may be asked for.
        """
        ...

    def forget_caches(self) -> None:
        """Free the memory of caches that are no longer in use."""

    def forward(
        self,
        tokens: Tensor,
        cache: Any,
        *,
        every: bool,
        counts: Sequence[int] | None = None,
        hidden: HiddenStates | None = None,
    ) -> Tensor:
        """Append tokens [n] to a cache that this runner made and continue them.

        Args:
            every: whether to return logits after every token [n, vocab_size], or only after the
                last new token of each row that has one.
            counts: how many of the tokens go to each row, in the order of the rows, 0 allowed; by
                default all go to the only row.
            hidden: records states of the pass.
        """
        ...

    def continued(self, states: Tensor) -> Tensor:
        """The output head's logits [n, vocab_size] of states behind the last norm [n, hidden]."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """Modules, the linear layers among them, for counting what a level touched."""
        ...

    def tensors(self) -> Iterator[Tensor]:
        """The weights outside linear layers."""
        ...


@dataclass(frozen=True)
class DecodeTask:
    """One response to produce: prompt ids, at most `limit` tokens, the request's sampling, and
    where the response ends.
    """

    prompt: list[int]
    limit: int
    sampling: Sampling
    uniforms: Uniforms
    ends: EndTest
    key: Key = ("", 0)  # of the request and its sample

    @property
    def capacity(self) -> int:
        """Tokens of the prompt and the longest possible response together."""
        return len(self.prompt) + self.limit


@dataclass
class Response:
    """Output ids and, for each round, the numbers of drafted, proposed, accepted and cut tokens,
    the seconds of drafting and of the rest of the round, and how many rows took part.

    `decode_seconds` is the sum of the rounds' seconds, without other rows' prompts that are read
    between two rounds.
    """

    tokens: list[int] = field(default_factory=list)
    finish: str = "length"
    drafted: list[int] = field(default_factory=list)
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
        """Seconds from the first token to the last."""
        return sum(self.draft_seconds) + sum(self.verify_seconds)


class Clock(Protocol):
    """Marks points in a stream of work, and tells how many seconds lie between two of them.

    A mark is cheap and never waits; `seconds` may wait for the device, so it is called where the
    host has already waited.
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
    """CUDA events: the host runs ahead of the device, so `perf_counter` would time the launches."""

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()  # type: ignore[no-untyped-call]
        return event

    def seconds(self, start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1000


def clock_for(device: str) -> Clock:
    """The clock that times work on this device."""
    return DeviceClock() if device.startswith("cuda") else HostClock()


def pinned(values: list[Any], device: str) -> Tensor:
    """Integers in the host's memory, which a device copies without making the host wait."""
    return torch.tensor(values, dtype=torch.long, pin_memory=device != "cpu")


def on_device(values: list[Any], device: str) -> Tensor:
    """Integers on a device, copied there without waiting for its work."""
    return pinned(values, device).to(device, non_blocking=True)


def singly(x: Tensor) -> Sequence[Tensor]:
    """x [n, …] as n tensors [1, …]; a single one is not split, which takes 5 microseconds."""
    return x.split(1) if x.shape[0] > 1 else (x,)


def last_of_each(counts: Sequence[int]) -> list[int]:
    """The places of each row's last token among tokens stored row after row."""
    ends, end = [], 0
    for count in counts:
        end += count
        if count:
            ends.append(end - 1)
    return ends


def at_ends(x: Tensor, counts: Sequence[int]) -> Tensor:
    """Of tokens stored row after row, those that are the last of a row."""
    if only_row(counts) is not None:
        return x[-1:]
    return x[on_device(last_of_each(counts), str(x.device))] if max(counts) > 1 else x


def only_row(counts: Sequence[int]) -> int | None:
    """The row that gets all tokens; None if several rows get some."""
    busy = [row for row, count in enumerate(counts) if count]
    return busy[0] if len(busy) == 1 else None
