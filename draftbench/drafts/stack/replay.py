"""The replay of a stack: put together from those of prompt lookup and of its draft."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from draftbench.records import LOOKUP, Candidate, LookupReplay, OfResponse, Replay, draft_of_stack


class StackReplay(OfResponse, frozen=True):
    """A stack along one trajectory, made from the replays of prompt lookup and of its draft, so
    that it is never written.
    """

    candidate: Candidate
    lookup: LookupReplay
    draft: Replay | LookupReplay

    @property
    def window(self) -> int:
        """The most tokens per round that were examined."""
        return self.lookup.window

    def drafting_at(self, start: int) -> Replay | LookupReplay:
        """The replay of the part that drafts in a round that starts there."""
        return self.lookup if self.lookup.proposed[start - 1] else self.draft


def combined(
    replays: Iterable[Replay | LookupReplay], names: Iterable[str]
) -> Iterator[StackReplay]:
    """The replays of the stacks among these names, if both parts were replayed."""
    by_draft = defaultdict[str, list[Replay | LookupReplay]](list)
    for replay in replays:
        by_draft[replay.candidate.draft].append(replay)
    looked_up = {r.key: r for r in by_draft[LOOKUP] if isinstance(r, LookupReplay)}
    for name in names:
        for replay in by_draft.get(draft_of_stack(name) or "", ()):
            if lookup := looked_up.get(replay.key):
                yield StackReplay(
                    request=replay.request,
                    sample=replay.sample,
                    candidate=Candidate(draft=name, quant=replay.candidate.quant),
                    lookup=lookup,
                    draft=replay,
                )
