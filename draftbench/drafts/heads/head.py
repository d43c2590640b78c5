"""Heads, which draft from the target's own states: EAGLE-3 heads, and a target's own MTP layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from draftbench.decoder.drafters import Draft, Proposal, ProposalRequest, going_on
from draftbench.decoder.runner import DecodeTask, on_device, singly, whole
from draftbench.decoder.sampling import best, confidence, top_two_margin
from draftbench.records import StopRule

# Rows of a text that draft side by side in replay.
CHUNK = 128


class Drafted(NamedTuple):
    """What a text's rows draft at one depth or, in a second dimension, at each depth."""

    tokens: Tensor
    margins: Tensor  # the best logit less the second
    sure: Tensor | None = None  # in a last dimension, the confidences among all and among ten

    @classmethod
    def side_by_side(cls, parts: Sequence[Drafted]) -> Drafted:
        """The rows of several parts, one after the other."""
        sure = [part.sure for part in parts if part.sure is not None]
        tokens, margins = [part.tokens for part in parts], [part.margins for part in parts]
        return cls(torch.cat(tokens), torch.cat(margins), torch.cat(sure) if sure else None)

    @classmethod
    def by_depth(cls, parts: Sequence[Drafted]) -> Drafted:
        """Depths side by side [rows, depths]."""
        sure = [part.sure for part in parts if part.sure is not None]
        return cls(
            torch.stack([part.tokens for part in parts], dim=1),
            torch.stack([part.margins for part in parts], dim=1),
            torch.stack(sure, dim=1) if sure else None,
        )


class Head(ABC):
    """Drafts from the target's states. Row t reads the token after it and the target's state at it,
    or what the depth before left there, and drafts the token after that.
    """

    reads: tuple[int, ...]  # the target's layers whose inputs it reads
    context_length: int
    dtype: torch.dtype
    device: str

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its implementation, for reports."""

    @abstractmethod
    def modules(self) -> Iterator[nn.Module]:
        """Its modules, the linear layers among them."""

    @abstractmethod
    def tensors(self) -> Iterator[Tensor]:
        """Its weights outside linear layers; those that it shares with the target left out."""

    @abstractmethod
    def new_cache(self, capacity: int, rows: int = 1, widths: Collection[int] = ()) -> Any:
        """An empty cache of `rows` texts, with room for `capacity` tokens each."""

    @abstractmethod
    def entering(self, states: Tensor) -> Tensor:
        """What depth 0 reads of the target's states [n, layers read · hidden]."""

    @abstractmethod
    def step(
        self, tokens: Tensor, left: Tensor, cache: Any, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Read the next tokens [n], some for each row of the cache: text with what is `entering` at
        the tokens before it, or drafted tokens with what the previous depth left. Returns the
        logits [rows, tokens that it can draft] after each row with new tokens, and what its next
        depth reads.
        """

    def chosen(self, logits: Tensor) -> Tensor:
        """The best tokens by its logits, as the target numbers them."""
        return best(logits)

    def drafted(self, logits: Tensor, *, stops: bool) -> Drafted:
        """What rows draft by their logits [n, vocab]."""
        sure = [confidence(logits, "all"), confidence(logits, "ten")] if stops else None
        both = None if sure is None else torch.stack(sure, dim=-1)
        return Drafted(self.chosen(logits), top_two_margin(logits), both)

    @abstractmethod
    def along(
        self,
        tokens: Sequence[int],
        states: Tensor,
        first: int,
        depths: int,
        *,
        stops: bool = False,
    ) -> Iterator[Drafted]:
        """What rounds draft at each depth that start at the rows `first`, `first` + 1, … of a text,
        as long as there is a next token to draft; computed some rows at a time. Each round reads
        what it drafts itself, whether the text continues so or not.

        Args:
            states: the target's at all of the text's tokens except the last.
            stops: whether with how sure the head is.
        """

    def drafter(self) -> HeadDrafter:
        """A new drafter with an empty cache."""
        return HeadDrafter(self)


class HeadDrafter:
    """A head that proposes its argmax: one pass over what the target has read since the last round,
    and one for each further token.
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self.reads: Sequence[int] = head.reads

    def open(self, rows: int, capacity: int, widths: Collection[int] = ()) -> None:
        self.cache = self.head.new_cache(capacity, rows, widths)
        # The target's states at the tokens that the head has not read yet, by row.
        self._unread = [torch.empty(0)] * rows

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        """Read the prompt except its last state, which goes with the first output token."""
        assert states is not None
        self.cache.rewind(row, 0)
        self._unread[row] = states[-1:]
        if len(states) > 1:
            tokens = on_device(task.prompt[1:], self.head.device)
            entering, counts = self.head.entering(states[:-1]), self._counts({row: len(tokens)})
            self.head.step(tokens, entering, self.cache, counts)

    def propose(
        self, asks: Sequence[ProposalRequest], stop: StopRule | None = None
    ) -> list[Proposal | None]:
        head, drafts = self.head, [Draft(ask, ask.k, stop) for ask in asks]
        if active := [draft for draft in drafts if draft.most > 0]:
            rows = [draft.ask.row for draft in active]
            unread = [
                draft.ask.context[self.cache.lengths[draft.ask.row] + 1 :] for draft in active
            ]
            tokens = on_device(list(chain(*unread)), head.device)
            left = head.entering(whole([self._unread[row] for row in rows]))
            counts = dict(zip(rows, map(len, unread), strict=True))
            logits, left = head.step(tokens, left, self.cache, self._counts(counts))
            self._unread = [at[:0] if row in counts else at for row, at in enumerate(self._unread)]
            caught_up = self.cache.lengths
            while True:
                tokens = head.chosen(logits)
                for draft, token in zip(active, singly(tokens), strict=True):
                    draft.tokens.append(token)
                rest = going_on(active, logits, stop)
                if not rest:
                    break
                if len(rest) < len(active):
                    kept = on_device(rest, head.device)
                    active, tokens, left = [active[at] for at in rest], tokens[kept], left[kept]
                counts = {draft.ask.row: 1 for draft in active}
                logits, left = head.step(tokens, left, self.cache, self._counts(counts))
            self.cache.lengths = caught_up
        return [draft.proposal for draft in drafts]

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        """Keep the states of a round's accepted tokens; the next round reads them."""
        assert states is not None
        unread = self._unread[row]
        both = torch.cat([unread, states]) if len(unread) else states
        self._unread[row] = both[: length - self.cache.lengths[row]]

    def _counts(self, counts: Mapping[int, int]) -> list[int]:
        return [counts.get(row, 0) for row in range(len(self._unread))]
