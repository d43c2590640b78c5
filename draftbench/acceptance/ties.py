"""The target's own margins → where its choice is so close that numeric noise may turn it."""

from __future__ import annotations

from draftbench.records import NEAR_TIE_MARGIN
from draftbench.run_folder.run import Run


def near_tie(observed: Run) -> float:
    """The logit margin that numeric noise can turn, by the target's dtype."""
    return NEAR_TIE_MARGIN[observed.manifest.question.dtype]


def near_tie_share(observed: Run) -> float | None:
    """Share of the output's positions whose two best target tokens are nearly tied."""
    margins = [margin for t in observed.trajectories for margin in t.margins]
    if not margins:
        return None
    return sum(margin <= near_tie(observed) for margin in margins) / len(margins)
