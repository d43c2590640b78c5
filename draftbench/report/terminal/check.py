"""A preflight → sections for a terminal, Markdown for a page, JSON for programs.

Computes nothing; JSON is the preflight's own fields.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from draftbench.memory import format_size
from draftbench.models.facts import (
    EngineAnswer,
    LevelRow,
    ModelSheet,
    Overlap,
    PairSheet,
    Preflight,
    TokenizerFacts,
)
from draftbench.report.terminal.text import Section, plain

DIFF_LINES = 12
# Templates may be one line of ten thousand characters.
DIFF_COLUMNS = 300
LEGEND = (
    "Bytes are what an engine stores: linear layers at the level with their scales (4-bit groups "
    "of 32), all else as in the checkpoint. Activations are not counted."
)


def render(answer: Preflight, style: str, width: int) -> str:
    """The preflight as table, json or markdown; `width` in columns matters to the table only."""
    if style == "json":
        return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()
    blocks = []
    for section, code in _sections(answer):
        # An indented block: no line of a template can end it.
        lines = [plain(f"    {line}") for line in code]
        if style == "markdown":
            blocks.append("\n\n".join([section.markdown(), *(["\n".join(lines)] if lines else [])]))
        else:
            blocks.append("\n".join([section.text(width), *lines]))
    return "\n\n".join(blocks)


def _sections(answer: Preflight) -> list[tuple[Section, Sequence[str]]]:
    """Each with lines below it that stay as they are: a diff, or options to copy."""
    found: list[tuple[Section, Sequence[str]]] = []
    for pair in answer.pairs:
        words = "cannot work" if pair.obstacles else "can work"
        title = f"{pair.draft.name} as the draft of {answer.target.name}: {words}"
        found.append((Section(title, notes=[*pair.obstacles, *pair.caveats]), ()))
        found += [(_beside(answer, pair), _excerpt(pair.facts.template_difference))]
        options = [f"{engine.engine}: {engine.option}" for engine in pair.engines if engine.option]
        found.append((_engines(pair.engines), options))
        if pair.rooms:
            found.append((_rooms(answer, pair), ()))
    found.append((_sizes(answer), ()))
    if answer.levels:
        found.append((_levels(answer.levels), ()))
    return found


def _excerpt(diff: Sequence[str]) -> list[str]:
    left = len(diff) - DIFF_LINES
    shown = [line if len(line) <= DIFF_COLUMNS else f"{line[:DIFF_COLUMNS]}…" for line in diff]
    return [*shown[:DIFF_LINES], *([f"… {left} more lines"] if left > 0 else [])]


def _beside(answer: Preflight, pair: PairSheet) -> Section:
    facts, words = pair.facts, pair.facts.vocabulary
    ours, theirs = facts.target_tokenizer, facts.draft_tokenizer
    rows = [
        ["family", answer.target.family, pair.draft.family],
        ["layers × width", _shape(answer.target), _shape(pair.draft)],
        ["context, tokens", _context(facts.target_context), _context(facts.draft_context)],
        ["vocabulary, rows", str(words.target_rows), str(words.draft_rows)],
        ["vocabulary, tokens", str(words.target_tokens), str(words.draft_tokens)],
        ["tokenizer", ours.kind, theirs.kind],
        *(
            [role.replace("_", " "), _special(ours, role), _special(theirs, role)]
            for role in dict.fromkeys((*ours.special, *theirs.special))
        ),
        ["puts bos in front", _yes(ours.adds_bos), _yes(theirs.adds_bos)],
        ["chat template", _yes(ours.has_template), _yes(theirs.has_template)],
    ]
    notes = [f"Of the target's tokens the draft has {_overlap(words.all_tokens)}."]
    if words.traffic is not None:
        count = f"Of the traffic's {answer.traffic_tokens} tokens"
        notes.append(f"{count} it has {_overlap(words.traffic)}.")
    if facts.template_difference:
        notes.append("The chat templates differ:")
    return Section("Beside each other", ["", "target", "draft"], rows, notes)


def _engines(answers: Sequence[EngineAnswer]) -> Section:
    notes = [f"{answer.engine} {_standing(answer)}: {answer.reason}" for answer in answers]
    return Section("Engines, by their own rules", notes=notes)


def _standing(answer: EngineAnswer) -> str:
    return "accepts with an option" if answer.standing == "with an option" else answer.standing


def _rooms(answer: Preflight, pair: PairSheet) -> Section:
    rows = [
        [room.level, format_size(room.weight_bytes), "does not fit" if room.tokens is None
         else str(room.tokens)]
        for room in pair.rooms
    ]  # fmt: skip
    title = f"Memory: {format_size(answer.memory_bytes)} for both, the target as in its checkpoint"
    return Section(title, ["draft at", "weights of both", "tokens of cache that fit"], rows)


def _sizes(answer: Preflight) -> Section:
    sheets = [answer.target, *(p.draft for p in answer.pairs if p.draft != answer.target)]
    levels = list(answer.target.weight_bytes)
    rows = [
        [
            sheet.name,
            f"{sheet.parameters / 1e6:.4g} M",
            sheet.dtype,
            *(format_size(sheet.weight_bytes[level]) for level in levels),
            format_size(sheet.kv_bytes_per_token),
        ]
        for sheet in sheets
    ]
    head = ["model", "size", "dtype", *levels, "KV/token"]
    return Section("Sizes", head, rows, [LEGEND])


def _levels(levels: Sequence[LevelRow]) -> Section:
    """What `--quant` does on this device."""
    rows = [
        [
            row.level,
            row.kernel or "none: acceptance can be simulated, its cost not",
            "as loaded" if row.bytes_per_weight is None else f"{row.bytes_per_weight:.3g}",
        ]
        for row in levels
    ]
    notes = [f"{row.level}: {row.meaning}; {row.layers}." for row in levels]
    return Section("Quantization here", ["level", "kernel", "bytes/weight"], rows, notes)


def _overlap(overlap: Overlap) -> str:
    return f"{_share(overlap.same_id)} under the same id, {_share(overlap.same_text)} as text"


def _share(share: float) -> str:
    """Never rounded up to all."""
    return "all" if share == 1 else f"{min(share, 0.9999):.2%}"


def _shape(sheet: ModelSheet) -> str:
    return f"{sheet.layers} × {sheet.width}"


def _context(tokens: int | None) -> str:
    return "no limit" if tokens is None else str(tokens)


def _special(side: TokenizerFacts, role: str) -> str:
    return f"{side.special[role]} ({side.ids.get(role)})" if role in side.special else "–"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
