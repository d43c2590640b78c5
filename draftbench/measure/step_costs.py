"""Times the passes of target and draft over real text, at the sizes that a round needs.

Points are timed in turn, so that drift of the machine affects all of them alike. All samples are
kept. Every shape is run once before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from draftbench.acceptance.rounds import MOST_READ
from draftbench.decoder.drafters import LookupIndex
from draftbench.decoder.mixture import counted_experts, expert_layers
from draftbench.decoder.mtp import Head
from draftbench.decoder.runner import HiddenStates, KVCache, Runner
from draftbench.decoder.sampling import best
from draftbench.measure.candidate import LoadedCandidate
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import SAMPLES_PER_VISIT, Candidate, CostPoint, NGramSizes

# How often all points are timed: at least, at most with one row, at most with several rows, whose
# passes take long. And how often prompts are read.
LEAST_TURNS, MOST_TURNS, MOST_TURNS_AT_ONCE, PREFILL_TURNS = 3, 12, 6, 3


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
        row all up to 5 and then every second, with several rows, whose passes grow smoothly, each
        about twice the one before.
        """
        top = self.largest_k + 1
        if self.concurrency == 1:
            return tuple(sorted({n for n in range(1, top + 1) if n <= 5 or n % 2} | {top}))
        return tuple(sorted({n for n in (1, 2, 3, 5, 9, 17, 33) if n < top} | {top}))

    def stack_sizes(self, draft: Runner | Head) -> tuple[int, ...]:
        """Tokens per row of the first passes of a stack's draft to time, which reads what lookup
        brought since it last drafted: each twice the one before, as far as its context reaches.
        """
        room = draft.context_length - max(self.contexts, default=0)
        doubled = (1 << power for power in range(MOST_READ.bit_length()))
        return tuple(size for size in doubled if size <= max(room, 2))

    @property
    def most_turns(self) -> int:
        """How often all points are timed at most."""
        return MOST_TURNS if self.concurrency == 1 else MOST_TURNS_AT_ONCE

    def tokens(self, start: int, count: int) -> list[int]:
        """`count` tokens of the text from `start` on, which begins again at its end."""
        return [self.text[(start + i) % len(self.text)] for i in range(count)]


def grid_for(
    responses: Sequence[ScoredResponse], ks: Sequence[int], room: int, concurrency: int
) -> CostGrid:
    """The sizes to time for this traffic: the shortest, middle and longest context and prompt; with
    several rows, whose passes take long, no middle context and no prompts.

    Args:
        room: the target's context length.
    """
    prompts = sorted(len(response.prompt.tokens) for response in responses)
    middles = sorted(len(r.prompt.tokens) + len(r.tokens) // 2 for r in responses)
    longest = max(responses, key=lambda response: response.length)
    most = room - max(ks) - 1
    contexts = {middles[0], longest.length}
    lengths = set()
    if concurrency == 1:
        contexts.add(middles[len(middles) // 2])
        lengths = {prompts[0], prompts[len(prompts) // 2], prompts[-1]}
    return CostGrid(
        contexts=tuple(sorted({min(c, most) for c in contexts if min(c, most) > 0})),
        largest_k=max(ks),
        prompts=tuple(sorted(lengths)),
        text=(*longest.prompt.tokens, *longest.tokens),
        concurrency=concurrency,
    )


@dataclass(frozen=True)
class _Point:
    """One thing to time: what is recorded of it, its work, and the seconds that this took."""

    candidate: Candidate | None
    what: str
    new_tokens: int
    context: int
    concurrency: int
    runner: str
    work: Callable[[], object]
    seconds: list[float] = field(default_factory=list)
    passes: int = 1  # passes that `work` makes
    experts_read: float | None = None  # by one of them, in a layer

    def record(self, block: Candidate, process: str) -> CostPoint:
        return CostPoint(
            candidate=self.candidate,
            what=self.what,
            concurrency=self.concurrency,
            new_tokens=self.new_tokens,
            context=self.context,
            seconds=tuple(self.seconds),
            block=str(block),
            runner=self.runner,
            process=process,
            experts_read=self.experts_read,
        )


def time_steps(
    loaded: LoadedCandidate, grid: CostGrid, enough: Callable[[Sequence[CostPoint]], bool]
) -> list[CostPoint]:
    """Time a candidate's passes and the target's, turn after turn until that is `enough`. Between
    two turns the measurement may end the work.
    """
    measurement, draft, candidate = loaded.measurement, loaded.runner, loaded.candidate
    clock = measurement.clock
    reads = draft.reads if isinstance(draft, Head) else ()
    points = [*_passes(measurement.target, None, grid, grid.verify_sizes, reads)]
    if candidate.looks_up:
        points += _proposals(candidate, grid, measurement.lookup)
    if isinstance(draft, Head):
        sizes = grid.stack_sizes(draft) if candidate.fallback else grid.verify_sizes
        points += _head_passes(draft, candidate, grid, sizes, measurement.target)
    elif draft not in (None, measurement.target):  # as its own draft it has no other passes
        sizes = grid.stack_sizes(draft) if candidate.fallback else (1, 2)
        points += _passes(draft, candidate, grid, sizes)
    costs: list[CostPoint] = []
    for turn in range(grid.most_turns):
        if turn >= LEAST_TURNS and enough(costs):
            break
        if turn > 0:
            measurement.between(1)
        for point in points:
            prefill = point.what == "prefill"
            if prefill and turn >= PREFILL_TURNS:
                continue  # prompts are read once a request and take long
            # Untimed. In decoding, the pass before has left the weights in the processor's cache;
            # here, the pass before was another model's.
            point.work()
            for _ in range(1 if prefill else SAMPLES_PER_VISIT):
                start = clock.mark()
                point.work()
                point.seconds.append(clock.seconds(start, clock.mark()) / point.passes)
        costs = [point.record(candidate, measurement.process) for point in points]
    return costs


def _passes(
    runner: Runner,
    candidate: Candidate | None,
    grid: CostGrid,
    sizes: tuple[int, ...],
    reads: Sequence[int] = (),
) -> Iterator[_Point]:
    """Passes over n tokens a row at each context, and passes over whole prompts. The choice of
    tokens is timed too: one at each position for the target, which verifies, one in each row for a
    draft. What a head `reads` is taken down in passes over several tokens, as in verification.

    On a GPU a draft queues the k steps of a round without waiting, so k steps are timed together.
    On a CPU a pass returns when it is done, so one is timed. All contexts are beginnings of one
    text in one cache, so that what a pass writes there is what was there before.
    """
    rows, name = grid.concurrency, runner.name
    passes = 1 if candidate is None or runner.device == "cpu" else grid.largest_k
    contexts = [c for c in grid.contexts if c + max(sizes) <= runner.context_length]
    longest = max(contexts, default=0)
    cache = runner.new_cache(longest + max(sizes), rows, sizes)
    filled = torch.tensor(grid.tokens(0, longest), device=runner.device)
    for row in range(rows if contexts else 0):
        counts = [longest if at == row else 0 for at in range(rows)]
        runner.forward(filled, cache, every=False, counts=counts)
    for context in contexts:
        for size in sizes:
            tokens = torch.tensor(grid.tokens(context, size) * rows, device=runner.device)
            every = candidate is None
            hidden = HiddenStates(reads) if reads and size > 1 else None
            once = partial(_step, runner, tokens, cache, context, [size] * rows, every, hidden)
            work = partial(_repeated, once, passes)
            read = _experts_read(runner, once)
            yield _Point(candidate, "step", size, context, rows, name, work, [], passes, read)
    for length in grid.prompts:
        if length <= runner.context_length:
            tokens = torch.tensor(grid.tokens(0, length), device=runner.device)
            work = partial(_read_prompt, runner, tokens)
            yield _Point(candidate, "prefill", length, 0, 1, name, work)


def _step(
    runner: Runner,
    tokens: Tensor,
    cache: KVCache,
    context: int,
    counts: list[int],
    every: bool,
    hidden: HiddenStates | None,
) -> Tensor:
    for row in range(len(counts)):
        cache.rewind(row, context)
    chosen = best(runner.forward(tokens, cache, every=every, counts=counts, hidden=hidden))
    if hidden is not None:
        hidden.joined()
    return chosen


def _head_passes(
    head: Head, candidate: Candidate, grid: CostGrid, sizes: tuple[int, ...], target: Runner
) -> Iterator[_Point]:
    """A head's catch-up over each of `sizes` tokens at each context, a step after it, and whole
    prompts. The states of any text serve.
    """
    rows = grid.concurrency
    contexts = [c for c in grid.contexts if c + max(sizes) <= head.context_length]
    most = max([*sizes, *grid.prompts])
    hidden, text = HiddenStates(head.reads), grid.tokens(0, most)
    tokens = torch.tensor(text, device=target.device)
    target.forward(tokens, target.new_cache(most), every=False, hidden=hidden)
    states = hidden.joined()
    cache: Any = head.new_cache(max([*contexts, most]) + max(sizes), rows)

    def point(what: str, size: int, context: int, at_once: int = rows) -> _Point:
        counts = [size] * at_once + [0] * (rows - at_once)
        read, hidden_states = tokens[:size].repeat(at_once), states[:size].repeat(at_once, 1)
        left = head.entering(hidden_states)

        def work() -> None:
            cache.lengths = [context] * rows
            chosen, _ = (
                head.step(read, left, cache, counts)
                if what == "step"
                else head.catch_up(read, hidden_states, cache, counts)
            )
            chosen.tolist()

        return _Point(candidate, what, size, context, at_once, head.name, work)

    for context in contexts:
        yield from (point("catch-up", size, context) for size in sizes)
        yield point("step", 1, context)
    yield from (point("prefill", length, 0, 1) for length in grid.prompts)


def _experts_read(runner: Runner, once: Callable[[], Tensor]) -> float | None:
    """The different experts that a pass reads in a layer, on average; None of a model without, or
    whose choice cannot be seen.
    """
    if not (layers := expert_layers(runner.modules())):
        return None
    with counted_experts(layers) as counts:
        once()
    return sum(counts) / len(layers) if counts else None


def _repeated(once: Callable[[], Tensor], passes: int) -> None:
    """Make `passes` passes and wait for the last."""
    for _ in range(passes - 1):
        once()
    once().tolist()


def _read_prompt(runner: Runner, tokens: Tensor) -> None:
    cache = runner.new_cache(len(tokens))
    best(runner.forward(tokens, cache, every=False)).tolist()


def _proposals(candidate: Candidate, grid: CostGrid, lookup: NGramSizes) -> Iterator[_Point]:
    """Prompt lookup's work in a round: index a new token of each row and look up a continuation."""
    for context in grid.contexts:
        index = LookupIndex(*lookup)
        index.extend(grid.tokens(0, context))

        def work(index: LookupIndex = index) -> None:
            for _ in range(grid.concurrency):
                index.extend([index.tokens.pop()])
                index.lookup(grid.largest_k)

        yield _Point(candidate, "proposal", grid.largest_k, context, grid.concurrency, "host", work)
