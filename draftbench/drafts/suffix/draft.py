"""Suffix decoding as the built-in decoder uses it: in rounds, along responses, and timed.

With a memory every response is drafted as if requests were taken one after the other, in the order
of the traffic. How many are decoded side by side, in which order, and which of them, changes
nothing, so that decoding and replay propose the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from torch import Tensor

from draftbench.decoder.drafters import Proposal, ProposalRequest
from draftbench.decoder.runner import DecodeTask, on_device
from draftbench.drafts.suffix.memory import Memory, Remembered
from draftbench.drafts.suffix.rule import BUILT_IN_SUFFIX, SuffixRule
from draftbench.drafts.suffix.tree import Place, SuffixTree, best_of
from draftbench.measure.replay import from_every_start, matching
from draftbench.measure.timed_passes import CostGrid, Record, TimedPass
from draftbench.measure.trajectories import Group, ScoredResponse
from draftbench.records import Candidate, InBlock, Key, LookupReplay, StopRule

# Rounds in one piece of timed work, since what a text was seen to go on with is not looked at again
# in the next.
_ROUNDS = 32


class _Text:
    """A text that grows, and the trees that grow with it."""

    def __init__(self, tokens: Sequence[int], trees: Sequence[SuffixTree]) -> None:
        self.length, self.trees, self._places = len(tokens), trees, [Place(t) for t in trees]
        for place in self._places:
            place.follow(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        self.length += len(tokens)
        for tree, place in zip(self.trees, self._places, strict=True):
            tree.extend(tokens)
            place.follow(tokens)

    def proposals(self, ks: Sequence[int]) -> list[Sequence[int]]:
        """What is proposed next in rounds of each length."""
        return best_of(self._places, ks)


class SuffixDraft:
    """Suffix decoding by one rule.

    Args:
        log: the responses that it remembers, in the order of their requests; None: it remembers
            none.
    """

    reads: Sequence[int] = ()

    def __init__(
        self, device: str, log: Sequence[Remembered] | None, rule: SuffixRule = BUILT_IN_SUFFIX
    ) -> None:
        self.device, self.log, self.rule = device, log, rule
        # Of whatever goes through the responses one by one.
        self.memory = self.new_memory()

    def new_memory(self) -> Memory | None:
        """Another memory, for a row beside others."""
        return None if self.log is None else Memory(self.rule, self.log)

    def begun(self, key: Key, prompt: Sequence[int], memory: Memory | None) -> _Text:
        """A response before its first token: a tree of it and its prompt, and with a memory one of
        it behind the responses before it.
        """
        own = SuffixTree(self.rule)
        own.extend(prompt)
        if memory is None:
            return _Text(prompt, [own])
        return _Text(prompt, [own, SuffixTree(self.rule, memory.before(key))])

    def drafter(self) -> SuffixDrafter:
        return SuffixDrafter(self)

    def replay(
        self, candidate: Candidate, group: Group, window: int, *, stops: bool = True
    ) -> list[LookupReplay]:
        return [self._replay(candidate, response, window) for response in group]

    def _replay(self, candidate: Candidate, response: ScoredResponse, window: int) -> LookupReplay:
        """What it proposes from every position at which a round may start. In shorter rounds that
        may be something else, not only less: what follows one token is sure, what follows ten is
        long.
        """
        text, ks = (
            self.begun(response.key, response.prompt.tokens, self.memory),
            range(1, window + 1),
        )
        at_starts = []
        for token in response.tokens[:-1]:
            text.extend([token])
            at_starts.append(text.proposals(ks))
        longest = [at_start[-1] for at_start in at_starts]
        blocks = list[InBlock]()
        for k in reversed(ks[:-1]):
            proposals = [at_start[k - 1] for at_start in at_starts]
            cut = [proposal[:k] for proposal in longest]
            if blocks or proposals != cut:
                lengths = tuple(map(len, proposals))
                blocks.append(InBlock(matched=matching(response, proposals), proposed=lengths))
        return from_every_start(response, candidate, window, longest, blocks=blocks[::-1])

    def passes(self, record: Record, grid: CostGrid) -> Iterator[TimedPass]:
        """Its work in a round: take in a new token of each row, and find what follows."""
        k, rows, before = grid.largest_k, grid.concurrency, None
        if self.log is not None:
            before = SuffixTree(self.rule)
            for _, _, tokens in self.log:
                if grid.text[-len(tokens) :] != tuple(tokens):  # it would be found whole
                    before.extend(tokens)
                    before.finish()
        for context in grid.contexts:
            prompt, own = grid.tokens(0, context), SuffixTree(self.rule)
            own.extend(prompt)
            bases = [own] if before is None else [own, before]
            steps = grid.tokens(context, _ROUNDS)

            def work(prompt: list[int], bases: list[SuffixTree], steps: list[int]) -> None:
                texts = [
                    _Text(prompt, [SuffixTree(self.rule, base) for base in bases])
                    for _ in range(rows)
                ]
                for token in steps:
                    for text in texts:
                        text.extend([token])
                        text.proposals([k])

            where = {"new_tokens": k, "context": context, "concurrency": rows, "runner": "host"}
            yield TimedPass(
                partial(work, prompt, bases, steps),
                partial(record, what="proposal", **where),
                passes=_ROUNDS,
            )


class SuffixDrafter:
    """Suffix decoding in rounds, with the trees of each row."""

    reads: Sequence[int] = ()

    def __init__(self, draft: SuffixDraft) -> None:
        self.draft = draft

    def open(self, rows: int, capacity: int, widths: Collection[int] = ()) -> None:
        """A row alone takes the draft's memory, which need not begin again for each request. Rows
        side by side are at different requests at once.
        """
        several = rows > 1
        memory = self.draft.memory
        self._memories = [self.draft.new_memory() if several else memory for _ in range(rows)]
        self._texts: list[_Text] = [_Text((), ())] * rows

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        self._texts[row] = self.draft.begun(task.key, task.prompt, self._memories[row])

    def propose(
        self, asks: Sequence[ProposalRequest], stop: StopRule | None = None
    ) -> list[Proposal | None]:
        """What most often followed; no rule stops it. A round that the end of the response cuts
        short begins as any other.
        """
        proposals: list[Proposal | None] = []
        for ask in asks:
            text, tokens = self._texts[ask.row], list[int]()
            if ask.k > 0:
                text.extend(ask.context[text.length :])
                tokens = list(text.proposals([ask.length])[0][: ask.k])
            found = Proposal(on_device(tokens, self.draft.device).split(1)) if tokens else None
            proposals.append(found)
        return proposals

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        """Nothing to do: drafted tokens are not stored."""
