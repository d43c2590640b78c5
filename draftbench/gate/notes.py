"""The notes below a verdict: its caveats, and where to look next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from draftbench.acceptance.definitions import equal_requests
from draftbench.acceptance.intervals import FEW_REQUESTS
from draftbench.gate.baseline import Baseline
from draftbench.gate.limits import TIMED
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.pair_requests import (
    Pair,
    came_at_other_times,
    one_looks_up,
    one_was_counted,
    other_target,
    same_run,
)
from draftbench.gate.result import Check, GateResult
from draftbench.models.engine_rules import STARTED, repeat_flag
from draftbench.planner.passes import MIN_PROCESSES

TEXTS_NOT_JUDGED = (
    "whether speculation changes what is written was not judged: that needs answers of one server "
    "with it and one without (--baseline-server), one request at a time at temperature 0"
)
# Traffic of which a smaller share moved between requests is the same mix.
SHIFTED = 0.05
SAME_RUN = "this is the baseline's own run; gate a new sweep"
SPEED_NOT_JUDGED = "only acceptance was judged, not speed: that takes `--max-drop speedup:5%`"


def notes_on(
    result: GateResult,
    old: Baseline,
    new: Baseline,
    pairs: Sequence[Pair],
    prompts: str | None,
    target: str | None,
) -> Iterator[str]:
    """The notes of a verdict, the most urgent first; `prompts` and `target` are those of
    `prompts_changed` and `target_changed`.
    """
    if same_run(old, new):
        yield SAME_RUN
        return
    for message in dict.fromkeys((*result.faults, *(fault.message for fault in new.faults))):
        yield f"suspected fault: {message}"
    yield from (f"doubt: {text}" for text in result.doubts)
    yield from filter(None, (prompts, target))
    passed, failed = result.verdict is Verdict.PASS, result.verdict is Verdict.FAIL

    # Where most acceptance was lost: in which segment, and at which draft position.
    if one_looks_up(old, new):
        yield (
            "only speed was judged: prompt lookup drafts without a model, so that its acceptance "
            "and a model's do not say which of the two is better"
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

    # Whether the target still writes what it wrote; of servers that were not asked without
    # speculation, what they write with it. The draft is blamed only if more than its times is in
    # question, and neither engine nor target changed.
    texts = [(was.output, now.output) for was, now in pairs if was.output and now.output]
    texts = texts or [(o.drafted, n.drafted) for o, n in pairs if o.drafted and n.drafted]
    if different := sum(was != now for was, now in texts):
        yield (
            f"the target's responses to {different} of {len(texts)} requests changed: look at its "
            "weights, prompts and kernels, not only at the draft"
        )
    elif texts and not passed:
        facts = [change.fact for change in result.changes]
        others = [fact for fact in facts if fact.startswith(("engine", "target", "served"))]
        doubted = [check.metric for check in result.checks if check.verdict is not Verdict.PASS]
        blamed = f", though {' and '.join(others)} changed" if others else ""
        if not others and set(doubted) - set(TIMED):
            blamed = ", so the draft is what changed"
        yield f"the target's responses are the same as before{blamed}"

    # What would settle what is inconclusive.
    if result.answers and result.answers.verdict is Verdict.INCONCLUSIVE:
        settled = "a run in which all are answered passes"
        if result.answers.requests_needed is not None:
            needed = result.answers.requests_needed
            settled += f", and about {needed} requests would fail at this share"
        yield (
            f"unanswered requests are inconclusive: {settled}; the server's log says what is wrong"
        )
    payoff = result.payoff
    if payoff and payoff.verdict is Verdict.INCONCLUSIVE and not result.doubts and payoff.new:
        yield "whether another draft still pays is open: more requests or processes would tell"
    elif payoff and (payoff.elsewhere or not (payoff.old and payoff.new)):
        yield (
            "another draft takes another time: sweep both on one machine, timed "
            "(--measure best), to see whether it pays as the baseline's did"
        )
    for check in result.pooled:
        if check.verdict is Verdict.INCONCLUSIVE:
            yield _inconclusive(check, new.tested.get("engine"))
    improved = ", ".join(check.metric for check in result.pooled if check.improved)
    if improved and passed and payoff and not payoff.faster:
        yield f"improved: {improved}, but not the speed-up: the baseline's draft may be the better"
    elif improved and passed:
        yield f"improved: {improved}; save a new baseline to keep the gain"
    elif improved and not failed and (prompts or target):
        asked = "on different prompts, which" if prompts else "with another target, whose responses"
        yield (
            f"improved: {improved}, but {asked} may be easier or broken: read some responses, and "
            "save a new baseline if the change is intended"
        )

    # What the comparison leaves out, or can hardly say.
    equal = equal_requests(np.array([was.weight * now.tokens for was, now in pairs]))
    if equal < FEW_REQUESTS:
        few = "only one request" if result.requests == 1 else f"only {result.requests} requests"
        if result.requests >= FEW_REQUESTS:
            few += f", of lengths so unequal that they say as much as {equal:.0f}"
        yield f"{few}: with fewer than {FEW_REQUESTS}, intervals are rough"
    if missing := len(old.asked - new.asked):
        yield f"left out, since this run lacks them: {missing} of the baseline's requests"
    before, after = (
        np.array(side) for side in zip(*((a.weight, b.weight) for a, b in pairs), strict=True)
    )
    shifted = float(abs(before / before.sum() - after / after.sum()).sum() / 2)
    if shifted > SHIFTED:
        yield (
            f"{shifted:.0%} of the traffic's weight moved between requests: judged by the "
            "baseline's weights; save a new baseline if the mix changed on purpose"
        )
    definitions = {old.alpha_definition, new.alpha_definition}
    if (None in definitions or len(definitions) > 1) and not one_looks_up(old, new):
        why = "prompt lookup and heads have none"
        if one_was_counted(old, new):
            why = "one of the two was replayed, the other is what a server counted"
        elif new.question.concurrency is not None:
            whose = "the server" if new.alpha_definition is None else "the baseline's server"
            why = f"{whose} did not say at which positions it accepted"
        yield f"no alpha: {why}"
    if came_at_other_times(old, new):
        yield (
            "requests came at other times than in the baseline (another --seed, other timestamps "
            "in the log, or not the same requests): acceptance differs by it only where the engine "
            "drafts by load"
        )
    if result.timed and min(len(old.processes), len(new.processes)) < MIN_PROCESSES:
        yield (
            "times of fewer than three processes: restarts can differ by more than these intervals"
        )
    if result.texts is None and "engine" in new.tested:
        yield TEXTS_NOT_JUDGED
    if passed and not result.timed:
        yield f"{SPEED_NOT_JUDGED}; {_swept_repeatedly(new.tested.get('engine'))}"


def prompts_changed(pairs: Sequence[Pair]) -> str | None:
    """A note if prompts of the same requests changed in length; None if not or if unknown."""
    longer = [
        new.prompt_tokens - old.prompt_tokens
        for old, new in pairs
        if old.prompt_tokens is not None and new.prompt_tokens is not None
    ]
    changed = [tokens for tokens in longer if tokens]
    if not changed:
        return None
    by = " to ".join(dict.fromkeys((f"{min(changed):+}", f"{max(changed):+}")))
    return (
        f"{len(changed)} of {len(pairs)} requests have prompts of another length than before "
        f"({by} tokens): the chat template or the tokenizer changed"
    )


def target_changed(old: Baseline, new: Baseline) -> str | None:
    """A note if the target is another one; None if it is the same or unknown."""
    fact = other_target(old, new)
    if fact is None:
        return None
    parts = []
    for part in ("tokenizer", "chat template"):
        both = {side.tested.get(f"target {part}") for side in (old, new)}
        parts += [part] if len(both - {None}) == 2 else []
    what = "the target is another model"
    if fact == "target fingerprint" and parts:
        what = f"the target's {' and '.join(parts)} changed, and perhaps its weights"
    return f"{what}: {fact} was `{old.tested[fact]}`, is `{new.tested[fact]}`"


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
