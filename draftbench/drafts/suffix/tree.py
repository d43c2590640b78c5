"""What followed each suffix of some texts, and how often (SuffixDecoding, Oliaro et al. 2025).

The rule is that of `SuffixDecodingCache` in arctic-inference 0.3, which vLLM calls. That package
installs from source only, and building it takes a compiler and a second torch, so that it is no
dependency here; the tests hold this tree to its.

A node stands for a sequence of tokens and counts how often the texts have it. What follows is
looked at only where somebody asks, once for each occurrence, so that a text costs little to add.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from draftbench.drafts.suffix.rule import SuffixRule

_END = -1  # stands after a finished text; no token


class _Node:
    """A sequence of tokens, by its last one."""

    __slots__ = ("base", "children", "count", "ends", "order", "token")

    def __init__(self, token: int, count: int, base: _Node | None = None) -> None:
        self.token, self.count, self.base = token, count, base
        self.ends: list[int] = []  # where it occurs, as far as what follows was not looked at
        self.children: dict[int, _Node] = {}
        self.order: list[_Node] = []  # its children, most frequent first


def _less(node: _Node) -> int:
    return -node.count


class Path(NamedTuple):
    """The likeliest continuation after the last tokens of a text, and the sums of its tokens'
    probabilities: `scores[n]` of the first n.
    """

    most: int  # tokens that may be proposed
    tokens: Sequence[int]
    scores: Sequence[float]


class SuffixTree:
    """The texts so far; the last one may still grow.

    Args:
        base: a tree whose texts come first. It does not grow with this one, and must not meanwhile.
    """

    def __init__(self, rule: SuffixRule, base: SuffixTree | None = None) -> None:
        self.rule, self._base = rule, base
        self._text: list[int] = []
        self._begins: dict[int, _Node] = {}

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the last text."""
        for token in tokens:
            self._text.append(token)
            node = self._begins.get(token) or self._begun(token, 0)
            node.count += 1
            node.ends.append(len(self._text))

    def finish(self) -> None:
        """Begin another text."""
        self._text.append(_END)

    def paths(self, context: Sequence[int], most: int) -> list[Path]:
        """What follows the last 1, 2, … tokens of a context, as long as the texts have these."""
        context, found = context[-self.rule.depth :], []
        for length in range(1, len(context)):
            node = self._find(context[len(context) - length :])
            if node is None:
                break
            found.append(self._path(node, length, most))
        return found

    def _begun(self, token: int, count: int) -> _Node:
        """A new node of a single token, with what the base has of it."""
        of_base = self._base._begins.get(token) if self._base else None
        node = _Node(token, of_base.count if of_base else count, of_base)
        self._begins[token] = node
        return node

    def _find(self, tokens: Sequence[int]) -> _Node | None:
        node = self._begins.get(tokens[0])
        if node is None:
            if self._base is None or tokens[0] not in self._base._begins:
                return None
            node = self._begun(tokens[0], 0)
        for token in tokens[1:]:
            self._look(node)
            if (child := node.children.get(token)) is None:
                return None
            node = child
        return node

    def _path(self, node: _Node, length: int, most: int) -> Path:
        """The most frequent token after the node, after that, …"""
        rule = self.rule
        most = min(most, int(length * rule.factor + 1e-6), rule.depth - length)
        # In the number type of the library, since sums that are equal there decide.
        probability, score = np.float32(1), np.float32(0)
        tokens, scores = list[int](), [0.0]
        while len(tokens) < most:
            self._look(node)
            if not node.order:
                break
            best = node.order[0]
            probability *= np.float32(best.count) / np.float32(node.count)
            if probability < np.float32(rule.least):
                break
            score += probability
            tokens.append(best.token)
            scores.append(float(score))
            node = best
        return Path(most, tokens, scores)

    def _look(self, node: _Node) -> None:
        """Count what follows the occurrences that were not looked at yet, in their order."""
        if node.base is not None and self._base is not None:
            self._base._look(node.base)
            node.order = [_Node(child.token, child.count, child) for child in node.base.order]
            node.children = {child.token: child for child in node.order}
            node.base = None
        if not node.ends:
            return
        text, size, open_end = self._text, len(self._text), False
        for end in node.ends:
            if end == size:
                open_end = True  # nothing follows yet
            elif text[end] != _END:
                self._follows(node, text[end]).ends.append(end + 1)
        node.ends = [size] if open_end else []

    def _follows(self, node: _Node, token: int) -> _Node:
        """Count a token after a node. Of tokens that are equally frequent that one is first which
        got there first; but one that leads those that are rarer by one goes before them.
        """
        child, order = node.children.get(token), node.order
        if child is None:
            child = node.children[token] = _Node(token, 1)
            order.append(child)
            return child
        if order[0] is not child:
            at = order.index(child, bisect_left(order, -child.count, key=_less))
            above = order[at - 1].count
            if above <= child.count + 1:
                to = bisect_left(order, -above, key=_less)
                del order[at]
                order.insert(to, child)
        child.count += 1
        return child


def best_of(trees: Iterable[Sequence[Path]], k: int) -> Sequence[int]:
    """What is proposed in a round of up to k tokens: the continuation with the highest score. In
    one tree the one after more tokens goes before an equal one, and the first tree before the next.
    """
    best, chosen = -1.0, tuple[int, ...]()
    for paths in trees:
        highest, tokens = 0.0, tuple[int, ...]()
        for path in paths:
            length = min(k, len(path.tokens))
            if path.scores[length] >= highest:
                highest, tokens = path.scores[length], tuple(path.tokens[:length])
        if highest > best:
            best, chosen = highest, tokens
    return chosen
