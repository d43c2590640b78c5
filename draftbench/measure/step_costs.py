"""Models and a real response → how long their passes take, at the sizes that a round needs.

All points of a block are timed in turn, in every repeat, so that drift of the machine meets all of
them alike; medians are the reader's business, all samples are kept. Every shape is run once before
it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from draftbench.decoder.drafters import LookupDrafter, LookupIndex
from draftbench.decoder.runner import Clock, KVCache, Runner
from draftbench.decoder.sampling import best
from draftbench.measure.candidate import Bench, LoadedCandidate
from draftbench.records import Candidate, CostPoint

REPEATS = 6
PREFILL_REPEATS = BATCH_REPEATS = 3
# Each visit runs the work once before it is timed: in a decoder a pass finds its weights as warm as
# the pass before left them, not as cold as another model's passes did.
SAMPLES_PER_VISIT = 2


@dataclass(frozen=True)
class CostGrid:
    """Where to time: contexts (tokens in each row's cache), the largest k, prompt lengths (none:
    prompts are not timed), real text to step through, and how many rows step together.
    """

    contexts: tuple[int, ...]
    largest_k: int
    prompts: tuple[int, ...]
    text: tuple[int, ...]
    batch: int = 1

    @property
    def verify_sizes(self) -> tuple[int, ...]:
        """Tokens per row of a target pass, k+1 for the largest k among them: for one row all up to
        5, then every second; for several, whose passes grow smoothly, each about twice the last.
        """
        top = self.largest_k + 1
        if self.batch == 1:
            return tuple(sorted({n for n in range(1, top + 1) if n <= 5 or n % 2} | {top}))
        return tuple(sorted({n for n in (1, 2, 3, 5, 9, 17, 33) if n < top} | {top}))

    @property
    def turns(self) -> int:
        """How often all points are visited; batches take long, and fewer turns do."""
        return REPEATS if self.batch == 1 else BATCH_REPEATS

    def tokens(self, start: int, count: int) -> list[int]:
        """Real tokens, repeated where the text is shorter."""
        return [self.text[(start + i) % len(self.text)] for i in range(count)]


def grid_for(
    spans: Sequence[tuple[int, int]], text: Sequence[int], ks: Sequence[int], room: int, batch: int
) -> CostGrid:
    """Contexts and prompt lengths that this traffic has: its ends and its middle; for several rows,
    whose passes take long, the ends alone and no prompts.

    Args:
        spans: prompt and output tokens of every response.
        text: real tokens to step through.
        room: the target's context length.
    """
    prompts = sorted(prompt for prompt, _ in spans)
    middles = sorted(prompt + output // 2 for prompt, output in spans)
    longest = max(prompt + output for prompt, output in spans)
    contexts = [middles[0], middles[len(middles) // 2], longest]
    lengths = {prompts[0], prompts[len(prompts) // 2], prompts[-1]}
    most = room - max(ks) - 1
    used = contexts if batch == 1 else [contexts[0], contexts[-1]]
    return CostGrid(
        contexts=tuple(sorted({min(c, most) for c in used if min(c, most) > 0})),
        largest_k=max(ks),
        prompts=tuple(sorted(lengths)) if batch == 1 else (),
        text=tuple(text),
        batch=batch,
    )


@dataclass(frozen=True)
class _Timed:
    """One point: what to record, and the work of one repeat."""

    candidate: Candidate | None
    what: str
    new_tokens: int
    context: int
    batch: int
    runner: str
    work: Callable[[], None]


def time_steps(loaded: LoadedCandidate, bench: Bench, grid: CostGrid) -> list[CostPoint]:
    """Time a candidate's passes beside the target's; as its own draft the target has no others."""
    draft: Runner | LookupDrafter | None = loaded.runner
    if loaded.runner is None:
        draft = LookupDrafter(*bench.lookup, bench.target.device)
    elif loaded.runner is bench.target:
        draft = None
    timing = bench.clock, bench.process
    return measure_costs(bench.target, draft, loaded.candidate, grid, timing, bench.between)


def measure_costs(
    target: Runner,
    draft: Runner | LookupDrafter | None,
    candidate: Candidate | None,
    grid: CostGrid,
    timing: tuple[Clock, str],
    between: Callable[[int], None] = lambda done: None,
) -> list[CostPoint]:
    """Time the target beside one draft.

    Args:
        draft: a model, prompt lookup, or None for the target alone.
        timing: the clock and this process's id.
        between: called with 1 between two of the grid's turns; what it raises ends the work.
    """
    clock, process = timing
    points = _points(target, draft, candidate, grid)
    seconds: list[list[float]] = [[] for _ in points]
    for turn in range(grid.turns):
        if turn > 0:
            between(1)
        for point, samples in zip(points, seconds, strict=True):
            # Prompts are read once a request and take long.
            if point.what != "prefill" or turn < PREFILL_REPEATS:
                samples += _visit(point, clock)
    return [
        CostPoint(
            candidate=point.candidate,
            what=point.what,
            batch=point.batch,
            new_tokens=point.new_tokens,
            context=point.context,
            seconds=tuple(samples),
            block="target" if candidate is None else str(candidate),
            runner=point.runner,
            process=process,
        )
        for point, samples in zip(points, seconds, strict=True)
    ]


def _points(
    target: Runner,
    draft: Runner | LookupDrafter | None,
    candidate: Candidate | None,
    grid: CostGrid,
) -> list[_Timed]:
    """What is visited in each turn."""
    points = [*_step_points(target, None, grid, grid.verify_sizes)]
    points += _prefill_points(target, None, grid)
    if isinstance(draft, LookupDrafter):
        points += _proposal_points(draft, candidate, grid)
    elif draft is not None:
        sizes = (1, 2)
        points += _step_points(draft, candidate, grid, sizes)
        points += _prefill_points(draft, candidate, grid)
    return points


def _visit(point: _Timed, clock: Clock) -> list[float]:
    """Run the work once, then time it."""
    point.work()
    samples = []
    for _ in range(SAMPLES_PER_VISIT if point.what != "prefill" else 1):
        start = clock.mark()
        point.work()
        samples.append(clock.seconds(start, clock.mark()))
    return samples


def _step_points(
    runner: Runner, candidate: Candidate | None, grid: CostGrid, sizes: tuple[int, ...]
) -> list[_Timed]:
    """Times a pass over n tokens a row at each context, and the choice of tokens: one per position
    for the target, which verifies, and one per row for a draft, which continues from the last.
    """
    points = []
    for context in grid.contexts:
        if context + max(sizes) > runner.context_length:
            continue
        cache = runner.new_cache(context + max(sizes), grid.batch, sizes)
        filled = torch.tensor(grid.tokens(0, context), device=runner.device)
        for row in range(grid.batch):
            only = [context if at == row else 0 for at in range(grid.batch)]
            runner.forward(filled, cache, every=False, counts=only)
        for size in sizes:
            tokens = torch.tensor(grid.tokens(context, size) * grid.batch, device=runner.device)

            def work(
                cache: KVCache = cache,
                tokens: torch.Tensor = tokens,
                context: int = context,
                size: int = size,
            ) -> None:
                for row in range(grid.batch):
                    cache.rewind(row, context)
                counts = [size] * grid.batch
                logits = runner.forward(tokens, cache, every=candidate is None, counts=counts)
                best(logits).tolist()

            points.append(_Timed(candidate, "step", size, context, grid.batch, runner.name, work))
    return points


def _prefill_points(runner: Runner, candidate: Candidate | None, grid: CostGrid) -> list[_Timed]:
    points = []
    for length in grid.prompts:
        if length > runner.context_length:
            continue
        tokens = torch.tensor(grid.tokens(0, length), device=runner.device)

        def work(tokens: torch.Tensor = tokens) -> None:
            cache = runner.new_cache(len(tokens))
            best(runner.forward(tokens, cache, every=False)).tolist()

        points.append(_Timed(candidate, "prefill", length, 0, 1, runner.name, work))
    return points


def _proposal_points(
    draft: LookupDrafter, candidate: Candidate | None, grid: CostGrid
) -> list[_Timed]:
    """Indexing one new token of each row and looking up a continuation."""
    points = []
    for context in grid.contexts:
        text = grid.tokens(0, context)
        index = LookupIndex(*draft.sizes)
        index.extend(text)

        def work(index: LookupIndex = index, text: list[int] = text) -> None:
            for _ in range(grid.batch):
                del index.tokens[-1:]
                index.extend(text[-1:])
                index.lookup(grid.largest_k)

        what = ("proposal", grid.largest_k, context, grid.batch, "host")
        points.append(_Timed(candidate, *what, work))
    return points
