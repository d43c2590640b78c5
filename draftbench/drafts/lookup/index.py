"""Finds what followed the end of a text when it occurred before."""

from __future__ import annotations

from draftbench.records import BUILT_IN_LOOKUP, LookupRule


class LookupIndex:
    """Finds the longest n-gram at the end of a growing text that occurred before, and what followed
    it.

    Args:
        longest, shortest: the n-gram sizes to look up (vLLM: prompt_lookup_max, prompt_lookup_min).
    """

    def __init__(self, longest: int, shortest: int, rule: LookupRule = BUILT_IN_LOOKUP) -> None:
        self.longest, self.shortest = shortest if rule.one_size else longest, shortest
        self.rule = rule
        self.tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: list[int]) -> None:
        """Append tokens; an n-gram can be found as soon as a token follows it."""
        for token in tokens:
            end = len(self.tokens) - self.rule.unseen
            for size in range(self.shortest, min(self.longest, end - self.rule.begin) + 1):
                ending = tuple(self.tokens[end - size : end])
                if self.rule.first:
                    self._after.setdefault(ending, end)
                else:
                    self._after[ending] = end
            self.tokens.append(token)

    def lookup(self, k: int) -> list[int]:
        """Up to k tokens that followed an earlier occurrence of the longest possible ending."""
        end = len(self.tokens)
        copied: list[int] = []
        for size in range(min(self.longest, end), self.shortest - 1, -1):
            start = self._after.get(tuple(self.tokens[end - size :]))
            if start is not None:
                copied = self.tokens[start : min(start + k, end - self.rule.unseen)]
                break
        if self.rule.one_size and len(copied) < self.shortest:
            copied = []
        return copied + self.tokens[-1:] * (k - len(copied)) if self.rule.fills else copied
