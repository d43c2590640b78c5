"""How to read a report, in plain words."""

from __future__ import annotations

from draftbench.report.markup import Html, element, together

STEPS = (
    "The large line at the top is the answer; the sentence below it says how much faster decoding "
    "becomes, how that is known and how sure it is.",
    "“The answer at a glance” shows every draft at its best k. A bar that lies wholly right of the "
    "dashed line is a gain beyond doubt on this traffic; one that crosses it may be none.",
    "“Checks and caveats” says whether to believe it here: how far predictions were off where they "
    "were also measured, and what this run cannot tell.",
)
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
        "Tokens per round that drafted, the target's own token included: 1 means the draft never "
        "helps, k + 1 that it is always right. “Tokens per round”, which speed depends on, counts "
        "rounds without a draft too: the end of a response, prompt lookup that found nothing.",
    ),
    (
        "Survival and hazard",
        "Survival at position i: the share of rounds whose first i drafted tokens were all "
        "accepted. Hazard: of those that came so far, the share whose i-th was accepted too.",
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
        "Where the two disagree, believe the measurement. Expected: the prediction for all "
        "requests, corrected by what was measured on some; drafts are ranked by it. A k that was "
        "not decoded beside others of its draft has none.",
    ),
    (
        "Replay",
        "That pass of a draft over finished responses. It gives what each round would accept "
        "without decoding anything.",
    ),
    (
        "Intervals",
        "95 %, from resampling requests. They say what other requests of the same traffic would "
        "change, not what another machine, another day or other traffic would.",
    ),
)


def how_to_read() -> Html:
    """Three steps through the page, and its terms with what they mean for a decision."""
    entries = [
        part for term, words in TERMS for part in (element("dt", term), element("dd", words))
    ]
    steps = element("ol", *(element("li", step) for step in STEPS))
    return together([steps, element("dl", *entries, class_="terms")])
