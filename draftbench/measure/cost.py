"""Models and a real response → how long their passes take, at the sizes that a round needs.

All points of a block are timed in turn, in every repeat, so that drift of the machine meets all of
them alike; medians are the reader's business, all samples are kept. Every shape is run once before
it is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from draftbench.decode.clock import Clock
from draftbench.decode.drafters import LookupDrafter
from draftbench.decode.runner import Runner
from draftbench.records import Candidate, CostPoint

REPEATS = 6
PREFILL_REPEATS = 3
# Each visit runs the work once before it is timed: in a decoder a pass finds its weights as warm as
# the pass before left them, not as cold as another model's passes did.
SAMPLES_PER_VISIT = 2


@dataclass(frozen=True)
class CostGrid:
    """Where to time: contexts (tokens in the cache), the largest k, prompt lengths, and real text
    to step through.
    """

    contexts: tuple[int, ...]
    largest_k: int
    prompts: tuple[int, ...]
    text: tuple[int, ...]

    @property
    def verify_sizes(self) -> tuple[int, ...]:
        """Tokens per target pass: all up to 5, then every second, and k+1 for the largest k."""
        top = self.largest_k + 1
        return tuple(sorted({n for n in range(1, top + 1) if n <= 5 or n % 2} | {top}))

    def tokens(self, start: int, count: int) -> list[int]:
        """Real tokens, repeated where the text is shorter."""
        return [self.text[(start + i) % len(self.text)] for i in range(count)]


@dataclass(frozen=True)
class _Timed:
    """One point: what to record, and the work of one repeat."""

    draft: str | None
    quant: str
    what: str
    new_tokens: int
    context: int
    runner: str
    work: Callable[[], None]

    @property
    def repeats(self) -> int:
        """Prompts are read once a request and take long; fewer repeats do."""
        return PREFILL_REPEATS if self.what == "prefill" else REPEATS


def measure_costs(
    target: Runner,
    draft: Runner | LookupDrafter | None,
    candidate: Candidate | None,
    grid: CostGrid,
    timing: tuple[Clock, str],
) -> list[CostPoint]:
    """Time the target beside one draft.

    Args:
        draft: a model, prompt lookup, or None for the target alone.
        timing: the clock and this process's id.
    """
    clock, process = timing
    points = [*_step_points(target, None, "none", grid, grid.verify_sizes)]
    points += _prefill_points(target, None, "none", grid)
    if isinstance(draft, LookupDrafter) and candidate is not None:
        points += _proposal_points(draft, candidate, grid)
    elif draft is not None and candidate is not None:
        sizes = (1, 2)
        points += _step_points(draft, candidate.draft, candidate.quant, grid, sizes)  # type: ignore[arg-type]
        points += _prefill_points(draft, candidate.draft, candidate.quant, grid)  # type: ignore[arg-type]
    seconds: list[list[float]] = [[] for _ in points]
    for repeat in range(REPEATS):
        for point, samples in zip(points, seconds, strict=True):
            if repeat < point.repeats:
                samples += _visit(point, clock)
    return [
        CostPoint(
            draft=point.draft,
            quant=point.quant,
            what=point.what,
            batch=1,
            new_tokens=point.new_tokens,
            context=point.context,
            seconds=tuple(samples),
            block="target" if candidate is None else str(candidate),
            runner=point.runner,
            process=process,
        )
        for point, samples in zip(points, seconds, strict=True)
    ]


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
    runner: Runner, draft: str | None, quant: str, grid: CostGrid, sizes: tuple[int, ...]
) -> list[_Timed]:
    """A pass over n tokens at each context, and the choice of a token after each."""
    points = []
    for context in grid.contexts:
        if context + max(sizes) > runner.context_length:
            continue
        cache = runner.new_cache(context + max(sizes))
        filled = torch.tensor(grid.tokens(0, context), device=runner.device)
        runner.forward(filled, cache, 1)
        for size in sizes:
            tokens = torch.tensor(grid.tokens(context, size), device=runner.device)

            def work(
                cache: object = cache, tokens: torch.Tensor = tokens, context: int = context
            ) -> None:
                cache.rewind(context)  # type: ignore[attr-defined]
                runner.forward(tokens, cache, len(tokens)).argmax(dim=-1).tolist()  # type: ignore[arg-type]

            points.append(_Timed(draft, quant, "step", size, context, runner.name, work))
    return points


def _prefill_points(runner: Runner, draft: str | None, quant: str, grid: CostGrid) -> list[_Timed]:
    points = []
    for length in grid.prompts:
        if length > runner.context_length:
            continue
        tokens = torch.tensor(grid.tokens(0, length), device=runner.device)

        def work(tokens: torch.Tensor = tokens) -> None:
            runner.forward(tokens, runner.new_cache(len(tokens)), 1).argmax(dim=-1).tolist()

        points.append(_Timed(draft, quant, "prefill", length, 0, runner.name, work))
    return points


def _proposal_points(draft: LookupDrafter, candidate: Candidate, grid: CostGrid) -> list[_Timed]:
    """Indexing one new token and looking up a continuation."""
    points = []
    for context in grid.contexts:
        text = grid.tokens(0, context)
        draft.begin(text, context)

        def work(index: object = draft.index, text: list[int] = text) -> None:
            del index.tokens[-1:]  # type: ignore[attr-defined]
            index.extend(text[-1:])  # type: ignore[attr-defined]
            index.lookup(grid.largest_k)  # type: ignore[attr-defined]

        points.append(
            _Timed(
                candidate.draft, candidate.quant, "proposal", grid.largest_k, context, "host", work
            )
        )
    return points
