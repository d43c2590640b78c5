"""What decoding at two timed loads showed → predictions at the loads between them.

Nothing was decoded between, and passes are interpolated. The prediction is multiplied by a
correction that is log-linear in the rows between those of the two timed loads. The correction of a
timed load is the expected speed-up over the one predicted from passes alone: of the same k where it
was decoded, else the mean of the draft's decoded k's, or 1 where none was. Its errors are how
passes may bend between the timed points, and how the corrections of the draft's k's differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import geometric_mean

import numpy as np

from draftbench.planner.alternatives import KINDS, Alternative, Kind, faster, predicted_by


def carried_over(
    alternatives: Sequence[Alternative],
    fewer: tuple[Alternative, ...],
    more: tuple[Alternative, ...],
    by: Kind,
    errors: Sequence[float],
) -> list[Alternative]:
    """One candidate's alternatives between two timed loads, corrected as those at the two loads.

    Args:
        fewer, more: the candidate's alternatives at the timed loads below and above.
        by: the speed-up whose errors count.
        errors: of predictions from passes alone at these loads, of all candidates.
    """
    decode, end_to_end = ([_factors(end, k) for end in (fewer, more)] for k in KINDS)
    ends = end_to_end if by == "end_to_end" else decode
    if any(ends):
        factors = [factor for end in ends for factor in end.values() or (1.0,)]
        errors = [geometric_mean(factors) / factor - 1 for factor in factors]
    low, rows, high = (each[0].predictor.batch for each in (fewer, alternatives, more))
    share = (rows - low) / (high - low)
    found = []
    for each in alternatives:
        if each.corrected:  # decoded here, though its passes were not timed
            found.append(each)
            continue
        bends = np.array(_bends(each, by))
        off = np.outer(1 + np.array(errors or (0.0,)), 1 + bends) - 1
        found.append(
            replace(
                each,
                expected=faster(each.expected, _between(decode, each.k, share)),
                end_to_end=faster(each.end_to_end, _between(end_to_end, each.k, share)),
                errors=tuple(off.ravel().tolist()),
                decoded_around=any(ends),
            )
        )
    return found


def _between(ends: Sequence[Mapping[int, float]], k: int, share: float) -> float:
    """The correction of a k, a `share` of the way from one load to the other."""
    low, high = (end.get(k, geometric_mean(end.values() or (1.0,))) for end in ends)
    return float(low ** (1 - share) * high**share)


# Every load between two timed ones asks for the same few.
@lru_cache(maxsize=256)
def _factors(alternatives: tuple[Alternative, ...], by: Kind) -> dict[int, float]:
    """Corrections by decoded k: the expected speed-up over that predicted from timed passes."""
    found = {}
    for each in alternatives:
        expected, alone = each.speedup(by), predicted_by(each.passes_only, by)
        if each.corrected and expected and expected.value and alone and alone.value:
            found[each.k] = expected.value / alone.value
    return found


def _bends(alternative: Alternative, by: Kind) -> list[float]:
    """Relative errors of the prediction if passes bend not at all, or as far as they can."""
    predicted, ends = alternative.speedup(by), alternative.prediction.ends
    if predicted is None or not predicted.value or ends is None or ends.decoding is None:
        return [0.0]
    prefills = ends.prefills if by == "end_to_end" else None
    seconds = ends.decoding if prefills is None else ends.decoding + prefills
    return [0.0, *(predicted.value / ends.requests.quotient(seconds) - 1).tolist()]
