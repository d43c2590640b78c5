"""Times the passes of target and draft over real text, at the sizes that a round needs.

Points are timed in turn, so that drift of the machine affects all of them alike. All samples are
kept. Every shape is run once before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product, starmap
from typing import Any

import torch
from torch import Tensor

from draftbench.acceptance.rounds import MOST_READ
from draftbench.decoder.drafters import LookupIndex
from draftbench.decoder.heads import Head
from draftbench.decoder.mixture import counted_experts, expert_layers
from draftbench.decoder.runner import HiddenStates, Runner
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
        """Tokens per row of a stack's first draft pass, which reads all that lookup brought since
        its last: powers of two up to `MOST_READ`, as far as its context reaches.
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
    """One thing to time: its work, which makes some passes, the seconds of one of them, and its
    record, which lacks only these.
    """

    work: Callable[[], object]
    record: Callable[..., CostPoint]
    passes: int = 1
    prefill: bool = False
    seconds: list[float] = field(default_factory=list)


def time_steps(
    loaded: LoadedCandidate, grid: CostGrid, enough: Callable[[Sequence[CostPoint]], bool]
) -> list[CostPoint]:
    """Time a candidate's passes and the target's, turn after turn until that is `enough`. Between
    two turns the measurement may end the work.
    """
    measurement, draft, candidate = loaded.measurement, loaded.runner, loaded.candidate
    clock, target = measurement.clock, measurement.target
    record = partial(CostPoint, block=str(candidate), process=measurement.process)
    reads = draft.reads if isinstance(draft, Head) else ()
    points = [*_passes(target, None, record, grid, grid.verify_sizes, reads)]
    if candidate.looks_up:
        points += _proposals(candidate, record, grid, measurement.lookup)
    if isinstance(draft, Head):
        sizes = grid.stack_sizes(draft) if candidate.fallback else grid.verify_sizes
        points += _head_passes(draft, candidate, record, grid, sizes, target)
    elif draft is not None and draft is not target:  # as its own draft it has no other passes
        sizes = grid.stack_sizes(draft) if candidate.fallback else (1, 2)
        points += _passes(draft, candidate, record, grid, sizes)
    costs: list[CostPoint] = []
    for turn in range(grid.most_turns):
        if turn >= LEAST_TURNS and enough(costs):
            break
        if turn > 0:
            measurement.between(1)
        for point in points:
            if point.prefill and turn >= PREFILL_TURNS:
                continue  # prompts are read once a request and take long
            # Untimed. In decoding, the pass before has left the weights in the processor's cache;
            # here, the pass before was another model's.
            point.work()
            for _ in range(1 if point.prefill else SAMPLES_PER_VISIT):
                start = clock.mark()
                point.work()
                point.seconds.append(clock.seconds(start, clock.mark()) / point.passes)
        costs = [point.record(seconds=tuple(point.seconds)) for point in points]
    return costs


def _passes(
    runner: Runner,
    candidate: Candidate | None,
    record: Callable[..., CostPoint],
    grid: CostGrid,
    sizes: tuple[int, ...],
    reads: Sequence[int] = (),
) -> Iterator[_Point]:
    """Passes over n tokens a row at each context, and passes over whole prompts. The choice of
    tokens is timed too: one at each position for the target, which verifies, one in each row for a
    draft. Layer inputs that a head `reads` are captured in passes over several tokens, as in
    verification.

    On a GPU a draft queues the k steps of a round without waiting, so k steps are timed together.
    On a CPU a pass returns when it is done, so one is timed. All contexts are beginnings of one
    text in one cache, so that what a pass writes there is what was there before.
    """
    rows, device = grid.concurrency, runner.device
    passes = 1 if candidate is None or device == "cpu" else grid.largest_k
    contexts = [c for c in grid.contexts if c + max(sizes) <= runner.context_length]
    longest = max(contexts, default=0)
    cache = runner.new_cache(longest + max(sizes), rows, sizes, reads)
    filled = torch.tensor(grid.tokens(0, longest), device=device)
    for row in range(rows if contexts else 0):
        counts = [longest if at == row else 0 for at in range(rows)]
        runner.forward(filled, cache, every=False, counts=counts)
    of_runner = partial(record, candidate=candidate, runner=runner.name)

    def step(context: int, size: int) -> _Point:
        tokens = torch.tensor(grid.tokens(context, size) * rows, device=device)
        every, hidden = candidate is None, HiddenStates(reads) if reads and size > 1 else None

        def once() -> Tensor:
            for row in range(rows):
                cache.rewind(row, context)
            counts = [size] * rows
            chosen = best(runner.forward(tokens, cache, every=every, counts=counts, hidden=hidden))
            if hidden is not None:
                hidden.joined()
            return chosen

        def work() -> None:
            for _ in range(passes - 1):
                once()
            once().tolist()  # waits for the last

        read = None  # experts in a layer, on average; unknown where their choice cannot be seen
        if layers := expert_layers(runner.modules()):
            with counted_experts(layers) as counts:
                once()
            read = sum(counts) / len(layers) if counts else None
        of_step = {"what": "step", "new_tokens": size, "context": context, "concurrency": rows}
        return _Point(work, partial(of_runner, **of_step, experts_read=read), passes)

    def prefill(length: int) -> _Point:
        tokens = torch.tensor(grid.tokens(0, length), device=device)

        def work() -> None:
            best(runner.forward(tokens, runner.new_cache(length), every=False)).tolist()

        of_prompt = {"what": "prefill", "new_tokens": length, "context": 0, "concurrency": 1}
        return _Point(work, partial(of_runner, **of_prompt), prefill=True)

    yield from starmap(step, product(contexts, sizes))
    yield from (prefill(length) for length in grid.prompts if length <= runner.context_length)


def _head_passes(
    head: Head,
    candidate: Candidate,
    record: Callable[..., CostPoint],
    grid: CostGrid,
    sizes: tuple[int, ...],
    target: Runner,
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
            entered = left if what == "step" else head.entering(hidden_states)
            head.step(read, entered, cache, counts)[0].tolist()

        where = {"new_tokens": size, "context": context, "concurrency": at_once}
        of_point = partial(record, candidate=candidate, what=what, **where, runner=head.name)
        return _Point(work, of_point, prefill=what == "prefill")

    for context in contexts:
        yield from (point("catch-up", size, context) for size in sizes)
        yield point("step", 1, context)
    yield from (point("prefill", length, 0, 1) for length in grid.prompts)


def _proposals(
    candidate: Candidate, record: Callable[..., CostPoint], grid: CostGrid, lookup: NGramSizes
) -> Iterator[_Point]:
    """Prompt lookup's work in a round: index a new token of each row and look up a continuation."""
    k, rows = grid.largest_k, grid.concurrency
    for context in grid.contexts:
        index = LookupIndex(*lookup)
        index.extend(grid.tokens(0, context))

        def work(index: LookupIndex = index) -> None:
            for _ in range(rows):
                index.extend([index.tokens.pop()])
                index.lookup(k)

        where = {"new_tokens": k, "context": context, "concurrency": rows, "runner": "host"}
        yield _Point(work, partial(record, candidate=candidate, what="proposal", **where))
