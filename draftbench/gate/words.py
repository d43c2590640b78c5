"""A verdict in words: a line for each check, and the notes below them, which end in what to do
next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from draftbench.acceptance.definitions import equal_requests
from draftbench.acceptance.intervals import FEW_REQUESTS
from draftbench.engines.every import STARTED
from draftbench.gate.metrics import TIMED
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.pair import Pairing
from draftbench.gate.result import Check, GateResult
from draftbench.planner.passes import MIN_PROCESSES
from draftbench.run_folder.manifest import repeat_flag
from draftbench.run_folder.served import not_answered
from draftbench.safe_files import without_controls

TEXTS_NOT_JUDGED = (
    "whether speculation changes what is written was not judged: that needs answers of one server "
    "with it and one without (--baseline-server), one request at a time at temperature 0"
)
# Traffic of which a smaller share moved between requests is the same mix.
SHIFTED = 0.05
SAME_RUN = "this is the run that the baseline was made from; gate a later one"
SPEED_NOT_JUDGED = "only acceptance was judged, not speed: that takes `--max-drop speedup:5%`"


def describe(check: Check) -> str:
    """A check with its figures, limit and verdict, in one line."""
    segment = f" [{check.segment}]" if check.segment is not None else ""
    return one_line(
        f"{check.metric}{segment}: {number(check.old.value)} → {number(check.new.value)}, "
        f"{difference(check)}, limit {check.limit.amount(check.limit.value)}: {check.verdict}"
    )


def other_checks(result: GateResult) -> list[tuple[str, Verdict, str]]:
    """What is judged besides the metrics: name, verdict, and a line on it."""
    checks = []
    if (payoff := result.payoff) is not None:
        was, now = (
            f"{each.value:.2f}× ({each.low:.2f}–{each.high:.2f})" if each else "unknown"
            for each in (payoff.old, payoff.new)
        )
        where = ", timed elsewhere" if payoff.elsewhere else ""
        if whole := payoff.slower_with_prefills:
            now += f", {whole.value:.2f}× ({whole.low:.2f}–{whole.high:.2f}) with both prefills"
        words = f"another draft: speed-up {was} in the baseline{where}, now {now}: {payoff.verdict}"
        checks.append(("speed-up of another draft", payoff.verdict, one_line(words)))
    if (answers := result.answers) is not None:
        missing = not_answered(Counter(answers.reasons).elements(), answers.requests)
        before = f"{answers.baseline_unanswered} in the baseline"
        words = one_line(f"{missing}; {before}: {answers.verdict}")
        checks.append(("answered requests", answers.verdict, words))
    if (texts := result.texts) is not None:
        plain = "the baseline's plain decoding" if texts.against_baseline else "plain decoding"
        same = texts.requests - texts.differ - texts.near_ties
        parts = [f"{same} of {texts.requests} answers match {plain}"]
        for count, why in (
            (texts.near_ties, "near tie"),
            (texts.unknown, "cause unknown"),
            (texts.differ - texts.unknown, "no near tie"),
        ):
            parts += [f"{count} differ{'s' * (count == 1)} ({why})"] if count else []
        if texts.differ:
            again = f"{texts.plain_differ} of {texts.plain_requests} differ"
            again = again if texts.plain_requests else "unknown"
            parts.append(f"plain decoding repeated: {again}")
        if texts.differ and texts.baseline_differ is not None:
            parts.append(f"in the baseline {texts.baseline_differ} differed")
        words = f"output check: {'; '.join(parts)}: {texts.verdict}"
        checks.append(("output check", texts.verdict, words))
    return checks


def number(value: float) -> str:
    """Three decimals, or three digits below 0.1: a cost ratio may be 0.002."""
    return f"{value:.3f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def difference(check: Check) -> str:
    """The change and its interval, in the unit of the limit."""
    change = check.difference
    if change is None:
        return "change unknown"
    scale, unit, digits = (100, "%", 2) if check.limit.relative else (1, "", 4)
    value, low, high = (
        f"{scale * end:+.{digits}f}" for end in (change.value, change.low, change.high)
    )
    return f"{value}{unit} [{low}, {high}]"


def one_line(text: str) -> str:
    """The text without line ends and control characters."""
    return without_controls(" ".join(text.split()))


def notes_on(result: GateResult, pairing: Pairing) -> Iterator[str]:
    """The notes of a verdict, the most urgent first."""
    if pairing.same_run:
        yield SAME_RUN
        return
    yield from _warnings(result, pairing)
    yield from _where_it_fell(result, pairing)
    yield from _who_is_to_blame(result, pairing)
    yield from _next_steps(result, pairing)
    yield from _left_out(result, pairing)
    engine = pairing.new.tested.get("engine")
    if result.texts is None and engine is not None:
        yield TEXTS_NOT_JUDGED
    if result.verdict is Verdict.PASS and not result.timed:
        yield f"{SPEED_NOT_JUDGED}; {_swept_repeatedly(engine)}"


def _warnings(result: GateResult, pairing: Pairing) -> Iterator[str]:
    """Faults, doubts, and what else may be behind a change: other prompts, another target."""
    faults = (*result.faults, *(fault.message for fault in pairing.new.faults))
    yield from (f"suspected fault: {message}" for message in dict.fromkeys(faults))
    yield from (f"doubt: {text}" for text in result.doubts)
    if longer := pairing.longer_prompts:
        by = " to ".join(dict.fromkeys((f"{min(longer):+}", f"{max(longer):+}")))
        yield (
            f"{len(longer)} of {result.requests} requests have prompts of another length than "
            f"before ({by} tokens): the chat template or the tokenizer changed"
        )
    if fact := pairing.other_target:
        parts = [
            part
            for part in ("tokenizer", "chat template")
            if len({*pairing.facts(f"target {part}")} - {None}) == 2
        ]
        what = "the target is another model"
        if fact == "target fingerprint" and parts:
            what = f"the target's {' and '.join(parts)} changed, and perhaps its weights"
        before, now = pairing.facts(fact)
        yield f"{what}: {fact} was `{before}`, is `{now}`"


def _where_it_fell(result: GateResult, pairing: Pairing) -> Iterator[str]:
    """Where most acceptance was lost: in which segment, and at which draft position."""
    old, new = pairing.old, pairing.new
    failed = result.verdict is Verdict.FAIL
    if pairing.one_from_text:
        yield (
            f"only speed was judged: {pairing.one_from_text} drafts without a model, so that its "
            "acceptance and a model's do not say which of the two is better"
        )
    elif failed and any(check.verdict is Verdict.FAIL for check in result.checks):
        failing = [check for check in result.segments if check.verdict is Verdict.FAIL]
        drops = [
            (check.difference.value / check.limit.value, check)  # metrics have units of their own
            for check in failing or result.segments
            if check.difference and check.difference.value < 0
        ]
        if drops:
            _, worst = min(drops, key=lambda drop: drop[0])
            yield (
                f"largest drop by segment: {worst.segment} "
                f"({worst.metric} {worst.old.value:.2f} → {worst.new.value:.2f})"
            )
        # By hazard, not survival, which would count a loss at one position at all later ones too.
        hazards = [
            [s / b if b > 0 else 0.0 for s, b in zip(survival, (1.0, *survival), strict=False)]
            for survival in (old.survival, new.survival)
        ]
        lost = [1 - now / was if was > 0 else 0.0 for was, now in zip(*hazards, strict=False)]
        if max(lost, default=0.0) > 0:
            at = lost.index(max(lost))
            yield (
                f"largest drop by draft position: position {at + 1} of {result.k}; "
                f"{old.survival[at]:.1%} of the rounds accepted it and all before it, now "
                f"{new.survival[at]:.1%}"
            )
    if failed and result.changes:
        yield f"changed since the baseline: {', '.join(change.fact for change in result.changes)}"


def _who_is_to_blame(result: GateResult, pairing: Pairing) -> Iterator[str]:
    """Whether the target still writes what it wrote; of servers that were not asked without
    speculation, what they write with it. The draft is blamed only if more than its times is in
    question, and neither engine nor target changed.
    """
    pairs = pairing.pairs
    texts = [(was.output, now.output) for was, now in pairs if was.output and now.output]
    texts = texts or [(o.drafted, n.drafted) for o, n in pairs if o.drafted and n.drafted]
    if different := sum(was != now for was, now in texts):
        yield (
            f"the target's responses to {different} of {len(texts)} requests changed: look at its "
            "weights, prompts and kernels, not only at the draft"
        )
    elif texts and result.verdict is not Verdict.PASS:
        facts = [change.fact for change in result.changes]
        others = [fact for fact in facts if fact.startswith(("engine", "target", "served"))]
        doubted = {check.metric for check in result.checks if check.verdict is not Verdict.PASS}
        blamed = f", though {' and '.join(others)} changed" if others else ""
        if not others and doubted - {*TIMED}:
            blamed = ", so the draft is what changed"
        yield f"the target's responses are the same as before{blamed}"


def _next_steps(result: GateResult, pairing: Pairing) -> Iterator[str]:
    """What would settle what is inconclusive, and what to do with a gain."""
    answers, payoff = result.answers, result.payoff
    if answers and answers.verdict is Verdict.INCONCLUSIVE:
        settled = "a run in which all are answered passes"
        if answers.requests_needed is not None:
            settled += f", and about {answers.requests_needed} requests would fail at this share"
        yield (
            f"unanswered requests are inconclusive: {settled}; the server's log says what is wrong"
        )
    if payoff and payoff.verdict is Verdict.INCONCLUSIVE and not result.doubts and payoff.new:
        yield "whether another draft still pays is open: more requests or processes would tell"
    elif payoff and (payoff.elsewhere or not (payoff.old and payoff.new)):
        yield (
            "another draft takes another time: sweep both on one machine, timed "
            "(--measure best), to see whether it pays as the baseline's did"
        )
    for check in result.pooled:
        if check.verdict is Verdict.INCONCLUSIVE:
            yield _inconclusive(check, pairing.new.tested.get("engine"))
    gained = ", ".join(check.metric for check in result.pooled if check.improved)
    passed = result.verdict is Verdict.PASS
    if gained and passed and payoff and not payoff.faster:
        yield f"improved: {gained}, but not the speed-up: the baseline's draft may be the better"
    elif gained and passed:
        yield f"improved: {gained}; save a new baseline to keep the gain"
    elif gained and result.verdict is Verdict.INCONCLUSIVE and pairing.maybe_easier:
        asked = "with another target, whose responses"
        asked = "on different prompts, which" if pairing.longer_prompts else asked
        yield (
            f"improved: {gained}, but {asked} may be easier or broken: read some responses, and "
            "save a new baseline if the change is intended"
        )


def _left_out(result: GateResult, pairing: Pairing) -> Iterator[str]:
    """What the comparison leaves out, or can hardly say."""
    old, new = pairing.old, pairing.new
    equal = equal_requests(np.array([was.weight * now.tokens for was, now in pairing.pairs]))
    if equal < FEW_REQUESTS:
        few = "only one request" if result.requests == 1 else f"only {result.requests} requests"
        if result.requests >= FEW_REQUESTS:
            few += f", of lengths so unequal that they say as much as {equal:.0f}"
        yield f"{few}: with fewer than {FEW_REQUESTS}, intervals are rough"
    if pairing.missing:
        yield f"left out, since this run lacks them: {pairing.missing} of the baseline's requests"
    if pairing.moved > SHIFTED:
        yield (
            f"{pairing.moved:.0%} of the traffic's weight moved between requests: judged by the "
            "baseline's weights; save a new baseline if the mix changed on purpose"
        )
    definitions = {old.alpha_definition, new.alpha_definition}
    if (None in definitions or len(definitions) > 1) and not pairing.one_from_text:
        why = "prompt lookup and heads have none"
        if pairing.one_was_counted:
            why = "one of the two was replayed, the other is what a server counted"
        elif new.question.concurrency is not None:
            whose = "the server" if new.alpha_definition is None else "the baseline's server"
            why = f"{whose} did not say at which positions it accepted"
        yield f"no alpha: {why}"
    if pairing.came_at_other_times:
        yield (
            "requests came at other times than in the baseline (another --seed, other timestamps "
            "in the log, or not the same requests): acceptance differs by it only where the engine "
            "drafts by load"
        )
    if result.timed and min(len(old.processes), len(new.processes)) < MIN_PROCESSES:
        yield (
            "times of fewer than three processes: restarts can differ by more than these intervals"
        )


def _inconclusive(check: Check, engine: str | None) -> str:
    if check.obstacle:
        return f"{check.metric} is inconclusive: {check.obstacle}"
    if check.more_processes:
        return (
            f"{check.metric} is inconclusive: a time fails only where three processes or more "
            f"measured it in both runs, since restarts differ; {_swept_repeatedly(engine)}"
        )
    unit = "repeats" if check.metric == "draft_cost_ratio" else "requests"
    note = f"{check.metric} is inconclusive over {check.sample} {unit}"
    if check.detects is not None:
        note += f", which is enough to detect drops of {check.detects} or more"
    if check.requests_needed is None:
        return (
            f"{note}; no reasonable sample size would settle it: "
            "the drop is close to the limit, or its spread is unknown"
        )
    return f"{note}; about {check.requests_needed} would settle it"


def _swept_repeatedly(engine: str | None) -> str:
    """How to sweep so that times can be judged, on the runner that a run was measured on."""
    repeated = f"{repeat_flag(engine)} {MIN_PROCESSES}"
    if engine is None:
        return f"sweep both with `{repeated} --measure all`"
    running = "a server that is running counts as one process"
    return (
        f"sweep both with `--engine {engine} {repeated}`; {running}"
        if engine in STARTED
        else running
    )
