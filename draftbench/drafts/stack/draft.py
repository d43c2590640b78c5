"""A stack as the built-in decoder uses it: in rounds, and timed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor

from draftbench.acceptance.rounds import MOST_READ
from draftbench.decoder.drafters import Drafter, Proposal, ProposalRequest
from draftbench.decoder.runner import DecodeTask
from draftbench.drafts.loading import Stackable
from draftbench.drafts.lookup.draft import LookupDraft, LookupDrafter
from draftbench.measure.candidate import Replays
from draftbench.measure.timed_passes import CostGrid, Record, TimedPass
from draftbench.measure.trajectories import Group
from draftbench.records import Candidate, StopRule


class StackDraft:
    """Prompt lookup, and the draft behind it."""

    def __init__(self, lookup: LookupDraft, draft: Stackable) -> None:
        self.lookup, self.draft = lookup, draft
        self.reads = draft.reads

    def drafter(self) -> StackDrafter:
        return StackDrafter(self.lookup.drafter(), self.draft.drafter())

    def replay(
        self, candidate: Candidate, group: Group, window: int, *, stops: bool = True
    ) -> Replays:
        """Nothing: its replay is put together from those of its parts."""
        return ()

    def passes(self, record: Record, grid: CostGrid) -> Iterator[TimedPass]:
        """Those of its parts. The draft's first pass reads all that lookup brought since its last:
        powers of two up to `MOST_READ`, as far as its context reaches.
        """
        yield from self.lookup.passes(record, grid)
        room = max(self.draft.context_length - max(grid.contexts, default=0), 2)
        doubled = (1 << power for power in range(MOST_READ.bit_length()))
        yield from self.draft.passes(record, grid, [size for size in doubled if size <= room])


class StackDrafter:
    """Prompt lookup in rounds and, if it finds nothing, the draft, which then reads what was
    written since it last drafted.
    """

    def __init__(self, lookup: LookupDrafter, draft: Drafter) -> None:
        self.lookup, self.draft, self.reads = lookup, draft, draft.reads

    def open(self, rows: int, capacity: int, widths: Collection[int] = ()) -> None:
        self.lookup.open(rows, capacity)
        self.draft.open(rows, capacity, widths)

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        self.lookup.begin(row, task)
        self.draft.begin(row, task, states)

    def propose(
        self, asks: Sequence[ProposalRequest], stop: StopRule | None = None
    ) -> list[Proposal | None]:
        found = self.lookup.propose(asks)
        rest = [ask for ask, proposal in zip(asks, found, strict=True) if proposal is None]
        drafted = iter(self.draft.propose(rest, stop) if rest else ())
        return [proposal or next(drafted) for proposal in found]

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        self.draft.keep(row, length, states)
