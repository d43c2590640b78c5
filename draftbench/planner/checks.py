"""An answer → how far its figures can be trusted, a sentence each: prediction against measurement,
output against target.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF, DraftingMode

# Near ties aside, the target as its own draft is always accepted at temperature 0.
_ALWAYS = 0.98


def checks(answer: Recommendation) -> tuple[str, ...]:
    """What was checked, and what the figures are of."""
    return tuple(_checks(answer))


def _checks(answer: Recommendation) -> Iterator[str]:
    error = answer.prediction_error
    if error is not None:
        alone = (
            ""
            if error.passes_only_median is None or error.passes_only_worst is None
            else f"; predictions from pass timings alone, as for what was not decoded, by "
            f"{error.passes_only_median:.1%} (median) and at most {error.passes_only_worst:.1%}"
        )
        yield (
            f"Predictions were off by {error.median:.1%} (median) and at most {error.worst:.1%} "
            f"over {error.configurations} measured configurations{alone}."
        )
    rounds = [e.round_overhead for e in answer.evaluations if e.round_overhead is not None]
    plain = [e.plain_overhead for e in answer.evaluations if e.plain_overhead is not None]
    if rounds and plain:
        yield (
            f"Rounds took {median(rounds):.2f} times as long as their passes timed in isolation "
            f"(median; at most {max(rounds):.2f}), target steps without speculation "
            f"{median(plain):.2f} times: only the difference between the two changes a speed-up."
        )
    audit = answer.audit
    if audit is not None and audit.requests:
        share = answer.near_tie_share
        ties = "" if share is None else f" ({share:.1%} of the target's tokens are near ties)"
        yield (
            f"Output check at temperature 0: {audit.identical} of {audit.requests} identical to "
            f"the target, {audit.near_ties} differ only at near ties{ties}, {audit.faults} "
            "unexplained."
        )
    own = next((e.alpha for e in answer.evaluations if e.draft == SELF and e.alpha), None)
    if own is not None and own.value < _ALWAYS and answer.drafting_mode is DraftingMode.GREEDY:
        yield (
            f"Upper bound: even a perfect greedy draft reaches only α = {own.value:.2f} here, "
            "because some requests sample."
        )
    requests = "1 request" if answer.requests == 1 else f"{answer.requests} requests"
    yield (
        f"{requests}, {answer.output_tokens} output tokens; {answer.drafting_mode} drafting; costs "
        f"of {answer.runner or 'an unknown runner'}."
    )
