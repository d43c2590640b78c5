"""One candidate beside a loaded target → its replays, its costs and its decoding runs, each
skipping what is there already.

Knows how one candidate is measured; which candidates, in which order and which k are worth decoding
is the sweep's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from draftbench.decode.clock import Clock
from draftbench.decode.drafters import Drafter, LookupDrafter, ModelDrafter
from draftbench.decode.loop import Task
from draftbench.decode.runner import Runner
from draftbench.measure.cost import CostGrid, measure_costs
from draftbench.measure.decoding import Bench, Cell, run_cells, warm
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.replay import replay_lookup, replay_model
from draftbench.records import (
    NEAR_TIE_MARGIN,
    Candidate,
    CostPoint,
    Decode,
    DraftingMode,
    LookupReplay,
    Replay,
    Trajectory,
)
from draftbench.store.folder import PrivateDraft, PrivateText

Material = tuple[Prompt, PrivateText, Trajectory]


@dataclass(frozen=True)
class Setting:
    """What all candidates of a sweep share."""

    target: Runner
    text: TextSide
    mode: DraftingMode
    ks: tuple[int, ...]
    lookup: tuple[int, int]
    dtype: str
    clock: Clock
    process: str
    digest: Callable[[tuple[int, ...]], str]


@dataclass(frozen=True)
class Contender:
    """A candidate with its runner; `runner` None is prompt lookup."""

    candidate: Candidate
    runner: Runner | None

    def drafter(self, setting: Setting, task: Task) -> Drafter:
        """A fresh drafter for one response."""
        if self.runner is None:
            return LookupDrafter(*setting.lookup, setting.target.device)
        uniforms = task.uniforms.stream("draft") if task.sampling.temperature > 0 else None
        return ModelDrafter(
            self.runner, setting.mode, task.sampling, uniforms, setting.target.vocab_size
        )


def replay(
    contender: Contender, setting: Setting, material: Sequence[Material]
) -> Iterator[tuple[Replay | LookupReplay, PrivateDraft | None]]:
    """One pass along every response; with it, for the private part, what a model drafted."""
    candidate = contender.candidate
    for _, text, trajectory in material:
        if contender.runner is None:
            window = max(setting.ks)
            yield replay_lookup(text, trajectory, candidate, setting.lookup, window), None
        else:
            yield replay_model(
                contender.runner, setting.target, (text, trajectory), candidate, setting.mode
            )


def costs(contender: Contender, setting: Setting, material: Sequence[Material]) -> list[CostPoint]:
    """Time the candidate's passes beside the target's."""
    draft: Runner | LookupDrafter | None = contender.runner
    if contender.runner is None:
        draft = LookupDrafter(*setting.lookup, setting.target.device)
    elif contender.runner is setting.target:
        draft = None
    grid = cost_grid(setting, material)
    return measure_costs(
        setting.target, draft, contender.candidate, grid, (setting.clock, setting.process)
    )


def cost_grid(setting: Setting, material: Sequence[Material]) -> CostGrid:
    """Contexts and prompt lengths that this traffic has: its ends and its middle."""
    prompts = sorted(t.prompt_tokens for _, _, t in material)
    longest = max(t.prompt_tokens + t.output_tokens for _, _, t in material)
    room = setting.target.context_length - max(setting.ks) - 1
    middle = sorted(t.prompt_tokens + t.output_tokens // 2 for _, _, t in material)
    contexts = {min(c, room) for c in (middle[0], middle[len(middle) // 2], longest)}
    _, text, _ = max(material, key=lambda m: m[2].prompt_tokens + m[2].output_tokens)
    return CostGrid(
        contexts=tuple(sorted(c for c in contexts if c > 0)),
        largest_k=max(setting.ks),
        prompts=tuple(sorted({prompts[0], prompts[len(prompts) // 2], prompts[-1]})),
        text=text.prompt + text.tokens,
    )


def decode_cells(
    contender: Contender, setting: Setting, material: Sequence[Material], ks: Sequence[int]
) -> Iterator[list[Decode]]:
    """The baseline and each k, one list per request: only together can they be compared.

    The order of the cells turns by one with every request.
    """
    candidate = contender.candidate
    cells = [Cell(candidate if k else None, k, setting.mode, 0) for k in (0, *ks)]
    bench = Bench(
        target=setting.target,
        text=setting.text,
        make_drafter=lambda task: contender.drafter(setting, task),
        clock=setting.clock,
        process=setting.process,
        block=str(candidate),
        tie_margin=NEAR_TIE_MARGIN[setting.dtype],
        digest=setting.digest,
    )
    if material:
        warm(bench, material[0][0], cells)
    for turn, (prompt, text, trajectory) in enumerate(material):
        order = cells[turn % len(cells) :] + cells[: turn % len(cells)]
        yield list(run_cells(bench, prompt, trajectory, text.tokens, order))
