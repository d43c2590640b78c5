"""A configuration to choose, with its speed-ups: predicted, measured, expected.

A measurement is of few requests; a prediction is of all requests, but relies on timed passes and
a model of rounds. The expected speed-up uses both: the prediction for all requests, corrected by
what a round takes beyond its passes in the decoder (one figure for all decoded k's of the draft)
and by one factor for how much faster these then still were. Both corrections are of time alone: the
luck of acceptance of the few decoded requests is no reason to expect more. Fewer than `FEW_DECODED`
decoded requests correct nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from draftbench.acceptance.definitions import Sample, quotient, tokens_per_round
from draftbench.acceptance.rounds import counted_rounds
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
from draftbench.records import Candidate, Key

# `end_to_end` is the expected speed-up with both prefills included, the others are of decoding.
Kind = Literal["predicted", "measured", "expected", "end_to_end"]
# Those that candidates are ranked by.
KINDS: tuple[Kind, Kind] = ("expected", "end_to_end")


@dataclass(frozen=True, eq=False)
class Alternative:
    """One configuration to choose: its speed-ups as samples over requests, and its time factors
    where it was decoded. `breaks` are the limits that it does not keep, in words. `errors` are
    those of predictions made like its own, None for predictions from passes alone. `decoded_around`
    says whether its draft was decoded at the two loads around it.
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

    def speedup(self, kind: Kind) -> Sample | None:
        """The speed-up of a kind; None where it is unknown."""
        if kind == "measured":
            return self.measured.speedup if self.measured else None
        sample: Sample | None = getattr(self, kind)
        return sample

    @cached_property
    def prediction_error(self) -> float | None:
        """Predicted over measured speed-up less 1, on the requests that were measured."""
        return self._error(self.prediction, "expected")

    def time_factor(self, by: Kind) -> TimeFactor | None:
        """How much faster than predicted it decoded, with both prefills or without."""
        return self.end_to_end_time if by == "end_to_end" else self.time

    @property
    def processes(self) -> int:
        """In how many processes it was timed, or how often an engine was started with it; at least
        one.
        """
        if self.predictor.served is not None:
            return self.predictor.served.starts_at(self.k)
        return len(self.time.by_process) if self.time else 1

    def passes_only_error(self, by: Kind = "expected") -> float | None:
        """The error that the prediction would have if nothing had been decoded."""
        return self._error(self.passes_only, by)

    @cached_property
    def passes_only(self) -> Prediction:
        """The prediction if nothing had been decoded."""
        return predict(self.predictor, self.k, (0.0, 0.0))

    def _error(self, prediction: Prediction, by: Kind) -> float | None:
        if self.measured is None:
            return None
        known = predicted_by(prediction, by, self.measured.keys)
        measured = self.measured.end_to_end if by == "end_to_end" else self.measured.speedup
        if known is None or measured is None or not known.value or not measured.value:
            return None
        return known.value / measured.value - 1

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
        passed = Passes(costs, self.predictor.batch)
        spent, passes, _ = seconds_of(self.measured, passed, side).sum(axis=0).tolist()
        return spent / passes if passes else None

    @cached_property
    def acceptance_luck(self) -> float | None:
        """Tokens per round as decoded over those that replay expects of the same responses, less 1;
        None without replays. It corrects nothing.

        Not 0 where decoded outputs differ from the replayed ones or drafts are sampled.
        """
        if self.measured is None or not self.predictor.replays:
            return None
        ran, replayed = counted_rounds([row for _, row in self.measured.runs]), self.prediction
        both = [t.key in self.measured.keys for t in replayed.trajectories]
        decoded, expected = (
            quotient(np.array([each.tokens[rows].sum(), (each.rounds + each.plain)[rows].sum()]))
            for each, rows in ((ran, slice(None)), (replayed.rounds, np.array(both)))
        )
        return float(decoded / expected - 1) if expected > 0 else None


def predicted_by(
    prediction: Prediction, kind: Kind, only: Collection[Key] | None = None
) -> Sample | None:
    """The predicted speed-up with both prefills (end_to_end) or of decoding alone."""
    return prediction.end_to_end(only) if kind == "end_to_end" else prediction.speedup(only)


def alternatives_of(
    predictor: Predictor, ks: Sequence[int], measured: Mapping[int, Measurement]
) -> tuple[Alternative, ...]:
    """A candidate at every k, its predictions corrected by what its decoding took."""
    return corrected(timed(predictor, ks, measured))


def timed(
    predictor: Predictor, ks: Sequence[int], measured: Mapping[int, Measurement]
) -> tuple[Alternative, ...]:
    """A candidate at every k with its time factors, not yet corrected by them."""
    return tuple(_timed(predictor, k, measured.get(k)) for k in ks)


def corrected(
    found: Sequence[Alternative], alike: Mapping[Kind, Mapping[int, float]] | None = None
) -> tuple[Alternative, ...]:
    """A candidate's alternatives, each corrected by a time factor: the mean over its decoded k's
    without, and the k itself with, what rounds at a k gain with all drafts `alike`.
    """
    ran = [each for each in found if each.corrected]

    def shared(kind: Kind, k: int) -> float:
        return (alike or {}).get(kind, {}).get(k, 1.0)

    def common(kind: Kind) -> float | None:
        known = [(each.k, time) for each in ran if (time := each.time_factor(kind)) is not None]
        return mean_factor([replace(time, value=time.value / shared(kind, k)) for k, time in known])

    decoding, whole = common("expected"), common("end_to_end")

    def of(kind: Kind, k: int, factor: float | None) -> float | None:
        return factor and factor * shared(kind, k)

    return tuple(
        _corrected(each, of("expected", each.k, decoding), of("end_to_end", each.k, whole))
        if each in ran
        else each
        for each in found
    )


def _timed(predictor: Predictor, k: int, measured: Measurement | None) -> Alternative:
    """A configuration with its time factors; its expected speed-up is still the predicted one."""
    prediction = predict(predictor, k)
    predicted, end_to_end = prediction.speedup(), prediction.end_to_end()
    found = Alternative(predictor, k, prediction, predicted, measured, predicted, end_to_end)
    if measured is None or predictor.costs is None or not found.corrected:
        return found
    passes = Passes(predictor.costs, predictor.batch, predictor.overheads.of_all)
    time = time_factor(measured, passes)
    if prediction.prefills is None:
        return replace(found, time=time)
    reading = {
        t.key: seconds
        for t, seconds in zip(prediction.trajectories, prediction.prefills.tolist(), strict=True)
    }
    if not measured.keys <= reading.keys():
        return replace(found, time=time)
    whole = time_factor(measured, replace(passes, prefills=reading))
    return replace(found, time=time, end_to_end_time=whole)


def _corrected(each: Alternative, decoding: float | None, whole: float | None) -> Alternative:
    """A decoded configuration whose expected speed-up is the prediction with the overhead of its
    draft's rounds, times its time factor; without a prediction it is the measured one.
    """
    assert each.measured is not None
    prediction = predict(each.predictor, each.k, (0.0, each.predictor.overheads.of_all))
    end_to_end = each.measured.end_to_end
    expected = faster(prediction.speedup(), decoding) or each.measured.speedup
    if each.predictor.served is not None:
        # The rounds of replay, each with the seconds of whole rounds at this k.
        seconds = each.predictor.served.decoding(each.prediction.rounds)
        expected = replace(each.prediction, decoding=seconds).speedup() or expected
    return replace(
        each, expected=expected, end_to_end=faster(prediction.end_to_end(), whole) or end_to_end
    )


def faster(predicted: Sample | None, factor: float | None) -> Sample | None:
    """A prediction times a time factor; None where either is unknown."""
    if predicted is None or factor is None:
        return None
    if factor == 1:
        return predicted
    # Of the two columns that it sums, the second is the seconds with speculation.
    return replace(predicted, addends=predicted.addends * np.array([1.0, 1 / factor]))
