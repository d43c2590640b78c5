"""What a configuration brings by the length of the context.

Both sides of a speed-up change with it: drafts are trained on short texts, and attention makes a
long context's passes dearer, those of several tokens more than a step.
"""

from __future__ import annotations

import numpy as np

from draftbench.acceptance.breakdown import context_range, in_order
from draftbench.acceptance.definitions import ByRequest, ratio
from draftbench.acceptance.intervals import estimates
from draftbench.planner.cells import SPEEDUP
from draftbench.planner.evidence import Evidence
from draftbench.planner.recommendation import AtContext


def by_context(evidence: Evidence) -> tuple[AtContext, ...]:
    """A configuration's figures in each range of contexts that occurs, the shortest first; none
    where its rounds are unknown.
    """
    seconds, rounds, block = evidence.seconds_by_response, evidence.rounds, evidence.block
    ranges = np.array([context_range(context) for context in rounds.contexts])
    names = in_order(ranges.tolist())
    if seconds is None:
        return ()
    length = evidence.configuration.length
    at_length, steps, found = rounds.at(*length), rounds.weights * rounds.tokens, []
    rows_of = {name: np.flatnonzero(ranges == name) for name in names}
    members = {name: ByRequest(rounds.trajectories[r] for r in rows_of[name]) for name in names}
    speeds = estimates(
        [
            ratio(SPEEDUP, members[name], *(side[rows_of[name]] for side in seconds))
            for name in names
        ]
    )
    for (name, rows), speed in zip(rows_of.items(), speeds, strict=True):
        weights = steps[rows] if steps[rows].any() else rounds.weights[rows]
        context = float(np.average(rounds.contexts[rows], weights=weights))
        tokens, passes = at_length.tokens[rows], at_length.target_passes[rows]
        found.append(
            AtContext(
                contexts=name,
                mean=context,
                longest=max(t.prompt_tokens + t.output_tokens for t in members[name]),
                requests=len(members[name].requests[0]),
                tokens_per_round=float(
                    rounds.weights[rows] @ tokens / (rounds.weights[rows] @ passes)
                ),
                draft_cost_ratio=block.draft_cost_ratio(context) if block else None,
                verify_ratio=block.verify_ratio(length.k + 1, context) if block else None,
                speedup_predicted=speed,
            )
        )
    return tuple(found)
