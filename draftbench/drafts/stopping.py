"""The rules by which a draft stops before k tokens, each with the engine that follows it.

    fixed    no rule: a round drafts k tokens and proposes them
    after    it stops after the first token whose confidence is below the threshold, and proposes it
    before   it stops at that token, which was drafted in vain: it is not proposed
    product  it stops after the token with which the product of all its confidences in the round
             falls below the threshold, and proposes it

Moving averages and tables by load, which engines have too, change k and need no confidence.
Confidences are cut to thousandths, here and in a replay, and thresholds are thousandths, so that
decoding and replay decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from draftbench.records import StopKind, StopRule

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# The thresholds that are tried; a replay shows what any rule does down to the least.
THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LEAST = THRESHOLDS[0]
_AT_ONCE = 1 << 14  # runs, of which what is computed fits into a processor's cache


@dataclass(frozen=True)
class Stopping:
    """What a kind of rule does."""

    words: str  # when it stops, in a sentence; {} stands for the threshold
    among: Literal["all", "ten"]  # the tokens among which it takes its confidence
    proposes_last: bool  # whether the token at which it stops is proposed
    multiplies: bool  # whether it compares the product of a round's confidences
    engine: str | None  # the engine that follows it, as `--engine` names it

    def at(self, threshold: float) -> str:
        """When a rule of this kind stops."""
        return self.words.format(f"{threshold:g}")


# Simple ones first.
STOP_RULES: dict[StopKind, Stopping] = {
    "after": Stopping(
        "stop after a token that the draft is under {} sure of",
        among="all",
        proposes_last=True,
        multiplies=False,
        engine="transformers",
    ),
    "before": Stopping(
        "stop before a token that the draft is under {} sure of",
        among="ten",
        proposes_last=False,
        multiplies=False,
        engine="llama.cpp",
    ),
    "product": Stopping(
        "stop once the draft is under {} sure that all of its tokens are right",
        among="all",
        proposes_last=True,
        multiplies=True,
        engine=None,
    ),
}


def stops_at(rule: StopRule, confidences: Floats, begins: Ints, most: int) -> Ints:
    """The place of the token at which each run of drafted tokens stops, from 0; `most`, its length,
    if it does not [runs].

    Args:
        confidences: of the tokens of all runs.
        begins: where each run begins in these.
    """
    multiplies, first = STOP_RULES[rule.kind].multiplies, np.zeros(len(begins), np.int64)
    for at in range(0, len(first), _AT_ONCE):
        some = sliding_window_view(confidences, most)[begins[at : at + _AT_ONCE]]
        unsure = (np.cumprod(some, axis=1) if multiplies else some) < rule.threshold
        first[at : at + _AT_ONCE] = np.where(unsure.any(axis=1), unsure.argmax(axis=1), most)
    return first


class Watch:
    """Watches one round's confidences while it drafts."""

    def __init__(self, rule: StopRule) -> None:
        self.rule, self.kind, self._product = rule, STOP_RULES[rule.kind], 1.0

    def stops(self, confidence: float) -> bool:
        """Whether the token that was drafted with this confidence, `among` the tokens that the rule
        says, is the round's last.
        """
        self._product *= confidence
        return (self._product if self.kind.multiplies else confidence) < self.rule.threshold
