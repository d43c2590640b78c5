"""A verdict → what to know about it in plain sentences: its caveats, and where to look next."""

from __future__ import annotations

from collections.abc import Sequence

from draftbench.acceptance.intervals import FEW_REQUESTS
from draftbench.gate.baseline import Baseline
from draftbench.gate.noninferiority import Verdict
from draftbench.gate.pairing import Paired
from draftbench.gate.result import Check, GateResult
from draftbench.gate.suspicion import prompts_changed, responses_changed

SPEED_NOT_JUDGED = "speed was not judged, only acceptance: `--max-drop speedup:5%` adds it"


def notes(result: GateResult, old: Baseline, new: Baseline, paired: Paired) -> tuple[str, ...]:
    """Everything that a reader of this verdict should know, the most urgent first."""
    faults = dict.fromkeys((*result.faults, *new.faults))
    said = [f"suspected fault: {fault}" for fault in faults]
    said += filter(None, [prompts_changed(paired.pairs)])
    if result.verdict is Verdict.FAIL:
        said += _where_to_look(result, old, new)
    if result.verdict is not Verdict.PASS:
        said += filter(None, [responses_changed(paired.pairs)])
    said += [_inconclusive(check) for check in result.pooled if check.verdict == "inconclusive"]
    better = ", ".join(check.metric for check in result.pooled if check.improved)
    if better and result.verdict is Verdict.PASS:
        said.append(f"improved: {better}; save a new baseline to keep the gain")
    elif better and result.verdict is Verdict.INCONCLUSIVE and prompts_changed(paired.pairs):
        said.append(
            f"improved: {better}, but on other prompts, which may be easier or broken: read some "
            "responses, and save a new baseline if the change is wanted"
        )
    return (*said, *_caveats(result, old, new, paired.missing))


def _inconclusive(check: Check) -> str:
    unit = "repeats" if check.metric == "draft_cost_ratio" else "requests"
    known = f"{check.metric} is inconclusive over {check.sample} {unit}"
    if check.smallest_detectable_drop is not None:
        known += f", which detect a drop from {check.amount(check.smallest_detectable_drop)} on"
    if check.requests_needed is None:
        return (
            f"{known}; no sample of a reasonable size would settle it: "
            "the drop lies at the limit, or its spread is unknown"
        )
    return f"{known}; about {check.requests_needed} would settle it"


def _where_to_look(result: GateResult, old: Baseline, new: Baseline) -> list[str]:
    said = _largest_drops(result, old, new)
    if result.changes:
        names = ", ".join(change.what for change in result.changes)
        said.append(f"changed since the baseline: {names}")
    return said


def _largest_drops(result: GateResult, old: Baseline, new: Baseline) -> list[str]:
    """Where acceptance was lost, if it was that which failed."""
    if not any(check.verdict is Verdict.FAIL for check in result.checks):
        return []
    said = []
    known = [c for c in result.segments if c.difference and c.metric == "mean_accepted_length"]
    if known:
        worst = min(known, key=lambda check: check.difference.value if check.difference else 0.0)
        said.append(
            f"largest drop by segment: {worst.segment} "
            f"({worst.metric} {worst.old.value:.2f} → {worst.new.value:.2f})"
        )
    lost = _hazard_losses(old.survival, new.survival)
    if lost and max(lost) > 0:
        at = lost.index(max(lost))
        said.append(
            f"largest drop by draft position: position {at + 1} of {result.k}; all tokens up to it "
            f"were accepted in {old.survival[at]:.1%} of the rounds, now in {new.survival[at]:.1%}"
        )
    return said


def _hazard_losses(old: Sequence[float], new: Sequence[float]) -> list[float]:
    """Relative loss of the hazard per draft position, so that an early loss does not echo later."""
    hazards = []
    for survival in (old, new):
        before = (1.0, *survival)
        hazards.append([s / b if b > 0 else 0.0 for s, b in zip(survival, before, strict=False)])
    return [1 - now / was if was > 0 else 0.0 for was, now in zip(*hazards, strict=False)]


def _caveats(result: GateResult, old: Baseline, new: Baseline, missing: int) -> list[str]:
    said = []
    if result.requests < FEW_REQUESTS:
        said.append(
            f"{result.requests} requests: intervals of under {FEW_REQUESTS} tend to be too narrow"
        )
    if missing:
        said.append(f"{missing} requests of the baseline are not in this run and were left out")
    if not (old.alpha_definition and new.alpha_definition):
        said.append("no alpha: prompt lookup has no acceptance rate per position")
    if result.timed:
        said.append(
            "intervals of times hold within the processes that measured them: "
            "another start of the same program may differ by more"
        )
    elif result.verdict is Verdict.PASS:
        said.append(SPEED_NOT_JUDGED)
    return said
