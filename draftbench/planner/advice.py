"""A recommendation → what practice would add to it: rules with their numbers, reasons and sources.

Data beats rule: `rules` says where each speaks and where the run's own figures silence it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from draftbench.planner import rules
from draftbench.planner.evidence import Evidence
from draftbench.planner.recommendation import Recommendation
from draftbench.run_folder.run import Run

_GUIDE = "generalcompute.com, Draft Model Selection for Speculative Decoding"
_LEVIATHAN = "Leviathan et al. 2023, arXiv 2211.17192"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that fired: what it says of this run, why, and who says so."""

    rule: str
    sentence: str
    reason: str
    source: str


@dataclass(frozen=True)
class Rule:
    """A rule of practice: `says` gives its sentence for a run, or None."""

    name: str
    reason: str
    source: str
    says: Callable[[Evidence], str | None]


RULES = (
    Rule(
        "size-ratio",
        "a larger draft costs too much of a target step, a much smaller one is rejected too often",
        _GUIDE,
        rules.size_ratio,
    ),
    Rule(
        "under-500m",
        "so small a model follows a narrow traffic at best; measured on narrow traffic it may win",
        f"{_GUIDE}; against it: {_LEVIATHAN}, table 2, where a draft of 60 M wins",
        rules.tiny,
    ),
    Rule(
        "1b-to-3b",
        "there the draft is good enough to be accepted and still a few percent of a step",
        f"{_GUIDE}; sgl-project/sglang issue 9785 (Llama 70B with 1B)",
        rules.one_to_three,
    ),
    Rule(
        "small-target",
        "a small target's step is short, so that drafting and overhead are a large part of it",
        f"{_GUIDE}; vllm-project/vllm issue 15025 (1.7B with 135M: 30 % slower)",
        rules.small_target,
    ),
    Rule(
        "same-family",
        "models that learned from the same data with the same tokens agree more often",
        _GUIDE,
        rules.family,
    ),
    Rule(
        "low-alpha",
        "most rounds then end after a token or two, which hardly pays for drafting them",
        f"{_GUIDE}; gianlucamazza/xllama pull request 202 (α 43 %: 0.81×)",
        rules.low_alpha,
    ),
    Rule(
        "high-alpha-without-speed",
        "accepted tokens cost their draft steps and their verification all the same",
        f"{_GUIDE}; nibor1896/Crow issue 29 (85 % accepted, no faster)",
        rules.high_alpha,
    ),
    Rule(
        "quantize-the-draft",
        "a draft's errors only cost rounds, its bytes cost every step",
        f"{_GUIDE}; alexziskind1/draftbench (1.5B: 2.80× in 16 bits, 2.96× in 4)",
        rules.quantize,
    ),
    Rule(
        "distill",
        "a draft trained on the target's own answers to this traffic agrees with it more",
        f"{_GUIDE}; Zhou et al. 2023, DistillSpec, arXiv 2310.08461",
        rules.distill,
    ),
    Rule(
        "k-by-alpha",
        "the more is accepted, the further ahead a draft is worth running",
        f"{_GUIDE}; the optimum of {_LEVIATHAN}, theorem 3.8",
        rules.k_by_alpha,
    ),
    Rule(
        "k-by-temperature",
        "a hotter target is harder to guess, so that later tokens of a draft are wasted more often",
        f"{_LEVIATHAN}, table 2: the best k falls from 7 to 5 where temperature rises to 1",
        rules.temperature,
    ),
    Rule(
        "many-requests-at-once",
        "a full batch already uses the arithmetic that verifying needs",
        f"{_GUIDE}; vllm-project/vllm issue 17984 (Llama 70B with 1B loses from 32 on)",
        rules.many_rows,
    ),
)


def advice(recommendation: Recommendation, observed: Run) -> tuple[Advice, ...]:
    """Every rule that has something to say of this run."""
    run = Evidence.of(recommendation, observed)
    found = ((rule, rule.says(run)) for rule in RULES)
    return tuple(
        Advice(rule=rule.name, sentence=text, reason=rule.reason, source=rule.source)
        for rule, text in found
        if text
    )
