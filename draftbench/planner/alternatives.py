"""A configuration to choose, with its speed-ups: predicted, measured, expected.

A measurement is of few requests; a prediction is of all requests, but relies on timed passes and
a model of rounds. The expected speed-up uses both: the prediction for all requests, corrected by
what a round takes beyond its passes in the decoder (one figure for all decoded k's of the draft)
and by one factor for how much faster these then still were. Both corrections are of time alone: the
luck of acceptance of the few decoded requests is no reason to expect more. Fewer than `FEW_DECODED`
decoded requests correct nothing.

Between two timed loads passes are interpolated and the prediction is multiplied by a correction
that is log-linear in the rows between those of the two loads (`carried_over`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import geometric_mean
from typing import Literal

import numpy as np

from draftbench.acceptance.definitions import Sample, quotient, tokens_per_round
from draftbench.planner.measured import Measurement
from draftbench.planner.predict import Prediction, Predictor, predict
from draftbench.planner.recommendation import FEW_DECODED
from draftbench.planner.time_factors import (
    Passes,
    TimeFactor,
    mean_factor,
    seconds_of,
    time_factor,
)
from draftbench.records import Candidate

# The expected speed-ups that candidates are ranked by, of decoding or with both prefills included.
Kind = Literal["expected", "end_to_end"]
KINDS: tuple[Kind, Kind] = ("expected", "end_to_end")


@dataclass(frozen=True, eq=False)
class Alternative:
    """One configuration to choose: its speed-ups as samples over requests, and its time factors
    where it was decoded.

    `breaks` names the limits that it does not keep. `errors` are the relative errors that
    its prediction may have, None for those of any prediction from passes alone. `decoded_around`
    says whether its draft was decoded at the two timed loads around it.
    """

    predictor: Predictor
    k: int
    prediction: Prediction
    predicted: Sample | None
    measured: Measurement | None
    expected: Sample | None
    end_to_end: Sample | None = None
    time: TimeFactor | None = None
    end_to_end_time: TimeFactor | None = None
    breaks: tuple[str, ...] = ()
    errors: tuple[float, ...] | None = None
    decoded_around: bool = False

    @property
    def candidate(self) -> Candidate:
        """The draft at its quantization level."""
        return self.predictor.candidate

    @property
    def name(self) -> str:
        """The configuration in words."""
        return f"{self.candidate} at k = {self.k}"

    @cached_property
    def tokens_per_round(self) -> float | None:
        """Over all requests, as predicted."""
        return tokens_per_round(self.prediction.trajectories, self.prediction.rounds).value

    @property
    def corrected(self) -> bool:
        """Whether enough requests were decoded to correct the prediction."""
        return self.measured is not None and len(self.measured.speedup.requests) >= FEW_DECODED

    @property
    def of_cells(self) -> bool:
        """Whether its errors of time are those of decoded cells; an engine's are of its starts."""
        return self.corrected and self.predictor.round_costs is None

    def speedup(self, kind: Kind) -> Sample | None:
        """The expected speed-up of a kind; None where it is unknown."""
        return self.end_to_end if kind == "end_to_end" else self.expected

    def time_factor(self, by: Kind) -> TimeFactor | None:
        """How much faster than predicted it decoded, with both prefills or without."""
        return self.end_to_end_time if by == "end_to_end" else self.time

    @property
    def processes(self) -> int:
        """In how many processes it was timed, or how often an engine was started with it; at least
        one.
        """
        if self.predictor.round_costs is not None:
            return self.predictor.round_costs.starts_at(self.k)
        return len(self.time.by_process) if self.time else 1

    @cached_property
    def prediction_error(self) -> float | None:
        """Predicted over measured speed-up less 1, on the requests that were measured."""
        return self._error_of(self.prediction)

    def passes_only_error(self) -> float | None:
        """The error that the prediction would have if nothing had been decoded."""
        return self._error_of(self.passes_only)

    @cached_property
    def passes_only(self) -> Prediction:
        """The prediction if nothing had been decoded."""
        return predict(self.predictor, self.k, (0.0, 0.0))

    def _error_of(self, prediction: Prediction) -> float | None:
        if self.measured is None:
            return None
        predicted, measured = prediction.speedup(self.measured.keys), self.measured.speedup
        if predicted is None or not predicted.value or not measured.value:
            return None
        return predicted.value / measured.value - 1

    @cached_property
    def round_overhead(self) -> float | None:
        """Measured seconds of rounds over those of their passes; None where either is unknown."""
        return self._over_passes(1)

    @cached_property
    def plain_overhead(self) -> float | None:
        """Measured seconds of the baseline's steps over those of their passes."""
        return self._over_passes(0)

    def _over_passes(self, side: int) -> float | None:
        costs = self.predictor.costs
        if costs is None or self.measured is None:
            return None
        timed = Passes(costs, self.predictor.batch)
        spent, passes, _ = seconds_of(self.measured, timed, side).sum(axis=0).tolist()
        return spent / passes if passes else None

    @cached_property
    def acceptance_luck(self) -> float | None:
        """Tokens per round as decoded over those that replay expects of the same responses, less 1;
        None without replays. It corrects nothing.

        Not 0 where decoded outputs differ from the replayed ones or drafts are sampled.
        """
        if self.measured is None or not self.predictor.along.replays:
            return None
        (_, rounds), replayed = self.measured.counted, self.prediction
        both = [t.key in self.measured.keys for t in replayed.trajectories]
        decoded, expected = (
            quotient(np.array([rounds.tokens[at].sum(), rounds.target_passes[at].sum()]))
            for rounds, at in ((rounds, slice(None)), (replayed.rounds, np.array(both)))
        )
        return float(decoded / expected - 1) if expected > 0 else None


def predicted_by(prediction: Prediction, kind: Kind) -> Sample | None:
    """The predicted speed-up with both prefills (end_to_end) or of decoding alone."""
    return prediction.end_to_end() if kind == "end_to_end" else prediction.speedup()


def uncorrected(
    predictor: Predictor, ks: Sequence[int], measured: Mapping[int, Measurement] | None = None
) -> tuple[Alternative, ...]:
    """A candidate at every k, with the time factors of those that were `measured`. Except on an
    engine, whose rounds need no correction, the expected speed-ups are still the predicted ones.
    """
    return tuple(_uncorrected(predictor, k, (measured or {}).get(k)) for k in ks)


def _uncorrected(predictor: Predictor, k: int, measured: Measurement | None) -> Alternative:
    prediction = predict(predictor, k)
    predicted, end_to_end = prediction.speedup(), prediction.end_to_end()
    expected = predicted
    if predictor.round_costs is not None:
        along = tokens_per_round(prediction.trajectories, prediction.rounds)
        expected, end_to_end = predictor.round_costs.speedups(along, k) or (predicted, None)
    alternative = Alternative(predictor, k, prediction, predicted, measured, expected, end_to_end)
    if measured is None or predictor.costs is None or not alternative.corrected:
        return alternative
    passes = Passes(predictor.costs, predictor.batch, predictor.overheads.of_all)
    alternative = replace(alternative, time=time_factor(measured, passes))
    if prediction.prefills is None:
        return alternative
    prefills = {
        t.key: seconds
        for t, seconds in zip(prediction.trajectories, prediction.prefills.tolist(), strict=True)
    }
    if not measured.keys <= prefills.keys():
        return alternative
    end_to_end_time = time_factor(measured, replace(passes, prefills=prefills))
    return replace(alternative, end_to_end_time=end_to_end_time)


def corrected(
    alternatives: Sequence[Alternative],
    gains_by_k: Mapping[Kind, Mapping[int, float]] | None = None,
) -> tuple[Alternative, ...]:
    """A candidate's alternatives, those that were decoded corrected by a time factor: the mean over
    the candidate's decoded k's, times what rounds at this k gain whatever the draft.
    """
    decoded = [each for each in alternatives if each.corrected]

    def gain(kind: Kind, k: int) -> float:
        return (gains_by_k or {}).get(kind, {}).get(k, 1.0)

    def of_candidate(kind: Kind) -> float | None:
        known = [(each.k, time) for each in decoded if (time := each.time_factor(kind))]
        return mean_factor([replace(time, value=time.value / gain(kind, k)) for k, time in known])

    decoding, end_to_end = of_candidate("expected"), of_candidate("end_to_end")
    return tuple(
        _corrected(
            each,
            decoding and decoding * gain("expected", each.k),
            end_to_end and end_to_end * gain("end_to_end", each.k),
        )
        if each.corrected
        else each
        for each in alternatives
    )


def _corrected(
    alternative: Alternative, decoding_factor: float | None, end_to_end_factor: float | None
) -> Alternative:
    """A decoded configuration whose expected speed-ups are those predicted with the overhead of its
    draft's rounds, times its time factors; without a prediction they are the measured ones.
    """
    measured, predictor = alternative.measured, alternative.predictor
    assert measured is not None
    prediction = predict(predictor, alternative.k, (0.0, predictor.overheads.of_all))
    expected = faster(prediction.speedup(), decoding_factor) or measured.speedup
    end_to_end = faster(prediction.end_to_end(), end_to_end_factor) or measured.end_to_end
    if predictor.round_costs is not None:
        expected = alternative.expected or measured.speedup
        end_to_end = alternative.end_to_end or measured.end_to_end
    return replace(alternative, expected=expected, end_to_end=end_to_end)


def faster(predicted: Sample | None, factor: float | None) -> Sample | None:
    """A prediction times a time factor; None where either is unknown."""
    if predicted is None or factor is None:
        return None
    if factor == 1:
        return predicted
    # Of the two columns that it sums, the second is the seconds with speculation.
    return replace(predicted, addends=predicted.addends * np.array([1.0, 1 / factor]))


def carried_over(
    alternatives: Sequence[Alternative],
    fewer: tuple[Alternative, ...],
    more: tuple[Alternative, ...],
    by: Kind,
    errors: Sequence[float],
) -> list[Alternative]:
    """One candidate's alternatives between two timed loads, corrected as those at the two loads.

    The correction of a timed load is the expected speed-up over the one predicted from passes
    alone: of the same k where it was decoded, else the mean of the draft's decoded k's, or 1 where
    none was. Its errors are how passes may bend between the timed points, and how the corrections
    of the draft's k's differ.

    Args:
        fewer, more: the candidate's alternatives at the timed loads below and above.
        by: the speed-up whose errors count.
        errors: of predictions from passes alone at these loads, of all candidates.
    """
    decoding, end_to_end = ([_corrections(load, k) for load in (fewer, more)] for k in KINDS)
    deciding = end_to_end if by == "end_to_end" else decoding
    if any(deciding):
        corrections = [value for load in deciding for value in load.values() or (1.0,)]
        errors = [geometric_mean(corrections) / value - 1 for value in corrections]
    low, rows, high = (each[0].predictor.batch for each in (fewer, alternatives, more))
    share = (rows - low) / (high - low)
    carried = []
    for each in alternatives:
        if each.corrected:  # decoded here, though its passes were not timed
            carried.append(each)
            continue
        off = np.outer(1 + np.array(errors or (0.0,)), 1 + np.array(_bends(each, by))) - 1
        carried.append(
            replace(
                each,
                expected=faster(each.expected, _between(decoding, each.k, share)),
                end_to_end=faster(each.end_to_end, _between(end_to_end, each.k, share)),
                errors=tuple(off.ravel().tolist()),
                decoded_around=any(deciding),
            )
        )
    return carried


def _between(loads: Sequence[Mapping[int, float]], k: int, share: float) -> float:
    """The correction of a k, a `share` of the way from one load to the other."""
    low, high = (load.get(k, geometric_mean(load.values() or (1.0,))) for load in loads)
    return float(low ** (1 - share) * high**share)


# Every load between two timed ones asks for the same few.
@lru_cache(maxsize=256)
def _corrections(alternatives: tuple[Alternative, ...], by: Kind) -> dict[int, float]:
    """By decoded k, the expected speed-up over the one predicted from timed passes."""
    corrections = {}
    for each in alternatives:
        expected, alone = each.speedup(by), predicted_by(each.passes_only, by)
        if each.corrected and expected and expected.value and alone and alone.value:
            corrections[each.k] = expected.value / alone.value
    return corrections


def _bends(alternative: Alternative, by: Kind) -> list[float]:
    """Relative errors of the prediction if passes bend not at all, or as far as they can."""
    predicted, ends = alternative.speedup(by), alternative.prediction.ends
    if predicted is None or not predicted.value or ends is None or ends.decoding is None:
        return [0.0]
    prefills = ends.prefills if by == "end_to_end" else None
    seconds = ends.decoding if prefills is None else ends.decoding + prefills
    return [0.0, *(predicted.value / ends.requests.quotient(seconds) - 1).tolist()]
