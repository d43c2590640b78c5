"""Two baselines and limits → the gate's verdict.

*fail*: a metric fails over all requests, or in a segment after Holm's correction over all segments
and metrics; or a serving engine writes other texts with speculation, or leaves more requests
without an answer; or the new run has a suspected fault that the old did not have. *pass*: the texts
and every metric over all requests pass, and every request was answered; segments need not, since
they are small. *inconclusive*: anything else; a rise of acceptance on other prompts or with another
target, which may be easier to draft for; and the very run that the baseline was made from.

Suspected faults fail the gate whatever the metrics say, because a broken set-up may improve them: a
doubled first token or another model's chat template changes what is answered, and acceptance rises
if the answers end in loops, which are easy to draft.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
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
from draftbench.acceptance.intervals import Estimate, estimates
from draftbench.acceptance.rounds import Floats
from draftbench.errors import IncomparableError, UsageError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.limits import DEFAULT_DROP, TIMED, Limit, default_limits
from draftbench.gate.noninferiority import (
    TAIL,
    Gain,
    Verdict,
    chance_of,
    gain_of,
    holm,
    median_interval,
    rise,
    with_processes,
)
from draftbench.gate.notes import notes_on, prompts_changed, target_changed
from draftbench.gate.pair_requests import (
    Pair,
    by_segment,
    one_looks_up,
    one_was_counted,
    pair_up,
    question_digest,
    same_run,
)
from draftbench.gate.result import (
    EXIT_CODES,
    RESULT_SCHEMA_VERSION,
    AnswerCheck,
    Change,
    Check,
    FigureValue,
    GateResult,
    TextCheck,
)
from draftbench.planner.cells import SPEEDUP, ratio_of_rates
from draftbench.planner.output_check import Match

# Responses that newly loop, or newly end at once, are a suspected fault from this share on.
_SHARE = 0.1
# By metric: its figure, what a request adds to its sums, and how the figure follows from these.
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
    "speedup": (
        SPEEDUP,
        lambda c: msgspec.structs.astuple(c.speed) if c.speed else None,
        ratio_of_rates,
    ),
}
# How a text may differ: away from near ties, or also at them or for an unknown cause.
_SURE: tuple[Match, ...] = ("other",)
_DIFFERENT: tuple[Match, ...] = ("unknown", "other")
# Only if none of these changed, and all are known, does the baseline's text without speculation
# serve.
_SERVER = ("engine", "engine version", "target")


def judge(old: Baseline, new: Baseline, limits: Sequence[Limit] | None = None) -> GateResult:
    """Whether the new run is worse than the old by more than the limits allow (default: those for
    the old run's k).

    α is left out, with a note, if one of the two has another definition. Prompt lookup against a
    model is judged by speed alone.

    Raises:
        IncomparableError: the two measured different things; names all that differs.
        UsageError: a limited metric was not measured, or none can be compared.
    """
    limits = default_limits(old.alpha, old.question.k) if limits is None else limits
    if one_looks_up(old, new):
        by_speed = [limit for limit in limits if limit.metric == "speedup"]
        limits = by_speed or [Limit(metric="speedup", value=DEFAULT_DROP, relative=True)]
    elif one_was_counted(old, new):
        limits = [limit for limit in limits if limit.metric != "alpha"]
    pairs = pair_up(old, new, limits)
    if one_looks_up(old, new) and samples_of("speedup", pairs) is None:
        raise IncomparableError(
            "prompt lookup and a model can be compared by speed alone, and one of the two runs did "
            f"not decode at k = {old.question.k}",
            hint="sweep with --measure all, which decodes at every k",
        )
    checks = [check for limit in limits if (check := _over_all(limit, old, new, pairs))]
    if not checks:
        raise UsageError(
            "none of the limited metrics can be compared",
            hint="these two have no common alpha; limit mean_accepted_length",
        )
    checks += _over_segments(limits, old, new, by_segment(pairs))
    faults, texts = _new_faults(old, new, pairs), judge_texts(old, new, pairs)
    if same_run(old, new):  # that nothing changed is no finding
        checks = [msgspec.structs.replace(check, verdict=Verdict.INCONCLUSIVE) for check in checks]
        texts = texts and msgspec.structs.replace(texts, verdict=Verdict.INCONCLUSIVE)
    pooled = [check for check in checks if check.segment is None]
    answers = judge_answers(old, new)
    verdicts = [check.verdict for check in (*pooled, texts, answers) if check is not None]
    others = prompts_changed(pairs) or target_changed(old, new)
    maybe_easier = any(check.improved for check in pooled) and others
    if faults or Verdict.FAIL in (*verdicts, *(check.verdict for check in checks)):
        verdict = Verdict.FAIL
    elif maybe_easier or Verdict.INCONCLUSIVE in verdicts:
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
        requests=len(pairs),
        checks=tuple(checks),
        changes=tuple(
            Change(fact=fact, old=before, new=new.tested[fact])
            for fact, before in old.tested.items()
            if new.tested.get(fact, before) != before
        ),
        faults=faults,
        notes=(),
        texts=texts,
        answers=answers,
    )
    return msgspec.structs.replace(result, notes=tuple(notes_on(result, old, new, pairs)))


def samples_of(metric: str, pairs: Sequence[Pair]) -> tuple[Sample, Sample] | None:
    """One metric before and after, over the requests for which both runs have it; None if there are
    none.
    """
    if metric not in _METRICS:
        return None
    figure, addends, combine = _METRICS[metric]
    sums = [(old, addends(old), addends(new)) for old, new in pairs]
    in_both = [(old, a, b) for old, a, b in sums if a is not None and b is not None]
    if not in_both:
        return None
    requests = tuple(old.id for old, _, _ in in_both)
    weights = np.array([old.weight for old, _, _ in in_both])
    before, after = np.array([a for _, a, _ in in_both]), np.array([b for _, _, b in in_both])
    return (
        Sample(figure, requests, weights, before, combine),
        Sample(figure, requests, weights, after, combine),
    )


def _over_all(limit: Limit, old: Baseline, new: Baseline, pairs: Sequence[Pair]) -> Check | None:
    """The check of one metric over all requests; None for an α that only one run has.

    Raises:
        UsageError: another metric that cannot be compared.
    """
    metric, costs = limit.metric, (old.cost_ratios, new.cost_ratios)
    samples = samples_of(metric, pairs)
    if metric == "draft_cost_ratio" and all(costs):
        values = tuple(_value(median(ratios), median_interval(ratios)) for ratios in costs)
        rose = _timed(rise(*costs, relative=limit.relative), limit, old, new)
        # A rise of the cost is a loss; the check shows the rise.
        risen = rose.interval
        gain = replace(rose, interval=risen and Estimate(-risen.value, -risen.high, -risen.low))
        return msgspec.structs.replace(_check(limit, None, values, gain), difference=risen)
    if samples is None:
        if metric == "alpha":
            return None
        timed = f"decoding at k = {old.question.k}"
        needed = "costs of a draft step" if metric == "draft_cost_ratio" else timed
        raise UsageError(
            f"{metric} cannot be compared: one of the two runs did not measure {needed}",
            hint="sweep again with --measure all, or drop that limit",
        )
    figures = [sample.value for sample in samples]
    if None in figures:
        raise UsageError(
            f"{metric} is undefined: nothing was drafted in the {len(pairs)} requests",
            hint="take traffic with longer responses",
        )
    values = tuple(map(_value, figures, estimates(samples)))
    gain = _timed(gain_of(*samples, relative=limit.relative), limit, old, new)
    return _check(limit, None, values, gain)


def _timed(gain: Gain, limit: Limit, old: Baseline, new: Baseline) -> Gain:
    """The gain, whose interval for a timed metric holds the scatter between processes too."""
    if limit.metric not in TIMED:
        return gain
    sides = [
        [time for process in side.processes if (time := getattr(process, limit.metric)) is not None]
        for side in (old, new)
    ]
    return with_processes(gain, *sides, relative=limit.relative)


def _over_segments(
    limits: Sequence[Limit], old: Baseline, new: Baseline, segments: dict[str, list[Pair]]
) -> list[Check]:
    """The checks of every metric in every segment; one fails only if its p-value, adjusted for
    their number (Holm), is small enough.
    """
    checks: list[Check] = []
    p_values: list[float] = []
    for name, pairs in segments.items():
        for limit in limits:
            samples = samples_of(limit.metric, pairs)
            values = [sample.value for sample in samples or ()]
            if samples is None or None in values:
                continue
            gain = _timed(gain_of(*samples, relative=limit.relative), limit, old, new)
            checks.append(_check(limit, name, [_value(v, None) for v in values], gain))
            p_values.append(gain.p_fail(limit.value))
    corrected = []
    for check, p in zip(checks, holm(p_values), strict=True):
        by_chance = check.verdict is Verdict.FAIL and p > TAIL
        verdict = Verdict.INCONCLUSIVE if by_chance else check.verdict
        corrected.append(msgspec.structs.replace(check, verdict=verdict, holm_p=p))
    return corrected


def _value(value: float | None, interval: Estimate | None) -> FigureValue:
    assert value is not None
    if interval is None:
        return FigureValue(value=value)
    return FigureValue(value=value, low=interval.low, high=interval.high)


def _check(limit: Limit, segment: str | None, values: Sequence[FigureValue], gain: Gain) -> Check:
    verdict = gain.verdict(limit.value)
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
        requests_needed=(
            gain.requests_to_settle(limit.value) if inconclusive and gain.may_fail else None
        ),
        more_processes=inconclusive and not gain.may_fail,
        smallest_detectable_drop=gain.smallest_detectable_drop(limit.value),
    )


def _new_faults(old: Baseline, new: Baseline, pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Messages of suspected faults of the new run alone: of a kind that the old run lacks, or
    responses that loop or end at once and did not before.
    """
    known = {fault.kind for fault in old.faults}
    faults = [fault.message for fault in new.faults if fault.kind not in known]
    states: dict[str, Callable[[RequestCounts], bool]] = {
        "end after one token, so that nothing is drafted": lambda counts: counts.tokens == 0,
        "end in a loop, which any draft predicts too easily": lambda counts: counts.looping > 0,
    }
    for state, in_state in states.items():
        states_of = [(in_state(before), in_state(after)) for before, after in pairs]
        worse, better = states_of.count((False, True)), states_of.count((True, False))
        if chance_of(worse, better) <= TAIL and worse - better >= _SHARE * len(pairs):
            before, after = (sum(side) for side in zip(*states_of, strict=True))
            faults.append(
                f"{after} of {len(pairs)} responses {state}; in the baseline {before} did"
            )
    return tuple(faults)


def judge_answers(old: Baseline, new: Baseline) -> AnswerCheck | None:
    """Whether more requests went unanswered than before, among those that both runs sent; None if
    all were answered.
    """
    both = old.asked & new.asked
    before, now = both & old.unanswered.keys(), both & new.unanswered.keys()
    if not now:
        return None
    worse, better = len(now - before), len(before - now)
    failed, needed = chance_of(worse, better) <= TAIL, None
    if worse > better and not failed:
        times = next(n for n in count(2) if chance_of(n * worse, n * better) <= TAIL)
        needed = times * len(both)
    return AnswerCheck(
        requests=len(both),
        unanswered=len(now),
        baseline_unanswered=len(before),
        reasons=dict(Counter(new.unanswered[request] for request in sorted(now)).most_common()),
        requests_needed=needed,
        verdict=Verdict.FAIL if failed else Verdict.INCONCLUSIVE,
    )


@dataclass(frozen=True)
class _Matches:
    """How three texts of a request compare with its text without speculation."""

    drafted: Match  # the one with speculation
    again: Match | None  # a second one without
    before: Match | None  # the baseline's with speculation


def judge_texts(old: Baseline, new: Baseline, pairs: Sequence[Pair]) -> TextCheck | None:
    """Whether a serving engine writes with speculation what it writes without; None if neither run
    has both texts.

    Three texts of a request are compared with the one without speculation: the text with it, a
    second text without, and the baseline's text with it. The check fails if significantly more
    requests differ, other than at a near tie, in the first than in either of the others.
    Differences of unknown cause, which may be near ties, can only make it inconclusive, and so can
    all differences if the server was not asked twice without speculation. If the new run has no
    text without speculation, the baseline's serves, provided that the same server wrote it.
    """
    found = [
        _Matches(now.text, now.plain_text, was.text) for was, now in pairs if now.text is not None
    ]
    against_baseline = not found
    same_server = all(old.tested.get(fact) == new.tested.get(fact) is not None for fact in _SERVER)
    if against_baseline and same_server:
        found = [
            _Matches(
                "same" if now.drafted in (was.output, was.drafted) else "unknown",
                was.plain_text,
                None,
            )
            for was, now in pairs
            if was.output and now.drafted
        ]
    if not found:
        return None
    drafted = [each.drafted for each in found]
    again = [each.again for each in found if each.again is not None]
    before = [each.before for each in found if each.before is not None]
    verdict = Verdict.PASS
    if again and all(chance_of(*counts) <= TAIL for counts in _worse_and_better(found, _SURE)):
        verdict = Verdict.FAIL
    elif all(worse > better for worse, better in _worse_and_better(found, _DIFFERENT)):
        verdict = Verdict.INCONCLUSIVE
    return TextCheck(
        requests=len(found),
        differ=_count(drafted, _DIFFERENT),
        unknown=drafted.count("unknown"),
        near_ties=drafted.count("near tie"),
        plain_requests=len(again),
        plain_differ=_count(again, _DIFFERENT),
        baseline_differ=_count(before, _DIFFERENT) if before else None,
        against_baseline=against_baseline,
        verdict=verdict,
    )


def _count(matches: Sequence[Match], kinds: Collection[Match]) -> int:
    return sum(match in kinds for match in matches)


def _worse_and_better(
    found: Sequence[_Matches], kinds: Collection[Match]
) -> Iterator[tuple[int, int]]:
    """McNemar's counts, against the second text without speculation, then against the baseline's:
    in how many requests only the text with speculation differs, and in how many only the other
    does.
    """
    again = [(each.drafted, each.again) for each in found if each.again is not None]
    before = [(each.drafted, each.before) for each in found if each.before is not None]
    for compared in filter(None, (again, before)):
        both = [(drafted in kinds, other in kinds) for drafted, other in compared]
        yield both.count((True, False)), both.count((False, True))
    if not (again or before):
        yield _count([each.drafted for each in found], kinds), 0
