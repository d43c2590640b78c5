"""A draft whose cache forgets nothing: what was rejected stays in it, in front of what is read
next.

What such a draft proposes depends on the rounds before. So it is replayed along the rounds that
were recorded, at each k for itself; where only their sums are known, along those that it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, TypeVar

from torch import Tensor

from draftbench.audit.explained import ByLength, Recorded
from draftbench.decoder.drafters import ProposalRequest
from draftbench.decoder.runner import DecodeTask
from draftbench.decoder.sampling import Uniforms, confidence, top_two_margin
from draftbench.drafts.block.choice import Chosen
from draftbench.drafts.heads.draft import finite_states
from draftbench.measure.replay import confidences_of, from_every_start
from draftbench.measure.trajectories import WIDEST_MARGIN, Group, ScoredResponse
from draftbench.records import Candidate, Key, LookupReplay, Trajectory

T = TypeVar("T")
# For each drafted token: its margin, and the confidences among all and among ten.
Seen = tuple[list[float], list[float], list[float]]
_AMONG: tuple[Literal["all", "ten"], ...] = ("all", "ten")


def room(response: Trajectory, k: int) -> int:
    """The most tokens that rounds of k along a response leave in a cache that forgets nothing; the
    places of a block are one more than it drafts.
    """
    return response.prompt_tokens + (k + 2) * response.output_tokens


class Kept:
    """The cache of one text that keeps what was rejected; its `lengths` do not count that."""

    def __init__(self, slabs: Any) -> None:
        self.slabs, self.lengths = slabs, [0]

    def rewind(self, row: int, length: int) -> None:
        self.lengths[row] = length

    @property
    def stale(self) -> int:
        """Tokens that are kept and do not count."""
        return int(self.slabs.lengths[0]) - self.lengths[0]


class Unforgetting:
    """A draft model or a head with such a cache.

    Args:
        behind: it, where this many tokens are stale.
        room: for all that is kept.
    """

    def __init__(self, model: Any, behind: Callable[[int], Any], room: int) -> None:
        self.model, self.behind, self.room = model, behind, room
        # Margins of what it drafts, and its confidences among all and among ten.
        self.seen: Seen = [], [], []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def new_cache(self, capacity: int, *_: Any, **__: Any) -> Kept:
        return Kept(self.model.new_cache(self.room))

    def forward(self, tokens: Tensor, cache: Kept, *, every: bool, counts: Sequence[int]) -> Tensor:
        """A draft model's pass."""
        logits: Tensor = self._read(
            cache, lambda model: model.forward(tokens, cache.slabs, every=every, counts=counts)
        )
        self._see(top_two_margin(logits), *(confidence(logits, among) for among in _AMONG))
        return logits

    def step(
        self, tokens: Tensor, left: Tensor, cache: Kept, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """A head's."""
        logits, left = self._read(cache, lambda head: head.step(tokens, left, cache.slabs, counts))
        self._see(top_two_margin(logits), *(confidence(logits, among) for among in _AMONG))
        return logits, left

    def read(self, states: Tensor, cache: Kept, counts: Sequence[int]) -> None:
        """A block drafter's over the text."""
        self._read(cache, lambda head: head.read(states, cache.slabs, counts))

    def draft(self, lasts: Tensor, k: int, cache: Kept, rows: Sequence[int]) -> Chosen:
        """Its block, which stays too."""
        chosen: Chosen = self.behind(cache.stale).draft(lasts, k, cache.slabs, rows)
        cache.slabs.lengths = [cache.slabs.lengths[0] + self.model.shape.places(k)]
        self._see(chosen.margins[0], *(chosen.sure(among)[0] for among in _AMONG))
        return chosen

    def _see(self, *of_tokens: Tensor) -> None:
        for values, new in zip(self.seen, of_tokens, strict=True):
            values += new.tolist()

    def _read(self, cache: Kept, passed: Callable[[Any], T]) -> T:
        before = cache.slabs.lengths[0]
        found = passed(self.behind(cache.stale))
        cache.lengths = [cache.lengths[0] + cache.slabs.lengths[0] - before]
        return found


@dataclass(frozen=True)
class AlongRounds:
    """A draft that is replayed round by round, with a cache that forgets nothing.

    Args:
        draft: the draft as it is.
        part: by which name its drafter knows what computes.
        behind: that, where some tokens are stale.
        answers: those recorded to each response, one of each draft length.
    """

    draft: Any
    part: str
    behind: Callable[[int], Any]
    answers: Mapping[Key, Sequence[Recorded]]

    def replay(
        self, candidate: Candidate, group: Group, window: int, *, stops: bool
    ) -> list[ByLength]:
        return [self._replay(response, candidate) for response in group]

    def _replay(self, response: ScoredResponse, candidate: Candidate) -> ByLength:
        reads, trajectory = self.draft.reads, response.trajectory
        states = finite_states(response, reads, self.draft.target) if reads else None
        replays = {
            answer.length: self._rounds(response, candidate, answer, states)
            for answer in self.answers[response.key]
        }
        return ByLength(request=trajectory.request, sample=trajectory.sample, of=replays)

    def _rounds(
        self,
        response: ScoredResponse,
        candidate: Candidate,
        answer: Recorded,
        states: Tensor | None,
    ) -> LookupReplay:
        """What is drafted in the rounds of an answer; nothing where none began."""
        text, (k, stop) = [*response.prompt.tokens, *response.tokens], answer.length
        first, last = len(response.prompt.tokens), len(response.tokens) - 1
        until = last if answer.first_difference is None else answer.first_difference - 1
        drafter = self.draft.drafter()
        model = Unforgetting(getattr(drafter, self.part), self.behind, room(response.trajectory, k))
        setattr(drafter, self.part, model)
        drafter.open(1, len(text) + k)
        drafter.begin(0, _task(response), None if states is None else states[:first])
        proposals = [list[int]() for _ in range(last)]
        # Margins and confidences of what was drafted from each start.
        seen = [([WIDEST_MARGIN], list[float](), list[float]()) for _ in range(last)]
        accepted_at, start = answer.accepted_at, 1
        while start <= until:
            known = first + start
            model.seen = [], [], []
            (proposal,) = drafter.propose([ProposalRequest(0, text[:known], k, k)], stop)
            drafted = [int(token) for token in proposal.tokens] if proposal else []
            proposals[start - 1], seen[start - 1] = drafted, model.seen
            pairs = zip(drafted, text[known:], strict=False)
            found = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            end = known + accepted_at.get(start, found)
            drafter.keep(0, end, None if states is None else states[known - 1 : end])
            start = end - first + 1
        margins, *of_all_and_ten = zip(*seen, strict=True)
        confidences = confidences_of(*of_all_and_ten)
        return from_every_start(response, candidate, k, proposals, margins, confidences)


def _task(response: ScoredResponse) -> DecodeTask:
    """What a drafter that draws nothing needs to know of a response."""
    trajectory = response.trajectory
    nothing_drawn = Uniforms("", 0, 0)
    return DecodeTask(
        list(response.prompt.tokens),
        trajectory.limit,
        trajectory.sampling,
        nothing_drawn,
        lambda output: False,
        response.key,
    )
