"""An answer → how far it can be trusted, a sentence each: prediction against measurement, output
against target.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from draftbench.planner.recommendation import Recommendation
from draftbench.records import SELF, DraftingMode
from draftbench.report.terminal.speedups import requests_in_words

# Near ties apart.
_ALWAYS = 0.98


def checks(answer: Recommendation) -> list[str]:
    """What was checked, and what the figures are of."""
    return [
        *_prediction(answer),
        *_rounds(answer),
        *_output(answer),
        *_ceiling(answer),
        f"{requests_in_words(answer.requests)}, {answer.output_tokens} output tokens; "
        f"{answer.drafting_mode} drafting; costs of {answer.runner or 'an unknown runner'}.",
    ]


def _prediction(answer: Recommendation) -> Iterator[str]:
    error = answer.prediction_error
    if error is not None:
        yield (
            f"Prediction against measurement: off by {error.median:.1%} (median) and at most "
            f"{error.worst:.1%} over {error.cells} measured cells; from timed passes alone, as "
            f"for what was not decoded, by {error.passes_only_median:.1%} and at most "
            f"{error.passes_only_worst:.1%}."
        )


def _rounds(answer: Recommendation) -> Iterator[str]:
    """Predictions can be right where rounds take longer than their passes: plain steps do too."""
    cells = answer.candidates
    rounds = [c.round_overhead for c in cells if c.round_overhead is not None]
    plain = [c.plain_overhead for c in cells if c.plain_overhead is not None]
    if rounds and plain:
        yield (
            f"While decoding, rounds took {median(rounds):.2f} times (median over measured cells; "
            f"at most {max(rounds):.2f}) and plain steps {median(plain):.2f} times what their "
            "passes take when timed alone: a speed-up only feels what differs between the two."
        )


def _ceiling(answer: Recommendation) -> Iterator[str]:
    """A greedy draft as good as the target itself is not accepted always above temperature 0."""
    own = next((c.alpha for c in answer.candidates if c.draft == SELF and c.alpha), None)
    if own is not None and own.value < _ALWAYS and answer.drafting_mode is DraftingMode.GREEDY:
        yield (
            f"The target as its own greedy draft (self) is accepted with α = {own.value:.2f}: it "
            "samples above temperature 0, and a draft that is as good is accepted no more."
        )


def _output(answer: Recommendation) -> Iterator[str]:
    audit = answer.audit
    if audit is not None and audit.requests:
        yield (
            f"Output at temperature 0: {audit.identical} of {audit.requests} requests decoded to "
            f"the target's own, {audit.near_ties} left it at a near tie, {audit.faults} otherwise."
        )
