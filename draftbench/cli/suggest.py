"""`draftbench suggest`: a target → heads and drafts that people use with it, and whether these can
work.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from draftbench.cli.check import CAN_WORK, own_draft_section
from draftbench.cli.output import TextOutput, note, width
from draftbench.drafts.kind import Method
from draftbench.drafts.kinds import DRAFT_KINDS
from draftbench.drafts.mtp.own_draft import own_draft_of
from draftbench.engines.every import ENGINES
from draftbench.errors import ModelError
from draftbench.flags import target_flag
from draftbench.hub import hub_answers, names_model
from draftbench.models.known_pairs import (
    KnownHead,
    KnownPairing,
    SuggestedDraft,
    Suggestion,
    heads_of,
    known_heads,
    pairings_of,
)
from draftbench.report.text import (
    SCREEN_COLUMNS,
    Section,
    TableCell,
    known_columns,
    paragraph,
    parameters,
)

if TYPE_CHECKING:
    from draftbench.models.source import ModelSource


_IN_USE = "Known to be used, not known to be fast here: measure them with `draftbench sweep`."
_OWN_UNKNOWN = "Its config.json says whether it carries a draft of its own: give its folder."
_BY_ID = "Pairs are known by their hub ids: give the one that this folder came from."
_UNKNOWN = (
    "Try a model of its family and generation, 10 to 30 times smaller (`draftbench check` says "
    "whether it can work), and prompt lookup, `--drafts ngram`, which needs no model."
)


def suggest(
    *,
    target: str = target_flag(),
    output: TextOutput,
) -> int:
    """List heads and drafts that are known to be used with a target. Reads configurations and
    tokenizers, no weights. Exits 1 if nothing is known.

    draftbench suggest --target meta-llama/Llama-3.3-70B-Instruct
    draftbench suggest --target ./Qwen2.5-72B-Instruct --format json
    """
    # Refuse what is neither a model here nor a name on the hub, before any library is imported.
    path = Path(target).expanduser()
    folder, file = (path / "config.json").is_file(), path.suffix == ".gguf" and path.is_file()
    if not (folder or file or names_model(target)):
        raise ModelError(
            f"no model found in `{target}`",
            hint="give a folder with config.json, a .gguf file, or a hub id like org/name",
        )
    answer = _checked(target, pairings_of(target))
    output.show(answer, sections(answer))
    return 0 if answer.proposals or answer.heads or answer.own_draft else 1


def _checked(target: str, rows: tuple[KnownPairing, ...]) -> Suggestion:
    """The known pairs, each checked against the configurations and tokenizers that can be read."""
    from draftbench.models.source import ModelSource

    source = ModelSource(target)
    drafts = {row.draft: ModelSource(row.draft) for row in rows if row.draft is not None}
    remote = [model.spec for model in (source, *drafts.values()) if not model.local]
    if drafts and remote:
        reading = f"reading configurations and tokenizers from the hub: {', '.join(remote)}"
        unreached = "the hub cannot be reached: only models that are in the cache are checked"
        said = f"note: {reading if hub_answers() else unreached}"
        note(paragraph(said, min(width(), SCREEN_COLUMNS)))
    # Nothing is fetched for a target without known drafts.
    reason = _unreadable(source) if drafts or source.local else None
    own, read = own_draft_of(None, source.spec), False
    if drafts or source.local:
        with suppress(ModelError):
            own, read = own_draft_of(source.raw_config, source.spec), True
    if drafts:
        from draftbench.drafts.check import check_models
    size: int | None = None
    active: int | None = None
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
        size, active = found.target.parameters, found.target.active_parameters
        proposals.append(
            SuggestedDraft(
                pairing=row,
                parameters=pair.draft.parameters,
                share=pair.draft.active_parameters / active,
                same_tokens=pair.facts.vocabulary.all_tokens.same_id if pair.facts else None,
                obstacles=pair.obstacles,
                caveats=pair.caveats,
                works=pair.works,
            )
        )
    name = source.name if rows else source.spec
    unknown = own is None and not read
    heads = heads_of(target)
    return Suggestion(name, size, tuple(proposals), own, active, heads, unknown, source.local)


def _unreadable(model: ModelSource) -> str | None:
    """Why a model's configuration or tokenizer cannot be read; None if they can. Every model that
    is not in the cache gets the same sentence.
    """
    try:
        _ = model.config, model.tokenizer
    except ModelError as error:
        here = model.local or hub_answers()
        return error.message if here else "not in the cache, and the hub cannot be reached"
    return None


def _runs_in(head: KnownHead) -> str:
    """What runs a head: the built-in decoder, if it knows the kind, and engines."""
    if head.engine is not None:
        return f"{head.engine}, its own engine"
    known = any(head.method in engine.methods for engine in ENGINES.values())
    kind = DRAFT_KINDS.get(cast(Method, head.method))
    if kind is not None and kind.built_in:
        return f"draftbench*, or {'an engine' if known else 'spec:FILE.json'}"
    return "an engine" if known else f"an engine, as {head.method} (spec:FILE.json)"


def sections(answer: Suggestion) -> Iterator[Section]:
    """What the target carries itself, heads for it, and draft models."""
    yield from own_draft_section(answer.target, answer.own_draft)
    if answer.heads:
        checked, _ = known_heads()
        listed, sources = list[list[TableCell]](), dict[str, None]()
        built_in = [method for method, kind in DRAFT_KINDS.items() if kind.built_in]
        for head in sorted(answer.heads, key=lambda head: head.method not in built_in):
            name = f"{head.method}:" * (head.method in DRAFT_KINDS) + head.head
            listed.append([name, _runs_in(head), None if head.k is None else str(head.k)])
            source = head.source + (f", {head.date}" if head.date else "")
            sources[f"{head.head}: {head.note}; {source}" if head.note else source] = None
        known = (
            f"Published for a target of this name, as of {checked}. Those with METHOD: in front "
            "are written as --drafts takes them; `sweep` shows whether one pays. * If `check` "
            "agrees."
        )
        table = known_columns(("head", "runs in", "k there"), listed)
        yield Section(f"Heads for {answer.target}", *table, [*sources, known])
    own = [_OWN_UNKNOWN] if answer.own_draft_unknown else []
    if not answer.proposals:
        kind = "draft model" if answer.heads else "draft"
        notes = [*([_BY_ID] if answer.local else []), _UNKNOWN, *own]
        yield Section(f"No known {kind} for {answer.target}", notes=notes)
        return
    size = "" if answer.parameters is None else f", {parameters(answer.parameters)}"
    if answer.active_parameters != answer.parameters and answer.active_parameters:
        size += f", {parameters(answer.active_parameters)} active"
    rows, notes, unchecked = list[list[TableCell]](), list[str](), dict[str, list[str]]()
    for proposal in answer.proposals:
        pairing, name = proposal.pairing, proposal.pairing.draft or "no draft"
        date = "" if pairing.date is None else f", {pairing.date}"
        remark = "" if pairing.note is None else f"{pairing.note}; "
        notes.append(f"{name}: {remark}{pairing.source}{date}")
        notes += [f"{name}: {text}" for text in (*proposal.obstacles, *proposal.caveats)]
        if pairing.draft is None:
            continue
        if proposal.unchecked:
            unchecked.setdefault(proposal.unchecked, []).append(pairing.draft)
        billions = pairing.billions
        count = proposal.parameters or (None if billions is None else round(billions * 1e9))
        rows.append(
            [
                pairing.draft,
                "unknown" if count is None else parameters(count),
                None if proposal.share is None else f"{proposal.share:.1%}",
                None if proposal.same_tokens is None else f"{proposal.same_tokens:.2%}",
                CAN_WORK[proposal.works] if proposal.works else "not checked",
            ]
        )
    for reason, drafts in unchecked.items():
        which = f"{', '.join(drafts)} not checked" if len(drafts) < len(rows) else "Not checked"
        notes.append(f"{which}: {reason}")
    notes += [*([_IN_USE] if rows else []), *own]
    names = ("draft", "parameters", "of the target", "same tokens", "vocabulary")
    title = f"Drafts used with {answer.target}{size}"
    yield Section(title, *known_columns(names, rows), notes)
