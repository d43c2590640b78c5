"""One candidate beside a loaded target → its replays, its costs and its decoding runs, each
skipping what is there already.

Knows how one candidate is measured; which candidates, in which order and which k are worth decoding
is the sweep's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec.structs import replace as with_fields

from draftbench.decoder.drafters import Drafter, LookupDrafter, ModelDrafter
from draftbench.decoder.runner import Clock, Runner
from draftbench.measure.cost import CostGrid, measure_costs
from draftbench.measure.decoding import Bench, Between, Cell, Chosen, run_in_turn, run_together
from draftbench.measure.kinds import tally
from draftbench.measure.prompts import Prompt, TextSide
from draftbench.measure.replay import replay_lookup, replay_model
from draftbench.records import (
    LOOKUP,
    NEAR_TIE_MARGIN,
    Candidate,
    CostPoint,
    Decode,
    DraftingMode,
    LookupReplay,
    Replay,
    Trajectory,
)
from draftbench.run_folder.folder import Key, PrivateDraft, PrivateText

Material = tuple[Prompt, PrivateText, Trajectory]
# How often each row of a batch is filled, at least.
FILLS = 3


class Asked(Protocol):
    """What cells follow from: how drafts propose, the draft lengths, the confidences to stop at."""

    @property
    def mode(self) -> DraftingMode: ...

    @property
    def ks(self) -> tuple[int, ...]: ...

    @property
    def stop_below(self) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class Setting:
    """What all candidates of a sweep share."""

    target: Runner
    text: TextSide
    mode: DraftingMode
    ks: tuple[int, ...]
    stop_below: tuple[float, ...]
    lookup: tuple[int, int]
    dtype: str
    clock: Clock
    process: str
    digest: Callable[[tuple[int, ...]], str]
    between: Between = lambda done: None


@dataclass(frozen=True)
class Contender:
    """A candidate with its runner; `runner` None is prompt lookup."""

    candidate: Candidate
    runner: Runner | None

    def drafter(self, setting: Setting, cell: Cell) -> Drafter:
        """A fresh drafter."""
        if self.runner is None:
            return LookupDrafter(*setting.lookup, setting.target.device)
        return ModelDrafter(self.runner, setting.mode, setting.target.vocab_size, cell.stop_below)

    def cells(self, asked: Asked, ks: Sequence[int]) -> list[Cell]:
        """The baseline, each k, and the largest k of the grid with each threshold; prompt lookup
        has no confidence to stop by.
        """
        stopping = () if self.candidate.draft == LOOKUP else asked.stop_below
        return [
            Cell(None, 0, asked.mode),
            *(Cell(self.candidate, k, asked.mode) for k in ks),
            *(Cell(self.candidate, max(asked.ks), asked.mode, p) for p in stopping),
        ]


def replay(
    contender: Contender, setting: Setting, group: Sequence[Material]
) -> list[tuple[Replay | LookupReplay, PrivateDraft | None]]:
    """One pass along some responses side by side; with it, for the private part, what a model
    drafted.
    """
    scored = [(text, trajectory) for _, text, trajectory in group]
    runner, candidate = contender.runner, contender.candidate
    if runner is not None:
        made = replay_model(runner, setting.target, scored, candidate, setting.mode)
        kinds = setting.text.kinds
        return [
            (with_fields(record, kinds=tally(record, text.tokens, kinds)), drafted)
            for (record, drafted), (text, _) in zip(made, scored, strict=True)
        ]
    window = max(setting.ks)
    return [
        (replay_lookup(text, trajectory, candidate, setting.lookup, window), None)
        for text, trajectory in scored
    ]


def costs(contender: Contender, setting: Setting, grid: CostGrid) -> list[CostPoint]:
    """Time the candidate's passes beside the target's."""
    draft: Runner | LookupDrafter | None = contender.runner
    if contender.runner is None:
        draft = LookupDrafter(*setting.lookup, setting.target.device)
    elif contender.runner is setting.target:
        draft = None
    timing = setting.clock, setting.process
    return measure_costs(setting.target, draft, contender.candidate, grid, timing, setting.between)


def decode_cells(
    contender: Contender,
    setting: Setting,
    chosen: Sequence[Material],
    ks: Sequence[int],
    batch: int,
    done: Collection[Key] = (),
) -> Iterator[list[Decode]]:
    """The baseline and each k on the chosen requests. For one row a list per request, without those
    that are done; for several a list per cell, of which all or none are worth something.
    """
    cells = contender.cells(setting, ks)
    bench = Bench(
        target=setting.target,
        text=setting.text,
        make_drafter=lambda cell: contender.drafter(setting, cell),
        clock=setting.clock,
        process=setting.process,
        block=str(contender.candidate),
        tie_margin=NEAR_TIE_MARGIN[setting.dtype],
        digest=setting.digest,
        between=setting.between,
    )
    once = [
        Chosen(prompt, trajectory, text.tokens, turn=turn)
        for turn, (prompt, text, trajectory) in enumerate(chosen)
    ]
    left = [one for one in once if (one.trajectory.request, one.trajectory.sample) not in done]
    if batch == 1:
        yield from run_in_turn(bench, left, cells)
    elif left:
        repeats = range(repeats_of(len(once), batch))
        often = [replace(one, repeat=repeat) for repeat in repeats for one in once]
        yield from run_together(bench, often, cells, batch)


def repeats_of(requests: int, batch: int) -> int:
    """How often each of so many requests is decoded: rows are only refilled, and a batch is only
    full, while requests are waiting.
    """
    return 1 if batch == 1 else -(-FILLS * batch // requests)
