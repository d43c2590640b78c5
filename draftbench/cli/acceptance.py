"""`draftbench acceptance`: every figure of acceptance that a run's replays give.

No model runs here; `--show-text` loads the target's tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from draftbench.cli.flags import (
    RunArgument,
    candidate_named,
    draft_lengths,
    flag,
    read,
    require_measured,
)
from draftbench.cli.output import Output, note
from draftbench.cli.output import width as columns
from draftbench.errors import ModelError, RunFolderError, UsageError

if TYPE_CHECKING:
    from draftbench.acceptance.breakdown import Disagreement
    from draftbench.records import Candidate
    from draftbench.run_folder.run import Run


def acceptance(
    *,
    run: RunArgument,
    candidate: list[str] | None = flag(
        None,
        "Show this candidate, DRAFT[:QUANT]. Repeat the flag to compare the first with the others "
        "(default: all).",
        "NAME",
    ),
    k: tuple[int, ...] | None = flag(
        None, "The draft lengths, e.g. 1-16 (default: those swept).", "K,…", parse=draft_lengths
    ),
    width: float = flag(
        0.02, "Say how many requests would give each figure to within ± this share.", "SHARE"
    ),
    show_text: bool = flag(False, "Show the tokens that drafts got wrong. This is private text."),
    everything: bool = flag(
        False, "Show every definition, position, stopping rule and draft tree.", names=("--all",)
    ),
    output: Output,
) -> int:
    """Show how often drafts are accepted, on one screen; --all shows every definition and position.

    draftbench acceptance results/runs/RUN
    draftbench acceptance results/runs/RUN --all --k 1-16
    draftbench acceptance results/runs/RUN --candidate small:int4 --candidate tiny
    """
    from draftbench.acceptance.summary import acceptance_report
    from draftbench.report.terminal.acceptance import render

    if not 0 < width < 1:
        raise UsageError(
            f"--width {width:g}: expected a share between 0 and 1", hint="for example 0.02 for ±2%"
        )
    observed = read(run)
    ks = k or observed.manifest.question.ks
    names = map(str, require_measured(observed).candidates)
    chosen = [candidate_named(observed, name) for name in dict.fromkeys(candidate or names)]
    whole = everything or output.style in ("json", "csv")
    report = acceptance_report(observed, chosen, ks, width, everything=whole)
    texts: dict[int, str] = {}
    if show_text:
        costliest = _disagreements(run, observed, chosen, max(ks))
        report = msgspec.structs.replace(report, disagreements=costliest)
        tokens = {t for each in costliest.values() for d in each for t in (d.drafted, d.target)}
        texts = _texts(observed.manifest.question.target, tokens)
    output.write(render(report, output.style, columns(), texts, everything=everything))
    return 0


def _disagreements(
    run: Path, observed: Run, candidates: Sequence[Candidate], k: int
) -> dict[str, tuple[Disagreement, ...]]:
    """What each candidate lost most by; one whose drafted tokens were not kept is left out."""
    from draftbench.acceptance.breakdown import costliest_disagreements
    from draftbench.acceptance.candidate_rounds import candidate_rounds
    from draftbench.run_folder.folder import PrivateDraft, PrivateText, RunFolder

    folder = RunFolder(run)
    responses = {text.key: text.tokens for text in folder.records(PrivateText)}
    drafted: dict[Candidate, dict[tuple[str, int], tuple[int, ...]]] = {}
    for draft in folder.records(PrivateDraft):
        by_response = drafted.setdefault(draft.candidate, {})
        by_response[draft.key] = draft.tokens
    if not responses or not drafted:
        raise RunFolderError(
            "this run holds no drafted tokens to show",
            hint="its private part was deleted, or an older draftbench made it; sweep again",
        )
    return {
        str(candidate): costliest_disagreements(
            candidate_rounds(observed, candidate).replays,
            k,
            drafted[candidate],
            responses,
        )
        for candidate in candidates
        if candidate in drafted
    }


def _texts(target: str, tokens: Iterable[int]) -> dict[int, str]:
    """The text of each token id; empty, with a note, if the tokenizer cannot be loaded."""
    from draftbench.models.source import ModelSource

    try:
        tokenizer = ModelSource(target).tokenizer
    except ModelError as error:
        note(f"note: tokens are shown as ids: {error.message}")
        return {}
    return {token: tokenizer.decode([token]) for token in tokens}
