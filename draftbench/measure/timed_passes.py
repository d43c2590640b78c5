"""What there is to time: the sizes, and passes of a model over real text at these sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product, starmap

import torch
from torch import Tensor

from draftbench.decoder.mixture import counted_experts, expert_layers
from draftbench.decoder.runner import HiddenStates, Runner
from draftbench.decoder.sampling import best
from draftbench.records import CostPoint

# Makes the record of a timed pass from its sizes and seconds.
Record = Callable[..., CostPoint]
# Tokens of a draft's first pass in a round; None: those that a round before it may have left.
Sizes = Sequence[int] | None

# How often all points are timed at most, with one row, and with several rows, whose passes take
# long.
MOST_TURNS, MOST_TURNS_AT_ONCE = 12, 6


@dataclass(frozen=True)
class CostGrid:
    """The sizes to time."""

    contexts: tuple[int, ...]  # tokens in each row's cache
    largest_k: int
    prompts: tuple[int, ...]  # lengths of prompts; none: they are not timed
    text: tuple[int, ...]  # real tokens to step through
    concurrency: int = 1  # rows that step together

    @property
    def verify_sizes(self) -> tuple[int, ...]:
        """Tokens per row of the target passes to time. The last is k+1 for the largest k; with one
        row all up to 9, since a matrix product's cost jumps where its kernel changes, and then
        every second; with several rows, whose passes grow smoothly, each about twice the one
        before.
        """
        top = self.largest_k + 1
        if self.concurrency == 1:
            return tuple(sorted({n for n in range(1, top + 1) if n <= 9 or n % 2} | {top}))
        return tuple(sorted({n for n in (1, 2, 3, 5, 9, 17, 33) if n < top} | {top}))

    @property
    def most_turns(self) -> int:
        """How often all points are timed at most."""
        return MOST_TURNS if self.concurrency == 1 else MOST_TURNS_AT_ONCE

    def tokens(self, start: int, count: int) -> list[int]:
        """`count` tokens of the text from `start` on, which begins again at its end."""
        return [self.text[(start + i) % len(self.text)] for i in range(count)]


@dataclass(frozen=True)
class TimedPass:
    """One thing to time: its work, which makes some passes, the seconds of one of them, and its
    record, which lacks only these.
    """

    work: Callable[[], object]
    record: Callable[..., CostPoint]
    passes: int = 1
    prefill: bool = False
    seconds: list[float] = field(default_factory=list)


def queued_passes(device: str, grid: CostGrid) -> int:
    """How many of a draft's passes are timed together: on a GPU a draft queues those of a round
    without waiting, so that waiting for each would be timed with it; on a CPU a pass returns when
    it is done.
    """
    return 1 if device == "cpu" else grid.largest_k


def in_a_row(once: Callable[[], Tensor], passes: int) -> Callable[[], None]:
    """Work of some passes, which waits for the last."""

    def work() -> None:
        for _ in range(passes - 1):
            once()
        once().tolist()

    return work


def runner_passes(
    runner: Runner,
    record: Callable[..., CostPoint],
    grid: CostGrid,
    sizes: Sequence[int],
    *,
    verifies: bool = False,
    reads: Sequence[int] = (),
) -> Iterator[TimedPass]:
    """Passes over n tokens a row at each context, and passes over whole prompts. The choice of
    tokens is timed too: one at each position if the runner `verifies`, as the target does, one in
    each row for a draft. Layer inputs that a head `reads` are captured in passes over several
    tokens, as in verification.

    A draft's steps are timed as `queued_passes`. All contexts are beginnings of one
    text in one cache, so that what a pass writes there is what was there before.
    """
    rows, device = grid.concurrency, runner.device
    passes = 1 if verifies else queued_passes(device, grid)
    contexts = [c for c in grid.contexts if c + max(sizes) <= runner.context_length]
    longest = max(contexts, default=0)
    cache = runner.new_cache(longest + max(sizes), rows, sizes, reads)
    filled = torch.tensor(grid.tokens(0, longest), device=device)
    for row in range(rows if contexts else 0):
        counts = [longest if at == row else 0 for at in range(rows)]
        runner.forward(filled, cache, every=False, counts=counts)
    of_runner = partial(record, runner=runner.name)

    def step(context: int, size: int) -> TimedPass:
        tokens = torch.tensor(grid.tokens(context, size) * rows, device=device)
        hidden = HiddenStates(reads) if reads and size > 1 else None

        def once() -> Tensor:
            for row in range(rows):
                cache.rewind(row, context)
            counts = [size] * rows
            chosen = best(
                runner.forward(tokens, cache, every=verifies, counts=counts, hidden=hidden)
            )
            if hidden is not None:
                hidden.joined()
            return chosen

        read = None  # experts in a layer, on average; unknown where their choice cannot be seen
        if layers := expert_layers(runner.modules()):
            with counted_experts(layers) as counts:
                once()
            read = sum(counts) / len(layers) if counts else None
        of_step = {"what": "step", "new_tokens": size, "context": context, "concurrency": rows}
        of_point = partial(of_runner, **of_step, experts_read=read)
        return TimedPass(in_a_row(once, passes), of_point, passes)

    def prefill(length: int) -> TimedPass:
        tokens = torch.tensor(grid.tokens(0, length), device=device)

        def work() -> None:
            best(runner.forward(tokens, runner.new_cache(length), every=False)).tolist()

        of_prompt = {"what": "prefill", "new_tokens": length, "context": 0, "concurrency": 1}
        return TimedPass(work, partial(of_runner, **of_prompt), prefill=True)

    yield from starmap(step, product(contexts, sizes))
    yield from (prefill(length) for length in grid.prompts if length <= runner.context_length)
