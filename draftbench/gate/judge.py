"""Two baselines and limits → the gate's verdict.

*fail* where a metric over all requests fails, a segment does after Holm's correction over all
segments and metrics, or the new run shows a suspected fault that the old did not. *pass* where
every metric over all requests passes; a segment is too small to be asked for that and can only
fail. *inconclusive* otherwise, and where acceptance rose on prompts that are not the same: they may
be easier.

Suspected faults count apart from the metrics because a broken set-up may hide in them: a doubled
first token or the template of another model changes what is asked and answered, and acceptance may
even rise, since loops are easy to draft.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median

import msgspec
import numpy as np

from draftbench.acceptance.definitions import (
    ALPHA_EMITTED,
    MEAN_ACCEPTED_LENGTH,
    TOKENS_PER_ROUND,
    Figure,
    Sample,
    quotient,
)
from draftbench.acceptance.intervals import Estimate, estimate
from draftbench.acceptance.rounds import Floats
from draftbench.errors import UsageError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.limits import DEFAULT_LIMITS, Limit
from draftbench.gate.noninferiority import (
    TAIL,
    Gain,
    Verdict,
    gain_of,
    holm,
    median_interval,
    p_fail,
    requests_to_settle,
    rise,
    smallest_detectable_drop,
    verdict_of,
)
from draftbench.gate.notes import notes_on, prompts_changed
from draftbench.gate.pair_requests import Pair, pair_up, question_digest
from draftbench.gate.result import (
    EXIT_CODES,
    RESULT_SCHEMA_VERSION,
    Change,
    Check,
    FigureValue,
    GateResult,
)
from draftbench.planner.measured import SPEEDUP_MEASURED, ratio_of_rates

# A bad state in a smaller share of the requests is no suspected fault yet.
_SHARE = 0.1


def _speed_addends(counts: RequestCounts) -> tuple[float, ...] | None:
    speed = counts.speed
    if speed is None:
        return None
    return speed.tokens, speed.seconds, speed.plain_tokens, speed.plain_seconds


# By metric: its figure, what a request adds to its sums, and the figure of the sums.
_Addends = Callable[[RequestCounts], tuple[float, ...] | None]
_METRICS: dict[str, tuple[Figure, _Addends, Callable[[Floats], Floats]]] = {
    "alpha": (
        ALPHA_EMITTED,
        lambda c: None if c.alpha_sum is None else (c.alpha_sum, c.positions),
        quotient,
    ),
    "mean_accepted_length": (
        MEAN_ACCEPTED_LENGTH,
        lambda c: (c.rounds + c.accepted, c.rounds),
        quotient,
    ),
    "tokens_per_round": (TOKENS_PER_ROUND, lambda c: (c.tokens, c.passes), quotient),
    "speedup": (SPEEDUP_MEASURED, _speed_addends, ratio_of_rates),
}


def judge(old: Baseline, new: Baseline, limits: Sequence[Limit] = DEFAULT_LIMITS) -> GateResult:
    """Did the new run get worse than the old by more than the limits allow?

    A metric that neither run can have (α of prompt lookup) is left out and noted.

    Raises:
        IncomparableError: the two answer different questions; names the first difference.
        UsageError: a metric that must be measured was not, or no metric is left.
    """
    paired = pair_up(old, new, limits)
    checks = [check for limit in limits if (check := _pooled(limit, old, new, paired.pairs))]
    if not checks:
        raise UsageError(
            "none of the limited metrics can be compared",
            hint="prompt lookup has no alpha; limit mean_accepted_length",
        )
    segments = _by_segment(limits, paired.segments())
    faults = new_faults(old, new, paired.pairs)
    rose = any(check.improved for check in checks)
    if faults or any(check.verdict is Verdict.FAIL for check in (*checks, *segments)):
        verdict = Verdict.FAIL
    elif any(check.verdict is Verdict.INCONCLUSIVE for check in checks) or (
        rose and prompts_changed(paired.pairs)
    ):
        verdict = Verdict.INCONCLUSIVE
    else:
        verdict = Verdict.PASS
    result = GateResult(
        schema_version=RESULT_SCHEMA_VERSION,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        old=old.candidate,
        new=new.candidate,
        mode=old.question.mode,
        k=old.question.k,
        question=question_digest(old),
        requests=len(paired.pairs),
        checks=(*checks, *segments),
        changes=_changes(old, new),
        faults=faults,
        notes=(),
    )
    return msgspec.structs.replace(result, notes=notes_on(result, old, new, paired))


def samples_of(metric: str, pairs: Sequence[Pair]) -> tuple[Sample, Sample] | None:
    """One metric before and after, over the requests at which both runs have it, if any."""
    if metric not in _METRICS:
        return None
    figure, addends, combine = _METRICS[metric]
    both = [(old, addends(old), addends(new)) for old, new in pairs]
    known = [(old, a, b) for old, a, b in both if a is not None and b is not None]
    if not known:
        return None
    requests = tuple(old.id for old, _, _ in known)
    weights = np.array([old.weight for old, _, _ in known])
    before, after = np.array([a for _, a, _ in known]), np.array([b for _, _, b in known])
    return (
        Sample(figure, requests, weights, before, combine),
        Sample(figure, requests, weights, after, combine),
    )


def _pooled(limit: Limit, old: Baseline, new: Baseline, pairs: Sequence[Pair]) -> Check | None:
    """One metric over all requests; None where it is the α of a draft that has none."""
    if limit.metric == "draft_cost_ratio":
        return _cost_check(limit, old, new)
    samples = samples_of(limit.metric, pairs)
    if samples is None and limit.metric == "alpha":
        return None
    if samples is None:
        raise _unmeasured(limit.metric, f"decoding at k = {old.question.k}")
    values = []
    for sample in samples:
        value, interval = sample.value, estimate(sample)
        if value is None:
            raise UsageError(
                f"{limit.metric} is undefined: nothing was drafted in the {len(pairs)} requests",
                hint="take traffic with longer responses",
            )
        values.append(_with_interval(value, interval))
    return _check(limit, None, (values[0], values[1]), gain_of(*samples, relative=limit.relative))


def _cost_check(limit: Limit, old: Baseline, new: Baseline) -> Check:
    if not old.cost_ratios or not new.cost_ratios:
        raise _unmeasured(limit.metric, "costs of a draft step")
    before, now = (
        _with_interval(median(repeats), median_interval(repeats))
        for repeats in (old.cost_ratios, new.cost_ratios)
    )
    rose = rise(old.cost_ratios, new.cost_ratios, relative=limit.relative)
    # A draft that costs more is worse: the gain is the change with its sign turned.
    up = rose.interval
    gain = replace(rose, interval=up and Estimate(-up.value, -up.high, -up.low))
    return msgspec.structs.replace(_check(limit, None, (before, now), gain), difference=up)


def _with_interval(value: float, interval: Estimate | None) -> FigureValue:
    if interval is None:
        return FigureValue(value=value)
    return FigureValue(value=value, low=interval.low, high=interval.high)


def _by_segment(limits: Sequence[Limit], segments: dict[str, tuple[Pair, ...]]) -> list[Check]:
    """Every segment by every metric that has requests; fails by Holm's p-values over them all."""
    checks: list[Check] = []
    p_values: list[float] = []
    for name, pairs in segments.items():
        for limit in limits:
            samples = samples_of(limit.metric, pairs)
            if samples is None or samples[0].value is None or samples[1].value is None:
                continue
            values = FigureValue(value=samples[0].value), FigureValue(value=samples[1].value)
            gain = gain_of(*samples, relative=limit.relative)
            checks.append(_check(limit, name, values, gain))
            p_values.append(p_fail(gain, limit.value))
    corrected = []
    for check, p in zip(checks, holm(p_values), strict=True):
        by_chance = check.verdict is Verdict.FAIL and p > TAIL
        verdict = Verdict.INCONCLUSIVE if by_chance else check.verdict
        corrected.append(msgspec.structs.replace(check, verdict=verdict, holm_p=p))
    return corrected


def _check(
    limit: Limit, segment: str | None, values: tuple[FigureValue, FigureValue], gain: Gain
) -> Check:
    verdict = verdict_of(gain.interval, limit.value)
    inconclusive = verdict is Verdict.INCONCLUSIVE
    return Check(
        metric=limit.metric,
        segment=segment,
        sample=gain.requests,
        old=values[0],
        new=values[1],
        difference=gain.interval,
        limit=limit,
        verdict=verdict,
        improved=segment is None and gain.interval is not None and gain.interval.low > 0,
        requests_needed=requests_to_settle(gain, limit.value) if inconclusive else None,
        smallest_detectable_drop=smallest_detectable_drop(gain, limit.value),
    )


def _unmeasured(metric: str, needed: str) -> UsageError:
    return UsageError(
        f"{metric} cannot be compared: one of the two runs did not measure {needed}",
        hint="sweep again with --measure all, or drop that limit",
    )


def _changes(old: Baseline, new: Baseline) -> tuple[Change, ...]:
    return tuple(
        Change(fact=fact, old=old.tested.get(fact), new=new.tested.get(fact))
        for fact in dict.fromkeys((*old.tested, *new.tested))
        if old.tested.get(fact) != new.tested.get(fact)
    )


def new_faults(old: Baseline, new: Baseline, pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Suspected faults of the new run of a kind that the old did not show."""
    known = {fault.kind for fault in old.faults}
    faults = [fault.message for fault in new.faults if fault.kind not in known]
    states: dict[str, Callable[[RequestCounts], bool]] = {
        "end after one token, so that nothing is drafted": lambda counts: counts.tokens == 0,
        "end in a loop, which any draft predicts too easily": lambda counts: counts.looping > 0,
    }
    for name, in_state in states.items():
        before = [in_state(pair[0]) for pair in pairs]
        after = [in_state(pair[1]) for pair in pairs]
        if _more(before, after):
            faults.append(
                f"{sum(after)} of {len(pairs)} responses {name}; in the baseline {sum(before)} did"
            )
    return tuple(faults)


def _more(before: Sequence[bool], after: Sequence[bool]) -> bool:
    """Whether surely more responses are in a bad state than before (McNemar's exact test: by chance
    as many of those that changed would have become better).
    """
    became_bad = sum(now and not was for was, now in zip(before, after, strict=True))
    became_good = sum(was and not now for was, now in zip(before, after, strict=True))
    changed = became_bad + became_good
    chance = sum(math.comb(changed, i) for i in range(became_bad, changed + 1)) / 2**changed
    return chance <= TAIL and became_bad - became_good >= _SHARE * len(before)
