"""What every drafter does in the rounds of the built-in decoder, whatever its kind of draft.

A drafter keeps a state along each response and learns after each round how much of its proposal was
accepted. It never sees the target's logits.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from draftbench.decoder.runner import DecodeTask
from draftbench.decoder.sampling import confidence
from draftbench.drafts.stopping import STOP_RULES, Watch
from draftbench.records import StopRule


class Proposal(NamedTuple):
    """Draft tokens, each a tensor [1], and the distribution [1, vocab] that each was drawn from if
    they were sampled. They are separate tensors so that those of all rows can be joined at once.
    `in_vain` are tokens that were drafted after them and are not proposed.
    """

    tokens: Sequence[Tensor]
    q: Sequence[Tensor] = ()
    in_vain: int = 0

    @property
    def drafted(self) -> int:
        """How many tokens were drafted."""
        return len(self.tokens) + self.in_vain


class ProposalRequest(NamedTuple):
    """Asks for up to `k` tokens after one row's context (prompt and output so far), in rounds of
    `length` tokens: fewer where the response may end before.
    """

    row: int
    context: list[int]
    k: int
    length: int


class Drafter(Protocol):
    """Proposes along responses, one in each row. If it `reads` layers, it is given the target's
    hidden states before these layers for every token that the target reads.
    """

    reads: Sequence[int]

    def open(self, rows: int, capacity: int, widths: Collection[int] = ()) -> None:
        """Prepare for `rows` sequences of up to `capacity` tokens.

        Args:
            widths: tokens per row of the target's passes that will be timed, at most k + 1; graphs
                of a drafter's own passes in such rounds are made now.
        """

    def begin(self, row: int, task: DecodeTask, states: Tensor | None = None) -> None:
        """Read the prompt of a row's next response."""

    def propose(
        self, asks: Sequence[ProposalRequest], stop: StopRule | None = None
    ) -> list[Proposal | None]:
        """A proposal for each request, which a rule may stop before k tokens; None where nothing
        was drafted.
        """
        ...

    def keep(self, row: int, length: int, states: Tensor | None = None) -> None:
        """Keep the first `length` tokens of a row's context and forget drafted ones after them."""


class Draft:
    """A row's proposal while it grows token by token, to at most `most` tokens."""

    def __init__(self, ask: ProposalRequest, most: int, stop: StopRule | None) -> None:
        self.ask, self.most = ask, most
        self.tokens: list[Tensor] = []
        self.q: list[Tensor] = []
        self._watch, self._in_vain = Watch(stop) if stop else None, 0

    def stops(self, confidence: float) -> bool:
        """Whether its rule stops it at its newest token, which it then may take back."""
        if self._watch is None or not self._watch.stops(confidence):
            return False
        if not self._watch.kind.proposes_last:
            del self.tokens[-1:], self.q[-1:]
            self._in_vain = 1
        return True

    def cut(self, confidences: Sequence[float]) -> None:
        """Let its rule take back what was drafted at once, by how sure it is of each token."""
        for place, sure in enumerate(confidences):
            if self._watch is not None and self._watch.stops(sure):
                kept = place + self._watch.kind.proposes_last
                self._in_vain = len(self.tokens) - kept
                del self.tokens[kept:]
                return

    @property
    def proposal(self) -> Proposal | None:
        """What it proposes; None if it drafted nothing."""
        found = Proposal(self.tokens, self.q, self._in_vain)
        return found if found.drafted else None


def going_on(drafts: Sequence[Draft], logits: Tensor, stop: StopRule | None) -> list[int]:
    """The places of the drafts that do not end with their newest tokens, which were chosen by
    logits [n, vocab]. With a rule the host waits for the device here, once for all rows.
    """
    shorter = [at for at, draft in enumerate(drafts) if len(draft.tokens) < draft.most]
    # How sure a draft is of a round's last token changes nothing if that is proposed anyway.
    if stop is None or not (shorter or not STOP_RULES[stop.kind].proposes_last):
        return shorter
    sure = confidence(logits, STOP_RULES[stop.kind].among).tolist()
    stopped = [draft.stops(each) for draft, each in zip(drafts, sure, strict=True)]
    return [at for at in shorter if not stopped[at]]
