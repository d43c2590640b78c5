"""What every drafter does in the rounds of the built-in decoder, whatever its kind of draft.

A drafter keeps a state along each response and learns after each round how much of its proposal was
accepted. It never sees the target's logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from draftbench.decoder.runner import DecodeTask


class Proposal(NamedTuple):
    """Draft tokens, each a tensor [1], and the distribution [1, vocab] that each was drawn from if
    they were sampled. They are separate tensors so that those of all rows can be joined at once.
    """

    tokens: Sequence[Tensor]
    q: Sequence[Tensor] = ()


class ProposalRequest(NamedTuple):
    """Asks for up to `k` tokens after one row's context (prompt and output so far)."""

    row: int
    context: list[int]
    k: int


class Drafter(Protocol):
    """Proposes along responses, one in each row. If it `reads` layers, it is given the target's
    hidden states before these layers for every token that the target reads.
    """

    reads: Sequence[int]

    def open(self, rows: int, capacity: int) -> None:
        """Prepare for `rows` sequences of up to `capacity` tokens."""

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        """Read the prompt of a row's next response."""

    def propose(self, asks: Sequence[ProposalRequest]) -> list[Proposal | None]:
        """A proposal for each request; None where there is nothing to propose."""
        ...

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        """Keep the first `length` tokens of a row's context and forget drafted ones after them."""
