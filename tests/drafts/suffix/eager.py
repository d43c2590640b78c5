"""Suffix decoding written out: every suffix of every text is counted at once."""

import numpy as np


class Counted:
    """How often each sequence of up to `depth` tokens occurs, and what follows it in order."""

    def __init__(self, depth):
        self.depth, self.counts, self.following, self.text = depth, {}, {}, []

    def extend(self, tokens):
        for token in tokens:
            self.text.append(token)
            for start in range(max(len(self.text) - self.depth, 0), len(self.text)):
                self._count(tuple(self.text[start:]))

    def finish(self):
        self.text = []

    def _count(self, sequence):
        count = self.counts.get(sequence, 0)
        before = self.following.setdefault(sequence[:-1], [])
        if not count:
            before.append(sequence)
        elif (at := before.index(sequence)) and self.counts[before[at - 1]] <= count + 1:
            above = self.counts[before[at - 1]]
            before.remove(sequence)
            at = next(n for n, each in enumerate(before) if self.counts[each] == above)
            before.insert(at, sequence)
        self.counts[sequence] = count + 1

    def best(self, context, k, factor, least):
        """The continuation with the highest score, and the score."""
        context, score, tokens = context[-self.depth :], np.float32(0), []
        for length in range(1, len(context)):
            at = tuple(context[-length:])
            if at not in self.counts:
                break
            found, total, probability = [], np.float32(0), np.float32(1)
            while len(found) < min(k, int(length * factor + 1e-6)) and self.following.get(at):
                after = self.following[at][0]
                probability *= np.float32(self.counts[after]) / np.float32(self.counts[at])
                if probability < np.float32(least):
                    break
                total, at = total + probability, after
                found.append(after[-1])
            if total >= score:
                score, tokens = total, found
        return tokens, score
