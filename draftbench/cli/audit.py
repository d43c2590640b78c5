"""`draftbench audit`: whether recorded rounds are those that replay says, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from draftbench.cli.flags import RunArgument, candidate_named, read, require_measured
from draftbench.cli.output import TextOutput
from draftbench.cli.progress import TerminalWatcher
from draftbench.errors import UsageError
from draftbench.flags import flag, in_measure, in_models
from draftbench.hub import refuse_missing
from draftbench.records import Record
from draftbench.report.text import Section, counted

if TYPE_CHECKING:
    from draftbench.audit.audit import Audit, CandidateAudit, Tried

_UNITS = {"rounds": "rounds", "sums": "answers", "nothing": "rounds"}
# What each way of counting can tell apart.
_TELLS = {
    "rounds": "Every round is counted by itself: a few dozen that differ tell most faults apart.",
    "sums": "Only the sums of an answer's rounds are known: faults that change few rounds look "
    "alike, and five answers must differ before one is named.",
    "nothing": "",
}
# What rounds cannot show, so that no hypothesis is about it.
UNTOLD = (
    "Rounds do not tell the temperature and filters that an engine used: a draft that proposes its "
    "best token proposes the same at any, and what a draft draws is chance, and not compared.",
    "Nor do they show positions that are all off by the same number: a draft drafts the same then.",
)


class AboutHypothesis(Record, frozen=True):
    """What may be wrong with a decoder's drafting."""

    says: str  # what is then so
    drafts: tuple[str, ...]  # the kinds of draft that it can be true of
    seen: str  # where it occurred
    advice: str  # what to do


def audit(
    *,
    run: RunArgument = None,
    candidate: str | None = flag(
        None, "The candidate, DRAFT[:QUANT] (default: every one that was decoded).", "NAME"
    ),
    draft_weights: str | None = in_models(
        None, "Also try whether the decoder drafted with this checkpoint.", "MODEL"
    ),
    dtype: str | None = in_models(
        None,
        "The number type in which an engine computes (default: what it says, or bfloat16).",
        "TYPE",
        among=("bfloat16", "float16", "float32"),
    ),
    sample: int | None = in_measure(
        None, "The most requests on which hypotheses are tried (default: all).", "N", min=1
    ),
    hypotheses: bool = flag(
        False, "List the hypotheses, and where each occurred.", names=("--list",)
    ),
    output: TextOutput,
) -> int:
    """Say whether the rounds that a decoder counted are those that replay says and, if not, which
    hypothesis explains them. Exits 0: sound, 1: not as replayed, 3: too little to say.

    draftbench audit results/runs/vllm
    draftbench audit results/runs/llama --draft-weights ./older-head
    draftbench audit --list
    """
    if hypotheses:
        from draftbench.audit.hypotheses import HYPOTHESES

        known = {
            kind: AboutHypothesis(says=row.says, drafts=row.of, seen=row.seen, advice=row.advice)
            for kind, row in HYPOTHESES.items()
        }
        rows = [
            [kind, f"{about.says} (seen: {about.seen}). To do: {about.advice}."]
            for kind, about in known.items()
        ]
        notes = [
            "All that a replay says of a fault is which rounds it changes: of two that change "
            "the same ones, both are named.",
            *UNTOLD,
        ]
        output.show(known, [Section("Hypotheses", ["hypothesis", "what is then so"], rows, notes)])
        return 0
    observed = require_measured(read(run))
    if not (observed.served or observed.decodes):
        raise UsageError(
            "the run has replays alone: no rounds were decoded that could be audited",
            hint="sweep without `--measure replay` or `--measure none`",
        )
    if draft_weights is not None:
        refuse_missing(draft_weights)
    if dtype is not None and observed.manifest.question.engine is None:
        raise UsageError(
            "--dtype makes no sense for a run of the built-in decoder",
            hint="leave it out: its rounds and its replays are of the type that it was run in",
        )
    named = candidate_named(observed, candidate) if candidate else None
    decoded = {row.candidate for row in observed.decodes}
    decoded |= {row.candidate for row in observed.served}
    chosen = [each for each in observed.candidates if each in decoded and named in (None, each)]
    replayed = {replay.candidate for replay in observed.replays}
    if not replayed.intersection(chosen):
        lacking = "decoded" if not chosen else "replayed"
        raise UsageError(
            f"`{named or ', '.join(map(str, chosen or observed.candidates))}` was not {lacking}",
            hint="only what was both replayed and decoded can be audited",
        )
    from draftbench.models.source import quiet_libraries

    quiet_libraries()
    from draftbench.audit.audit import audit as audit_run

    with TerminalWatcher() as watcher:
        found = audit_run(
            observed, chosen, weights=draft_weights, requests=sample, dtype=dtype, watcher=watcher
        )
    output.show(found, sections(found))
    return found.exit_code


def sections(found: Audit) -> list[Section]:
    """What was found of each candidate."""
    return [
        Section(_title(each, found.decoder), notes=[*_notes(each, found)])
        for each in found.candidates
    ]


def _title(found: CandidateAudit, decoder: str) -> str:
    what = f"{found.candidate} on {decoder}"
    why = "may be" if found.idle else "is"
    return {
        "sound": f"Sound: {what} drafts as replay says.",
        "explained": f"Explained: {what} does not draft as replay says, and this {why} why.",
        "not explained": f"Not explained: {what} does not draft as replay says.",
        "too few": f"Too few rounds to judge {what}.",
        "nothing counted": f"{what}: nothing was counted that can be compared.",
        "not replayed": f"Not judged: {what} was not replayed.",
    }[found.verdict]


def _notes(found: CandidateAudit, whole: Audit) -> Iterator[str]:
    tally, unit = found.tally, _UNITS[found.counted]
    if found.verdict == "not replayed":
        yield "Only what was both replayed and decoded can be audited."
        return
    if found.verdict == "nothing counted":
        yield (
            "The engine reports no rounds, or the texts were drawn anew. vLLM reports every round, "
            "llama.cpp their sums."
        )
        return
    ties = ""
    if tally.near_ties:
        ties = (
            f"; {tally.near_ties} more differ where the draft's two best tokens are within "
            f"{whole.near_tie:g}, which rounding explains"
        )
    yield (
        f"{tally.equal} of {tally.compared} {unit} of {counted(found.requests, 'request')} are as "
        f"replayed, {tally.differ} {'is' if tally.differ == 1 else 'are'} not{ties}."
    )
    for tried in found.named[:1]:
        yield f"{_words(tried)}: {_shares(tried, unit)}."
        yield f"What to do: {tried.advice}."
    if len(found.named) > 1:
        alike = "; ".join(f"{each.hypothesis}{_detail(each)}" for each in found.named[1:4])
        yield f"These rounds cannot tell it from: {alike}."
    if found.idle:
        yield (
            "Next to nothing was accepted, as of any draft that is broken enough: these rounds "
            "hardly tell why. See also whether the decoder loaded the draft at all, and all of it."
        )
    if found.verdict in ("not explained", "too few") and found.others:
        nearest = found.others[0]
        yield (
            f"None of the hypotheses ({len(found.others)} tried) explains them; the nearest is "
            f"{nearest.hypothesis}{_detail(nearest)}: {_shares(nearest, unit)}."
        )
    if found.verdict == "not explained":
        yield f"For example {found.examples[0]}." if found.examples else "All are near ties."
    if found.verdict != "sound" and _TELLS[found.counted]:
        yield _TELLS[found.counted]
    if found.not_tried:
        yield f"Not tried: {'; '.join(found.not_tried)}."


def _words(tried: Tried) -> str:
    return f"{tried.says[0].upper()}{tried.says[1:]} ({tried.hypothesis}{_detail(tried)})"


def _detail(tried: Tried) -> str:
    return f", {tried.detail}" if tried.detail else ""


def _shares(tried: Tried, unit: str) -> str:
    before, after = (_percent(each.share) for each in (tried.before, tried.tally))
    requests = counted(tried.requests, "request")
    return f"it explains {after} of the {unit} of {requests}, the run's own replay {before}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
