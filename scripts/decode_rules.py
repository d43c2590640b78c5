"""A sweep that decodes every draft at a fixed k and by rules of every kind, to compare what replay
predicts of each with what decoding takes.

    python scripts/decode_rules.py --target T --drafts D --traffic prod.jsonl --out results/rules
    draftbench recommend results/rules --format json | jq .prediction_error

It takes the flags of `draftbench sweep`. Every prediction rests on the replays, the timed passes
and the other decoded draft lengths, not on its own.
"""

from __future__ import annotations

import sys
from itertools import product
from typing import Any

from draftbench.cli import app
from draftbench.drafts.stopping import STOP_RULES
from draftbench.records import SELF, DraftLength, StopRule
from draftbench.sweep import resume

THRESHOLDS = (0.2, 0.4, 0.6, 0.8)


def every_length(run: Any, candidate: Any, *_: Any) -> list[DraftLength]:
    """A fixed k, and twelve rules at the largest k."""
    ks = run.manifest.question.ks
    if candidate.draft == SELF:
        return []
    if candidate.looks_up:  # it has no confidence
        return [DraftLength(ks[-1])]
    rules = (StopRule(kind=k, threshold=t) for k, t in product(STOP_RULES, THRESHOLDS))
    return [DraftLength(min(4, ks[-1])), *(DraftLength(ks[-1], rule) for rule in rules)]


if __name__ == "__main__":
    resume.lengths_to_decode = every_length
    sys.argv[1:1] = ["sweep"]
    app()
