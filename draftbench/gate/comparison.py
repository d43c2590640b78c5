"""Two baselines and limits → the gate's verdict.

*fail* where a metric over all requests fails, a segment does after Holm's correction over all
segments and metrics, or the new run shows a suspected fault that the old did not. *pass* where
every metric over all requests passes; a segment is too small to be asked for that and can only
fail. *inconclusive* otherwise, and where acceptance rose on prompts that are not the same: other
questions may be easier.
"""

from __future__ import annotations

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
from draftbench.gate.advice import notes
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.limits import DEFAULT_LIMITS, Limit
from draftbench.gate.noninferiority import (
    TAIL,
    Gain,
    Verdict,
    gain_of,
    holm,
    judge,
    p_fail,
    requests_to_settle,
    smallest_detectable_drop,
)
from draftbench.gate.pairing import Pair, pair_up, question_digest
from draftbench.gate.repeats import median_interval, rise
from draftbench.gate.result import (
    EXIT_CODES,
    RESULT_SCHEMA_VERSION,
    Change,
    Check,
    GateResult,
    Level,
)
from draftbench.gate.suspicion import new_faults, prompts_changed

SPEEDUP = Figure(
    name="speed-up (decode)",
    symbol="S",
    formula="tokens per second after the first token, with speculation over without",
)


def _speedup(sums: Floats) -> Floats:
    return quotient(sums[..., :2]) / quotient(sums[..., 2:])


def _speed_addends(counts: RequestCounts) -> tuple[float, ...] | None:
    speed = counts.speed
    if speed is None:
        return None
    return speed.tokens, speed.seconds, speed.plain_tokens, speed.plain_seconds


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
    "speedup": (SPEEDUP, _speed_addends, _speedup),
}


def compare(old: Baseline, new: Baseline, limits: Sequence[Limit] = DEFAULT_LIMITS) -> GateResult:
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
    segments = _segments(limits, paired.segments())
    faults = new_faults(old, new, paired.pairs)
    verdict = Verdict.FAIL if faults else _overall(checks, segments)
    improved = any(check.improved for check in checks)
    if verdict is Verdict.PASS and improved and prompts_changed(paired.pairs):
        verdict = Verdict.INCONCLUSIVE
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
    said = notes(result, old, new, paired)
    return msgspec.structs.replace(result, notes=said)


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
    if limit.metric == "draft_cost_ratio":
        return _cost_check(limit, old, new)
    samples = samples_of(limit.metric, pairs)
    if samples is None and limit.metric == "alpha":
        return None
    if samples is None:
        raise _unmeasured(limit.metric, old.question.k)
    before, now = map(_level, samples)
    if before is None or now is None:
        raise UsageError(
            f"{limit.metric} is undefined: nothing was drafted in the {len(pairs)} requests",
            hint="take traffic with longer responses",
        )
    return _check(limit, None, (before, now), gain_of(*samples, relative=limit.relative))


def _cost_check(limit: Limit, old: Baseline, new: Baseline) -> Check:
    if not old.cost_ratios or not new.cost_ratios:
        raise _unmeasured(limit.metric, old.question.k)
    levels = []
    for repeats in (old.cost_ratios, new.cost_ratios):
        interval = median_interval(repeats)
        low, high = (interval.low, interval.high) if interval else (None, None)
        levels.append(Level(value=median(repeats), low=low, high=high))
    rose = rise(old.cost_ratios, new.cost_ratios, relative=limit.relative)
    # A draft that costs more is worse: the gain is the change with its sign turned.
    gain = replace(rose, interval=_negated(rose.interval))
    check = _check(limit, None, (levels[0], levels[1]), gain)
    return msgspec.structs.replace(check, difference=rose.interval)


def _segments(limits: Sequence[Limit], segments: dict[str, tuple[Pair, ...]]) -> list[Check]:
    """Every segment by every metric that has requests; fails by Holm's p-values over them all."""
    found: list[tuple[Check, float]] = []
    for name, pairs in segments.items():
        for limit in limits:
            samples = samples_of(limit.metric, pairs)
            if samples is None or samples[0].value is None or samples[1].value is None:
                continue
            levels = Level(value=samples[0].value), Level(value=samples[1].value)
            gain = gain_of(*samples, relative=limit.relative)
            found.append((_check(limit, name, levels, gain), p_fail(gain, limit.value)))
    adjusted = holm([p for _, p in found])
    return [_corrected(check, p) for (check, _), p in zip(found, adjusted, strict=True)]


def _corrected(check: Check, p: float) -> Check:
    verdict = check.verdict
    if verdict is Verdict.FAIL and p > TAIL:
        verdict = Verdict.INCONCLUSIVE
    return msgspec.structs.replace(check, verdict=verdict, holm_p=p)


def _check(limit: Limit, segment: str | None, levels: tuple[Level, Level], gain: Gain) -> Check:
    verdict = judge(gain.interval, limit.value)
    inconclusive = verdict is Verdict.INCONCLUSIVE
    return Check(
        metric=limit.metric,
        segment=segment,
        sample=gain.requests,
        old=levels[0],
        new=levels[1],
        difference=gain.interval,
        limit=limit,
        verdict=verdict,
        improved=segment is None and gain.interval is not None and gain.interval.low > 0,
        requests_needed=requests_to_settle(gain, limit.value) if inconclusive else None,
        smallest_detectable_drop=smallest_detectable_drop(gain, limit.value),
    )


def _level(sample: Sample) -> Level | None:
    value, interval = sample.value, estimate(sample)
    if value is None or interval is None:
        return None if value is None else Level(value=value)
    return Level(value=value, low=interval.low, high=interval.high)


def _negated(interval: Estimate | None) -> Estimate | None:
    return interval and Estimate(-interval.value, -interval.high, -interval.low)


def _unmeasured(metric: str, k: int) -> UsageError:
    what = "costs of a draft step" if metric == "draft_cost_ratio" else f"decoding at k = {k}"
    return UsageError(
        f"{metric} cannot be compared: one of the two runs did not measure {what}",
        hint="sweep again with --measure all, or drop that limit",
    )


def _overall(pooled: Sequence[Check], segments: Sequence[Check]) -> Verdict:
    if any(check.verdict is Verdict.FAIL for check in (*pooled, *segments)):
        return Verdict.FAIL
    if any(check.verdict is Verdict.INCONCLUSIVE for check in pooled):
        return Verdict.INCONCLUSIVE
    return Verdict.PASS


def _changes(old: Baseline, new: Baseline) -> tuple[Change, ...]:
    facts = dict.fromkeys((*old.tested, *new.tested))
    pairs = ((fact, old.tested.get(fact), new.tested.get(fact)) for fact in facts)
    return tuple(Change(what=f, old=before, new=now) for f, before, now in pairs if before != now)
