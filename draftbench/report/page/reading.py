"""How to read a report, in plain words."""

from __future__ import annotations

from draftbench.report.markup import Html, element

TERMS = (
    (
        "Speculative decoding",
        "A small draft proposes k tokens, the target checks them in one pass and keeps the ones it "
        "agrees with. The output is the target's own; only the time changes.",
    ),
    (
        "Speed-up S",
        "Tokens per second with speculation over without. 1.5× means two thirds of the time per "
        "token; below 1 speculation makes decoding slower. “Decode” counts from the first token, "
        "“end to end” includes reading the prompt with both models.",
    ),
    (
        "Acceptance rate α",
        "How likely a drafted token is to be accepted. It belongs to the draft, the target and the "
        "traffic, not to k. It is not the counter “accepted / drafted” of serving engines, "
        "which falls as k grows.",
    ),
    (
        "Mean accepted length τ",
        "Tokens that a round with a draft yields, the target's own token included: 1 means the "
        "draft never helps, k + 1 that it is always right.",
    ),
    (
        "Draft cost ratio c",
        "Time of one draft step over one target step. A draft that is right 70 % of the time is of "
        "little use at c = 0.7 and excellent at c = 0.05.",
    ),
    (
        "Verify ratio v(k+1)",
        "Time of a target pass that checks k tokens over one of a single token: about 1 on a GPU "
        "with few requests, more on CPUs and under load.",
    ),
    (
        "Predicted and measured",
        "Predicted: one pass of each draft over the target's own responses gives the rounds of "
        "every k, timed passes give their cost. Measured: decoded both ways with a watch. "
        "Where the two disagree, believe the measurement.",
    ),
    (
        "Intervals",
        "95 %, from resampling requests. They say what other requests of the same traffic would "
        "change, not what another machine, another day or other traffic would.",
    ),
)


def how_to_read() -> Html:
    """The terms of the page with what they mean for a decision."""
    entries = [
        part for term, words in TERMS for part in (element("dt", term), element("dd", words))
    ]
    return element("dl", *entries, class_="terms")
