"""A head of any kind as the built-in decoder uses it: in rounds, along responses, and timed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from draftbench.decoder.runner import HiddenStates, Runner
from draftbench.drafts.heads.head import Head, HeadDrafter
from draftbench.errors import ModelError
from draftbench.measure.replay import confidences_of, from_every_start
from draftbench.measure.timed_passes import (
    CostGrid,
    Record,
    Sizes,
    TimedPass,
    in_a_row,
    queued_passes,
)
from draftbench.measure.trajectories import Group, ScoredResponse
from draftbench.records import Candidate, LookupReplay


class HeadDraft:
    """A head on the target whose states it reads."""

    def __init__(self, head: Head, target: Runner) -> None:
        self.head, self.target = head, target
        self.reads: Sequence[int] = head.reads
        self.context_length = head.context_length

    def drafter(self) -> HeadDrafter:
        return self.head.drafter()

    def replay(
        self, candidate: Candidate, group: Group, window: int, *, stops: bool = True
    ) -> list[LookupReplay]:
        head, target = self.head, self.target
        return [replay_head(each, candidate, head, target, window, stops=stops) for each in group]

    def passes(self, record: Record, grid: CostGrid, first: Sizes = None) -> Iterator[TimedPass]:
        """Its catch-up over each number of tokens that may be left to read at each context, a step
        after it, and whole prompts. The states of any text serve.
        """
        sizes, rows = first or grid.verify_sizes, grid.concurrency
        queued = queued_passes(self.head.device, grid)
        contexts = [c for c in grid.contexts if c + max(sizes) <= self.head.context_length]
        most = max([*sizes, *grid.prompts])
        hidden, text = HiddenStates(self.head.reads), grid.tokens(0, most)
        tokens = torch.tensor(text, device=self.target.device)
        self.target.forward(tokens, self.target.new_cache(most), every=False, hidden=hidden)
        states = hidden.joined()
        room = max([*contexts, most]) + max(sizes)
        cache: Any = self.head.new_cache(room, rows, grid.verify_sizes)

        def point(what: str, size: int, context: int, at_once: int = rows) -> TimedPass:
            counts = [size] * at_once + [0] * (rows - at_once)
            read, hidden_states = tokens[:size].repeat(at_once), states[:size].repeat(at_once, 1)
            left = self.head.entering(hidden_states)

            def once() -> Tensor:
                cache.lengths = [context] * rows
                entered = left if what == "step" else self.head.entering(hidden_states)
                logits, _ = self.head.step(read, entered, cache, counts)
                return self.head.chosen(logits)

            where = {"new_tokens": size, "context": context, "concurrency": at_once}
            of_point = partial(record, what=what, **where, runner=self.head.name)
            passes = 1 if what == "prefill" else queued
            return TimedPass(in_a_row(once, passes), of_point, passes, what == "prefill")

        for context in contexts:
            yield from (point("catch-up", size, context) for size in sizes)
            yield point("step", 1, context)
        yield from (point("prefill", length, 0, 1) for length in grid.prompts)


def replay_head(
    response: ScoredResponse,
    candidate: Candidate,
    head: Head,
    target: Runner,
    window: int,
    *,
    stops: bool = True,
) -> LookupReplay:
    """What a head drafts from every position at which a round may start, by one pass of the target
    over the response and `window` passes of the head; where rounds may stop, with how sure it is.

    Raises:
        ModelError: states of the target or logits of the head that are NaN or infinite.
    """
    text = [*response.prompt.tokens, *response.tokens]
    states, first = finite_states(response, head.reads, target), len(response.prompt.tokens) - 1
    proposals, margins = list[list[int]](), list[list[float]]()
    of_all, of_ten = list[list[float]](), list[list[float]]()
    for drafted in head.along(text, states, first, window, stops=stops):
        refuse_unless_finite(drafted.margins, "the head's logits")
        proposals += drafted.tokens.tolist()
        margins += drafted.margins.tolist()
        if drafted.sure is not None:
            of_all += drafted.sure[..., 0].tolist()
            of_ten += drafted.sure[..., 1].tolist()
    confidences = confidences_of(of_all, of_ten) if stops else None
    return from_every_start(response, candidate, window, proposals, margins, confidences)


def finite_states(response: ScoredResponse, reads: Sequence[int], target: Runner) -> Tensor:
    """The target's states before some layers at every token of a response and its prompt except the
    last, by one pass.

    Raises:
        ModelError: they are NaN or infinite.
    """
    text = [*response.prompt.tokens, *response.tokens]
    hidden, cache = HiddenStates(reads), target.new_cache(len(text) - 1)
    target.forward(torch.tensor(text[:-1], device=target.device), cache, every=False, hidden=hidden)
    states = hidden.joined()
    refuse_unless_finite(states, "the target's hidden states")
    return states


def refuse_unless_finite(values: Tensor, what: str) -> None:
    if not bool(values.isfinite().all()):
        raise ModelError(
            f"{what} are NaN or infinite",
            hint="try another dtype or quantization; the weights may be damaged",
        )
