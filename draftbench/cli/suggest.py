"""`draftbench suggest`: a target → drafts that people use with it, and whether they can work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from draftbench.cli.output import TextOutput, note, width
from draftbench.errors import ModelError
from draftbench.flags import target_flag
from draftbench.hub import names_model

if TYPE_CHECKING:
    from draftbench.models.check_result import OwnDraft
    from draftbench.models.source import ModelSource
    from draftbench.planner.known_pairs import KnownPairing, Suggestion


def suggest(
    *,
    target: str = target_flag(),
    output: TextOutput,
) -> int:
    """List drafts that are known to be used with a target. Reads configurations and tokenizers, no
    weights.

    draftbench suggest --target meta-llama/Llama-3.3-70B-Instruct
    draftbench suggest --target ./Qwen2.5-72B-Instruct --format json
    """
    from draftbench.planner.known_pairs import pairings_of
    from draftbench.report.terminal.suggest import render

    # Refuse what is neither a model here nor a name on the hub, before any library is imported.
    path = Path(target).expanduser()
    folder, file = (path / "config.json").is_file(), path.suffix == ".gguf" and path.is_file()
    if not (folder or file or names_model(target)):
        raise ModelError(
            f"no model found in `{target}`",
            hint="give a folder with config.json, a .gguf file, or a hub id like org/name",
        )
    answer = _checked(target, pairings_of(target))
    output.write(render(answer, output.style, width()))
    return 0


def _checked(target: str, rows: tuple[KnownPairing, ...]) -> Suggestion:
    """The known pairs, each checked against the configurations and tokenizers that can be read."""
    from draftbench.hub import hub_answers
    from draftbench.models.source import ModelSource
    from draftbench.planner.known_pairs import SuggestedDraft, Suggestion
    from draftbench.report.terminal.text import SCREEN_COLUMNS, paragraph

    source = ModelSource(target)
    drafts = {row.draft: ModelSource(row.draft) for row in rows if row.draft is not None}
    remote = [model.spec for model in (source, *drafts.values()) if not model.local]
    if drafts and remote:
        where = "hub" if hub_answers() else "cache, because the hub cannot be reached"
        reading = f"note: reading configurations and tokenizers from the {where}: "
        note(paragraph(reading + ", ".join(remote), min(width(), SCREEN_COLUMNS)))
    # Nothing is fetched for a target without known drafts.
    reason = _unreadable(source) if drafts or source.local else None
    own = _own_draft(source, read=bool(drafts) or source.local)
    if drafts:
        from draftbench.models.check import check_models
    parameters: int | None = None
    proposals = []
    for row in rows:
        draft = drafts.get(row.draft) if row.draft else None
        if draft is None:
            proposals.append(SuggestedDraft(pairing=row))
            continue
        why = reason or _unreadable(draft)
        try:
            # Memory is `check`'s question.
            found = None if why else check_models(source, [draft], sys.maxsize)
        except ModelError as error:
            found, why = None, error.message
        if found is None:
            proposals.append(SuggestedDraft(pairing=row, unchecked=why))
            continue
        (pair,) = found.pairs
        parameters = found.target.parameters
        proposals.append(
            SuggestedDraft(
                pairing=row,
                parameters=pair.draft.parameters,
                share=pair.draft.parameters / parameters,
                same_tokens=pair.facts.vocabulary.all_tokens.same_id,
                obstacles=pair.obstacles,
                caveats=pair.caveats,
            )
        )
    name = source.name if rows else source.spec
    return Suggestion(name, parameters, tuple(proposals), own)


def _own_draft(source: ModelSource, *, read: bool) -> OwnDraft | None:
    """The draft that the target carries, by its configuration or, if that is not read, its name."""
    from draftbench.models.own_draft import own_draft_by_name, own_draft_of

    try:
        return own_draft_of(source.raw_config) if read else own_draft_by_name(source.spec)
    except ModelError:
        return own_draft_by_name(source.spec)


def _unreadable(model: ModelSource) -> str | None:
    """Why a model's configuration or tokenizer cannot be read, None if they can; the same sentence
    for every model that is not in the cache.
    """
    from draftbench.hub import hub_answers

    try:
        _ = model.config, model.tokenizer
    except ModelError as error:
        here = model.local or hub_answers()
        return error.message if here else "not in the cache, and the hub cannot be reached"
    return None
