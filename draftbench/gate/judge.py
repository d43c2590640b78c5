"""Two baselines and limits → the gate's verdict.

*fail*: a metric fails over all requests, or acceptance in a segment after Holm's correction over
all segments and metrics; or a serving engine writes other texts with speculation, or leaves more
requests without an answer; or the new run has a suspected fault that the old did not have. *pass*:
the texts and every metric over all requests pass, and every request was answered; segments need
not, since they are small. *inconclusive*: anything else; a rise of acceptance on other prompts or
with another target, which may be easier to draft for; and the very run that the baseline was made
from.

Suspected faults fail the gate whatever the metrics say, because a broken set-up may improve them: a
doubled first token or another model's chat template changes what is answered, and acceptance rises
if the answers end in loops, which are easy to draft.

No metric passes or fails on figures that cannot be relied on, those of a run with a doubt about
them (`planner.doubts`), and none passes that requests missing from the new run could have lowered
beyond the limit. Another draft also has to pay.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from itertools import count
from statistics import median

import msgspec
from msgspec.structs import replace

from draftbench.acceptance.intervals import Estimate, estimates
from draftbench.errors import IncomparableError, UsageError
from draftbench.gate.baseline import Baseline, RequestCounts
from draftbench.gate.metrics import DEFAULT_DROP, TIMED, Limit, default_limits
from draftbench.gate.noninferiority import (
    TAIL,
    Verdict,
    chance_of,
    gain_of,
    holm,
    median_interval,
    rise,
    with_processes,
)
from draftbench.gate.pair import Pairing, samples_of
from draftbench.gate.result import (
    EXIT_CODES,
    RESULT_SCHEMA_VERSION,
    AnswerCheck,
    Change,
    Check,
    FigureValue,
    GateResult,
    PayoffCheck,
    TextCheck,
)
from draftbench.gate.words import notes_on
from draftbench.planner.caveat_kinds import ACCEPTANCE, SPEED, CaveatKind
from draftbench.planner.decide import decide
from draftbench.planner.output_check import Match
from draftbench.planner.recommendation import Decision

# Responses that newly loop, or newly end at once, are a suspected fault from this share on.
_SHARE = 0.1
# What a draft does for the target's speed, from bad to good.
_WORST_FIRST: tuple[Decision, ...] = ("do_not_speculate", "inconclusive", "speculate")
# How a text may differ other than at a near tie.
_DIFFERENT: tuple[Match, ...] = ("unknown", "other")


def judge(old: Baseline, new: Baseline, limits: Sequence[Limit] | None = None) -> GateResult:
    """Whether the new run is worse than the old by more than the limits allow (default: those for
    the old run's k).

    α is left out, with a note, if one of the two has another definition. What drafts from the text
    alone is judged against a model by speed.

    Raises:
        IncomparableError: the two measured different things; names all that differs.
        UsageError: a limited metric was not measured, or none can be compared.
    """
    pairing = Pairing(old, new)
    limits = default_limits(old.alpha, old.question.k) if limits is None else limits
    if pairing.one_from_text:
        by_speed = [limit for limit in limits if limit.metric == "speedup"]
        limits = by_speed or [Limit(metric="speedup", value=DEFAULT_DROP, relative=True)]
    elif pairing.one_was_counted:
        limits = [limit for limit in limits if limit.metric != "alpha"]
    pairing.refuse_incomparable(limits)
    if pairing.one_from_text and samples_of("speedup", old.requests, new.requests) is None:
        untimed = [s.candidate for s in (old, new) if all(r.speed is None for r in s.requests)]
        raise IncomparableError(
            f"{pairing.one_from_text} and a model can be compared by speed alone, at k = "
            f"{old.question.k}; not decoded there: {', '.join(untimed) or 'the same requests'}",
            hint="sweep with --measure all, which decodes at every k",
        )
    pooled = [check for limit in limits if (check := _check(limit, pairing))]
    if not pooled:
        raise UsageError(
            "none of the limited metrics can be compared",
            hint="the two runs define α differently, or one has none; limit mean_accepted_length",
        )
    by_segment, faults = _judge_segments(limits, pairing), _new_faults(pairing)
    texts, answers = _judge_texts(pairing), _judge_answers(old, new)
    timed = any(limit.metric in TIMED for limit in limits)
    payoff = None if any(limit.metric == "speedup" for limit in limits) else _judge_payoff(pairing)
    if pairing.same_run:  # that nothing changed is no finding
        pooled = [replace(check, verdict=Verdict.INCONCLUSIVE) for check in pooled]
        by_segment = [replace(check, verdict=Verdict.INCONCLUSIVE) for check in by_segment]
        texts = texts and replace(texts, verdict=Verdict.INCONCLUSIVE)
    verdicts = [check.verdict for check in (*pooled, texts, answers, payoff) if check is not None]
    maybe_easier = pairing.maybe_easier and any(check.improved for check in pooled)
    if faults or Verdict.FAIL in (*verdicts, *(check.verdict for check in by_segment)):
        verdict = Verdict.FAIL
    elif maybe_easier or Verdict.INCONCLUSIVE in verdicts:
        verdict = Verdict.INCONCLUSIVE
    else:
        verdict = Verdict.PASS
    question = msgspec.json.encode((old.question, [counts.id for counts in old.requests]))
    result = GateResult(
        schema_version=RESULT_SCHEMA_VERSION,
        verdict=verdict,
        exit_code=EXIT_CODES[verdict],
        old=old.candidate,
        new=new.candidate,
        mode=old.question.mode,
        k=old.question.k,
        question=sha256(question).hexdigest()[:12],
        requests=len(pairing.pairs),
        checks=(*pooled, *by_segment),
        changes=tuple(
            Change(fact=fact, old=before, new=new.tested[fact])
            for fact, before in old.tested.items()
            if new.tested.get(fact, before) != before
        ),
        faults=tuple(faults),
        notes=(),
        texts=texts,
        answers=answers,
        payoff=payoff,
        doubts=tuple(_doubts(ACCEPTANCE | SPEED if timed or payoff else ACCEPTANCE, old, new)),
    )
    return replace(result, notes=tuple(notes_on(result, pairing)))


def _check(limit: Limit, pairing: Pairing, segment: str | None = None) -> Check | None:
    """The check of one metric over all requests or over those of a segment, which has no intervals
    of the two figures, and whose p-value is not corrected yet. None for an α that only one run has,
    and for a segment in which the metric is unknown.

    Raises:
        UsageError: another metric that cannot be compared over all requests.
    """
    metric, relative, old, new = limit.metric, limit.relative, pairing.old, pairing.new
    requests = [each for each in old.requests if segment in (None, each.segment)]
    costs, samples = (old.cost_ratios, new.cost_ratios), samples_of(metric, requests, new.requests)
    figures: Sequence[float | None] = ()
    intervals: Sequence[Estimate | None] = (None, None)
    if metric == "draft_cost_ratio" and all(costs):
        figures = [median(ratios) for ratios in costs]
        intervals = [median_interval(ratios) for ratios in costs]
        gain = rise(*costs, relative=relative)
    elif samples is not None:
        figures = [sample.value for sample in samples]
        intervals = estimates(samples) if segment is None else intervals
        gain = gain_of(*samples, relative=relative)
    if not figures or None in figures:
        if segment is not None or (metric == "alpha" and not figures):
            return None
        if figures:
            raise UsageError(
                f"{metric} is undefined: nothing was drafted in the {len(pairing.pairs)} requests",
                hint="take traffic with longer responses",
            )
        timed = f"decoding at k = {old.question.k}"
        needed = "costs of a draft step" if metric == "draft_cost_ratio" else timed
        raise UsageError(
            f"{metric} cannot be compared: one of the two runs did not measure {needed}",
            hint="sweep again with --measure all, or drop that limit",
        )
    if metric in TIMED:  # its interval holds the scatter between processes too
        times = (
            [t for each in side.processes if (t := getattr(each, metric)) is not None]
            for side in (old, new)
        )
        gain = with_processes(gain, *times, relative=relative)
    difference = gain.interval
    if metric == "draft_cost_ratio" and difference:  # a rise is a loss; the check shows the rise
        loss = Estimate(-difference.value, -difference.high, -difference.low)
        gain = dataclasses.replace(gain, interval=loss)
    verdict = gain.verdict(limit.value)
    is_open = verdict is Verdict.INCONCLUSIVE
    if obstacle := _obstacle(limit, pairing, requests, verdict):
        verdict = Verdict.INCONCLUSIVE
    before, after = (
        FigureValue(value=value, low=ends.low, high=ends.high) if ends else FigureValue(value=value)
        for value, ends in zip(figures, intervals, strict=True)
        if value is not None
    )
    return Check(
        metric=metric,
        segment=segment,
        sample=gain.requests,
        old=before,
        new=after,
        difference=difference,
        limit=limit,
        verdict=verdict,
        improved=not obstacle
        and segment is None
        and gain.interval is not None
        and gain.interval.low > 0,
        requests_needed=(
            gain.requests_to_settle(limit.value) if is_open and gain.may_fail else None
        ),
        more_processes=is_open and not gain.may_fail,
        smallest_detectable_drop=gain.smallest_detectable_drop(limit.value),
        holm_p=None if segment is None else gain.p_fail(limit.value),
        obstacle=obstacle,
    )


def _obstacle(
    limit: Limit, pairing: Pairing, requests: Sequence[RequestCounts], verdict: Verdict
) -> str | None:
    """Why a metric over these requests stays open whatever its figures say; None if it does not."""
    if _doubts(SPEED if limit.metric in TIMED else ACCEPTANCE, pairing.old, pairing.new):
        return "its figures cannot be relied on"
    if verdict is not Verdict.PASS or limit.metric in TIMED or not pairing.missing:
        return None
    # If the new run had answered the requests that it lacks, and accepted nothing in them.
    answered = {counts.id for counts in pairing.new.requests}
    worst = [each if each.id in answered else _rejected(each) for each in requests]
    if (samples := samples_of(limit.metric, requests, worst)) is None:
        return None
    before, after = (sample.value or 0.0 for sample in samples)
    drop = (before - after) / (before if limit.relative else 1.0)
    if drop <= limit.value:
        return None
    hidden = limit.amount(float(f"{drop:.2g}"))
    return f"the requests that this run lacks could hide a drop of {hidden}"


def _rejected(counts: RequestCounts) -> RequestCounts:
    """The counts of a request if every drafted token had been rejected."""
    rounds, alpha_sum = counts.tokens, None if counts.alpha_sum is None else 0.0
    return replace(counts, passes=rounds, rounds=rounds, accepted=0.0, alpha_sum=alpha_sum)


def _doubts(kinds: Collection[CaveatKind], old: Baseline, new: Baseline) -> list[str]:
    """The doubts of these kinds about either run, in sentences."""
    return [
        f"{whose}: {doubt.text}"
        for whose, side in (("the baseline", old), ("this run", new))
        for doubt in side.doubts
        if doubt.kind in kinds
    ]


def _judge_payoff(pairing: Pairing) -> PayoffCheck | None:
    """Whether another draft pays at least as surely as the baseline's did; None if it is the same
    draft. One of the same name and size costs the same, even if it was not timed. Speed-ups of two
    machines, runners or loads cannot be compared.
    """
    old, new = pairing.old, pairing.new
    before, now = pairing.facts("draft fingerprint")
    renamed = old.candidate != new.candidate
    if not renamed and (None in (before, now) or before == now):
        return None
    elsewhere = bool(pairing.elsewhere) or old.concurrency != new.concurrency
    verdict = Verdict.INCONCLUSIVE
    if not old.speedup or not new.speedup:
        names = ("parameters", "bytes", "dtype", "runner")
        sizes = (pairing.facts(f"draft {name}") for name in names)
        if not renamed and all(was == is_now is not None for was, is_now in sizes):
            return None
    elif not elsewhere:
        paid, pays = (_WORST_FIRST.index(_pays(side)) for side in (old, new))
        if pays < paid - 1:
            verdict = Verdict.FAIL
        elif pays >= paid and not _doubts(SPEED, old, new):
            verdict = Verdict.PASS
    return PayoffCheck(
        old=old.speedup,
        new=new.speedup,
        elsewhere=elsewhere,
        verdict=verdict,
        old_end_to_end=old.speedup_end_to_end,
        new_end_to_end=new.speedup_end_to_end,
    )


def _pays(side: Baseline) -> Decision:
    """Whether the draft pays: not if whole requests, with both prefills, get slower."""
    whole = side.speedup_end_to_end
    return "do_not_speculate" if whole and whole.high < 1 else decide(side.speedup, 1.0)


def _judge_segments(limits: Sequence[Limit], pairing: Pairing) -> list[Check]:
    """The checks of every segment by acceptance, unless there is only one; corrected for their
    number, since of many some would fail by chance alone.
    """
    answered = {old.segment for old, _ in pairing.pairs if old.segment is not None}
    checks = [
        check
        for name in sorted(answered)
        if len(answered) > 1
        for limit in limits
        if limit.metric not in TIMED and (check := _check(limit, pairing, name))
    ]
    for at, adjusted in enumerate(holm([check.holm_p or 0.0 for check in checks])):
        verdict = checks[at].verdict
        if verdict is Verdict.FAIL and adjusted > TAIL:
            verdict = Verdict.INCONCLUSIVE
        checks[at] = replace(checks[at], verdict=verdict, holm_p=adjusted)
    return checks


def _new_faults(pairing: Pairing) -> list[str]:
    """Suspected faults of a kind that the old run lacks, and responses that newly end badly."""
    pairs, known = pairing.pairs, {fault.kind for fault in pairing.old.faults}
    faults = [fault.message for fault in pairing.new.faults if fault.kind not in known]
    states: tuple[tuple[str, Callable[[RequestCounts], bool]], ...] = (
        ("end after one token, so that nothing is drafted", lambda counts: counts.tokens == 0),
        ("end in a repetition loop, which any draft predicts", lambda counts: counts.looping > 0),
    )
    for words, in_state in states:
        of_pairs = [(in_state(before), in_state(after)) for before, after in pairs]
        worse, better = of_pairs.count((False, True)), of_pairs.count((True, False))
        if chance_of(worse, better) <= TAIL and worse - better >= _SHARE * len(pairs):
            was, now = (sum(side) for side in zip(*of_pairs, strict=True))
            faults.append(f"{now} of {len(pairs)} responses {words}; in the baseline {was} did")
    return faults


def _judge_answers(old: Baseline, new: Baseline) -> AnswerCheck | None:
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


def _judge_texts(pairing: Pairing) -> TextCheck | None:
    """Whether a serving engine writes with speculation what it writes without; None if neither run
    has both texts.

    Differences from a request's plain text, near ties aside, are counted for its speculative text,
    for a second plain text, and for the baseline's speculative text. The check fails if the first
    count is significantly above both others. Differences of unknown cause may be near ties: they
    make it at most inconclusive, and so does every difference if no second plain text was asked
    for. Without a plain text in the new run, the baseline's serves if the same server wrote it.
    """
    found: list[tuple[Match, Match | None, Match | None]] = [
        (now.text, now.plain_text, was.text) for was, now in pairing.pairs if now.text is not None
    ]
    against_baseline = not found
    facts = map(pairing.facts, ("engine", "engine version", "target"))
    if not found and all(before == now is not None for before, now in facts):
        found = [
            (
                "same" if now.drafted in (was.output, was.drafted) else "unknown",
                was.plain_text,
                None,
            )
            for was, now in pairing.pairs
            if was.output and now.drafted
        ]
    if not found:
        return None
    drafted, again, before = zip(*found, strict=True)
    answered_twice = any(again)

    def worse_and_better(kinds: Collection[Match]) -> list[tuple[int, int]]:
        """McNemar's counts against the second plain text and the baseline's: in how many requests
        only the speculative text differs, and in how many only the other does. Without either,
        against texts of which none differs.
        """
        others = [side for side in (again, before) if any(side)] or [("same",) * len(drafted)]
        both = [
            [(d in kinds, o in kinds) for d, o in zip(drafted, other, strict=True) if o is not None]
            for other in others
        ]
        return [(each.count((True, False)), each.count((False, True))) for each in both]

    verdict = Verdict.PASS
    if answered_twice and all(chance_of(*counts) <= TAIL for counts in worse_and_better(["other"])):
        verdict = Verdict.FAIL
    elif all(worse > better for worse, better in worse_and_better(_DIFFERENT)):
        verdict = Verdict.INCONCLUSIVE
    differ, plain_differ, baseline_differ = (
        sum(match in _DIFFERENT for match in side) for side in (drafted, again, before)
    )
    return TextCheck(
        requests=len(found),
        differ=differ,
        unknown=drafted.count("unknown"),
        near_ties=drafted.count("near tie"),
        plain_requests=sum(match is not None for match in again),
        plain_differ=plain_differ,
        baseline_differ=baseline_differ if any(before) else None,
        against_baseline=against_baseline,
        verdict=verdict,
    )
