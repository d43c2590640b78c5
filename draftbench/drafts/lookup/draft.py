"""Prompt lookup as the built-in decoder uses it: in rounds, along responses, and timed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from torch import Tensor

from draftbench.decoder.drafters import Proposal, ProposalRequest
from draftbench.decoder.runner import DecodeTask, on_device
from draftbench.drafts.lookup.index import LookupIndex
from draftbench.measure.replay import from_every_start
from draftbench.measure.timed_passes import CostGrid, Record, TimedPass
from draftbench.measure.trajectories import Group, ScoredResponse
from draftbench.records import (
    BUILT_IN_LOOKUP,
    Candidate,
    LookupReplay,
    LookupRule,
    NGramSizes,
    StopRule,
)


class LookupDraft:
    """Prompt lookup by one rule, which is an engine's where its answers are replayed."""

    reads: Sequence[int] = ()

    def __init__(self, sizes: NGramSizes, device: str, rule: LookupRule = BUILT_IN_LOOKUP) -> None:
        self.sizes, self.device, self.rule = sizes, device, rule

    def drafter(self) -> LookupDrafter:
        return LookupDrafter(*self.sizes, self.device)

    def replay(
        self, candidate: Candidate, group: Group, window: int, *, stops: bool = True
    ) -> list[LookupReplay]:
        return [
            replay_lookup(response, candidate, LookupIndex(*self.sizes, self.rule), window)
            for response in group
        ]

    def passes(self, record: Record, grid: CostGrid) -> Iterator[TimedPass]:
        """Its work in a round: index a new token of each row and look up a continuation."""
        k, rows = grid.largest_k, grid.concurrency
        for context in grid.contexts:
            index = LookupIndex(*self.sizes)
            index.extend(grid.tokens(0, context))

            def work(index: LookupIndex = index) -> None:
                for _ in range(rows):
                    index.extend([index.tokens.pop()])
                    index.lookup(k)

            where = {"new_tokens": k, "context": context, "concurrency": rows, "runner": "host"}
            yield TimedPass(work, partial(record, what="proposal", **where))


class LookupDrafter:
    """Prompt lookup in rounds, with an index of each row."""

    reads: Sequence[int] = ()

    def __init__(self, longest: int, shortest: int, device: str) -> None:
        self.sizes, self.device = (longest, shortest), device

    def open(self, rows: int, capacity: int, widths: Collection[int] = ()) -> None:
        self.indexes = [LookupIndex(*self.sizes) for _ in range(rows)]

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        self.indexes[row] = LookupIndex(*self.sizes)
        self.indexes[row].extend(task.prompt)

    def propose(
        self, asks: Sequence[ProposalRequest], stop: StopRule | None = None
    ) -> list[Proposal | None]:
        """What it finds; it is no surer of one token than of another, so that no rule stops it."""
        proposals: list[Proposal | None] = []
        for ask in asks:
            index, tokens = self.indexes[ask.row], []
            if ask.k > 0:
                index.extend(ask.context[len(index.tokens) :])
                tokens = index.lookup(ask.k)
            copied = Proposal(on_device(tokens, self.device).split(1)) if tokens else None
            proposals.append(copied)
        return proposals

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        """Nothing to do: drafted tokens are not stored."""


def replay_lookup(
    response: ScoredResponse, candidate: Candidate, index: LookupIndex, window: int
) -> LookupReplay:
    """What prompt lookup proposes from every position at which a round may start.

    Args:
        index: an empty one.
        window: the largest k.
    """
    index.extend(list(response.prompt.tokens))
    tokens, proposals = response.tokens, []
    for start in range(1, len(tokens)):
        index.extend([tokens[start - 1]])
        proposals.append(index.lookup(window))
    return from_every_start(response, candidate, window, proposals)
