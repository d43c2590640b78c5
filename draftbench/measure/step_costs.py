"""Times the passes of target and draft over real text, at the sizes that a round needs.

Points are timed in turn, so that drift of the machine affects all of them alike. All samples are
kept. Every shape is run once before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from draftbench.measure.candidate import LoadedCandidate
from draftbench.measure.timed_passes import CostGrid, runner_passes
from draftbench.measure.trajectories import ScoredResponse
from draftbench.records import SAMPLES_PER_VISIT, CostPoint

# How often all points are timed at least, and how often prompts are read.
LEAST_TURNS, PREFILL_TURNS = 3, 3


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


def time_steps(
    loaded: LoadedCandidate, grid: CostGrid, enough: Callable[[Sequence[CostPoint]], bool]
) -> list[CostPoint]:
    """Time a candidate's passes and the target's, turn after turn until that is `enough`. Between
    two turns the measurement may end the work.
    """
    measurement, draft, candidate = loaded.measurement, loaded.draft, loaded.candidate
    clock, target, sizes = measurement.clock, measurement.target, grid.verify_sizes
    record = partial(CostPoint, block=str(candidate), process=measurement.process)
    of_target, of_draft = (partial(record, candidate=of) for of in (None, candidate))
    points = [
        *runner_passes(target, of_target, grid, sizes, verifies=True, reads=draft.reads),
        *draft.passes(of_draft, grid),
    ]
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
