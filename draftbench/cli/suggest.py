"""`draftbench suggest`: a target → the drafts that people pair with it; can they work?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from draftbench.cli.flags import TARGET
from draftbench.cli.output import TextOutput, note, width
from draftbench.errors import ModelError
from draftbench.hub import names_model

if TYPE_CHECKING:
    from draftbench.models.source import ModelSource
    from draftbench.planner.known_pairs import KnownPairing, Proposal, Suggestion

_MODELS = "give a folder with config.json, a .gguf file, or a hub id like org/name"


def suggest(
    *,
    target: str = TARGET,
    output: TextOutput,
) -> int:
    """List drafts that are known to be used with a target. Reads configurations and tokenizers, no
    weights.

    draftbench suggest --target meta-llama/Llama-3.3-70B-Instruct
    draftbench suggest --target ./Qwen2.5-72B-Instruct --format json
    """
    from draftbench.planner.known_pairs import Suggestion, pairings_of
    from draftbench.report.terminal.suggest import render

    _require_model(target)
    rows = pairings_of(target)
    answer = _checked(target, rows) if rows else Suggestion(target, None, ())
    output.write(render(answer, output.style, width()))
    return 0


def _require_model(target: str) -> None:
    """What is no name on the hub must be a model here; seen without the libraries that load one.

    Raises:
        ModelError: it is none.
    """
    path = Path(target).expanduser()
    folder, file = (path / "config.json").is_file(), path.suffix == ".gguf" and path.is_file()
    if not (folder or file or names_model(target)):
        raise ModelError(f"no model found in `{target}`", hint=_MODELS)


def _checked(target: str, rows: tuple[KnownPairing, ...]) -> Suggestion:
    """Hold every row against the models' own files, as far as these can be had."""
    from draftbench.hub import hub_answers
    from draftbench.models.source import ModelSource
    from draftbench.planner.known_pairs import Proposal, Suggestion

    source = ModelSource(target)
    drafts = {row.draft: ModelSource(row.draft) for row in rows if row.draft is not None}
    remote = [model.spec for model in (source, *drafts.values()) if not model.local]
    if drafts and remote:
        where = (
            "from the hub" if hub_answers() else "from the cache, because the hub cannot be reached"
        )
        read = f"reading configurations and tokenizers {where}: {', '.join(remote)}"
        note(f"note: {read}")
    reason = _unreadable(source) if drafts else None
    if reason is not None:
        proposals = [Proposal(pairing=row, unchecked=reason if row.draft else None) for row in rows]
        return Suggestion(source.name, None, tuple(proposals))
    held = [_proposal(row, source, drafts[row.draft] if row.draft else None) for row in rows]
    parameters = next((size for _, size in held if size is not None), None)
    return Suggestion(source.name, parameters, tuple(proposal for proposal, _ in held))


def _unreadable(model: ModelSource) -> str | None:
    """Why its configuration or its tokenizer cannot be had."""
    try:
        _ = model.config, model.tokenizer
    except ModelError as error:
        return _reason(model, error)
    return None


def _reason(model: ModelSource, error: ModelError) -> str:
    """In the same words for all that is merely not here."""
    from draftbench.hub import hub_answers

    here = model.local or hub_answers()
    return error.message if here else "not in the cache, and the hub cannot be reached"


def _proposal(
    row: KnownPairing, target: ModelSource, draft: ModelSource | None
) -> tuple[Proposal, int | None]:
    """The row with what the files say, and the target's parameters; unchecked where they fail."""
    from draftbench.models.check import check_models
    from draftbench.planner.known_pairs import Proposal

    if draft is None:
        return Proposal(pairing=row), None
    try:
        # Memory is `check`'s and `estimate`'s question.
        found = check_models(target, [draft], sys.maxsize)
    except ModelError as error:
        return Proposal(pairing=row, unchecked=_reason(draft, error)), None
    (pair,) = found.pairs
    proposal = Proposal(
        pairing=row,
        parameters=pair.draft.parameters,
        share=pair.draft.parameters / found.target.parameters,
        same_tokens=pair.facts.vocabulary.all_tokens.same_id,
        obstacles=pair.obstacles,
        caveats=pair.caveats,
    )
    return proposal, found.target.parameters
