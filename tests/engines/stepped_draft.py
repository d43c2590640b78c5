"""What an engine must count that drafts with an embedded model under a rule to stop by, by drafting
on from every place where it begins a round, a token at a time.
"""

import torch
from scenes import EMBEDDED

from draftbench.models.quantize import Build, build_runner
from draftbench.models.source import ModelSource


class SteppedDraft:
    """An embedded draft in float32; up to `k` tokens a round."""

    def __init__(self, name, k):
        build = Build(torch.float32, "none", "cpu")
        self.runner, self.k = build_runner(ModelSource(str(EMBEDDED / name)), build, None)[0], k
        self._known = {}

    def drafted(self, context):
        """The tokens that follow a context, each with its probability among all and among the ten
        best.
        """
        if context not in self._known:
            cache, tokens = self.runner.new_cache(len(context) + self.k), list(context)
            found = self._known[context] = []
            while len(found) < self.k:
                logits = self.runner.forward(torch.tensor(tokens), cache, every=False)[-1]
                likely = logits.softmax(-1).topk(10).values.tolist()
                found.append((int(logits.argmax()), likely[0], likely[0] / sum(likely)))
                tokens = [found[-1][0]]
        return self._known[context]

    def rounds(self, text, begin, end, proposed):
        """Of every round along a text how many tokens it proposes, has accepted and writes; the
        first drafts the token at `begin`, and none proposes the last one before `end`. `proposed`
        cuts what is drafted.
        """
        at = begin
        while at < len(text):
            some = proposed(self.drafted(text[:at])[: max(0, end - at - 1)])
            left = len(text) - at
            wrong = (
                n for n, pair in enumerate(zip(some, text[at:], strict=False)) if pair[0] != pair[1]
            )
            accepted = next(wrong, min(len(some), left))
            written = min(accepted + 1, left)
            yield len(some), accepted, written
            at += written


def before(threshold):
    """llama.cpp's rule: the unsure token is not proposed, by its probability among the ten best."""

    def proposed(drafted):
        sure = [of_ten >= threshold for _, _, of_ten in drafted]
        return [token for token, _, _ in drafted[: (*sure, False).index(False)]]

    return proposed


def after(threshold, end):
    """transformers' rule: the unsure token is the last that is proposed, by its probability, or an
    `end` token.
    """

    def proposed(drafted):
        goes_on = [of_all >= threshold and token != end for token, of_all, _ in drafted]
        return [token for token, _, _ in drafted[: (*goes_on, False).index(False) + 1]]

    return proposed
