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


class Chosen:
    """What is proposed in rounds of each length, and the sum of the tokens' probabilities."""

    def __init__(self, ks: Sequence[int]) -> None:
        self.ks, self.longest = ks, max(ks)
        self.tokens: list[Sequence[int]] = [()] * len(ks)
        self.scores = [0.0] * len(ks)

    def may_gain(self, most: int) -> bool:
        """Whether up to so many tokens could be surer in a round of any length."""
        return any(score < min(k, most) for k, score in zip(self.ks, self.scores, strict=True))

    def take(self, tokens: Sequence[int], scores: Sequence[float]) -> None:
        """Propose these tokens where they are surer; `scores[n]` is the score of the first n."""
        for at, k in enumerate(self.ks):
            length = min(k, len(tokens))
            if scores[length] > self.scores[at]:
                self.tokens[at], self.scores[at] = tuple(tokens[:length]), scores[length]


def _summed(score: float, probability: float) -> float:
    return score + 1 if probability == 1 else float(np.float32(score + probability))


class SuffixTree:
    """The texts so far; the last one may still grow.

    Args:
        base: a tree whose texts come first. It does not grow with this one, and must not meanwhile.
    """

    def __init__(self, rule: SuffixRule, base: SuffixTree | None = None) -> None:
        self.rule, self._base, self._least = rule, base, float(np.float32(rule.least))
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

    def after(self, nodes: Sequence[_Node], token: int) -> list[_Node]:
        """The nodes of the last 1, 2, … tokens of a context that a token was added to, as far as
        the texts have these, from those of the context before.
        """
        found = self._begins.get(token)
        if found is None:
            if self._base is None or token not in self._base._begins:
                return []
            found = self._begun(token, 0)
        grown = [found]
        for node in nodes[: self.rule.depth - 2]:
            self._look(node)
            if (child := node.children.get(token)) is None:
                break
            grown.append(child)
        return grown

    def _begun(self, token: int, count: int) -> _Node:
        """A new node of a single token, with what the base has of it."""
        of_base = self._base._begins.get(token) if self._base else None
        node = _Node(token, of_base.count if of_base else count, of_base)
        self._begins[token] = node
        return node

    def followed(self, node: _Node) -> bool:
        """Whether anything follows."""
        if node.ends or node.base is not None:
            self._look(node)
        return bool(node.order)

    def path(self, node: _Node, most: int) -> tuple[list[int], list[float]]:
        """The most frequent token after the node, after that, …, and the sums of the probabilities
        of the first 0, 1, … of them.
        """
        tokens, scores, probability = list[int](), [0.0], 1.0
        while len(tokens) < most:
            if node.count == 1 and (rest := self._rest(node, most - len(tokens))) is not None:
                for token in rest:
                    tokens.append(token)
                    scores.append(_summed(scores[-1], probability))
                break
            if not self.followed(node):
                break
            best = node.order[0]
            # Rounded as the library does, whose sums may be equal only then.
            if best.count < node.count:
                share = np.float32(best.count) / np.float32(node.count)
                probability = float(np.float32(probability) * share)
            if probability < self._least:
                break
            tokens.append(best.token)
            scores.append(_summed(scores[-1], probability))
            node = best
        return tokens, scores

    def _rest(self, node: _Node, most: int) -> list[int] | None:
        """What follows the only occurrence of a node, if it was not looked at yet."""
        if node.base is not None and self._base is not None:
            return self._base._rest(node.base, most)
        if not node.ends:
            return None
        rest = self._text[node.ends[0] : node.ends[0] + most]
        return rest[: rest.index(_END)] if _END in rest else rest

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


class Place:
    """Where a context ends in a tree."""

    def __init__(self, tree: SuffixTree) -> None:
        self.tree, self._length, self._nodes = tree, 0, list[_Node]()

    def follow(self, tokens: Sequence[int]) -> None:
        """Add tokens to the context, once the tree has them if it is to have them."""
        for token in tokens[-self.tree.rule.depth :]:
            self._nodes = self.tree.after(self._nodes, token)
        self._length += len(tokens)

    def choose(self, chosen: Chosen) -> None:
        """Choose from what follows the last 1, 2, … tokens, but not all of them: what has the
        highest score, and of equal ones what follows the most tokens. It must be surer than what
        was chosen before.
        """
        rule = self.tree.rule
        # Where nothing follows some tokens, nothing follows more, also after the next token.
        del self._nodes[max(self._length - 1, 0) :]
        del self._nodes[bisect_left(self._nodes, True, key=self._ends) :]
        for length in range(len(self._nodes), 0, -1):
            most = min(chosen.longest, int(length * rule.factor + 1e-6), rule.depth - length)
            if chosen.may_gain(most):
                chosen.take(*self.tree.path(self._nodes[length - 1], most))

    def _ends(self, node: _Node) -> bool:
        return not self.tree.followed(node)


def best_of(places: Iterable[Place], ks: Sequence[int]) -> list[Sequence[int]]:
    """What is proposed in rounds of each length: the continuation with the highest score, and of
    equal ones that of the first tree.
    """
    chosen = Chosen(ks)
    for place in places:
        place.choose(chosen)
    return chosen.tokens
