"""The responses that a server gave before each one, if it takes requests one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftbench.drafts.suffix.rule import SuffixRule
from draftbench.drafts.suffix.tree import SuffixTree
from draftbench.records import Key


class Remembered(NamedTuple):
    """A response, and the wave in which the sweep measures it."""

    key: Key
    wave: int
    tokens: Sequence[int]


class Memory:
    """A tree of earlier responses, one after the other.

    Before a response come those to the requests before it, of the same sample and of no later wave:
    another sample is another walk through the traffic, and what a sweep has measured must not
    change with what it measures next.

    Args:
        log: the responses in the order of their requests.
    """

    def __init__(self, rule: SuffixRule, log: Sequence[Remembered]) -> None:
        self.rule, self.log = rule, log
        self._places = {each.key: place for place, each in enumerate(log)}
        self._walk = (0, 0)  # the wave and the sample of those in the tree
        self._next, self._tree = 0, SuffixTree(rule)

    def before(self, key: Key) -> SuffixTree:
        """The responses before this one. The next call may add to the tree, and ends what was grown
        from it.
        """
        place = self._places[key]
        walk = self.log[place].wave, key[1]
        if walk != self._walk or place < self._next:
            self._walk, self._next, self._tree = walk, 0, SuffixTree(self.rule)
        for (_, sample), wave, tokens in self.log[self._next : place]:
            if sample == key[1] and wave <= walk[0]:
                self._tree.extend(tokens)
                self._tree.finish()
        self._next = place
        return self._tree
