"""Counts the rounds under every rule to stop by at once, to choose one.

A rule's rounds follow from where it stops in a round from each start; they are walked for all
rules and responses side by side. `rounds` gives one rule's rounds with everything that they cost;
here they are only counted by how many tokens they propose and draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from draftbench.acceptance.rounds import Floats, Ints, begun_at, by_value
from draftbench.drafts.laws import Drafted
from draftbench.records import DraftLength, Trajectory


@dataclass(frozen=True, eq=False)
class EveryRule:
    """Rounds of some responses by rule, summed by group: by the tokens that they propose, and by
    those that the draft itself drafts [rules, groups, k + 1].
    """

    rules: Sequence[DraftLength]
    proposed: Floats
    drafted: Floats


def every_rule(
    responses: Sequence[Trajectory],
    drafts: Callable[[int], Drafted],
    weights: Floats,
    groups: Ints,
    rules: Sequence[DraftLength],
) -> EveryRule:
    """Count the rounds of some responses under these rules, or at fixed k's.

    Args:
        drafts: what rounds of k draft from each start of the responses, one after the other.
        weights: how often each response occurs.
        groups: of each response, from 0.
    """
    # The starts of all responses one after the other, and a last place, at which all have ended.
    length = np.array([t.output_tokens for t in responses])
    room = np.concatenate([t.limit - 1 - np.arange(1, t.output_tokens) for t in responses])
    end, begins = len(room), np.cumsum(length - 1) - (length - 1)
    place, ends = np.arange(end), np.repeat(begins + length - 1, length - 1)
    proposed, drafted = np.zeros((2, len(rules), end), np.int8)
    # Of each rule, places are counted on after those of the rules before it.
    behind = len(rules) * end
    first, following = [], np.full((len(rules), end), behind, np.int32)
    for row, (k, rule) in enumerate(rules):
        own, tokens, matched = drafts(k).under(k, rule)
        proposed[row] = np.minimum(np.minimum(tokens, k), room)
        drafted[row] = np.minimum(own, room)
        after = place + np.minimum(matched, proposed[row]) + 1
        following[row] = np.where(after < ends, row * end + after, behind)
        first.append(row * end + begins[length > 1])
    begun = begun_at(np.concatenate(first), following.ravel())
    rows, places = begun // end, begun % end
    response = np.repeat(np.arange(len(length)), length - 1)[places]
    shape = len(rules), int(groups.max(initial=0)) + 1, max(k for k, _ in rules) + 1
    cells, of_rules = rows * shape[1] + groups[response], (shape[0] * shape[1], shape[2])

    def counted(tokens: npt.NDArray[np.int8]) -> Floats:
        often = weights[response]
        return by_value(cells, tokens.ravel()[begun], of_rules, often).reshape(shape)

    return EveryRule(rules, counted(proposed), counted(drafted))
